# SPDX-License-Identifier: Apache-2.0
"""Sets of shards and their indexes: I1 I2 I3 I4 I7, T5."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from cases.files import converted, safetensors, said, shard_set, values
from tael.convert import convert
from tael.errors import CorruptFileError, TaelError, UnsafeContentError
from tael.formats import open_checkpoint

A, B, C = (np.full((2, 3), number, np.float32) for number in (1, 2, 3))


def test_i1_index_and_shards_disagree_in_both_directions(tmp_path: Path) -> None:
    first = "model-00001-of-00002.safetensors"
    index = shard_set(tmp_path / "m", [{"a": A, "unlisted": B}, {"c": C}], **{"mtp.fc.weight": first})
    table = json.loads(index.read_text())
    del table["weight_map"]["unlisted"]
    index.write_text(json.dumps(table))
    text = said(index)
    assert "mtp.fc.weight" in text
    assert "fatal" in text
    assert "unlisted" in text
    with pytest.raises(CorruptFileError, match=r"mtp\.fc\.weight"):
        convert(index, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()
    convert(index, tmp_path / "out.safetensors", skip_damaged=True)
    assert {"a", "c"} <= values(tmp_path / "out.safetensors").keys()


@pytest.mark.parametrize("metadata", [{}, {"total_size": None}, {"total_size": 5}, {"total_size": "x"}], ids=str)
def test_i2_total_size_is_optional_and_recomputed(tmp_path: Path, metadata: dict[str, object]) -> None:
    index = shard_set(tmp_path / "m", [{"a": A}, {"b": B}], metadata=metadata)
    assert "fatal" not in said(index)
    assert converted(index, tmp_path / "out", shard_size=30).keys() == {"a", "b"}
    written = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert written["metadata"]["total_size"] == 48


def test_i2_a_wrong_total_size_is_told(tmp_path: Path) -> None:
    assert "total_size" in said(shard_set(tmp_path / "m", [{"a": A}], metadata={"total_size": 5}))


def test_i3_missing_shards_are_listed_and_stop_a_conversion(tmp_path: Path) -> None:
    index = shard_set(tmp_path / "m", [{"a": A}, {"b": B}, {"c": C}])
    (index.parent / "model-00002-of-00003.safetensors").unlink()
    for path in (index, index.parent, index.parent / "model-00001-of-00003.safetensors"):
        assert "model-00002-of-00003.safetensors" in said(path)
        with pytest.raises(CorruptFileError, match="model-00002-of-00003"):
            convert(path, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_i4_the_index_decides_between_two_copies_and_the_other_is_named(tmp_path: Path) -> None:
    index = shard_set(tmp_path / "m", [{"model.a": A}, {"model.b": B}])
    (index.parent / "consolidated.safetensors").write_bytes(safetensors({"a": C, "b": C}))
    (index.parent / "config.json").write_text("{}")
    assert values(index.parent).keys() == {"model.a", "model.b"}
    assert "consolidated.safetensors" in said(index.parent)


OUTSIDE = [
    "../x",
    "/etc/passwd",
    "C:\\x",
    "C:/x",
    "\\\\host\\share\\x",
    "a/../../x",
    "a\\..\\x",
    "",
    ".",
    "a//b",
    "x\0y",
]


@pytest.mark.parametrize("name", OUTSIDE, ids=repr)
def test_i7_an_index_that_points_outside_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").write_bytes(safetensors({"a": A}))
    index = shard_set(tmp_path / "m", [{"a": A}], evil=name)
    with pytest.raises(UnsafeContentError):
        open_checkpoint(index)


def test_i7_a_symlink_out_of_the_folder_is_refused_and_subfolders_are_fine(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(safetensors({"s": A}))
    index = shard_set(tmp_path / "m", [{"a": A}], s="link.safetensors")
    os.symlink(tmp_path / "secret", index.parent / "link.safetensors")
    with pytest.raises(UnsafeContentError):
        open_checkpoint(index)
    (index.parent / "link.safetensors").unlink()
    (index.parent / "sub").mkdir()
    (index.parent / "sub" / "s.safetensors").write_bytes(safetensors({"s": A}))
    table = json.loads(index.read_text())
    table["weight_map"]["s"] = "sub/s.safetensors"
    index.write_text(json.dumps(table))
    assert values(index).keys() == {"a", "s"}


def test_t5_one_short_shard_is_named_and_its_intact_tensors_stay(tmp_path: Path) -> None:
    index = shard_set(tmp_path / "m", [{"a": A, "b": B}, {"c": C}])
    shard = index.parent / "model-00001-of-00002.safetensors"
    whole = shard.stat().st_size
    os.truncate(shard, whole - 10)
    text = said(index)
    assert shard.name in text
    assert f"{whole:,}" in text or str(whole) in text
    assert f"{whole - 10:,}" in text or str(whole - 10) in text
    assert values(index).keys() == {"a", "c"}
    with pytest.raises(TaelError, match=r"model-00001-of-00002"):
        convert(index, tmp_path / "out.safetensors")
    convert(index, tmp_path / "out.safetensors", skip_damaged=True)
    assert values(tmp_path / "out.safetensors").keys() == {"a", "c"}
