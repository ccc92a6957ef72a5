# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies: random nodes of every kind, each with the array that it must evaluate to.

Arrays hold raw elements (`block_dtype`): numpy's unsigned integers, or void for 16-byte items.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tael.core import ops
from tael.core.dtypes import DTYPES
from tael.core.evaluate import block_dtype
from tael.core.node import Box, Contiguous, Node, Span, Tiled, strided
from tael.core.source import BytesSource

KINDS = ("U8", "BF16", "F32", "I64", "C128")


@dataclass
class Pair:
    node: Node
    array: np.ndarray[Any, Any]


class Recorder(BytesSource):
    """Bytes in memory that remember what was read of them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reads: list[tuple[int, int]] = []

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.reads.append((offset, memoryview(buffer).nbytes))
        super().read_into(offset, buffer)


@st.composite
def pairs(draw: st.DrawFn, depth: int = 3, most: int = 4) -> Pair:
    kind = draw(st.sampled_from(KINDS))
    lengths = st.integers(0, most) if draw(st.integers(0, 4)) == 0 else st.integers(1, most)
    shape = tuple(draw(st.lists(lengths, max_size=4)))
    return draw(_any_node(kind, shape, depth))


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    """Mostly not empty: with free choice of both ends, a box of several axes nearly always would be."""
    box = []
    for length in shape:
        least = 1 if length and draw(st.integers(0, 9)) else 0
        start = draw(st.integers(0, length - least))
        box.append((start, draw(st.integers(start + least, length))))
    return tuple(box)


def _any_node(kind: str, shape: tuple[int, ...], depth: int) -> st.SearchStrategy[Pair]:
    makers = [_contiguous, _strided]
    if depth > 0:
        makers += [_slice, _reshape, _byteswap]
        if shape:
            makers += [_transpose, _tiled, _concat, _stack]
    return st.sampled_from(makers).flatmap(lambda make: make(kind, shape, depth - 1))


def raw(kind: str, count: int, seed: int) -> np.ndarray[Any, Any]:
    dtype = block_dtype(DTYPES[kind])
    return np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)


@st.composite
def _contiguous(draw: st.DrawFn, kind: str, shape: tuple[int, ...], depth: int) -> Pair:
    array = raw(kind, math.prod(shape), draw(st.integers(0, 999))).reshape(shape)
    before = draw(st.integers(0, 9))
    source = Recorder(bytes(before) + array.tobytes() + b"after")
    return Pair(Contiguous(DTYPES[kind], shape, Span(source, before, array.nbytes)), array)


@st.composite
def _strided(draw: st.DrawFn, kind: str, shape: tuple[int, ...], depth: int) -> Pair:
    """Packed in any order of axes (C, Fortran, channels-last), or any strides: gaps, overlaps, stride 0."""
    if draw(st.booleans()):
        order = draw(st.permutations(range(len(shape))))
        steps, step = [0] * len(shape), 1
        for axis in order:
            steps[axis], step = step, step * max(1, shape[axis])
    else:
        steps = [draw(st.integers(0, 7)) for _ in shape]
    start = draw(st.integers(0, 5))
    extent = start + 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True) if n)
    store = raw(kind, extent + draw(st.integers(0, 3)), draw(st.integers(0, 999)))
    span = Span(Recorder(b"head" + store.tobytes()), 4, store.nbytes)
    node = strided(DTYPES[kind], shape, span, start, tuple(steps))
    strides = [step * store.itemsize for step in steps]
    return Pair(node, np.lib.stride_tricks.as_strided(store[start:], shape, strides).copy())


@st.composite
def _tiled(draw: st.DrawFn, kind: str, shape: tuple[int, ...], depth: int) -> Pair:
    axis = draw(st.integers(0, len(shape) - 1))
    cut = draw(st.integers(0, shape[axis]))
    tiles = []
    array = np.empty(shape, block_dtype(DTYPES[kind]))
    for a, b in draw(st.permutations([(0, cut), (cut, shape[axis])])):
        if a < b:
            part = draw(_any_node(kind, (*shape[:axis], b - a, *shape[axis + 1 :]), depth))
            box = tuple((a, b) if k == axis else (0, n) for k, n in enumerate(shape))
            array[tuple(slice(*edge) for edge in box)] = part.array
            tiles.append((box, part.node))
    return Pair(Tiled(DTYPES[kind], shape, tuple(tiles)), array)


@st.composite
def _transpose(draw: st.DrawFn, kind: str, shape: tuple[int, ...], depth: int) -> Pair:
    perm = draw(st.permutations(range(len(shape))))
    inner = draw(_any_node(kind, tuple(shape[perm.index(k)] for k in range(len(shape))), depth))
    return Pair(ops.transpose(inner.node, perm), inner.array.transpose(perm))


@st.composite
def _slice(draw: st.DrawFn, kind: str, shape: tuple[int, ...], depth: int) -> Pair:
    before = [draw(st.integers(0, 2)) for _ in shape]
    after = [draw(st.integers(0, 2)) for _ in shape]
    full = tuple(a + n + b for a, n, b in zip(before, shape, after, strict=True))
    inner = draw(_any_node(kind, full, depth))
    cut = tuple(slice(a, a + n) for a, n in zip(before, shape, strict=True))
    return Pair(ops.slice_(inner.node, before, shape), inner.array[(*cut, ...)])


@st.composite
def _concat(draw: st.DrawFn, kind: str, shape: tuple[int, ...], depth: int) -> Pair:
    axis = draw(st.integers(0, len(shape) - 1))
    cuts = sorted(draw(st.lists(st.integers(0, shape[axis]), max_size=2)))
    parts = [
        draw(_any_node(kind, (*shape[:axis], b - a, *shape[axis + 1 :]), depth))
        for a, b in zip([0, *cuts], [*cuts, shape[axis]], strict=True)
    ]
    return Pair(ops.concat([part.node for part in parts], axis), np.concatenate([part.array for part in parts], axis))


@st.composite
def _stack(draw: st.DrawFn, kind: str, shape: tuple[int, ...], depth: int) -> Pair:
    axis = draw(st.integers(0, len(shape) - 1))
    if shape[axis] == 0:
        return draw(_contiguous(kind, shape, depth))
    parts = [draw(_any_node(kind, (*shape[:axis], *shape[axis + 1 :]), depth)) for _ in range(shape[axis])]
    return Pair(ops.stack([part.node for part in parts], axis), np.stack([part.array for part in parts], axis))


@st.composite
def _reshape(draw: st.DrawFn, kind: str, shape: tuple[int, ...], depth: int) -> Pair:
    count = math.prod(shape)
    others = [
        (count,),
        (1, *shape),
        (*shape, 1),
        tuple(reversed(shape)),
        (2, count // 2) if count % 2 == 0 else (count,),
    ]
    inner = draw(_any_node(kind, draw(st.sampled_from(others)), depth))
    return Pair(ops.reshape(inner.node, shape), inner.array.reshape(shape))


@st.composite
def _byteswap(draw: st.DrawFn, kind: str, shape: tuple[int, ...], depth: int) -> Pair:
    inner = draw(_any_node(kind, shape, depth))
    item = {"U8": 1, "BF16": 2, "F32": 4, "I64": 8, "C128": 8}[kind]
    octets = np.ascontiguousarray(inner.array).reshape(-1).view(np.uint8).reshape(-1, item)[:, ::-1]
    return Pair(
        ops.byteswap(inner.node), np.ascontiguousarray(octets).reshape(-1).view(inner.array.dtype).reshape(shape)
    )
