# SPDX-License-Identifier: Apache-2.0
"""What numpy's names in a pickle become: descriptions of arrays, dtypes and scalars, whose bytes stay where they are.

numpy.dtype(code, align, copy) + state (version, order, subdtype, names, fields, itemsize, alignment, flags[, metadata])
_reconstruct(ndarray, (0,), b"b") + state (version, shape, dtype, fortran, data); data: bytes, or a list for objects
_frombuffer(data, dtype, shape, order[, axis_order]) at protocol 5;   scalar(dtype, data)
Source: numpy's multiarray methods.c and descriptor.c, 1.x and 2.x. numpy itself is not needed here.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from typing import Any

from tael.errors import CorruptFileError, clip
from tael.pickle.budget import ENTRY_BYTES, Budget
from tael.pickle.lazy import encode_latin1
from tael.pickle.stubs import Call, Global, LazyBytes, Rule

_MAX = 1 << 63
_CODE = re.compile(r"([biufcmMOSUVa])(\d*)")  # dtype.__reduce__ writes kind and itemsize
_WIDE = {"U": 4}  # bytes a character
_STRUCT = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    "f2": "e", "f4": "f", "f8": "d",
}  # fmt: skip
_ORDERS = ("<", ">", "=", "|")
_ML_DTYPES_BYTES = {  # ml_dtypes' types, which numpy pickles by naming their class
    "bfloat16": 2, "float8_e3m4": 1, "float8_e4m3": 1, "float8_e4m3b11fnuz": 1, "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "float6_e2m3fn": 1,
    "float6_e3m2fn": 1, "float4_e2m1fn": 1, "int1": 1, "int2": 1, "int4": 1, "uint1": 1, "uint2": 1, "uint4": 1,
}  # fmt: skip


class NumpyDtype:
    """A dtype as pickled. `code`: "f4", "U10", "V20", "O8", or a class of ml_dtypes such as "bfloat16".

    `order`: "<", ">", "|" or "=" (the machine that wrote it; little-endian in practice). `names` and `fields`
    (name -> (NumpyDtype, offset)) for structured ones, `base` (NumpyDtype, shape) for subarrays; else None.
    """

    __slots__ = ("base", "code", "fields", "has_state", "itemsize", "metadata", "names", "order")

    def __init__(self, code: str, itemsize: int, order: str = "=") -> None:
        self.code = code
        self.itemsize = itemsize
        self.order = "|" if itemsize == 1 or code[0] in "SVO" else order
        self.names: tuple[str, ...] | None = None
        self.fields: dict[str, tuple[NumpyDtype, int]] | None = None
        self.base: tuple[NumpyDtype, tuple[int, ...]] | None = None
        self.metadata: object = None
        self.has_state = False

    @property
    def is_object(self) -> bool:
        return self.code[0] == "O"

    @property
    def is_plain(self) -> bool:
        """Numbers of one kind: not structured, no subarray, no objects, no text, no dates."""
        return self.names is None and self.base is None and (self.code in _STRUCT or self.code in _PLAIN)

    @property
    def descr(self) -> str:
        """As numpy's `dtype.str`: "<f4", "|b1", ...; for ml_dtypes the plain name."""
        return self.code if self.code in _ML_DTYPES_BYTES else self.order.replace("=", "<") + self.code

    def set_state(self, state: object, budget: Budget) -> None:
        if type(state) is not tuple or not 5 <= len(state) <= 9 or self.has_state:
            raise CorruptFileError("a numpy dtype with a malformed state")
        self.has_state = True
        version, order, subdtype, names, fields, *rest = state
        if type(version) is not int or order not in _ORDERS:
            raise CorruptFileError("a numpy dtype with a malformed byte order")
        self.order = order
        if subdtype is not None:
            if type(subdtype) is not tuple or len(subdtype) != 2 or type(subdtype[0]) is not NumpyDtype:
                raise CorruptFileError("a numpy dtype with a malformed subarray")
            shape = (subdtype[1],) if type(subdtype[1]) is int else subdtype[1]
            self.base = subdtype[0], _shape(shape, budget)
        if self.code[0] in "SUV" and len(rest) >= 2 and type(rest[0]) is int and rest[0] >= 0:
            self.itemsize = rest[0]
        if names is not None:
            self._set_fields(names, fields, budget)
        self.metadata = rest[3] if len(rest) > 3 else None

    def _set_fields(self, names: object, fields: object, budget: Budget) -> None:
        if type(names) is not tuple or not isinstance(fields, dict) or set(map(type, names)) - {str}:
            raise CorruptFileError("a structured numpy dtype with malformed names")
        budget.charge(len(names))
        budget.keep(len(names) * ENTRY_BYTES)
        made: dict[str, tuple[NumpyDtype, int]] = {}
        for name in names:
            entry = fields.get(name)
            if type(entry) is not tuple or not 2 <= len(entry) <= 3:
                raise CorruptFileError(f"a structured numpy dtype without its field {clip(name)!r}")
            dtype, offset = entry[:2]
            if type(dtype) is not NumpyDtype or type(offset) is not int or not 0 <= offset <= self.itemsize:
                raise CorruptFileError(f"a structured numpy dtype with a malformed field {clip(name)!r}")
            made[name] = dtype, offset
        self.names, self.fields = names, made

    def __repr__(self) -> str:
        return f"<numpy dtype {clip(self.descr)}{' structured' if self.names else ''}>"


