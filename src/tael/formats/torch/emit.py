# SPDX-License-Identifier: Apache-2.0
"""Emits the pickle (protocol 2) of a torch file: plain structure, and tensors as torch's own rebuild calls.

Only opcodes and globals that torch's weights-only unpickler knows are written. A tensor is
`_rebuild_tensor_v2(('storage', torch.FloatStorage, key, 'cpu', numel), 0, size, stride, False, OrderedDict())`, or, for
dtypes younger than those storage classes, `_rebuild_tensor_v3(... UntypedStorage ..., dtype)`. A container met twice is
written once. Source: torch/_tensor.py, _utils.py, _weights_only_unpickler.py of 2.13.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from tael.core.node import contiguous_strides
from tael.core.problem import Loss
from tael.core.tensor import Tensor
from tael.errors import UnsupportedTensorError, clip
from tael.formats.torch.tree import TensorLeaf
from tael.pickle.stubs import StubDict
from tael.pickle.torch_types import TorchDevice, TorchDtype

# dtype -> torch's name, and the storage class where there is one (else it goes by _rebuild_tensor_v3)
TORCH_DTYPES: dict[str, tuple[str, str | None]] = {
    "F64": ("float64", "DoubleStorage"),
    "F32": ("float32", "FloatStorage"),
    "F16": ("float16", "HalfStorage"),
    "BF16": ("bfloat16", "BFloat16Storage"),
    "F8_E4M3": ("float8_e4m3fn", None),
    "F8_E5M2": ("float8_e5m2", None),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", None),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", None),
    "F8_E8M0": ("float8_e8m0fnu", None),
    "F4_E2M1": ("float4_e2m1fn_x2", None),  # torch counts the pairs
    "I64": ("int64", "LongStorage"),
    "I32": ("int32", "IntStorage"),
    "I16": ("int16", "ShortStorage"),
    "I8": ("int8", "CharStorage"),
    "U64": ("uint64", None),
    "U32": ("uint32", None),
    "U16": ("uint16", None),
    "U8": ("uint8", "ByteStorage"),
    "BOOL": ("bool", "BoolStorage"),
    "C32": ("complex32", None),
    "C64": ("complex64", "ComplexFloatStorage"),
    "C128": ("complex128", "ComplexDoubleStorage"),
}

_PROTO, _STOP, _MARK, _REDUCE, _BUILD, _PERSID = b"\x80\x02", b".", b"(", b"R", b"b", b"Q"
_NONE, _TRUE, _FALSE = b"N", b"\x88", b"\x89"
_TUPLE, _EMPTY_TUPLE, _FEW = b"t", b")", (b"", b"\x85", b"\x86", b"\x87")
_EMPTY_DICT, _SETITEMS, _EMPTY_LIST, _APPENDS = b"}", b"u", b"]", b"e"
_BATCH = 1000  # items before they leave the unpickler's stack

_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes, TorchDtype, TorchDevice})
_LONGEST_INT = 255 * 8 - 1  # bits in a LONG1, the only long form that torch reads


_Code = Iterator[Any]  # bytes, and containers


class Emitter:
    """Writes one pickle. `tensors` by name, `keys`: name -> storage key. What it had to leave out: `losses()`."""

    def __init__(self, tensors: Mapping[str, Tensor], keys: Mapping[str, str]) -> None:
        self.tensors, self.keys = tensors, keys
        self.dropped: list[str] = []
        self.plain: list[str] = []  # dict subclasses written as dict
        self._memo: dict[Any, int] = {}  # what was written: a global, a string, a container's id
        self._tensor_codes: dict[tuple[str, tuple[int, ...]], tuple[bytes, bytes]] = {}
        self._where: list[Any] = []

    def emit(self, root: Any) -> bytes:
        """The pickle of `root`: dict, list, tuple, scalars and `TensorLeaf`s, however deep."""
        out = [_PROTO]
        frames = [self._value(root)]
        while frames:
            for item in frames[-1]:
                if type(item) is bytes:
                    out.append(item)
                else:
                    frames.append(self._container(item))
                    break
            else:
                frames.pop()
        out.append(_STOP)
        return b"".join(out)

    def losses(self) -> list[Loss]:
        found = []
        for kind, what, where in (
            ("extras", "objects that are no plain data", self.dropped),
            ("attributes", "mappings written as plain dict", self.plain),
        ):
            if where:
                some = ", ".join(clip(name) for name in where[:5]) + (", ..." if len(where) > 5 else "")
                found.append(Loss(kind, f"{what}: {some}", len(where)))  # type: ignore[arg-type]
        return found

    # --- structure: iterators of code, and of containers to be entered at that place

    def _value(self, value: Any) -> _Code:
        code = self._leaf(value)
        yield value if code is None else code

    def _leaf(self, value: Any) -> bytes | None:
        """The code of a leaf, or of a container that is written already; None: it must be entered."""
        kind = type(value)
        if kind is TensorLeaf:
            return self._tensor(self.tensors[value.name])
        if kind is str:
            return _text(value)
        if kind in _SCALARS:
            return self._scalar(value)
        if not value and kind is tuple:
            return _EMPTY_TUPLE
        number = self._memo.get(id(value))
        return None if number is None else _get(number)

    def _container(self, value: Any) -> _Code:
        if isinstance(value, dict):
            return self._dict(value)
        return self._tuple(value) if isinstance(value, tuple) else self._list(value)

    def _dict(self, value: dict[Any, Any]) -> _Code:
        ordered = isinstance(value, StubDict) and value.origin == "collections.OrderedDict"
        if isinstance(value, StubDict) and not ordered:
            self.plain.append(self._path())
        yield self._global("collections", "OrderedDict") + _EMPTY_TUPLE + _REDUCE if ordered else _EMPTY_DICT
        yield self._put(id(value))
        count = 0
        self._where.append(None)
        for key, item in value.items():
            self._where[-1] = key
            if not (self._is_key(key) and self._known(item)):
                self.dropped.append(self._path())
            elif type(item) is not TensorLeaf or item.name in self.tensors:  # else somebody has deselected it
                if count % _BATCH == 0:
                    yield _SETITEMS + _MARK if count else _MARK
                count += 1
                yield from self._value(key)
                yield from self._value(item)
        self._where.pop()
        if count:
            yield _SETITEMS
        state = value.state if isinstance(value, StubDict) else None
        if ordered and isinstance(state, dict) and state:  # a state dict's _metadata
            yield from self._value(state)
            yield _BUILD

    def _list(self, value: list[Any]) -> _Code:
        yield _EMPTY_LIST + self._put(id(value))
        for start in range(0, len(value), _BATCH):
            yield _MARK
            yield from self._elements(value[start : start + _BATCH], start)
            yield _APPENDS

    def _tuple(self, value: tuple[Any, ...]) -> _Code:
        few = len(value) < len(_FEW)
        if not few:
            yield _MARK
        yield from self._elements(value, 0)
        yield _FEW[len(value)] if few else _TUPLE
        yield self._put(id(value))

    def _elements(self, values: list[Any] | tuple[Any, ...], start: int) -> _Code:
        """Every position is kept: None stands for what cannot be written, and for tensors that were deselected."""
        self._where.append(None)
        for index, item in enumerate(values, start):
            self._where[-1] = index
            if not self._known(item):
                self.dropped.append(self._path())
                item = None
            elif type(item) is TensorLeaf and item.name not in self.tensors:
                item = None
            yield from self._value(item)
        self._where.pop()

    def _known(self, value: Any) -> bool:
        kind = type(value)
        if kind is int:
            return bool(value.bit_length() <= _LONGEST_INT)
        return kind in _SCALARS or kind in (TensorLeaf, dict, StubDict, list, tuple)

    def _is_key(self, key: Any) -> bool:
        if type(key) is tuple:
            return all(type(part) is not tuple and self._is_key(part) for part in key)
        return type(key) in _SCALARS and self._known(key)

    def _path(self) -> str:
        return ".".join(map(str, self._where)) or "the whole"

    # --- leaves

    def _scalar(self, value: Any) -> bytes:
        kind = type(value)
        if value is None:
            return _NONE
        if kind is bool:
            return _TRUE if value else _FALSE
        if kind is int:
            return _int(value)
        if kind is float:
            return b"G" + struct.pack(">d", value)
        if kind is complex:
            head = self._global("builtins", "complex")
            return head + self._scalar(value.real) + self._scalar(value.imag) + _FEW[2] + _REDUCE
        if kind is bytes:  # protocol 2 has no bytes; torch reads what Python's pickle makes of them there
            head = self._global("_codecs", "encode")
            return head + _text(value.decode("latin-1")) + _text("latin1") + _FEW[2] + _REDUCE
        if kind is TorchDtype:
            return self._global("torch", value.name)
        index = b"" if value.index is None else _int(value.index)
        return self._global("torch", "device") + _text(value.type) + index + _FEW[2 if index else 1] + _REDUCE

    def _tensor(self, tensor: Tensor) -> bytes:
        kind = (tensor.dtype.name, tensor.shape)
        found = self._tensor_codes.get(kind)
        if found is None:
            found = self._tensor_code(tensor)
            self._tensor_codes[kind] = self._tensor_code(tensor)  # now all of it is in the memo
        before, after = found
        return before + _text(self.keys[tensor.name]) + after

    def _tensor_code(self, tensor: Tensor) -> tuple[bytes, bytes]:
        """What stands before and behind the storage's key."""
        name, storage = TORCH_DTYPES[tensor.dtype.name]
        shape = torch_shape(tensor)
        rebuild = self._global("torch._utils", "_rebuild_tensor_v3" if storage is None else "_rebuild_tensor_v2")
        before = rebuild + _MARK + _MARK + self._string("storage")
        if storage is None:
            before += self._global("torch.storage", "UntypedStorage")
            numel = tensor.nbytes
        else:
            before += self._global("torch", storage)
            numel = math.prod(shape)
        after = self._string("cpu") + _int(numel) + _TUPLE + _PERSID
        after += _int(0) + _ints(shape) + _ints(contiguous_strides(shape)) + _FALSE
        after += self._global("collections", "OrderedDict") + _EMPTY_TUPLE + _REDUCE
        if storage is None:
            after += self._global("torch", name)
        return before, after + _TUPLE + _REDUCE

    # --- what is written once and then fetched from the memo

    def _global(self, module: str, name: str) -> bytes:
        return self._once((module, name), b"c%s\n%s\n" % (module.encode(), name.encode()))

    def _string(self, text: str) -> bytes:
        return self._once(text, _text(text))

    def _once(self, key: Any, code: bytes) -> bytes:
        number = self._memo.get(key)
        return code + self._put(key) if number is None else _get(number)

    def _put(self, key: Any) -> bytes:
        number = self._memo[key] = len(self._memo)
        return struct.pack("<cB", b"q", number) if number < 256 else struct.pack("<cI", b"r", number)


