# SPDX-License-Identifier: Apache-2.0
"""docs/json.md and what `--json` prints say the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cli import corpus
from tael.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
KEYS = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| (.*) \|$", re.MULTILINE)


def documented() -> dict[str, dict[str, str]]:
    """Schema -> key -> what the page says about it."""
    found = {}
    for section in PAGE.read_text("utf-8").split("\n## ")[1:]:
        rows = KEYS.findall(section)
        found[section.split("\n")[0]] = {key: about for names, about in rows for key in re.findall(r"`(\w+)`", names)}
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus")
    corpus.build(path)
    return path


COMMANDS = {
    "tael.error/1": ["inspect page.safetensors"],
    "tael.inspect/1": ["inspect train.ckpt --stats"],
    "tael.convert/1": ["convert model.pt out.safetensors --verify", "convert model.pt other.safetensors --dry-run"],
    "tael.quantize/1": [
        "quantize model-f16.gguf q-{type}.gguf -t Q8_0,IQ2_XXS --imatrix imatrix.gguf",
        "quantize model-f16.gguf q.gguf -t Q4_K_M --dry-run",
    ],
    "tael.edit/1": ["edit model.gguf --set general.name=x --dry-run"],
    "tael.verify/1": ["verify model.pt tuned.safetensors"],
    "tael.diff/1": ["diff model.pt tuned.safetensors"],
    "tael.hash/1": ["hash model.pt"],
    "tael.formats/1": ["formats"],
    "tael.doctor/1": ["doctor"],
}


def run(command: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(folder)
    app.main([*command.split(), "--json"])
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


@pytest.mark.parametrize("schema", COMMANDS)
def test_every_key_is_documented_and_every_documented_key_is_there(
    schema: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = set()
    for command in COMMANDS[schema]:
        printed = run(command, folder, capsys, monkeypatch)
        assert printed.pop("schema") == schema
        keys |= printed.keys()
        for key, value in printed.items():
            about = documented()[schema][key]
            for entry in value if isinstance(value, list) else ():
                if isinstance(entry, dict) and "as " not in about:
                    assert all(f"`{name}`" in about for name in entry), (key, entry)
    assert keys == documented()[schema].keys()


def test_every_verb_has_a_schema() -> None:
    assert {f"tael.{verb}/1" for verb in app.VERBS} | {"tael.error/1"} == documented().keys() == COMMANDS.keys()


def test_what_json_cannot_hold_is_text(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = run("inspect large.safetensors --stats", folder, capsys, monkeypatch)["stats"]
    assert [entry["nan"] for entry in figures] == [0, 1]
    changed = run("verify large.safetensors hostile.safetensors", folder, capsys, monkeypatch)["differences"]
    assert {entry["kind"] for entry in changed} == {"missing", "extra"}
    hostile = run("inspect hostile.safetensors", folder, capsys, monkeypatch)
    assert hostile["tensors"][0]["name"] == "\x1b[2J\x1b[1;31mowned", "exact, and escaped by JSON itself"


def test_a_path_that_is_no_utf8(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    app.main(["inspect", "no\udcffsuch", "--json"])
    out = capsysbinary.readouterr().out
    assert json.loads(out)["path"] == "no\udcffsuch"


def test_infinite_changes_are_strings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    (tmp_path / "a.safetensors").write_bytes(corpus.safetensors({"w": np.array([1, 2], np.float32)}))
    (tmp_path / "b.safetensors").write_bytes(corpus.safetensors({"w": np.array([1, np.inf], np.float32)}))
    found = run("verify a.safetensors b.safetensors", tmp_path, capsys, monkeypatch)
    assert found["differences"][0]["right"] == found["differences"][0]["max_abs"] == "inf"
    found = run("diff a.safetensors b.safetensors", tmp_path, capsys, monkeypatch)
    assert found["changed"][0]["max_abs"] == "inf"
