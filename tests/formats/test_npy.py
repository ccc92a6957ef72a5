# SPDX-License-Identifier: Apache-2.0
"""NPY files, with numpy itself as the peer on both sides (it is part of the base install)."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import building
from tael.convert import plan_conversion
from tael.convert.execute import execute
from tael.core.checkpoint import Checkpoint
from tael.core.dtypes import DTYPES
from tael.core.limits import DEFAULT
from tael.core.location import locate
from tael.core.node import Contiguous, Strided
from tael.core.tensor import Tensor
from tael.errors import CorruptFileError, LimitExceededError, TaelError, TransformError, UnsupportedTensorError
from tael.formats import npy
from tael.formats.npy_header import header_bytes, parse_header
from tael.testing import FormatConformance, torture

VECTORS = Path(__file__).parent.parent / "vectors" / "numpy"


class TestConformance(FormatConformance):
    format = npy.FORMAT


def opened(path: Path | str) -> Checkpoint:
    return npy.open(locate(VECTORS / path), DEFAULT)


def only(path: Path | str) -> Tensor:
    (tensor,) = opened(path).tensors.values()
    return tensor


def saved(folder: Path, array: Any) -> Path:
    np.save(folder / "x.npy", array, allow_pickle=True)
    return folder / "x.npy"


def written(checkpoint: Checkpoint, path: Path) -> Path:
    execute(plan_conversion(checkpoint, path), force=True)
    return path


# --- files of numpy


@pytest.mark.parametrize("name", ["fortran", "big_endian", "scalar", "empty", "bool", "v2", "v3", "two", "float8_e5m2"])
def test_arrays_of_numpy_have_numpys_values(name: str) -> None:
    tensor = only(f"{name}.npy")
    if name == "float8_e5m2":  # numpy cannot read back what it wrote
        assert tensor.dtype.name == "F8_E5M2"
        assert building.raw_bytes(tensor) == bytes(range(4))
        return
    with (VECTORS / f"{name}.npy").open("rb") as file:
        array = np.load(file)
    assert tensor.name == name
    assert tensor.shape == array.shape
    assert tensor.dtype == building.of_numpy(array.dtype.newbyteorder("="))
    assert building.raw_bytes(tensor) == array.astype(array.dtype.newbyteorder("<"), order="C").tobytes()


def test_bfloat16_keeps_its_bits_and_its_name() -> None:
    checkpoint = opened("bf16.npy")
    tensor = checkpoint.tensors["bf16"]
    assert tensor.dtype.name == "BF16"
    assert building.raw_bytes(tensor) == np.array([0x7FC1, 0x8000, 0x0001, 0x3F80], np.uint16).tobytes()
    assert "numpy writes bfloat16" in checkpoint.problems[0].what
    assert checkpoint.problems[0].severity == "note"


@pytest.mark.parametrize("name", ["float8_e4m3fn", "int4"])
def test_one_byte_without_a_type_is_u8_and_said(name: str) -> None:
    checkpoint = opened(f"{name}.npy")
    assert checkpoint.tensors[name].dtype.name == "U8"
    assert "only says how many bytes" in checkpoint.problems[0].what


def test_text_is_listed_as_its_bytes() -> None:
    tensor = only("text.npy")
    assert (tensor.dtype.name, tensor.shape) == ("STRING", (2, 8))
    assert building.raw_bytes(tensor).decode("utf-32-le") == "ab層\0"
    tensor = only("bytes.npy")  # in Fortran order
    assert (tensor.dtype.name, tensor.shape) == ("STRING", (2, 2, 3))
    assert building.raw_bytes(tensor) == b"abcd\0\0\0\0\0ef\0"


def test_points_in_time_are_their_count() -> None:
    tensor = only("datetime.npy")
    assert tensor.dtype.name == "I64"
    assert tensor.numpy().tolist() == [19723, 1]
    assert "datetime" not in opened("datetime.npy").problems[0].what
    assert "'<M8[D]'" in opened("datetime.npy").problems[0].what


REFUSED = {
    "objects": "Python objects",
    "structured": "structured array (fields x, y)",
    "longdouble": "extended precision",
    "void3": "'|V3', which no tensor has",
    "complex32": "'<W4': a complex type of ml_dtypes",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_tensor_is_listed_and_named(name: str) -> None:
    checkpoint = opened(f"{name}.npy")
    tensor = checkpoint.tensors[name]
    assert REFUSED[name] in str(tensor.damaged)
    assert [problem.severity for problem in checkpoint.problems] == ["fatal"]
    with pytest.raises(UnsupportedTensorError):
        tensor.numpy()
    with pytest.raises(CorruptFileError):
        checkpoint.require_intact()


def test_z3_the_pickle_of_an_object_array_is_not_run(tmp_path: Path) -> None:
    class Canary:
        def __reduce__(self) -> Any:
            return exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    path = saved(tmp_path, np.array([Canary()], object))
    checkpoint = npy.open(locate(path), DEFAULT)
    assert "not run" in checkpoint.problems[0].what
    with pytest.raises(TaelError):
        checkpoint.tensors["x"].numpy()
    assert not (tmp_path / "ran").exists()
    np.load(path, allow_pickle=True)
    assert (tmp_path / "ran").exists()


def test_a_second_array_behind_the_first_is_said() -> None:
    (problem,) = opened("two.npy").problems
    assert problem.severity == "warning"
    assert "further arrays" in problem.what


def test_fortran_order_is_a_view_and_c_order_a_range(tmp_path: Path) -> None:
    assert isinstance(only("fortran.npy").data, Strided)
    assert isinstance(npy.open(locate(saved(tmp_path, np.zeros((2, 3)))), DEFAULT).tensors["x"].data, Contiguous)


# --- malformed and odd files

MESSAGES = {
    "only_magic": "first bytes",
    "version_9": "version 9.0",
    "header_beyond_end": "header should have 60,000 bytes",
    "header_of_4_gib": "header should have 4,294,967,295 bytes",
    "not_utf8": "no UTF-8",
    "empty_header": "not what numpy writes",
    "not_a_dict": "exactly the keys",
    "a_call": "not what numpy writes",
    "an_escape": "not what numpy writes",
    "no_shape": "exactly the keys",
    "a_key_more": "exactly the keys",
    "a_key_twice": "keys are malformed",
    "no_comma": "lacks a comma",
    "text_behind": "goes on behind",
    "nested": "not what numpy writes",
    "order_is_a_number": "fortran_order is malformed",
    "shape_is_a_list": "shape or",
    "shape_is_a_number": "shape or",
    "shape_negative": "not what numpy writes",
    "shape_of_text": "shape or",
    "shape_2_63": "longer than any file",
    "shape_bool": "shape or",
    "shape_of_65_axes": "rank of an array is 65",
    "descr_is_a_number": "descr is malformed",
}


@pytest.mark.parametrize("path", sorted((VECTORS / "malformed").glob("*.npy")), ids=lambda path: path.stem)
def test_malformed_headers_are_named(path: Path) -> None:
    with pytest.raises(TaelError, match=MESSAGES[path.stem]) as error:
        opened(path)
    assert error.value.path == str(path)


def test_a_header_as_long_as_a_book_is_refused(tmp_path: Path) -> None:
    raw = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }" + b" " * 70_000
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\2\0" + len(raw).to_bytes(4, "little") + raw + bytes(8))
    with pytest.raises(LimitExceededError, match="header has 70,057 bytes"):
        npy.open(locate(path), DEFAULT)


ODD = {
    "python_2": ("F32", (1, 2), None),
    "native_order": ("F32", (2,), None),
    "any_key_order": ("F32", (2,), None),
    "unaligned": ("F32", (2,), None),
    "huge_and_empty": ("F32", (0, 1 << 62, 1 << 62), None),
    "bytes_behind": ("F32", (2,), "4 bytes follow the array"),
    "cut": ("F32", (1000, 1000), "cut short: the array has 4,000,000 bytes, 8 are there"),
    "unknown_type": ("U8", (8,), "elements of type '<q9', which no tensor has"),
}


@pytest.mark.parametrize("path", sorted((VECTORS / "odd").glob("*.npy")), ids=lambda path: path.stem)
def test_odd_files_open(path: Path) -> None:
    dtype, shape, problem = ODD[path.stem]
    checkpoint = opened(path)
    (tensor,) = checkpoint.tensors.values()
    assert (tensor.dtype.name, tensor.shape) == (dtype, shape)
    assert [found.what for found in checkpoint.problems] == ([problem] if problem else [])
    if tensor.damaged is None:
        assert building.raw_bytes(tensor) == bytes(tensor.nbytes)


@given(st.binary(max_size=120))
def test_no_header_breaks_the_parser(header: bytes) -> None:
    data = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header

    def fetch(offset: int, nbytes: int) -> bytes:
        return data[offset : offset + nbytes]

    with contextlib.suppress(TaelError):
        parse_header(fetch, len(data))


_LEAVES = st.booleans() | st.integers(0, 10**19) | st.text(alphabet="<>|fiu4é _", max_size=5)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(alphabet="abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(_VALUES)
def test_the_parser_reads_what_python_prints(value: Any) -> None:
    from tael.formats.npy_header import _parse

    try:
        assert _parse(repr(value)) == value
    except CorruptFileError:
        assert repr(value).count("[") + repr(value).count("(") + repr(value).count("{") > 8


@given(st.text(alphabet="{}()[]:,'\"0123456789LTrueFalsdcpthnoi_ <f4", max_size=80))
def test_what_the_parser_takes_is_what_literal_eval_takes(text: str) -> None:
    import ast

    from tael.formats.npy_header import _parse

    try:
        value = _parse(text)
    except TaelError:
        return
    if "L" not in text:
        assert ast.literal_eval(text.strip()) == value


# --- writing


@pytest.mark.parametrize("dtype", [name for name, descr in npy.DESCRS.items() if descr[1] != "V"])
@pytest.mark.parametrize("shape", [(2, 3), (), (0,), (7,), (1, 2, 3, 4)])
def test_a_written_file_is_what_numpy_would_have_saved(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    kind = DTYPES[dtype]
    raw = np.arange(kind.nbytes(shape)).astype(np.uint8) & (1 if dtype == "BOOL" else 255)
    array = raw.view(kind.numpy()).reshape(shape)
    path = written(building.checkpoint({"x": array}), tmp_path / "x.npy")
    wanted = io.BytesIO()
    np.save(wanted, array)
    assert path.read_bytes() == wanted.getvalue()


def test_numpy_gets_the_bits_of_types_it_has_not(tmp_path: Path) -> None:
    bf16 = np.array([[1.5, -0.0], [np.nan, 3e38]], ml_dtypes.bfloat16)
    plan = plan_conversion(building.checkpoint({"x": bf16}), tmp_path / "x.npy")
    assert [loss.kind for loss in plan.losses] == ["dtype"]
    execute(plan)
    loaded = np.load(tmp_path / "x.npy")
    assert loaded.view(ml_dtypes.bfloat16).tobytes() == bf16.tobytes()
    wanted = io.BytesIO()
    np.save(wanted, bf16)
    assert (tmp_path / "x.npy").read_bytes() == wanted.getvalue()
    f8 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float8_e5m2)
    path = written(building.checkpoint({"x": f8}), tmp_path / "y.npy")
    assert np.load(path).view(np.uint8).tolist() == list(range(16))


def test_losses_are_stated(tmp_path: Path) -> None:
    checkpoint = building.checkpoint({"w": np.zeros(2)}, aliases={"tied": "w"}, metadata={"a": "b"})
    kinds = {loss.kind for loss in plan_conversion(checkpoint, tmp_path / "x.npy").losses}
    assert kinds == {"name", "metadata", "alias"}
    assert plan_conversion(building.checkpoint({"x": np.zeros(2)}), tmp_path / "x.npy").losses == ()


def test_more_than_one_tensor_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(TransformError, match=r"holds one tensor, here are 2\n  name one with --select"):
        plan_conversion(building.checkpoint({"a": np.zeros(1), "b": np.zeros(1)}), tmp_path / "x.npy")


@pytest.mark.parametrize("name", ["Q8_0", "U4", "F4_E2M1", "C32"])
def test_what_numpy_cannot_hold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedTensorError, match=f"cannot hold {name}"):
        plan_conversion(torture([name], ties=False, views=False), tmp_path / "x.npy")


def test_headers_are_aligned_and_parsed_back() -> None:
    for shape in [(), (1,), (10**18, 0), tuple(range(60))]:
        raw = header_bytes("<f4", shape)
        assert len(raw) % 64 == 0
        assert parse_header(lambda at, n, raw=raw: raw[at : at + n], len(raw)) == ("<f4", False, shape, len(raw))


def test_headers_of_every_length_are_numpys() -> None:
    for rank in range(1, 65):
        for first in (1, 1000, 10**9):
            shape = (first, *[0] * (rank - 1))
            wanted = io.BytesIO()
            np.lib.format.write_array_header_1_0(wanted, {"descr": "<f4", "fortran_order": False, "shape": shape})
            assert header_bytes("<f4", shape) == wanted.getvalue()


def test_provenance_covers_every_vector() -> None:
    listed = json.loads((VECTORS / "PROVENANCE.json").read_text())["files"]
    there = {path.relative_to(VECTORS).as_posix() for path in VECTORS.rglob("*") if path.is_file()}
    assert there == {*listed, "PROVENANCE.json"}
    assert sys.byteorder == "little"
