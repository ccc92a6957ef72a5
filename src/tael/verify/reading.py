# SPDX-License-Identifier: Apache-2.0
"""Reading whole tensors to judge them: in chunks, with stored checksums compared in the same pass, on two threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tael import kernels
from tael.core.node import spans
from tael.core.tensor import Check, Tensor
from tael.errors import ChecksumError, UnsupportedTensorError

CHUNK = 4 << 20  # bytes: large enough for a network, small enough for memory
THREADS = 2
AHEAD = 32  # batches in work or waiting to be taken
BATCH = 1 << 20  # bytes that are worth a thread's attention
_REPEATED_BYTES = 64 << 20  # what a view may repeat of a storage that is _REPEATED times smaller
_REPEATED = 64

Item = TypeVar("Item")
Result = TypeVar("Result")


def checked_chunks(tensor: Tensor, budget: int = CHUNK) -> Iterator[memoryview]:
    """`tensor.chunks(budget)`, and at the end `ChecksumError` if the bytes do not have the CRC-32 stored for them.

    A checksum of exactly this tensor's bytes is compared in passing; one of more than that is read for beforehand.
    """
    reading = Reading(tensor)
    for piece in tensor.chunks(budget):
        reading.take(piece)
        yield piece
    reading.finish()


class Reading:
    """The checksums of one tensor while its bytes pass: `take` every piece in order, then `finish`.

    Raises `UnsupportedTensorError` for a tensor that is nothing but repetition: see `refuse_repeated`.
    """

    def __init__(self, tensor: Tensor) -> None:
        refuse_repeated(tensor)
        self.tensor = tensor
        self._exact: list[Check] = []
        self._crc = 0
        for check in tensor.checks:
            if check.span == tensor.span:
                self._exact.append(check)
            else:
                self._named(check.verify)

    def take(self, piece: memoryview) -> None:
        if self._exact:
            self._crc = kernels.crc32(piece, self._crc)

    def finish(self) -> None:
        for check in self._exact:
            self._named(check.compare, self._crc)

    def _named(self, step: Callable[..., None], *arguments: int) -> None:
        try:
            step(*arguments)
        except ChecksumError as error:
            error.tensor = self.tensor.name
            raise


def refuse_repeated(tensor: Tensor) -> None:
    """A view that repeats a small storage can have terabytes, which no one would see the end of."""
    if tensor.damaged or tensor.nbytes <= _REPEATED_BYTES:
        return
    stored = {(id(span.source), span.offset, span.nbytes) for span in spans(tensor.data)}
    if tensor.nbytes > _REPEATED * sum(nbytes for _, _, nbytes in stored):
        raise UnsupportedTensorError(
            f"a view that repeats its storage; written out, {tensor.nbytes:,} bytes", tensor=tensor.name
        )


def threads_for(tensors: Iterable[Tensor]) -> int:
    """One where reading out of order would start over at the beginning, else `THREADS`."""
    return 1 if any(tensor.access == "sequential" for tensor in tensors) else THREADS


def in_order(
    function: Callable[[Item], Result], items: Sequence[Item], sizes: Sequence[int], threads: int
) -> Iterator[Result]:
    """`map(function, items)` on `threads` threads, results in the order of `items`. An error ends it.

    `sizes`: bytes of every item; small ones go to a thread together, which costs more than they do.
    """
    if threads == 1:
        yield from map(function, items)
        return
    waiting: deque[Future[list[Result]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="tael") as pool:
        try:
            for start, stop in _batches(sizes):
                waiting.append(pool.submit(lambda some: list(map(function, some)), items[start:stop]))
                if len(waiting) >= AHEAD:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _batches(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of items that make up BATCH bytes, or more with their last."""
    start = total = 0
    for number, size in enumerate(sizes, 1):
        total += size + 1024  # an empty tensor has its cost, too
        if total >= BATCH:
            yield start, number
            start, total = number, 0
    if start < len(sizes):
        yield start, len(sizes)
