# SPDX-License-Identifier: Apache-2.0
"""The documentation is true: its commands run and print what it shows, its links lead somewhere, nothing is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import console
import tael
from cli import corpus

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
WITH_COMMANDS = [page for page in PAGES if any(console.steps(page.read_text("utf-8")))]


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=page_id)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    corpus.build(tmp_path)
    found = console.differences(page.read_text("utf-8"), tmp_path)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    corpus.build(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_public_api_is_small_and_documented() -> None:
    assert len(tael.__all__) <= 20
    guide = "".join(page.read_text("utf-8") for page in PAGES)
    for name in tael.__all__:
        assert getattr(tael, name).__doc__, f"tael.{name} has no docstring"
        assert f"tael.{name}" in guide, f"tael.{name} is in no page of the documentation"
