# SPDX-License-Identifier: Apache-2.0
"""ReadAhead: few requests for many small reads of a slow source. Large reads pass straight into the caller's buffer.

Small reads go through blocks of 64 KiB. Reads that follow each other fetch more blocks at a time (2, then 4).
All sources of a process share one bounded cache, so a set of a thousand shards holds no more than one file does.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable

BLOCK = 64 << 10
CACHE_BLOCKS = 256  # 16 MiB, of all sources together
MOST_AHEAD = 4  # blocks of one request

Fetch = Callable[[int, memoryview], None]  # fill the buffer from this offset


class _Cache:
    """The blocks used last, keyed by (number of the reader, number of the block)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._blocks: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[int, int]) -> bytes | None:
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
            return block

    def put(self, key: tuple[int, int], block: bytes) -> None:
        with self._lock:
            self._blocks[key] = block
            self._blocks.move_to_end(key)
            while len(self._blocks) > self._most:
                self._blocks.popitem(last=False)

    def drop(self, reader: int) -> None:
        with self._lock:
            for key in [key for key in self._blocks if key[0] == reader]:
                del self._blocks[key]

    def __len__(self) -> int:
        return len(self._blocks)


CACHE = _Cache(CACHE_BLOCKS)
_numbers = itertools.count()


class ReadAhead:
    """Reads of `size` bytes that `fetch` brings in; `head`, the first of them, is there already and stays."""

    def __init__(self, fetch: Fetch, size: int, head: bytes = b"") -> None:
        self._fetch, self._size, self._head = fetch, size, head
        self._number = next(_numbers)
        self._next, self._step = len(head) // BLOCK, 1  # where a sequential reader would go on, and how far
        self._lock = threading.Lock()  # held while blocks are fetched: who waits wants mostly the same ones

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer`; the caller has checked the range against `size`."""
        ready = self._head[offset : offset + len(buffer)]
        buffer[: len(ready)] = ready
        offset, buffer = offset + len(ready), buffer[len(ready) :]
        if len(buffer) >= BLOCK:
            self._fetch(offset, buffer)
            return
        while buffer:
            number, skip = divmod(offset, BLOCK)
            piece = memoryview(self._block(number, -(-(skip + len(buffer)) // BLOCK)))[skip : skip + len(buffer)]
            buffer[: len(piece)] = piece
            offset, buffer = offset + len(piece), buffer[len(piece) :]

    def _block(self, number: int, wanted: int) -> bytes:
        """Block `number`, from the cache or fetched together with those that are wanted, or likely to be, after it."""
        block = CACHE.get((self._number, number))
        if block is not None:
            return block
        with self._lock:
            block = CACHE.get((self._number, number))  # another thread may have been faster
            if block is not None:
                return block
            self._step = min(2 * self._step, MOST_AHEAD) if number == self._next else 1
            count = 1
            while count < max(self._step, wanted) and CACHE.get((self._number, number + count)) is None:
                count += 1
            start = number * BLOCK
            data = memoryview(bytearray(min(count * BLOCK, self._size - start)))
            self._fetch(start, data)
            self._next = number + count
            blocks = [bytes(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
            for index, each in enumerate(blocks):
                CACHE.put((self._number, number + index), each)
            return blocks[0]

    def close(self) -> None:
        CACHE.drop(self._number)
