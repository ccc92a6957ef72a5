# SPDX-License-Identifier: Apache-2.0
"""Storages of torch files and views into them: dtypes, geometry, bounds, and what is no plain array of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from tael.core import ops
from tael.core.dtypes import DTYPES, DType
from tael.core.node import Contiguous, Node, Span, contiguous_strides, last_element, strided
from tael.core.tensor import Check
from tael.errors import clip
from tael.formats.torch.emit import TORCH_DTYPES
from tael.pickle import EmbeddedStorage, StorageRef, TensorRef, TorchDtype

# torch's name -> dtype here. Quantized types keep their stored integers; scale and zero point go to the metadata.
FROM_TORCH: dict[str, str] = {
    **{torch_name: name for name, (torch_name, _) in TORCH_DTYPES.items()},
    "double": "F64", "float": "F32", "half": "F16", "long": "I64", "int": "I32", "short": "I16",
    "chalf": "C32", "cfloat": "C64", "cdouble": "C128",
    "qint8": "I8", "quint8": "U8", "qint32": "I32", "quint4x2": "U4", "quint2x4": "U2",
}  # fmt: skip
KINDS: dict[str, DType] = {torch_name: DTYPES[name] for torch_name, name in FROM_TORCH.items()}
PAIRS = {"float4_e2m1fn_x2": 2}  # torch counts bytes; each holds so many elements

_REFUSED = {
    "sparse": ("is sparse ({layout}), not a plain array", "save it dense: tensor.to_dense()"),
    "nested": ("is a nested tensor, not a plain array", "save its parts: tensor.unbind()"),
    "meta": ("is on the meta device: its shape was saved, its numbers were not", "load the weights before saving"),
    "fake": ("is a FakeTensor: its shape was saved, its numbers were not", "save outside of FakeTensorMode"),
    "shard": ("is a DTensor: at most one rank's piece of it is here", "save the gathered state dict (full_tensor())"),
    "wrapper": ("is a {type}, a subclass that holds no numbers itself", "save what it wraps, or a plain copy of it"),
    "flags": ("is stored with a pending {flag}", "save it resolved: resolve_conj(), resolve_neg()"),
    "bits": ("has the dtype torch.{dtype}, which says nothing about numbers", "save a view as another dtype"),
}


@dataclass(slots=True)
class Stored:
    """A storage in its container: its bytes, or why there are none. `dtype` where only the storage itself says it."""

    span: Span
    big_endian: bool = False
    checks: tuple[Check, ...] = ()
    access: Literal["random", "sequential"] = "random"
    damaged: str | None = None
    dtype: TorchDtype | None = None


Find = Callable[[StorageRef | EmbeddedStorage], Stored]


class RefusedError(Exception):
    """This tensor has no numbers to give."""


def storage_bytes(ref: StorageRef) -> int | None:
    """Bytes that the pickle says this storage has; None for a dtype that is unknown here."""
    if ref.dtype is None:
        return ref.numel
    kind = KINDS.get(ref.dtype.name)
    return None if kind is None else ref.numel * kind.block_bytes


class View:
    """The geometry of a view, in elements of its storage: `last` is the last one it reaches, -1 if it has none.

    `packed`: row-major without gaps. Otherwise `steps` are the strides, 0 where the length is 1 and they say nothing.
    """

    __slots__ = ("count", "last", "packed", "shape", "start", "steps")

    def __init__(self, ref: TensorRef) -> None:
        self.shape, self.start = ref.size, ref.offset
        strides, self.count = _row_major(ref.size)
        self.steps: tuple[int, ...] = ()
        self.packed = ref.stride == strides or all(
            length == 1 or step == wanted for length, step, wanted in zip(ref.size, ref.stride, strides, strict=True)
        )
        if self.packed:
            last = ref.offset + self.count - 1
        else:
            self.steps = tuple(0 if length == 1 else step for length, step in zip(ref.size, ref.stride, strict=True))
            last = last_element(ref.size, ref.offset, self.steps)
        self.last = last if self.count else -1


@lru_cache(4096)  # a model has few shapes
def _row_major(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Strides and number of elements."""
    return contiguous_strides(shape), math.prod(shape)


def node_of(kind: DType, pairs: int, view: View, stored: Stored) -> Node:
    """The node of a view into `stored`; raises when it does not lie inside."""
    span, unit = stored.span, kind.block_bytes
    if not kind.is_plain:
        return _packed(kind, pairs, view, span)
    if view.last >= span.nbytes // unit:
        raise _beyond(view.last, span.nbytes // unit)
    if view.packed:
        nbytes = view.count * unit
        if nbytes != span.nbytes:
            span = Span(span.source, span.offset + view.start * unit if view.count else span.offset, nbytes)
        node: Node = Contiguous(kind, view.shape, span)
    else:
        node = strided(kind, view.shape, span, view.start, view.steps)
    return ops.byteswap(node) if stored.big_endian else node


def _packed(kind: DType, pairs: int, view: View, span: Span) -> Node:
    """Types below a byte. torch counts either the bytes (`pairs` elements each) or the elements, in row-major order."""
    shape = (*view.shape[:-1], (view.shape[-1] if view.shape else 1) * pairs)
    count, start = view.count * pairs, view.start if pairs > 1 else 0
    if count and (not view.packed or (view.start and pairs == 1)):
        raise RefusedError(f"is a strided view of {kind}, whose elements are packed into bytes")
    nbytes = -(-count * kind.block_bytes // kind.block)
    if count and start + nbytes > span.nbytes:
        raise _beyond(start + nbytes - 1, span.nbytes)
    if count % kind.block:
        raise RefusedError(f"has {count} elements of {kind}, which do not fill whole bytes")
    return Contiguous(kind, shape, Span(span.source, span.offset + start, nbytes))


def _beyond(last: int, have: int) -> RefusedError:
    return RefusedError(f"reaches to element {last:,} of a storage that holds {have:,}")


def refuse_kinds(ref: TensorRef) -> None:
    kind = ref.kind
    qualified = ref.python_type.qualified if ref.python_type else "wrapper tensor"
    if kind in ("strided", "quantized"):  # what has the numbers in its storage
        flags = ref.metadata if isinstance(ref.metadata, dict) else {}
        for flag, what in (("conj", "conjugation"), ("neg", "negation")):
            if flags.get(flag):
                raise refusal("flags", flag=what)
        return
    if kind == "wrapper" and qualified.endswith("FakeTensor"):
        kind = "fake"
    elif kind == "wrapper" and qualified.endswith(".DTensor"):
        kind = "shard"
    layout = (ref.extra or {}).get("layout")
    raise refusal(kind if kind in _REFUSED else "wrapper", layout=layout, type=clip(qualified))


def refusal(kind: str, **what: Any) -> RefusedError:
    cause, hint = _REFUSED[kind]
    return RefusedError(f"{cause.format(**what)}; {hint}")