def torch_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape that torch has for it. Raises `UnsupportedTensorError` when it has none, or no such dtype."""
    shape, dtype = tensor.shape, tensor.dtype
    if dtype.name not in TORCH_DTYPES:
        raise UnsupportedTensorError(
            f"PyTorch has no dtype for {dtype}", tensor=tensor.name, hint="cast it first, or write safetensors"
        )
    if dtype.block == 1:
        return shape
    if not shape or shape[-1] % dtype.block:
        raise UnsupportedTensorError(
            f"PyTorch packs {dtype} along the last axis: {list(shape)} does not fill whole bytes", tensor=tensor.name
        )
    return (*shape[:-1], shape[-1] // dtype.block)


def _get(number: int) -> bytes:
    return struct.pack("<cB", b"h", number) if number < 256 else struct.pack("<cI", b"j", number)


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return b"X" + len(raw).to_bytes(4, "little") + raw


def _int(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K%c" % value
    if 0 <= value < 1 << 16:
        return struct.pack("<cH", b"M", value)
    if -(1 << 31) <= value < 1 << 31:
        return struct.pack("<ci", b"J", value)
    size = value.bit_length() // 8 + 1
    return b"\x8a%c" % size + value.to_bytes(size, "little", signed=True)


def _ints(values: tuple[int, ...]) -> bytes:
    code = b"".join(map(_int, values))
    if not values:
        return _EMPTY_TUPLE
    return code + _FEW[len(values)] if len(values) < len(_FEW) else _MARK + code + _TUPLE
