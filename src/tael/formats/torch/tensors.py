# SPDX-License-Identifier: Apache-2.0
"""From what a pickle says about a tensor (`TensorRef`, `NumpyArray`, `StorageRef`) to a `Tensor` over the file's bytes.

Nothing is read. Every view is checked against the bytes that its storage really has. What is no plain array of numbers
(sparse, nested, meta, wrapper subclasses, raw bits) becomes a damaged tensor that says why: the others stay readable.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Literal

from tael.core import ops
from tael.core.dtypes import DTYPES, DType
from tael.core.limits import Limits
from tael.core.node import Contiguous, Node, Span, strided
from tael.core.problem import Problem
from tael.core.source import ByteSource, BytesSource
from tael.core.tensor import Tensor, TensorInfo
from tael.errors import TaelError, clip
from tael.formats.pickled_source import DecodedSource
from tael.formats.torch.storage import KINDS, PAIRS, Find, RefusedError, View, node_of, refusal, refuse_kinds
from tael.pickle import EmbeddedStorage, LazyBytes, NumpyArray, StorageRef, TensorRef, TorchDtype

QUANTIZATION = "torch.quantization"  # in the metadata: name -> scheme, scale, zero_point
_FROM_NUMPY: dict[str, str] = {
    "b1": "BOOL", "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64", "u1": "U8", "u2": "U16", "u4": "U32", "u8": "U64",
    "f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64", "c16": "C128",
    **{kind.numpy_name: kind.name for kind in DTYPES.values() if kind.numpy_name and kind.is_plain},
}  # fmt: skip

# Subclasses that add nothing to the numbers.
_PLAIN_TYPES = frozenset({
    "torch.Tensor", "torch._tensor.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer",
})  # fmt: skip


class TensorMaker:
    """Makes the tensors of one file; notes what they had besides numbers.

    find: the storage that a tensor names. source: where `LazyBytes` of the pickle lie.
    """

    def __init__(self, find: Find, source: ByteSource, limits: Limits, path: str) -> None:
        self.find, self.source, self.limits, self.path = find, source, limits, path
        self.problems: list[Problem] = []
        self.expanded: list[str] = []
        self.requires_grad: list[str] = []
        self.subclasses: Counter[str] = Counter()
        self.quantization: dict[str, dict[str, Any]] = {}
        self.added: list[Tensor] = []  # scales and zero points of quantized tensors
        self._owner: dict[tuple[Any, ...], str] = {}
        self._arrays: dict[int, tuple[NumpyArray, ByteSource]] = {}

    def make(self, name: str, value: Any) -> Tensor:
        """The tensor called `name`, damaged if `value` cannot be read."""
        if len(name) > self.limits.name_bytes:
            self.limits.check("the length of a tensor's name", len(name), self.limits.name_bytes, path=self.path)
        if type(value) is NumpyArray:
            return self._numpy(name, value)
        if type(value) is StorageRef:
            value = TensorRef(value, 0, (value.numel,), (1,))
        ref: TensorRef = value
        if ref.requires_grad:
            self.requires_grad.append(name)
        if ref.python_type is not None:
            self._note_type(ref)
        try:
            if ref.kind == "numpy":
                return self._from_numpy(name, ref)
            tensor = self._strided(name, ref)
            if ref.extra is not None and ref.kind == "quantized":
                self._note_quantizer(name, ref.extra["quantizer"])
            return tensor
        except (RefusedError, TaelError) as error:
            why = error.cause if isinstance(error, TaelError) else str(error)
            return self._damaged(name, _dtype_of(ref), ref.size, why)

    # --- torch

    def _strided(self, name: str, ref: TensorRef) -> Tensor:
        if ref.kind != "strided" or ref.metadata is not None:
            refuse_kinds(ref)
        storage = ref.storage
        if type(storage) is not StorageRef and type(storage) is not EmbeddedStorage:
            raise RefusedError("names no storage")
        stored = self.find(storage)
        torch_name = _torch_name(ref) if stored.dtype is None else stored.dtype.name
        kind = KINDS.get(torch_name)
        if kind is None:
            raise refusal("bits", dtype=torch_name)
        if stored.damaged:
            raise RefusedError(stored.damaged)
        view = View(ref)
        node = node_of(kind, PAIRS.get(torch_name, 1), view, stored)
        if not view.packed and view.count * kind.block_bytes > stored.span.nbytes:
            self.expanded.append(name)
        tensor = Tensor(TensorInfo(name, kind, node.shape), node, stored.access, stored.checks)
        if ref.extra is not None and "wanted_dtype" in ref.extra:
            wanted = KINDS.get(ref.extra["wanted_dtype"].name, kind)
            return tensor if wanted is kind else tensor.with_data(ops.cast(node, wanted))
        if view.count == 0:
            return tensor
        span = stored.span
        where = (id(span.source), span.offset + view.start * kind.block_bytes, torch_name, view.shape, view.steps)
        return self._tied(tensor, where)

    def _tied(self, tensor: Tensor, where: tuple[Any, ...]) -> Tensor:
        """An alias when the same bytes are there under an earlier name; the first name owns."""
        owner = self._owner.setdefault(where, tensor.name)
        return tensor if owner == tensor.name else tensor.renamed(tensor.name, alias_of=owner)

    def _note_type(self, ref: TensorRef) -> None:
        kind = ref.python_type
        if kind is not None and ref.kind in ("strided", "quantized") and kind.qualified not in _PLAIN_TYPES:
            self.subclasses[kind.qualified] += 1

    def _note_quantizer(self, name: str, quantizer: tuple[Any, ...]) -> None:
        scheme = getattr(quantizer[0], "name", "?") if quantizer else "?"
        entry: dict[str, Any] = {"scheme": scheme}
        if len(quantizer) == 3 and set(map(type, quantizer[1:])) <= {int, float}:
            entry |= {"scale": quantizer[1], "zero_point": quantizer[2]}
        elif len(quantizer) == 4 and type(quantizer[3]) is int:
            entry["axis"] = quantizer[3]
            for key, value in (("scales", quantizer[1]), ("zero_points", quantizer[2])):
                if isinstance(value, TensorRef):
                    entry[key] = f"{name}.{key}"
                    self.added.append(self.make(f"{name}.{key}", value))
                elif isinstance(value, list) and set(map(type, value)) <= {int, float}:
                    entry[key] = value
        self.quantization[name] = entry

    def _damaged(self, name: str, kind: DType, shape: tuple[int, ...], why: str) -> Tensor:
        self.problems.append(Problem("fatal", why, self.path, name))
        nothing = Span(BytesSource(b"", self.path), 0, 0)
        if not kind.is_plain:
            kind = DTYPES["U8"]
        return Tensor(TensorInfo(name, kind, shape), Contiguous(kind, shape, nothing), damaged=why)

    # --- numpy

    def _numpy(self, name: str, array: NumpyArray) -> Tensor:
        node, access = self._array_node(name, array)
        return self._tied(Tensor(TensorInfo(name, node.dtype, node.shape), node, access), ("numpy", id(array)))

    def _from_numpy(self, name: str, ref: TensorRef) -> Tensor:
        array = (ref.extra or {}).get("data")
        if not isinstance(array, NumpyArray) or not is_numeric(array):
            raise RefusedError("was made from an array that holds no plain numbers")
        node, access = self._array_node(name, array)
        wanted = KINDS.get(_torch_name(ref), node.dtype)
        if node.dtype != wanted:
            node = ops.cast(node, wanted)  # bfloat16 on a device travels as float32
        return Tensor(TensorInfo(name, node.dtype, node.shape), node, access)

    def _array_node(self, name: str, array: NumpyArray) -> tuple[Node, Literal["random", "sequential"]]:
        kind = DTYPES[_FROM_NUMPY[array.dtype.code]]
        data, size = array.data, math.prod(array.shape) * kind.block_bytes
        access: Literal["random", "sequential"] = "random"
        if isinstance(data, LazyBytes) and data.encoding == "raw":
            span = Span(self.source, data.offset, size)
        elif isinstance(data, LazyBytes):
            access = "sequential"
            decoded = DecodedSource(self.source, data, size, f"{self.path}!{clip(name)}")
            span = Span(self._kept(array, decoded), 0, size)
        else:
            made = BytesSource(data if isinstance(data, bytes) else b"", f"{self.path}!{clip(name)}")
            span = Span(self._kept(array, made), 0, size)
        node = strided(kind, array.shape, span, 0, array.strides)
        return (ops.byteswap(node) if array.dtype.order == ">" else node), access

    def _kept(self, array: NumpyArray, source: ByteSource) -> ByteSource:
        """One source per array; the array is kept, so that its id stays its own."""
        return self._arrays.setdefault(id(array), (array, source))[1]


def is_tensor(value: Any) -> bool:
    """Whether `TensorMaker.make` takes it."""
    kind = type(value)
    return kind is TensorRef or kind is StorageRef or (kind is NumpyArray and is_numeric(value))


def is_numeric(array: NumpyArray) -> bool:
    """Whether the array holds numbers, in bytes that are there."""
    dtype = array.dtype
    return dtype.is_plain and dtype.code in _FROM_NUMPY and isinstance(array.data, bytes | LazyBytes)


def _torch_name(ref: TensorRef) -> str:
    dtype = ref.dtype or getattr(ref.storage, "dtype", None)
    return dtype.name if isinstance(dtype, TorchDtype) else "uint8"


def _dtype_of(ref: TensorRef) -> DType:
    """The dtype to list a tensor under that cannot be read."""
    extra = ref.extra or {}
    inner = extra.get("values") or extra.get("buffer")
    return KINDS.get(_torch_name(inner if isinstance(inner, TensorRef) else ref), DTYPES["U8"])
