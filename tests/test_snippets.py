# SPDX-License-Identifier: Apache-2.0
"""Runs the ```python blocks of the guides, and compares what they print with what they say they print.

The blocks of one page run in order, as one program, in the folder of the corpus (cli/corpus.py). What is printed stands
in comments below, `#> ` before each line; `...` stands for anything, as in console blocks.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import console
from cli import corpus

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "README.zh-CN.md", "docs/guide.md", "docs/cookbook.md", "docs/python.md"]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    code = "\n".join(_BLOCK.findall((ROOT / page).read_text("utf-8")))
    assert code, "no code in it"
    corpus.build(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    expected, printed = promised(code), [line.rstrip() for line in done.stdout.splitlines()]
    assert console.matches(expected, printed), f"expected {expected}, printed {printed}"


def promised(code: str) -> list[str]:
    """The lines behind `#> `, in order."""
    return [line.strip().removeprefix("#> ") for line in code.splitlines() if line.strip().startswith("#> ")]


def test_promises_are_found() -> None:
    assert promised('print("a")\n#> a\n    #> b c\nx = "#> no"  #> no\n') == ["a", "b c"]
