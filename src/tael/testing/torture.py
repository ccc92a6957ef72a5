# SPDX-License-Identifier: Apache-2.0
"""A checkpoint in memory with everything that goes wrong in the field: shapes, names, views, ties, odd values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tael.core import ops
from tael.core.checkpoint import Checkpoint
from tael.core.dtypes import DTYPES, DType
from tael.core.node import Contiguous, Node, Span, Tiled, contiguous_strides, strided
from tael.core.source import BytesSource
from tael.core.tensor import Tensor, TensorInfo

METADATA: dict[str, Any] = {
    "format": "pt",
    "x": "y",
    "épreuve": "naïve ✓",
    "step": 12,
    "lr": 1e-4,
    "flags": [True, None, "a"],
    "nested": {"a": {"b": [1, 2.5]}},
}


def torture(dtypes: Iterable[str], *, ties: bool = True, views: bool = True) -> Checkpoint:
    """Tensors of each of `dtypes`, with odd shapes, names and values; `views` need F32 among them."""
    tensors = list(_plain(dtypes))
    names = {tensor.name for tensor in tensors}
    if views and "plain.F32" in names:
        tensors += _views()
    if ties and tensors:
        owner = tensors[0]
        tensors.append(owner.renamed("tied.weight", alias_of=owner.name))
        tensors.append(owner.renamed("tied.again", alias_of=owner.name))
    table = {tensor.name: tensor for tensor in tensors}
    return Checkpoint("memory", "torture", table, METADATA)


def _plain(dtypes: Iterable[str]) -> list[Tensor]:
    found = []
    for name in dtypes:
        kind = DTYPES[name]
        if kind.kind == "string":
            continue
        row = kind.block if kind.kind == "quantized" else max(kind.block, 4)
        for label, shape in (("plain", (3, 5 * row)), ("empty", (2, 0)), ("wide", (1, 1, 2, row))):
            found.append(_tensor(f"{label}.{name}", kind, shape, _bits(kind, shape)))
        if kind.is_plain:
            found.append(_tensor(f"scalar.{name}", kind, (), _bits(kind, ())))
            found.append(_tensor(f"one.{name}", kind, (1,), _bits(kind, (1,))))
    if any(name == "F32" for name in dtypes):
        f32 = DTYPES["F32"]
        for name in _NAMES:
            found.append(_tensor(name, f32, (2, 3), _bits(f32, (2, 3))))
        odd = np.array(_ODD_F32, np.uint32)
        found.append(_tensor("odd_values", f32, odd.shape, odd.tobytes()))
    return found


_NAMES = (
    "a.b.c.weight",
    "path/with/slashes",
    "层.0.权重",
    "emoji 🦙 and spaces",
    "UPPER.lower",
    "trailing.dot.",
    "0",
    "naïve-é",
    "x" * 200,
)
_ODD_F32 = (
    0x00000000, 0x80000000,  # 0, -0
    0x7F800000, 0xFF800000,  # inf, -inf
    0x7FC00000, 0xFFC00001, 0x7F800001, 0xFFFFFFFF,  # NaNs, quiet and signalling, with payloads
    0x00000001, 0x807FFFFF,  # subnormals
    0x7F7FFFFF, 0x3F800000,
)  # fmt: skip


def _views() -> list[Tensor]:
    f32 = DTYPES["F32"]
    values = np.arange(96, dtype=np.float32)
    storage = Span(BytesSource(values.tobytes(), "storage"), 0, values.nbytes)
    packed = contiguous_strides((2, 3, 4, 4))
    views = {
        "view.transposed": ((12, 8), 0, (1, 12)),
        "view.channels_last": ((2, 3, 4, 4), 0, (48, 1, 12, 3)),
        "view.overlap_a": ((6, 4), 0, (4, 1)),
        "view.overlap_b": ((6, 4), 8, (4, 1)),
        "view.every_third": ((32,), 0, (3,)),
        "view.whole": ((2, 3, 4, 4), 0, packed),
    }
    tensors = [_of(name, strided(f32, shape, storage, start, steps)) for name, (shape, start, steps) in views.items()]
    halves = [Span(BytesSource(values[a:b].tobytes(), f"half {a}"), 0, 4 * (b - a)) for a, b in ((0, 48), (48, 96))]
    boxes = (((0, 6), (0, 8)), ((6, 12), (0, 8)))
    tiles = tuple((box, Contiguous(f32, (6, 8), half)) for box, half in zip(boxes, halves, strict=True))
    tensors.append(_of("computed.tiled", Tiled(f32, (12, 8), tiles)))
    big_endian = Span(BytesSource(values.astype(">f4").tobytes(), "big"), 0, values.nbytes)
    tensors.append(_of("computed.big_endian", ops.byteswap(Contiguous(f32, (96,), big_endian))))
    tensors.append(_of("computed.cast", ops.cast(ops.cast(tensors[0].data, DTYPES["BF16"]), f32)))
    return tensors


def _bits(kind: DType, shape: tuple[int, ...]) -> bytes:
    """Every byte pattern a tensor of this kind may hold, in a fixed order."""
    count = kind.nbytes(shape)
    raw = (np.arange(count, dtype=np.uint64) * 2654435761 + math.prod(shape)) >> 7
    if kind.kind == "bool":
        raw = raw & 1
    return raw.astype(np.uint8).tobytes()


def _tensor(name: str, kind: DType, shape: tuple[int, ...], data: bytes) -> Tensor:
    return _of(name, Contiguous(kind, shape, Span(BytesSource(data, name), 0, len(data))))


def _of(name: str, node: Node) -> Tensor:
    return Tensor(TensorInfo(name, node.dtype, node.shape), node)
