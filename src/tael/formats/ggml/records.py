# SPDX-License-Identifier: Apache-2.0
"""The tensors: record after record until the file ends.

    i32 n_dims | i32 length of the name | i32 type | i32 ne[n_dims], the fastest first | name | (ggjt: to a multiple of
    32) | data

Nothing says how many there are, nor where the next one starts: that follows from type and dims.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tael.core.dtypes import DTYPES, DType
from tael.core.limits import Limits
from tael.core.node import Contiguous, Node, Span
from tael.core.problem import Problem
from tael.core.repack import OLD_BLOCKS, repack
from tael.core.source import ByteSource
from tael.core.tensor import Tensor, TensorInfo
from tael.errors import CorruptFileError, TaelError, UnsupportedTensorError
from tael.formats.ggml.cursor import Cursor, CutShortError

ALIGNMENT = 32  # of the data in ggjt files
_MOST_DIMS = 4

# Number in the file -> dtype. The k-quants came with ggjt v3, and have not changed since.
TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K",
}  # fmt: skip
_GONE = {4: "Q4_2", 5: "Q4_3"}


@dataclass(frozen=True, slots=True)
class Records:
    tensors: dict[str, Tensor]
    problems: list[Problem]

    @property
    def complete(self) -> bool:
        """Did the last record end where the file does?"""
        return not self.problems


def read_records(source: ByteSource, offset: int, blocks: int, aligned: bool, limits: Limits) -> Records:
    """Every tensor from `offset` on, under the names of the file. Payloads are skipped, not read.

    A file cut short: what lies beyond is damaged, with a fatal problem. A record that cannot be one raises
    `CorruptFileError`, a type that is no longer read `UnsupportedTensorError`.
    """
    tensors: dict[str, Tensor] = {}
    problems: list[Problem] = []
    cursor = Cursor(source, offset, window=4096)
    while cursor.left > 0:
        limits.check("the number of tensors", len(tensors) + 1, limits.tensors, path=source.name)
        begin = cursor.offset
        try:
            name, number, shape = _record(cursor, limits)
        except CutShortError:
            if not tensors:
                raise
            what = f"ends inside the header of tensor {len(tensors) + 1:,}: it and what followed are missing"
            problems.append(Problem("fatal", what, source.name))
            break
        if name in tensors:
            raise CorruptFileError("this name stands twice in the file", path=source.name, tensor=name, offset=begin)
        if aligned:
            cursor.offset += -cursor.offset % ALIGNMENT
        try:
            node, size = _node(number, shape, blocks, Span(source, cursor.offset, 0))
        except TaelError as error:
            error.path, error.tensor, error.offset = source.name, name, begin
            raise
        damaged = None
        if size > cursor.left:
            damaged = f"cut short: the tensor has {size:,} bytes, {max(cursor.left, 0):,} are there"
            problems.append(Problem("fatal", damaged, source.name, name))
        tensors[name] = Tensor(TensorInfo(name, node.dtype, node.shape), node, damaged=damaged)
        cursor.offset += size
    if not tensors:
        problems.append(Problem("fatal", "holds no tensors: it ends behind its vocabulary", source.name))
    return Records(tensors, problems)


def _record(cursor: Cursor, limits: Limits) -> tuple[str, int, tuple[int, ...]]:
    begin = cursor.offset
    n_dims, length, number = (int(value) for value in cursor.unpack("iii", "the header of a tensor"))
    if not 1 <= n_dims <= _MOST_DIMS:
        raise CorruptFileError(f"a tensor of {n_dims:,} dimensions", path=cursor.source.name, offset=begin)
    if not 1 <= length <= limits.name_bytes:
        raise CorruptFileError(f"the name of a tensor has {length:,} bytes", path=cursor.source.name, offset=begin)
    ne = [int(value) for value in cursor.unpack("i" * n_dims, "the header of a tensor")]
    if min(ne) < 0:
        raise CorruptFileError(f"a tensor has dimensions {ne}", path=cursor.source.name, offset=begin)
    name = cursor.take(length, "the name of a tensor")
    return name.decode("utf-8", "surrogateescape"), number, tuple(reversed(ne))


def _node(number: int, shape: tuple[int, ...], blocks: int, at: Span) -> tuple[Node, int]:
    """Where the numbers come from, and how many bytes they have in the file."""
    if number in _GONE:
        raise UnsupportedTensorError(
            f"{_GONE[number]}, a type that ggml dropped in May 2023",
            hint="quantize the model again from its F16 weights",
        )
    kind = DTYPES[TYPES[number]] if number in TYPES else None
    if kind is None:
        raise CorruptFileError(f"its type is {number:,}, which GGML files do not have")
    old = next((key for v in range(blocks, 3) if (key := f"{kind.name}.{v}") in OLD_BLOCKS), None)
    size = math.prod(kind.grid(shape)) * (OLD_BLOCKS[old].nbytes if old else kind.block_bytes)
    span = Span(at.source, at.offset, size)
    if size >= 1 << 62:
        raise CorruptFileError(f"dimensions {list(shape)} are beyond any file")
    return (repack(old, shape, span) if old else Contiguous(kind, shape, span)), size


def is_old(dtype: DType, blocks: int) -> bool:
    """Were blocks of `dtype` stored with F32 scales in this version?"""
    old = OLD_BLOCKS.get(f"{dtype.name}.{blocks}")
    return old is not None and old.scale_bytes == 4
