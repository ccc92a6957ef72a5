# SPDX-License-Identifier: Apache-2.0
"""`tael edit`: tensors never move, an interrupted edit is undone, what does not fit is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tests.building import checkpoint

import tael
from tael.cli.app import main
from tael.convert import plan_conversion
from tael.convert.execute import execute
from tael.errors import TaelError, TransformError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    metadata = {
        "general.architecture": "llama",
        "general.name": "before",
        "llama.block_count": 2,
        "tokenizer.ggml.tokens": ["a", "b", "c"],
        "tokenizer.chat_template": "{{ old }}",
    }
    weights = {"x.weight": np.arange(256, dtype=np.float32).reshape(4, 64), "y.weight": np.ones(3, np.float32)}
    made = checkpoint(weights, metadata=metadata)
    execute(plan_conversion(made, path))
    return path


def metadata(path: Path) -> dict[str, object]:
    with tael.open(path) as opened:
        return dict(opened.metadata)


def tensors(path: Path) -> dict[str, bytes]:
    with tael.open(path) as opened:
        return {name: np.asarray(tensor.numpy()).tobytes() for name, tensor in opened.tensors.items()}


def test_a_header_that_fits_is_written_in_place(model: Path) -> None:
    before, size, inode = tensors(model), model.stat().st_size, model.stat().st_ino
    result = tael.edit(model, set={"general.name": "after!"})
    assert result.in_place
    assert metadata(model)["general.name"] == "after!"
    assert (model.stat().st_size, model.stat().st_ino) == (size, inode)
    assert tensors(model) == before
    assert os.listdir(model.parent) == ["m.gguf"]


def test_a_larger_header_takes_a_copy_that_replaces_the_file(model: Path) -> None:
    before = tensors(model)
    result = tael.edit(model, set={"general.description": "long " * 400})
    assert not result.in_place
    assert metadata(model)["general.description"] == "long " * 400
    assert tensors(model) == before
    assert os.listdir(model.parent) == ["m.gguf"]


def test_a_reserve_keeps_later_edits_in_place(model: Path) -> None:
    tael.edit(model, set={"general.name": "x"}, reserve=4096)
    inode, before = model.stat().st_ino, tensors(model)
    for length in (1, 500, 3000, 20, 0):
        assert tael.edit(model, set={"general.description": "d" * length}).in_place
        assert metadata(model)["general.description"] == "d" * length
        assert "tael.reserved" not in metadata(model)
    assert tensors(model) == before
    assert model.stat().st_ino == inode


def test_every_kind_of_change(model: Path) -> None:
    tael.edit(
        model,
        rename={"general.name": "general.basename"},
        retype={"llama.block_count": "u64"},
        set={"a.list": [1, 2], "a.flag": True, "a.real": 0.5},
        tokens={1: "B"},
        chat_template="{{ new }}",
        delete=["general.architecture"],
    )
    found = metadata(model)
    assert found["general.basename"] == "before"
    assert "general.name" not in found
    assert "general.architecture" not in found
    assert found["gguf.types"] == {"llama.block_count": "u64"}
    assert (found["a.list"], found["a.flag"], found["a.real"]) == ([1, 2], True, 0.5)
    assert list(found["tokenizer.ggml.tokens"]) == ["a", "B", "c"]
    assert found["tokenizer.chat_template"] == "{{ new }}"


def test_a_copy_elsewhere_leaves_the_file_alone(model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    tael.edit(model, set={"general.name": "copy"}, dst=tmp_path / "c.gguf")
    assert model.read_bytes() == before
    assert metadata(tmp_path / "c.gguf")["general.name"] == "copy"
    with pytest.raises(TaelError, match="exists"):
        tael.edit(model, set={"general.name": "copy"}, dst=tmp_path / "c.gguf")


def test_an_edit_that_was_cut_off_is_undone_by_the_next(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model.read_bytes()
    write = os.pwrite

    def torn(fd: int, data: bytes, offset: int) -> int:
        write(fd, bytes(data)[:150], offset)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "pwrite", torn)
    with pytest.raises(KeyboardInterrupt):
        tael.edit(model, set={"general.name": "torn!!"})
    monkeypatch.undo()
    assert model.read_bytes() != whole
    result = tael.edit(model, set={"general.name": "again"})
    assert result.restored
    assert metadata(model)["general.name"] == "again"
    assert model.read_bytes()[-256:] == whole[-256:]
    assert os.listdir(model.parent) == ["m.gguf"]


def test_a_foreign_file_in_the_journals_place_is_left(model: Path) -> None:
    journal = Path(f"{model}.header")
    journal.write_text("mine")
    before = model.read_bytes()
    with pytest.raises(TaelError, match="is there already"):
        tael.edit(model, set={"general.name": "x"})
    assert (journal.read_text(), model.read_bytes()) == ("mine", before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"delete": ["general.nam"]}, "there is no key"),
        ({"rename": {"general.name": "llama.block_count"}}, "already"),
        ({"retype": {"general.name": "u32"}}, "does not fit into u32"),
        ({"retype": {"general.name": "u33"}}, "no type of GGUF"),
        ({"set": {"general.name": 3}}, "is text"),
        ({"set": {"general.alignment": 64}}, "alignment"),
        ({"set": {"x": {"a": 1}}}, "no type"),
        ({"tokens": {3: "d"}}, "there is no token 3"),
        ({"set": {"general.name": "before"}}, "nothing changes"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_written(model: Path, change: dict[str, object], words: str) -> None:
    before = model.read_bytes()
    with pytest.raises(TransformError, match=words):
        tael.edit(model, **change)  # type: ignore[arg-type]
    assert model.read_bytes() == before


def test_the_command(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edit", str(model), "--set", "general.name=cli", "--token", "0=A=", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tael.edit/1"
    assert document["changes"]["general.name"]["after"] == {"type": "str", "value": "cli"}
    assert list(metadata(model)["tokenizer.ggml.tokens"]) == ["A=", "b", "c"]  # type: ignore[call-overload]
    assert main(["edit", str(model), "--set", "general.name=dry", "--dry-run"]) == 0
    assert metadata(model)["general.name"] == "cli"
    assert main(["edit", str(model), "--token", "x=y"]) == 2
