# SPDX-License-Identifier: Apache-2.0
"""Every tests/cli/*.md: its commands print what it says they print. See tests/console.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import console
from cli import corpus

DOCUMENTS = sorted(Path(__file__).parent.glob("*.md"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_commands_print_what_is_written(document: Path, tmp_path: Path) -> None:
    corpus.build(tmp_path)
    markdown = document.read_text("utf-8")
    assert any(console.steps(markdown)), "no commands in it"
    found = console.differences(markdown, tmp_path)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\nb", "a\nb", True),
        ("a\nb", "a\nc", False),
        ("a", "a\nb", False),
        ("in ... s", "in 0.3 s", True),
        ("in ... s", "in 0.3 s\nmore", False),
        ("a\n...\nz", "a\nb\nc\nz", True),
        ("a\n...\nz", "a\nz", True),
        ("a\n...\nz", "a\nb\ny", False),
        ("...", "", True),
        ("", "", True),
        ("", "a", False),
        ("a.b", "axb", False),
    ],
)
def test_the_comparison_is_strict(expected: str, printed: str, same: bool) -> None:
    assert console.matches(expected.splitlines(), printed.splitlines()) is same


def test_steps_are_found() -> None:
    markdown = "text\n```console\n$ one\n1\n2\n$ two \\\n> more\n\n```\n```python\n$ no\n```\n"
    assert [(step.line, step.command, step.expected) for step in console.steps(markdown)] == [
        (3, "one", ["1", "2"]),
        (6, "two \\\nmore", [""]),
    ]
