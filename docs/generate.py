# SPDX-License-Identifier: Apache-2.0
"""Writes the parts of the documentation that the code knows better.

python docs/generate.py           write docs/cli.md, and the tables of formats and of types where their markers stand
python docs/generate.py --check   change nothing; exit 1 when something is out of date
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
from pathlib import Path

import numpy as np

from tael import kernels
from tael.cli import app
from tael.cli.formats import cells
from tael.core.dtypes import DTYPES
from tael.core.ops import NEED_WEIGHTS
from tael.formats import registry

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- formats: written by docs/generate.py -->", "<!-- /formats -->"
TYPES_BEGIN, TYPES_END = "<!-- types: written by docs/generate.py -->", "<!-- /types -->"
TABLES = ("README.md", "README.zh-CN.md", "docs/formats/README.md")
TITLES = {
    "README.zh-CN.md": ("格式", "名称", "文件", "读", "写", "除张量外还保留"),
    "": ("format", "id", "files", "read", "write", "keeps besides tensors"),
}
CLI_HEAD = """\
# The command line

Written by `docs/generate.py` from the program's own help. What `--json` prints is described in [json.md](json.md).
"""


def help_of(*line: str) -> str:
    """What `tael LINE --help` prints into a pipe."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        app.main([*line, "--help"])
    return printed.getvalue().rstrip()


def cli_page() -> str:
    parts = [CLI_HEAD, f"```text\n{help_of()}\n```\n"]
    parts += [f"## tael {verb}\n\n```text\n{help_of(verb)}\n```\n" for verb in app.VERBS]
    return "\n".join(parts)


def formats_table(page: str) -> str:
    """The registry as Markdown; each format links to its page."""
    root = os.path.relpath("docs/formats", Path(page).parent)
    titles = TITLES.get(page, TITLES[""])
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for fmt in registry.builtin():
        title, suffixes, *rest = cells(fmt)
        link = f"[{title}]({os.path.join(root, fmt.id + '.md').removeprefix('./')})"
        lines.append(f"| {' | '.join([link, f'`{fmt.id}`', suffixes, *rest])} |")
    return "\n".join(lines)


# What a block of each type holds, in words. The figures beside them are computed.
BLOCKS = {
    "Q8_0": "a scale, 8-bit numbers",
    "Q6_K": "a scale; 16 sub-blocks with an 8-bit scale each; 6-bit numbers",
    "Q5_1": "a scale and a minimum, 5-bit numbers",
    "Q5_0": "a scale, 5-bit numbers",
    "Q5_K": "a scale and a minimum; 8 sub-blocks with 6-bit scale and minimum; 5-bit numbers",
    "Q4_1": "a scale and a minimum, 4-bit numbers",
    "Q4_0": "a scale, 4-bit numbers",
    "Q4_K": "a scale and a minimum; 8 sub-blocks with 6-bit scale and minimum; 4-bit numbers",
    "IQ4_NL": "a scale, 4-bit indices into 16 uneven levels",
    "IQ4_XS": "a scale; 8 sub-blocks with a 6-bit scale; 4-bit indices into 16 uneven levels",
    "NVFP4": "4 sub-blocks with an 8-bit float as scale; 4-bit floats",
    "MXFP4": "a power of two as scale, 4-bit floats",
    "Q3_K": "a scale; 16 sub-blocks with a 6-bit scale; 3-bit numbers",
    "IQ3_S": "a scale; 4-bit scales; signs, and indices of 4 numbers into 512 points",
    "IQ3_XXS": "a scale; 4-bit scales; signs, and indices of 4 numbers into 256 points",
    "Q2_K": "a scale and a minimum; 16 sub-blocks with 4-bit scale and minimum; 2-bit numbers",
    "IQ2_S": "a scale; 4-bit scales; signs, and indices of 8 numbers into 1024 points",
    "IQ2_XS": "a scale; 4-bit scales; signs, and indices of 8 numbers into 512 points",
    "IQ2_XXS": "a scale; 4-bit scales; signs, and indices of 8 numbers into 256 points",
    "Q2_0": "a scale, 2-bit numbers",
    "TQ2_0": "a scale, one of -1, 0, 1 in 2 bits",
    "TQ1_0": "a scale, five of -1, 0, 1 in a byte",
    "IQ1_M": "a scale; 3-bit scales; indices of 8 numbers into 2048 points, shifted",
    "IQ1_S": "a scale; 3-bit scales; indices of 8 numbers into 2048 points, shifted",
    "Q1_0": "a scale, signs",
}


def types_table() -> str:
    """Every block type: its layout, its true bits per weight, and its error on normal values, measured here."""
    values = np.random.default_rng(2026).standard_normal((64, 1024)).astype(np.float32)
    weights = np.ones(1024, np.float32)
    lines = ["| type | block | bytes | bits per weight | error | what a block holds |", "|---|--:|--:|--:|--:|---|"]
    for name, holds in sorted(BLOCKS.items(), key=lambda item: -DTYPES[item[0]].bits):
        kind = DTYPES[name]
        blocks = np.empty(values.size // kind.block * kind.block_bytes, np.uint8)
        back = np.empty_like(values)
        kernels.quantize(name, values, blocks, 1024, weights if name in NEED_WEIGHTS else None)
        kernels.dequantize(name, blocks, back)
        errors = kernels.errors_f32(values, back)
        error = math.sqrt(errors.squared_error / errors.squares_reference)
        lines.append(f"| {name} | {kind.block} | {kind.block_bytes} | {kind.bits:.5g} | {error:.1%} | {holds} |")
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Every generated page and what it should be."""
    found = {ROOT / "docs" / "cli.md": cli_page()}
    for page in TABLES:
        path = ROOT / page
        text = path.read_text("utf-8") if path.exists() else ""
        if BEGIN in text and END in text:
            before, _, rest = text.partition(BEGIN)
            found[path] = f"{before}{BEGIN}\n{formats_table(page)}\n{END}{rest.partition(END)[2]}"
    path = ROOT / "docs" / "quantization.md"
    before, _, rest = path.read_text("utf-8").partition(TYPES_BEGIN)
    found[path] = f"{before}{TYPES_BEGIN}\n{types_table()}\n{TYPES_END}{rest.partition(TYPES_END)[2]}"
    return found


def main(arguments: list[str]) -> int:
    stale = [(path, text) for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text]
    for path, text in stale:
        sys.stdout.write(f"{path.relative_to(ROOT)}: {'out of date' if '--check' in arguments else 'written'}\n")
        if "--check" not in arguments:
            path.write_text(text, "utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
