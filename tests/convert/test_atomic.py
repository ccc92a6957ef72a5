# SPDX-License-Identifier: Apache-2.0
"""What belongs to somebody else stays: devices, pipes, folders, foreign .part files, files that an old index names."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

import building
from tael.convert import convert, plan_conversion
from tael.convert import execute as execution
from tael.convert.execute import execute
from tael.errors import ResumeError, TargetError, TargetExistsError

A = np.arange(4, dtype=np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    execute(plan_conversion(building.checkpoint({"a": A, "b": A + 1}), path))
    return path


@pytest.mark.parametrize("force", [False, True])
def test_a_pipe_is_not_replaced(model: Path, force: bool) -> None:
    pipe = model.with_name("pipe.safetensors")
    os.mkfifo(pipe)
    with pytest.raises(TargetExistsError, match="pipe"):
        convert(model, pipe, force=force)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="making a device node takes root")
def test_a_device_is_not_replaced(model: Path) -> None:
    node = model.with_name("null.safetensors")
    os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    with pytest.raises(TargetExistsError, match="device"):
        convert(model, node, force=True)
    assert stat.S_ISCHR(node.stat().st_mode)


def test_a_folder_is_not_replaced_by_a_file(model: Path) -> None:
    folder = model.with_name("x.pt")
    folder.mkdir()
    with pytest.raises(TargetExistsError, match="folder"):
        convert(model, folder, to="torch", force=True)
    assert sorted(p.name for p in model.parent.iterdir()) == ["m.safetensors", "x.pt"]


def test_an_old_index_cannot_name_files_to_delete(model: Path) -> None:
    (model.parent / "precious.txt").write_text("mine")
    (model.parent / "out-00009-of-00009.safetensors").write_text("a shard of the old set")
    names = {"a": "m.safetensors", "b": "precious.txt", "c": "out-00009-of-00009.safetensors", "d": "../m.safetensors"}
    (model.parent / "out.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    before = model.read_bytes()
    convert(model, model.with_name("out.safetensors"), shard_size=20, force=True)
    assert model.read_bytes() == before
    assert (model.parent / "precious.txt").read_text() == "mine"
    assert not (model.parent / "out-00009-of-00009.safetensors").exists(), "a stale shard of this very set stayed"


def test_an_input_that_an_old_index_names_like_a_shard_stays(model: Path) -> None:
    source = model.rename(model.with_name("out-00007-of-00009.safetensors"))
    index = source.with_name("out.safetensors.index.json")
    index.write_text(json.dumps({"weight_map": {"a": source.name}}))
    before = source.read_bytes()
    convert(source, source.with_name("out.safetensors"), source_format="safetensors", shard_size=20, force=True)
    assert source.read_bytes() == before


@pytest.mark.parametrize("force", [False, True])
def test_a_part_file_of_somebody_else_stays(model: Path, force: bool) -> None:
    foreign = model.with_name("out.pt.part")
    foreign.write_text("a download")
    with pytest.raises(TargetExistsError, match="none of ours"):
        convert(model, model.with_name("out.pt"), force=force)
    assert foreign.read_text() == "a download"
    assert sorted(p.name for p in model.parent.iterdir()) == ["m.safetensors", "out.pt.part"]


def test_a_journal_of_somebody_else_stays(model: Path) -> None:
    foreign = model.with_name("out.pt.part.journal")
    foreign.write_text("dear diary\n")
    with pytest.raises(TargetExistsError, match="no journal of ours"):
        convert(model, model.with_name("out.pt"), force=True)
    assert foreign.read_text() == "dear diary\n"


def test_a_part_folder_of_somebody_else_stays(model: Path) -> None:
    foreign = model.with_name("out.part")
    (foreign / "sub").mkdir(parents=True)
    (foreign / "sub" / "keep.txt").write_text("mine")
    for exists in (False, True):
        with pytest.raises(TargetExistsError, match="none of ours"):
            convert(model, model.with_name("out"), force=exists)
        model.with_name("out").mkdir(exist_ok=True)
    assert (foreign / "sub" / "keep.txt").read_text() == "mine"


def begun(target: Path, monkeypatch: pytest.MonkeyPatch, tensors: int = 4) -> None:
    """An interrupted run: a recorded .part and its journal beside `target`."""
    source = building.checkpoint({f"t{n}": np.full(1 << 16, n, np.float32) for n in range(tensors)})
    monkeypatch.setattr(execution, "JOURNAL_FROM", 1)
    monkeypatch.setattr(execution, "UNIT_BYTES", 1 << 16)
    count = 0
    inner = execution._Run._execute

    def stop(self: execution._Run, unit: execution.Unit) -> object:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return inner(self, unit)

    with monkeypatch.context() as patch:
        patch.setattr(execution._Run, "_execute", stop)
        with pytest.raises(KeyboardInterrupt):
            execute(plan_conversion(source, target), threads=2)
    assert target.with_name(target.name + ".part").exists()


def test_a_hard_link_to_a_part_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "out.pt", monkeypatch)
    (tmp_path / "out.pt.part").unlink()
    (tmp_path / "other.bin").write_text("mine")
    os.link(tmp_path / "other.bin", tmp_path / "out.pt.part")
    source = building.checkpoint({f"t{n}": np.full(1 << 16, n, np.float32) for n in range(4)})
    with pytest.raises(TargetExistsError, match="another name"):
        execute(plan_conversion(source, tmp_path / "out.pt"), resume=True)
    assert (tmp_path / "other.bin").read_text() == "mine"


def test_without_resume_our_own_leftovers_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "out.pt", monkeypatch)
    monkeypatch.undo()
    execute(plan_conversion(building.checkpoint({"a": A}), tmp_path / "out.pt"))
    assert os.listdir(tmp_path) == ["out.pt"]


def test_leftovers_of_a_file_do_not_stop_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "out", monkeypatch)
    monkeypatch.undo()
    execute(plan_conversion(building.checkpoint({"a": A}), tmp_path / "out", to="torch"))
    assert os.listdir(tmp_path) == ["out"]


def test_resume_of_a_small_other_job_does_not_drop_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "out.pt", monkeypatch)
    monkeypatch.undo()
    with pytest.raises(ResumeError, match="not this job"):
        execute(plan_conversion(building.checkpoint({"a": A}), tmp_path / "out.pt"), resume=True)
    assert (tmp_path / "out.pt.part").exists()


DAMAGE = [b"[]", b"null", b"5", b"{}", b'{"u":[0,0],"c":[1],"n":{"a":[1]}}', b"[" * 100_000, b"\xff\xfe", b"garbage"]


@pytest.mark.parametrize("line", DAMAGE, ids=lambda line: repr(line[:20]))
def test_a_damaged_journal_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    begun(tmp_path / "out.pt", monkeypatch)
    journal = tmp_path / "out.pt.part.journal"
    whole = journal.read_bytes()
    source = building.checkpoint({f"t{n}": np.full(1 << 16, n, np.float32) for n in range(4)})
    journal.write_bytes(whole + line + b"\n")
    with pytest.raises(ResumeError, match="damaged"):
        execute(plan_conversion(source, tmp_path / "out.pt"), resume=True)
    journal.write_bytes(line + b"\n" + whole)
    with pytest.raises(TargetExistsError, match="no journal of ours"):
        execute(plan_conversion(source, tmp_path / "out.pt"), resume=True)


@pytest.mark.parametrize("target", ["", "/", "//"])
def test_a_target_without_a_name_is_refused(model: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    with pytest.raises(TargetError, match="names no file"):
        convert(model, target)
    assert os.listdir(model.parent) == ["m.safetensors"]