_PLAIN = frozenset({"c8", "c16", "f16", "c32", *_ML_DTYPES_BYTES})


class NumpyArray:
    """An ndarray as pickled: element (i, j, ...) is number `i * strides[0] + j * strides[1] + ...` in `data`.

    `data`: bytes, `LazyBytes` that decode to bytes, or for objects a list of values (None until BUILD came).
    """

    __slots__ = ("data", "dtype", "shape", "strides")

    def __init__(self) -> None:
        self.dtype = NumpyDtype("b1", 1)
        self.shape: tuple[int, ...] = (0,)
        self.strides: tuple[int, ...] = (1,)
        self.data: bytes | LazyBytes | list[Any] | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def set_state(self, state: object, budget: Budget) -> None:
        if type(state) is not tuple or len(state) not in (4, 5) or self.data is not None:
            raise CorruptFileError("a numpy array with a malformed state")
        shape, dtype, fortran, data = state[-4:]
        self.set(shape, dtype, data, budget)
        if fortran:
            self.strides = _strides(self.shape[::-1])[::-1]

    def set(self, shape: object, dtype: object, data: object, budget: Budget) -> None:
        if type(dtype) is not NumpyDtype:
            raise CorruptFileError("a numpy array without a dtype")
        self.shape, self.dtype = _shape(shape, budget), dtype
        self.strides = _strides(self.shape)
        self.data = data if type(data) is list else _as_bytes(data, budget)
        if type(data) is list:
            self._expect(len(data), math.prod(self.shape), "values")
        elif dtype.is_object:
            raise CorruptFileError("a numpy array of objects without its list of values")
        elif type(self.data) is bytes:
            self._expect(len(self.data), self.nbytes, "bytes")
        elif isinstance(self.data, LazyBytes):
            stored = self.data.nbytes
            if self.data.length is not None:
                self._expect(self.data.length, self.nbytes, "bytes")
            elif not self.nbytes <= stored <= _MOST_STORED * self.nbytes:
                self._expect(stored, self.nbytes, "encoded bytes")

    def _expect(self, found: int, wanted: int, what: str) -> None:
        if found != wanted:
            raise CorruptFileError(f"a numpy array of shape {self.shape} has {found:,} {what}, not {wanted:,}")

    def __repr__(self) -> str:
        return f"<numpy array {clip(self.dtype.descr)} {self.shape}>"


_MOST_STORED = 6  # bytes that one byte takes at most in an encoded form: \u00ff


@dataclass(slots=True, eq=False)
class NumpyScalar:
    """A numpy scalar: its dtype and bytes, or for dtype object the value itself."""

    dtype: NumpyDtype
    data: Any

    @property
    def value(self) -> object:
        """The Python number, where there is one; else None."""
        code = _STRUCT.get(self.dtype.code)
        order = ">" if self.dtype.order == ">" else "<"
        if code and type(self.data) is bytes and len(self.data) == self.dtype.itemsize:
            return struct.unpack(order + code, self.data)[0]
        if self.dtype.code in ("c8", "c16") and type(self.data) is bytes and len(self.data) == self.dtype.itemsize:
            return complex(*struct.unpack(order + ("ff" if self.dtype.code == "c8" else "dd"), self.data))
        return None

    def __repr__(self) -> str:
        return f"<numpy scalar {clip(self.dtype.descr)}>"


