# SPDX-License-Identifier: Apache-2.0
"""The op "repack": blocks as ggml stored them before May 2023, in today's layout.

A block holds 32 numbers: scales first, then their codes. Three things have changed since:

    until ggjt v1   codes 2j and 2j+1 shared byte j; today byte j holds codes j and 16 + j
    until ggjt v2   the scales of Q4_0, Q4_1 and Q8_0 were F32; today they are F16, to nearest even
    always          Q5_0 and Q5_1 had F16 scales; bit i of their 32 high bits belongs to code i

A code never changes, so the only thing that can differ is a scale that F16 cannot hold exactly. One that is not finite,
or is beyond F16, is no scale: `UnsupportedTensorError`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tael.core.dtypes import DTYPES
from tael.core.evaluate import Blocks, Counters, as_bytes, gather_by_runs, read_blocks, working_bytes
from tael.core.node import Box, Contiguous, Node, Op, Span
from tael.errors import UnsupportedTensorError

_CODES = 32  # numbers in a block of every one of these types


@dataclass(frozen=True, slots=True)
class OldBlock:
    """`scales` numbers of `scale_bytes` each, `high` bytes of fifth bits, then the codes."""

    becomes: str  # dtype of today
    scales: int
    scale_bytes: int
    high: int
    codes: int  # bytes: 16 (4 bits each) or 32 (8 bits each)
    interleaved: bool

    @property
    def nbytes(self) -> int:
        return self.scales * self.scale_bytes + self.high + self.codes


# (dtype, the ggjt version until which it was stored like this) -> layout. Others are as today.
OLD_BLOCKS: dict[str, OldBlock] = {
    "Q4_0.1": OldBlock("Q4_0", 1, 4, 0, 16, True),
    "Q4_1.1": OldBlock("Q4_1", 2, 4, 0, 16, True),
    "Q5_0.1": OldBlock("Q5_0", 1, 2, 4, 16, True),
    "Q5_1.1": OldBlock("Q5_1", 2, 2, 4, 16, True),
    "Q8_0.1": OldBlock("Q8_0", 1, 4, 0, 32, False),
    "Q4_0.2": OldBlock("Q4_0", 1, 4, 0, 16, False),
    "Q4_1.2": OldBlock("Q4_1", 2, 4, 0, 16, False),
    "Q8_0.2": OldBlock("Q8_0", 1, 4, 0, 32, False),
}


def repack(layout: str, shape: tuple[int, ...], span: Span) -> Node:
    """The tensor of `shape` whose blocks of `layout` (a key of `OLD_BLOCKS`) fill `span`."""
    old = OLD_BLOCKS[layout]
    kind = DTYPES[old.becomes]
    count = math.prod(kind.grid(shape))
    stored = Contiguous(DTYPES["U8"], (count * old.nbytes,), Span(span.source, span.offset, count * old.nbytes))
    return Op(kind, shape, "repack", (stored,), {"layout": layout})


class Repack:
    """Evaluator of the op: block i of the output is block i of the input."""

    def read_blocks(self, node: Op, start: int, out: Blocks, counters: Counters) -> None:
        old = OLD_BLOCKS[node.params["layout"]]
        given = np.empty((out.size, old.nbytes), np.uint8)
        read_blocks(node.inputs[0], start * old.nbytes, given.reshape(-1), counters)
        result = np.frombuffer(as_bytes(out), np.uint8).reshape(out.size, -1)
        _repack(old, given, result, start)

    def gather(self, node: Op, box: Box, out: Blocks, counters: Counters) -> None:
        gather_by_runs(node, box, out, counters)

    def working_bytes(self, node: Op, blocks: int) -> int:
        stored = blocks * OLD_BLOCKS[node.params["layout"]].nbytes
        return 3 * stored + working_bytes(node.inputs[0], stored)


def _repack(old: OldBlock, given: Blocks, out: Blocks, start: int) -> None:
    """Rows of bytes, one per block. `start`: the number of the first, for messages."""
    behind = old.scales * old.scale_bytes
    head = 2 * old.scales
    scales = given[:, :behind]
    out[:, :head] = _half(scales, start) if old.scale_bytes == 4 else scales
    out[:, head : head + old.high] = given[:, behind : behind + old.high]
    codes = given[:, behind + old.high :]
    if not old.interleaved:
        out[:, head + old.high :] = codes
        return
    first, second = codes & 15, codes >> 4  # of numbers 0, 2, 4, ... and 1, 3, 5, ...
    half = _CODES // 4
    out[:, head + old.high :: 2] = first[:, :half] | (first[:, half:] << 4)
    out[:, head + old.high + 1 :: 2] = second[:, :half] | (second[:, half:] << 4)


def _half(stored: Blocks, start: int) -> Blocks:
    """F32 scales, `stored` as bytes, as the bytes of F16 ones."""
    wide = np.ascontiguousarray(stored).view("<f4")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrow = wide.astype("<f2")
    bad = np.flatnonzero(~np.isfinite(narrow).all(axis=1))
    if bad.size:
        raise UnsupportedTensorError(
            f"block {start + int(bad[0]):,} has a scale of {wide[bad[0]].max():g}, which no block of today can hold",
            hint="files from before April 2023 kept the scales of a row apart from its codes: those are not read",
        )
    return narrow.view(np.uint8)
