# SPDX-License-Identifier: Apache-2.0
"""Arrays, dtypes and scalars as numpy 1 and 2 pickle them, at every protocol, against numpy itself."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from malicious import call, name, text, whole

from tael.errors import CorruptFileError
from tael.pickle import Call, LazyBytes, NumpyArray, NumpyDtype, NumpyScalar, Reader, load

VECTORS = Path(__file__).parents[1] / "vectors" / "pickle"


def rebuilt(array: NumpyArray, reader: Reader | None = None) -> np.ndarray[Any, Any]:
    """The real array that the description tells of."""
    data = array.data
    if type(data) is LazyBytes:
        assert reader is not None
        data = reader.value(data)  # type: ignore[assignment]
    assert type(data) is bytes
    plain = array.dtype.descr
    dtype = np.dtype(getattr(ml_dtypes, plain)) if hasattr(ml_dtypes, plain) else np.dtype(plain)
    strides = tuple(stride * dtype.itemsize for stride in array.strides)
    return np.lib.stride_tricks.as_strided(np.frombuffer(data, dtype), array.shape, strides)


def same(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_numpy_2(protocol: int) -> None:
    found = load(Reader((VECTORS / f"numpy2_{protocol}.pkl").read_bytes())).value
    same(rebuilt(found["array"]), np.arange(6, dtype="<f4").reshape(2, 3))
    same(rebuilt(found["big_endian"]), np.arange(3, dtype=">i4"))
    same(rebuilt(found["fortran"]), np.arange(6, dtype="<f8").reshape(2, 3))
    same(rebuilt(found["transposed"]), np.arange(24, dtype="u1").reshape(2, 3, 4).transpose(1, 0, 2))
    same(rebuilt(found["empty"]), np.zeros((0, 3), "<f2"))
    same(rebuilt(found["bfloat16"]), np.array([1.0, -2.0], ml_dtypes.bfloat16))
    same(rebuilt(found["text"]), np.array(["a", "bc"]))
    same(rebuilt(found["date"]).view("M8[D]"), np.array(["2020-01-01"], "M8[D]"))
    assert [found[key].value for key in ("scalar", "complex", "bool")] == [1.5, 1 + 2j, True]
    structured = found["structured"].dtype
    assert structured.names == ("a", "b")
    assert {key: (dtype.descr, offset) for key, (dtype, offset) in structured.fields.items()} == {
        "a": ("<i4", 0), "b": ("<f8", 4),
    }  # fmt: skip
    assert (structured.itemsize, structured.is_plain) == (12, False)
    assert found["objects"].dtype.is_object
    assert found["objects"].data == [{"inner": 1}, None]
    assert found["dtype"].descr == "<f2"


@pytest.mark.parametrize("module", ["pickle", "cpickle"])
@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_pickles_of_numpy_1_by_python_2(module: str, protocol: int) -> None:
    found = load(Reader((VECTORS / f"python2_{module}_{protocol}.pkl").read_bytes())).value
    same(rebuilt(found["array"]), np.arange(6, dtype="<f4").reshape(2, 3))
    same(rebuilt(found["fortran"]), np.arange(6, dtype=">i2").reshape(2, 3))
    same(rebuilt(found["new"].attribute("weight")), np.arange(3, dtype="<f8"))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("module", ["numpy._core", "numpy.core"])
def test_every_plain_dtype(protocol: int, module: str) -> None:
    for code in ("?", "i1", ">i2", "<u2", "<i4", ">u4", "<i8", "<u8", ">f2", "<f4", "<f8", "<c8", ">c16", "S3", "<U2"):
        array = np.arange(6).astype(np.dtype(code)).reshape(2, 3)
        data = pickle.dumps(array, protocol).replace(b"numpy._core", module.encode())
        if protocol >= 4 and module != "numpy._core":
            continue  # the length stands before the name
        found = load(Reader(data)).value
        same(rebuilt(found), array)
        assert found.dtype.is_plain == ("S" not in code and "U" not in code)


def test_every_scalar() -> None:
    for value in (
        np.float16(0.5),
        np.float32(1.5),
        np.int8(-1),
        np.uint64(2**64 - 1),
        np.bool_(False),
        np.complex128(1j),
    ):
        found = load(Reader(pickle.dumps(value, 4))).value
        assert type(found) is NumpyScalar
        assert found.value == value
        assert type(found.value) is type(value.item())


@given(st.integers(0, 5), st.lists(st.integers(0, 5), max_size=4), st.permutations(range(4)))
def test_any_layout(protocol: int, shape: list[int], order: list[int]) -> None:
    array = np.arange(int(np.prod(shape))).astype("<i4").reshape(shape)
    array = array.transpose([axis for axis in order if axis < array.ndim])
    same(rebuilt(load(Reader(pickle.dumps(array, protocol))).value), array)


@pytest.mark.parametrize("protocol", range(6))
def test_large_arrays_are_left_in_the_source(protocol: int) -> None:
    array = np.arange(40_000, dtype="<u2")
    data = pickle.dumps({"w": array}, protocol)
    reader = Reader.over(lambda offset, size: data[offset : offset + size], len(data))
    found = load(reader).value["w"]
    assert type(found.data) is LazyBytes
    assert not found.data.text
    assert (found.data.length is None) == (protocol < 3)
    same(rebuilt(found, reader), array)


ARRAY = call(name("numpy.core.multiarray", "_reconstruct"), name("numpy", "ndarray"), b"K\x00\x85", b"C\x01b")
FLOAT = call(name("numpy", "dtype"), text("f4"), b"\x89\x88")


@pytest.mark.parametrize(
    "state",
    [
        b"N",
        b"(K\x01K\x02tN"[:-1],
        b"(K\x01K\x02" + FLOAT + b"\x89C\x08" + b"x" * 8 + b"t",  # a shape that is no tuple
        b"(K\x01K\x02\x85N\x89C\x08" + b"x" * 8 + b"t",  # no dtype
        b"(K\x01K\x02\x85" + FLOAT + b"\x89C\x07" + b"x" * 7 + b"t",  # too few bytes
        b"(K\x01K\x02\x85" + FLOAT + b"\x89C\x09" + b"x" * 9 + b"t",  # too many
        b"(K\x01K\x02\x85" + FLOAT + b"\x89Nt",
        b"(K\x01K\x02\x85" + FLOAT + b"\x89]t",
        b"(K\x01K\x02\x85" + FLOAT + b"\x89" + text("層層") + b"t",  # text that is no bytes
    ],
)
def test_malformed_arrays(state: bytes) -> None:
    with pytest.raises(CorruptFileError):
        load(Reader(whole(ARRAY + state + b"b")))


def test_lazy_data_of_the_wrong_length() -> None:
    data = whole(ARRAY + b"(K\x01K\x02\x85" + FLOAT + b"\x89B" + (70_000).to_bytes(4, "little") + bytes(70_000) + b"tb")
    with pytest.raises(CorruptFileError):
        load(Reader.over(lambda offset, size: data[offset : offset + size], len(data)))


@pytest.mark.parametrize(("count", "right"), [(17_000, True), (70_001, False), (2, False)])
def test_encoded_lazy_data_of_an_impossible_length(count: int, right: bool) -> None:
    """Its exact length is not known before it is decoded, but a byte takes one to six bytes."""
    state = b"(K\x01J" + count.to_bytes(4, "little") + b"\x85" + FLOAT + b"\x89"
    encode = call(name("_codecs", "encode"), text("x" * 70_000), text("latin1"))
    data = whole(ARRAY + state + encode + b"tb")
    reader = Reader.over(lambda offset, size: data[offset : offset + size], len(data))
    if right:
        assert load(reader).value.shape == (count,)
    else:
        with pytest.raises(CorruptFileError):
            load(reader)


@pytest.mark.parametrize("code", [text("float"), text("f4,f4"), text("q" * 30), b"K\x04", text("("), text("")])
def test_unknown_dtypes_are_stubs_and_make_no_array(code: bytes) -> None:
    dtype = call(name("numpy", "dtype"), code, b"\x89\x88")
    assert type(load(Reader(whole(dtype))).value) is Call
    with pytest.raises(CorruptFileError):
        load(Reader(whole(ARRAY + b"(K\x01K\x00\x85" + dtype + b"\x89C\x00tb")))


def test_a_dtype_of_an_unknown_class_is_a_stub() -> None:
    assert type(load(Reader(whole(call(name("numpy", "dtype"), name("my", "type"))))).value) is Call
    assert type(load(Reader(whole(call(name("numpy", "dtype"), name("ml_dtypes", "float8_e5m2"))))).value) is NumpyDtype