def _shape(shape: object, budget: Budget) -> tuple[int, ...]:
    if type(shape) is not tuple:
        raise CorruptFileError("a numpy shape that is no tuple")
    budget.limits.check("the rank of a numpy array", len(shape), budget.limits.rank, path=budget.path)
    if set(map(type, shape)) - {int} or (shape and min(shape) < 0) or math.prod(shape) >= _MAX:
        raise CorruptFileError("a numpy shape with impossible sizes")
    return shape


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements between neighbours on each axis of a C-ordered array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _as_bytes(data: object, budget: Budget) -> bytes | LazyBytes:
    if type(data) is bytes:
        return data
    if type(data) is str:  # Python 2
        budget.keep(len(data))
        return encode_latin1(data)
    if type(data) is bytearray:
        budget.keep(len(data))
        return bytes(data)
    if type(data) is LazyBytes:
        return LazyBytes(data.offset, data.nbytes, data.encoding)
    raise CorruptFileError(f"numpy data that is a {type(data).__name__}")


def _dtype(args: tuple[Any, ...], budget: Budget) -> Any:
    code = args[0] if args else None
    if type(code) is Global and code.module == "ml_dtypes" and code.name in _ML_DTYPES_BYTES:
        return NumpyDtype(code.name, _ML_DTYPES_BYTES[code.name])
    match = _CODE.fullmatch(code) if type(code) is str and len(code) < 24 else None
    if match is None:
        return Call(Global("numpy", "dtype"), args)
    letter, digits = match.groups()
    size = 8 if letter in "OMm" else int(digits or 0)
    return NumpyDtype(f"{letter}{size}", size * _WIDE.get(letter, 1))


def _reconstruct(args: tuple[Any, ...], budget: Budget) -> Any:
    if len(args) != 3:
        raise CorruptFileError("a numpy array with malformed arguments")
    subtype = args[0]
    if type(subtype) is not Global or (subtype.module, subtype.name) != ("numpy", "ndarray"):
        return Call(Global("numpy.core.multiarray", "_reconstruct"), args)
    return NumpyArray()


def _from_buffer(args: tuple[Any, ...], budget: Budget) -> Any:
    if len(args) not in (4, 5) or args[3] not in ("C", "F", "K"):
        raise CorruptFileError("a numpy array with malformed arguments")
    data, dtype, shape, order, *axes = args
    array = NumpyArray()
    array.set(shape, dtype, data, budget)
    if order == "F":
        array.strides = _strides(array.shape[::-1])[::-1]
    if order == "K" and axes and axes[0] is not None:  # C order, then transposed
        if type(axes[0]) is not tuple or sorted(axes[0]) != list(range(len(array.shape))):
            raise CorruptFileError("a numpy array with a malformed order of axes")
        array.shape, array.strides = (tuple(old[axis] for axis in axes[0]) for old in (array.shape, array.strides))
    return array


def _scalar(args: tuple[Any, ...], budget: Budget) -> Any:
    if len(args) not in (1, 2) or type(args[0]) is not NumpyDtype:
        raise CorruptFileError("a numpy scalar with malformed arguments")
    if args[0].is_object:
        return NumpyScalar(args[0], args[-1])
    data = _as_bytes(args[1] if len(args) == 2 else b"", budget)
    return NumpyScalar(args[0], data)


_SCALAR_TYPES = (
    "bool_", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64", "longdouble", "complex64", "complex128", "str_", "bytes_", "void", "object_", "datetime64",
    "timedelta64", "intc", "uintc", "longlong", "ulonglong",
)  # fmt: skip

RULES: dict[str, Rule] = {
    "numpy.dtype": Rule(_dtype),
    "numpy.ndarray": Rule(),
    **{
        f"numpy.{core}.{name}": Rule(build)
        for core in ("core", "_core")
        for name, build in [
            ("multiarray._reconstruct", _reconstruct),
            ("multiarray.scalar", _scalar),
            ("numeric._frombuffer", _from_buffer),
        ]
    },
    **{f"numpy.{name}": Rule() for name in _SCALAR_TYPES},
    **{f"ml_dtypes.{name}": Rule() for name in _ML_DTYPES_BYTES},
}
