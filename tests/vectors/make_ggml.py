# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/ggml: tiny models of every layout, and what ctransformers makes of them.

python tests/vectors/make_ggml.py        (needs ctransformers)

No program that writes these formats can be had any more, so the bytes are laid out by tests/ggml_files.py. That they
are right is shown by the programs that read them: each file that ctransformers knows was loaded by it, and generated.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent / "ggml"
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent.parent / "peers")]

from run_model import run  # noqa: E402

import ggml_files as made  # noqa: E402

PROMPT = [50, 51, 52, 60]

# file -> bytes, model type of ctransformers (None: it reads only the layouts of ggjt v3)
FILES: dict[str, tuple[bytes, str | None]] = {
    "ggml-llama-f16.bin": (made.llama("ggml", None), None),
    "ggmf-llama-q4_0.bin": (made.llama("ggmf", 1, "Q4_0"), None),
    "ggjt1-llama-q4_0.bin": (made.llama("ggjt", 1, "Q4_0"), None),
    "ggjt2-llama-q4_0.bin": (made.llama("ggjt", 2, "Q4_0"), None),
    "ggjt3-llama-q4_0.bin": (made.llama("ggjt", 3, "Q4_0"), "llama"),
    "gpt2-f16.bin": (made.gpt2(), "gpt2"),
    "gpt2-q4_0-v1.bin": (made.gpt2("Q4_0", 1), None),
    "starcoder-q8_0.bin": (made.starcoder("Q8_0"), "gpt_bigcode"),
    "gptneox-q8_0.bin": (made.gptneox("Q8_0"), "gpt_neox"),
    "dolly-q4_0.bin": (made.gptneox("Q4_0", parallel=0), "dolly-v2"),
    "gptj-q4_0.bin": (made.gptj("Q4_0"), "gptj"),
    "mpt-q8_0.bin": (made.mpt("Q8_0"), "mpt"),
    "replit-q4_0.bin": (made.replit("Q4_0"), "replit"),
    "bloom-f16.bin": (made.bloom(), None),
}


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    record, found = {}, {}
    for name, (data, kind) in FILES.items():
        (HERE / name).write_bytes(data)
        by = "bytes laid out by tests/ggml_files.py"
        if kind:
            _, logits, tokens = run(kind, HERE / name, PROMPT)
            found[name] = {"type": kind, "prompt": PROMPT, "logits": [round(x, 5) for x in logits], "tokens": tokens}
            by += f"; loaded, and continued, by ctransformers {version('ctransformers')}"
        record[name] = by
    (HERE / "generated.json").write_text(json.dumps(found) + "\n")
    record["generated.json"] = f"ctransformers {version('ctransformers')}"
    files = {
        name: {"by": by, "sha256": hashlib.sha256((HERE / name).read_bytes()).hexdigest()}
        for name, by in record.items()
    }
    text = {"made with": Path(__file__).name, "files": files}
    (HERE / "PROVENANCE.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
