# SPDX-License-Identifier: Apache-2.0
"""NPZ archives, with numpy itself as the peer on both sides (it is part of the base install)."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import building
from tael.convert import plan_conversion
from tael.convert.execute import execute
from tael.convert.plan import Compute, Copy
from tael.core.checkpoint import Checkpoint
from tael.core.limits import DEFAULT
from tael.core.location import locate
from tael.core.source import FileSource, InflateSource
from tael.errors import ChecksumError, CorruptFileError, TaelError, TransformError, UnsupportedTensorError
from tael.formats import npz
from tael.formats.detect import Probe, detect
from tael.formats.registry import Confidence
from tael.testing import FormatConformance, torture

VECTORS = Path(__file__).parent.parent / "vectors" / "numpy"
WANTED = json.loads((VECTORS / "arrays.json").read_text("utf-8"))


class TestConformance(FormatConformance):
    format = npz.FORMAT


def opened(path: Path | str) -> Checkpoint:
    return npz.open(locate(VECTORS / path), DEFAULT)


def written(checkpoint: Checkpoint, path: Path) -> Path:
    execute(plan_conversion(checkpoint, path), force=True)
    return path


def patched(path: Path, old: bytes, new: bytes) -> Path:
    data = path.read_bytes()
    assert len(old) == len(new)
    assert old in data
    path.write_bytes(data.replace(old, new))
    return path


# --- archives of numpy


@pytest.mark.parametrize("name", ["stored", "deflated"])
def test_arrays_of_numpy_have_numpys_values(name: str) -> None:
    with opened(f"{name}.npz") as checkpoint:
        assert list(checkpoint.tensors) == list(WANTED)
        for key, (kind, shape, raw) in WANTED.items():
            tensor = checkpoint.tensors[key]
            assert list(tensor.shape) == shape
            assert tensor.dtype == building.of_numpy(np.dtype(kind))
            assert building.raw_bytes(tensor).hex() == raw, key
            tensor.verify_checks()
        assert checkpoint.problems == []
        assert {tensor.access for tensor in checkpoint.tensors.values()} == (
            {"random"} if name == "stored" else {"sequential"}
        )


def test_checks_cover_the_data_only_so_that_it_is_read_once() -> None:
    with opened("stored.npz") as checkpoint:
        tensor = checkpoint.tensors["plain/f4"]
        (check,) = tensor.checks
        assert check.span == tensor.span
    with opened("deflated.npz") as checkpoint:
        (check,) = checkpoint.tensors["fortran/f4"].checks
        assert isinstance(check.span.source, InflateSource)
        check.verify()


@pytest.mark.parametrize("where", ["data", "header"])
def test_a_flipped_bit_is_found_in_the_data_and_in_the_header(tmp_path: Path, where: str) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(100, dtype=np.uint8), b=np.zeros(3))
    old, new = (b"\x20\x21\x22", b"\x20\x21\x23") if where == "data" else (b"(100,), }", b"(100,),} ")
    with npz.open(locate(patched(tmp_path / "x.npz", old, new)), DEFAULT) as checkpoint:
        with pytest.raises(ChecksumError, match=r"member 'a.npy'") as error:
            checkpoint.tensors["a"].numpy()
        assert error.value.tensor == "a"
        assert checkpoint.tensors["b"].numpy().tolist() == [0, 0, 0]


def test_opening_a_deflated_archive_holds_no_state_and_costs_no_payload() -> None:
    with opened("deflated.npz") as checkpoint:
        sources = {span.source for t in checkpoint.tensors.values() for check in t.checks for span in [check.span]}
        assert sources
        assert all(isinstance(source, InflateSource) and source._inflate is None for source in sources)


def test_z3_objects_are_listed_and_the_other_arrays_readable() -> None:
    with opened("objects.npz") as checkpoint:
        assert list(checkpoint.tensors) == ["w", "o", "z"]
        assert "Python objects" in str(checkpoint.tensors["o"].damaged)
        assert [(problem.severity, problem.tensor) for problem in checkpoint.problems] == [("fatal", "o")]
        assert checkpoint.tensors["w"].numpy().shape == (2,)
        assert checkpoint.tensors["z"].numpy().shape == (1,)


def test_members_that_are_broken_leave_the_others_readable(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", good=np.arange(3), bad=np.arange(4), worse=np.arange(5))
    patched(tmp_path / "x.npz", b"'shape': (4,)", b"'shape': [4,]")
    data = (tmp_path / "x.npz").read_bytes()
    at = data.index(b"worse.npy") - 30
    (tmp_path / "x.npz").write_bytes(data[:at] + b"XX" + data[at + 2 :])
    with npz.open(locate(tmp_path / "x.npz"), DEFAULT) as checkpoint:
        assert checkpoint.tensors["good"].numpy().tolist() == [0, 1, 2]
        fatal = {problem.tensor: problem.what for problem in checkpoint.fatal()}
        assert fatal.keys() == {"bad", "worse"}
        assert "malformed" in fatal["bad"]
        assert "no local header" in fatal["worse"]


def test_members_that_are_no_arrays_are_noted(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(1))
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
        archive.comment = b"somebody else's"
    with npz.open(locate(tmp_path / "x.npz"), DEFAULT) as checkpoint:
        assert list(checkpoint.tensors) == ["a"]
        assert checkpoint.extras == {"npz.members": ["readme.txt"], "npz.comment": "somebody else's"}
        assert checkpoint.problems[0].what == "1 members are no arrays: readme.txt"


def test_notes_that_many_arrays_share_are_told_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **{f"w{n}": np.zeros(2, ml_dtypes.bfloat16) for n in range(50)})
    with npz.open(locate(tmp_path / "x.npz"), DEFAULT) as checkpoint:
        assert {tensor.dtype.name for tensor in checkpoint.tensors.values()} == {"BF16"}
        (problem,) = checkpoint.problems
        assert problem.what.startswith("50 arrays: elements of type '<V2'")


def test_other_zips_are_not_taken_for_arrays(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.txt", "x")
    assert npz.match(Probe(locate(tmp_path / "x.npz"))) == Confidence.NONE
    assert npz.match(Probe(locate(VECTORS / "stored.npz"))) == Confidence.CERTAIN


def test_an_archive_cut_short_is_called_that(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes((VECTORS / "stored.npz").read_bytes()[:-300])
    assert detect(locate(tmp_path / "x.npz")).id == "npz"
    with pytest.raises(CorruptFileError, match="directory at the end of the file is missing"):
        npz.open(locate(tmp_path / "x.npz"), DEFAULT)


# --- writing


def test_numpy_loads_every_array_and_nothing_else(tmp_path: Path) -> None:
    checkpoint = torture(sorted(npz.FORMAT.dtypes))
    path = written(checkpoint, tmp_path / "x.npz")
    with np.load(path) as loaded:
        assert set(loaded.files) == {tensor.name for tensor in checkpoint.owners}
        for tensor in checkpoint.owners:
            assert loaded[tensor.name].shape == tensor.shape
            assert loaded[tensor.name].tobytes() == building.raw_bytes(tensor), tensor.name
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


def test_arrays_are_aligned_so_that_they_can_be_mapped(tmp_path: Path) -> None:
    plan = plan_conversion(torture(["F32", "U8"]), tmp_path / "x.npz")
    assert all(part.offset % 64 == 0 for part in plan.files[0].parts if isinstance(part, Copy | Compute))


def test_a_member_is_what_numpy_would_have_saved(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = written(building.checkpoint({"x": array}), tmp_path / "x.npz")
    wanted = io.BytesIO()
    np.save(wanted, array)
    assert zipfile.ZipFile(path).read("x.npy") == wanted.getvalue()


def test_true_dtypes_ties_and_metadata_come_back(tmp_path: Path) -> None:
    kinds = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16, np.uint8)
    arrays = {f"w{n}": np.arange(8, dtype=np.uint8).view(kind) for n, kind in enumerate(kinds)}
    checkpoint = building.checkpoint(arrays, aliases={"tied": "w1"}, metadata={"format": "pt", "step": 3, "é": "層"})
    path = written(checkpoint, tmp_path / "x.npz")
    with npz.open(locate(path), DEFAULT) as back:
        assert [tensor.dtype.name for tensor in back.tensors.values()] == [
            "F8_E4M3", "F8_E4M3", "F8_E5M2", "BF16", "U8", "F8_E4M3"
        ]  # fmt: skip
        assert back.aliases == {"tied": "w1"}
        assert back.metadata == {"format": "pt", "step": 3, "é": "層"}
        assert not [problem for problem in back.problems if problem.tensor != "w3"]
    record = json.loads(zipfile.ZipFile(path).comment)
    assert json.loads(record["tael.metadata"])["dtypes"] == {"*": "F8_E4M3", "F8_E5M2": ["w2"]}


def test_a_foreign_record_cannot_make_numbers_of_other_bytes(tmp_path: Path) -> None:
    path = written(building.checkpoint({"a": np.zeros(4), "b": np.zeros(4, np.uint8)}), tmp_path / "x.npz")
    record = {"dtypes": {"*": "F8_E4M3", "F64": ["b"], "Q4_K": ["a"], "F8_E5M2": [["a"], 3]}, "aliases": {"c": "a"}}
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = json.dumps({"tael.metadata": json.dumps(record)}).encode()
    with npz.open(locate(path), DEFAULT) as back:
        assert [tensor.dtype.name for tensor in back.tensors.values()] == ["F64", "U8", "F64"]


@pytest.mark.parametrize("comment", [b"\xff\xfe", b"[1]", b"[" * 60_000, b'{"a":1}', b'{"tael.metadata":"[3]"}', b"{"])
def test_foreign_comments_do_no_harm(tmp_path: Path, comment: bytes) -> None:
    path = written(building.checkpoint({"a": np.zeros(4)}), tmp_path / "x.npz")
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = comment
    with npz.open(locate(path), DEFAULT) as back:
        assert list(back.tensors) == ["a"]


def test_what_a_comment_cannot_hold_is_lost_in_order_and_stated(tmp_path: Path) -> None:
    long = {"text": "x" * 70_000}
    few = {"a": np.zeros(1, ml_dtypes.float8_e5m2), "b": np.zeros(2, ml_dtypes.float8_e4m3fn)}
    checkpoint = building.checkpoint(few, aliases={"tied": "a"}, metadata=long)
    plan = plan_conversion(checkpoint, tmp_path / "x.npz")
    assert [(loss.kind, loss.count) for loss in plan.losses] == [("metadata", 1)]
    with npz.open(locate(written(checkpoint, tmp_path / "x.npz")), DEFAULT) as back:
        assert back.aliases == {"tied": "a"}
        assert back.tensors["b"].dtype.name == "F8_E4M3"
    names = {f"{n}{'x' * 900}": kind for n in range(80) for kind in (few["a"], few["b"])}
    names |= {f"{n}{'y' * 900}": few["a"] for n in range(80)}
    plan = plan_conversion(building.checkpoint(names, metadata={"a": "b"}), tmp_path / "y.npz")
    assert [loss.kind for loss in plan.losses] == ["metadata", "dtype"]
    aliases = {f"{n}{'x' * 900}": "a" for n in range(80)}
    checkpoint = building.checkpoint(few, aliases=aliases)
    plan = plan_conversion(checkpoint, tmp_path / "z.npz")
    assert [loss.kind for loss in plan.losses] == ["dtype", "alias"]
    with np.load(written(checkpoint, tmp_path / "z.npz")) as loaded:
        assert len(loaded.files) == 82


@pytest.mark.parametrize("name", ["Q4_K", "U4", "F4_E2M1", "C32"])
def test_what_numpy_cannot_hold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedTensorError, match=f"cannot hold {name}"):
        plan_conversion(torture([name], ties=False, views=False), tmp_path / "x.npz")


def test_a_name_no_zip_can_spell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TransformError, match="no zip member can be named"):
        plan_conversion(building.checkpoint({"a\0b": np.zeros(1)}), tmp_path / "x.npz")


def test_a_flipped_check_in_conversion_names_the_tensor(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(100, dtype=np.uint8))
    patched(tmp_path / "x.npz", b"\x20\x21\x22", b"\x20\x21\x23")
    with npz.open(locate(tmp_path / "x.npz"), DEFAULT) as checkpoint:
        plan = plan_conversion(checkpoint, tmp_path / "y.npz")
        with pytest.raises(ChecksumError):
            execute(plan, inputs=checkpoint.sources)
    assert not (tmp_path / "y.npz").exists()


def test_deflated_arrays_convert_and_verify(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays: dict[str, Any] = {f"w{n}": rng.standard_normal((300, 1000)).astype(np.float32) for n in range(12)}
    np.savez_compressed(tmp_path / "x.npz", **arrays)
    with npz.open(locate(tmp_path / "x.npz"), DEFAULT) as checkpoint:
        written(checkpoint, tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as loaded:
        assert all(np.array_equal(loaded[name], array) for name, array in arrays.items())


def test_sources_are_closed_with_the_checkpoint() -> None:
    checkpoint = opened("stored.npz")
    (source,) = checkpoint.sources
    assert isinstance(source, FileSource)
    checkpoint.close()
    assert source.fd < 0
    with pytest.raises(TaelError):
        checkpoint.tensors["scalar"].numpy()
