# SPDX-License-Identifier: Apache-2.0
"""TensorInfo: what the header says. Tensor: that, and where the bytes are."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tael.core import evaluate
from tael.core.block_ops import is_quantize, row_unit
from tael.core.dtypes import DType
from tael.core.node import Contiguous, Node, Span
from tael.errors import ChecksumError, TaelError, UnsupportedTensorError


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, dtype, logical row-major shape (rank kept) and, when tied, the name that owns the bytes."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    alias_of: str | None = None

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.shape)

    @property
    def parameters(self) -> int:
        return math.prod(self.shape)


class Check:
    """A CRC-32 that the container stores for a whole range of a source. The range is read at most once."""

    def __init__(self, span: Span, crc32: int, what: str) -> None:
        self.span, self.crc32, self.what = span, crc32, what
        self._found: int | None = None
        self._lock = threading.Lock()

    def verify(self) -> None:
        """Read the range and compare; raises `ChecksumError`."""
        from tael import kernels

        with self._lock:
            if self._found is None:
                crc, at = 0, self.span.offset
                buffer = memoryview(bytearray(min(1 << 20, self.span.nbytes)))
                while at < self.span.end:
                    piece = buffer[: min(len(buffer), self.span.end - at)]
                    self.span.source.read_into(at, piece)
                    crc = kernels.crc32(piece, crc)
                    at += len(piece)
                self._found = crc
            self.compare(self._found)

    def compare(self, crc: int) -> None:
        """Take the CRC-32 that somebody computed in passing; raises `ChecksumError` if it is not the stored one."""
        self._found = crc
        if crc != self.crc32:
            raise ChecksumError(
                f"{self.what}: stored CRC-32 {self.crc32:08x}, the bytes have {crc:08x}",
                path=self.span.source.name,
                offset=self.span.offset,
                hint="the file was damaged after it was written; fetch it again, or go on with --skip-damaged",
            )


@dataclass(frozen=True, slots=True, repr=False)
class Tensor:
    """A tensor whose bytes are read on demand. `damaged` says why they cannot be."""

    info: TensorInfo
    data: Node
    access: Literal["random", "sequential"] = "random"
    checks: tuple[Check, ...] = ()
    damaged: str | None = None

    def __repr__(self) -> str:
        tie = f" = {self.info.alias_of!r}" if self.info.alias_of else ""
        return f"<Tensor {self.name!r}{tie}: {self.dtype} {list(self.shape)}>"

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def dtype(self) -> DType:
        return self.info.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.info.shape

    @property
    def nbytes(self) -> int:
        return self.info.nbytes

    @property
    def span(self) -> Span | None:
        """The range that holds exactly the canonical bytes, if there is one."""
        return self.data.span if isinstance(self.data, Contiguous) else None

    def with_data(self, data: Node, *, name: str | None = None) -> Tensor:
        """The same tensor computed from `data` (another dtype or shape), under `name`. No longer an alias."""
        return replace(self, info=TensorInfo(name or self.name, data.dtype, data.shape), data=data)

    def renamed(self, name: str, alias_of: str | None = None) -> Tensor:
        return replace(self, info=replace(self.info, name=name, alias_of=alias_of))

    def require_intact(self) -> None:
        """Raise `UnsupportedTensorError` if the bytes cannot be read."""
        if self.damaged:
            raise UnsupportedTensorError(self.damaged, tensor=self.name)

    def read_into(self, start_block: int, n_blocks: int, buffer: memoryview) -> evaluate.Counters:
        """Fill `buffer` with blocks `start_block ...`; counts what casts could not hold. THE read: all else derives."""
        self.require_intact()
        counters = evaluate.Counters()
        total = self.nbytes // self.dtype.block_bytes
        if not 0 <= start_block <= start_block + n_blocks <= total:  # beyond lie the bytes of other tensors
            raise UnsupportedTensorError(
                f"has {total:,} blocks, asked for {n_blocks:,} from {start_block:,}", tensor=self.name
            )
        if n_blocks == 0:
            return counters
        out = np.frombuffer(buffer, evaluate.block_dtype(self.dtype), count=n_blocks)
        try:
            evaluate.read_blocks(self.data, start_block, out, counters)
        except TaelError as error:
            error.tensor = error.tensor or self.name
            raise
        return counters

    def chunks(self, budget: int = 8 << 20) -> Iterator[memoryview]:
        """The canonical bytes in order, at most `budget` at a time, in one buffer that is used again."""
        self.require_intact()
        size = self.dtype.block_bytes
        if size > budget and self.span is not None:  # of a type whose blocks nobody knows: one may be the whole tensor
            yield from _pieces(self.span, budget)
            return
        total = self.nbytes // size
        step = max(1, budget // size)
        unit = chunk_alignment(self.data)
        step = max(unit, step // unit * unit)
        buffer = memoryview(bytearray(min(step, total) * size))
        for start in range(0, total, step):
            count = min(step, total - start)
            piece = buffer[: count * size]
            self.read_into(start, count, piece)
            yield piece

    def verify_checks(self) -> None:
        """Compare the stored checksums of every range this tensor lies in; raises `ChecksumError`."""
        for check in self.checks:
            try:
                check.verify()
            except ChecksumError as error:
                error.tensor = self.name
                raise

    def numpy(self) -> Any:
        """The whole tensor as an array of its shape (bf16, fp8, int4, ...: the ml_dtypes type), checksums compared."""
        self.require_intact()
        self.verify_checks()
        kind = self.dtype.numpy()
        raw = bytearray(self.nbytes)
        if raw:
            self.read_into(0, self.nbytes // self.dtype.block_bytes, memoryview(raw))
        if self.dtype.is_plain:
            return np.frombuffer(raw, kind).reshape(self.shape)
        from tael.kernels.subbyte import unpack

        codes = unpack(np.frombuffer(raw, np.uint8), round(self.dtype.bits))
        return codes.view(kind).reshape(self.shape)


def _pieces(span: Span, budget: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(budget, span.nbytes)))
    for offset in range(span.offset, span.end, budget):
        piece = buffer[: min(budget, span.end - offset)]
        span.source.read_into(offset, piece)
        yield piece


def chunk_alignment(node: Node) -> int:
    """Blocks of `node` that a range must start at a multiple of, so that no block of an input is cut."""
    if isinstance(node, Contiguous):
        return 1
    inputs = getattr(node, "inputs", ())[:1] if is_quantize(node) else getattr(node, "inputs", ())
    unit = row_unit(node)
    for inner in inputs:
        elements = math.lcm(node.dtype.block, inner.dtype.block * chunk_alignment(inner))
        unit = math.lcm(unit, elements // node.dtype.block)
    return unit
