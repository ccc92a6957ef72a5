# SPDX-License-Identifier: Apache-2.0
"""Evaluates nodes: any block range (`read_blocks`) or box (`gather`) of a tensor, in bounded memory.

Arrays here hold raw blocks: numpy's unsigned integers by block size, else void. No value is decoded
unless an Op asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tael.core.dtypes import DType
from tael.core.node import Box, Contiguous, Node, Op, Span, Strided, Tiled, contiguous_strides
from tael.errors import UnsupportedTensorError

if TYPE_CHECKING:
    from tael.kernels import Errors

Blocks = npt.NDArray[Any]

READ_BUDGET = 4 << 20  # the most that one strided read takes in
SMALL_READ = 16 << 10  # below this, reading what lies between is cheaper than a second read


@dataclass(slots=True)
class Counters:
    """What only the data can tell about a conversion, in elements."""

    overflow: int = 0  # finite, but beyond the target's range
    nan_lost: int = 0  # NaN into a type that has none
    measure: bool = False  # compare what is quantized with its source
    errors: Errors | None = None  # of that comparison

    def add(self, other: Counters) -> None:
        self.overflow += other.overflow
        self.nan_lost += other.nan_lost


def block_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy type of one raw block."""
    size = dtype.block_bytes
    return np.dtype(f"u{size}" if size in (1, 2, 4, 8) else f"V{size}")


def read_blocks(node: Node, start: int, out: Blocks, counters: Counters) -> None:
    """Fill `out` (1-D, contiguous, of `block_dtype`) with the blocks of `node` from `start`, in row-major order."""
    if out.size == 0:
        return
    match node:
        case Contiguous(span=span):
            span.source.read_into(span.offset + start * node.dtype.block_bytes, as_bytes(out))
        case Op(name=name):
            from tael.core.ops import OPS

            OPS[name].read_blocks(node, start, out, counters)
        case _:
            read_by_boxes(node, start, out, counters)


def gather(node: Node, box: Box, out: Blocks, counters: Counters) -> None:
    """Fill `out` (shape of `box`, any strides) with the blocks of `node` inside `box`."""
    if out.size == 0:
        return
    match node:
        case Contiguous(span=span):
            grid = node.dtype.grid(node.shape)
            _gather_strided(span, node.dtype.block_bytes, 0, contiguous_strides(grid), box, out)
        case Strided(storage=storage, start=start, strides=strides):
            _gather_strided(storage, node.dtype.block_bytes, start, strides, box, out)
        case Tiled(tiles=tiles):
            covered = 0
            for tile_box, inner in tiles:
                common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, tile_box, strict=True)]
                if all(a < b for a, b in common):
                    inside = tuple((a - c, b - c) for (a, b), (c, _) in zip(common, tile_box, strict=True))
                    cut = (slice(a - s, b - s) for (a, b), (s, _) in zip(common, box, strict=True))
                    target: tuple[Any, ...] = (*cut, ...)  # the ... keeps a 0-dim array an array
                    gather(inner, inside, out[target], counters)
                    covered += math.prod(b - a for a, b in common)
            if covered != out.size:  # what is left would be whatever the memory held before
                raise UnsupportedTensorError(f"its pieces cover {covered:,} blocks of {out.size:,}")
        case Op(name=name):
            from tael.core.ops import OPS

            OPS[name].gather(node, box, out, counters)


def as_bytes(array: Blocks) -> memoryview:
    """The bytes of a contiguous array, writable if it is."""
    return array.reshape(-1).view(np.uint8).data


def read_by_boxes(node: Node, start: int, out: Blocks, counters: Counters) -> None:
    """`read_blocks` for nodes that know boxes only."""
    done = 0
    for box in boxes_of_range(node.dtype.grid(node.shape), start, out.size):
        shape = tuple(b - a for a, b in box)
        count = math.prod(shape)
        gather(node, box, out[done : done + count].reshape(shape), counters)
        done += count


def gather_by_runs(node: Node, box: Box, out: Blocks, counters: Counters) -> None:
    """`gather` for nodes that know block ranges only: one range per run along the last axis."""
    if not box:
        read_blocks(node, 0, out.reshape(1), counters)
        return
    strides = contiguous_strides(node.dtype.grid(node.shape))
    first, length = box[-1][0], box[-1][1] - box[-1][0]
    row = np.empty(length, out.dtype)
    for index in np.ndindex(*(b - a for a, b in box[:-1])):
        start = sum((i + a) * step for i, (a, _), step in zip(index, box[:-1], strides[:-1], strict=True)) + first
        read_blocks(node, start, row, counters)
        out[index] = row


def boxes_of_range(grid: tuple[int, ...], start: int, count: int) -> Iterator[Box]:
    """The boxes, in order, whose row-major blocks are `start .. start + count` of `grid`. At most 2 per axis."""
    if not grid:
        if count:
            yield ()
        return
    inner = math.prod(grid[1:])
    while count > 0:
        row, rest = divmod(start, inner)
        if rest == 0 and count >= inner:
            rows = count // inner
            yield ((row, row + rows), *((0, length) for length in grid[1:]))
            taken = rows * inner
        else:
            taken = min(inner - rest, count)
            for box in boxes_of_range(grid[1:], rest, taken):
                yield ((row, row + 1), *box)
        start, count = start + taken, count - taken


def _gather_strided(storage: Span, itemsize: int, start: int, strides: tuple[int, ...], box: Box, out: Blocks) -> None:
    """Blocks of a strided storage: one read where they lie close together, else halves of the widest axis."""
    first = start + sum(a * step for (a, _), step in zip(box, strides, strict=True))
    reach = [(n - 1) * step for n, step in zip(out.shape, strides, strict=True)]
    extent = (sum(reach) + 1) * itemsize
    useful = out.size * itemsize
    where = storage.offset + first * itemsize
    if extent == useful and out.flags.c_contiguous and _in_order(out.shape, strides):
        storage.source.read_into(where, as_bytes(out))
    elif extent <= SMALL_READ or (extent <= READ_BUDGET and extent <= 8 * useful):
        near = np.empty(extent, np.uint8)
        storage.source.read_into(where, near.data)
        steps = tuple(step * itemsize for step in strides)
        out[...] = np.ndarray(out.shape, out.dtype, near.data, 0, steps)
    else:
        axis = max(range(len(reach)), key=reach.__getitem__)
        middle = out.shape[axis] // 2
        a, b = box[axis]
        for piece, part in (((a, a + middle), slice(0, middle)), ((a + middle, b), slice(middle, None))):
            target = out[(slice(None),) * axis + (part,)]
            _gather_strided(storage, itemsize, start, strides, (*box[:axis], piece, *box[axis + 1 :]), target)


def _in_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    packed = contiguous_strides(shape)
    return all(n == 1 or have == want for n, have, want in zip(shape, strides, packed, strict=True))


def working_bytes(node: Node, blocks: int) -> int:
    """Bytes needed besides the output while `blocks` of `node` are evaluated."""
    match node:
        case Contiguous():
            return 0
        case Strided():
            return READ_BUDGET
        case Tiled(tiles=tiles):
            return max((working_bytes(inner, blocks) for _, inner in tiles), default=0) + READ_BUDGET
        case Op(name=name):
            from tael.core.ops import OPS

            return OPS[name].working_bytes(node, blocks)
