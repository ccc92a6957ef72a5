# SPDX-License-Identifier: Apache-2.0
"""Where a pickle's bytes come from: a buffer in memory, or a window sliding over a source read by offset.

Over a source, payloads above `lazy_above` bytes are stepped over and become `LazyBytes`; in memory they are
simply there. Offsets are absolute (in the file) throughout. `position` is where the next pickle starts, so that
several pickles in a row, with other bytes between them, are read by one `Reader`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tael.errors import CorruptFileError, LimitExceededError
from tael.pickle.lazy import decode
from tael.pickle.stubs import LazyBytes

ReadAt = Callable[[int, int], bytes]

LAZY_ABOVE = 64 * 1024
LONGEST_LINE = 1 << 30  # of a text payload: finding its end means reading it
ROOM = 16  # bytes that every opcode finds in the window, or the source has ended: no fixed-size argument is longer
_FIRST_WINDOW = 4 * 1024  # after a jump; a source of nothing but long payloads is not read in full
_LAST_WINDOW = 256 * 1024


class Reader:
    """Bounded bytes, in order. `Reader(data, base=offset)`, or `Reader.over(read_at, size)`.

    `buffer` holds the bytes from `base` on; `size` is the absolute end.
    """

    def __init__(self, data: bytes | bytearray | memoryview, *, base: int = 0) -> None:
        self.buffer = data if type(data) is bytes else bytes(data)
        self.base = base
        self.position = base
        self.size = base + len(self.buffer)
        self.lazy_above = sys.maxsize
        self.skipped = 0  # payload bytes that were stepped over
        self._read_at: ReadAt | None = None
        self._window = _FIRST_WINDOW

    @classmethod
    def over(cls, read_at: ReadAt, size: int, *, start: int = 0, lazy_above: int = LAZY_ABOVE) -> Reader:
        """Bytes `start` to `size` of a source; `read_at(offset, n)` returns exactly `n` bytes or raises."""
        reader = cls(b"", base=start)
        reader.size = size
        reader.lazy_above = lazy_above
        reader._read_at = read_at
        return reader

    @property
    def left(self) -> int:
        """Bytes between `position` and the end."""
        return self.size - self.position

    def fill(self, offset: int, need: int) -> None:
        """Make `buffer` hold `need` bytes from absolute `offset` on. Checked against the source first."""
        if need > self.size - offset:
            raise self.truncated(offset, need)
        start = offset - self.base
        if self._read_at is None or 0 <= start <= len(self.buffer) - need:
            return
        if start != len(self.buffer):
            self._window = _FIRST_WINDOW
        kept = self.buffer[start:] if 0 <= start < len(self.buffer) else b""
        length = min(max(need, self._window), self.size - offset)
        self.buffer = kept + self._fetch(self._read_at, offset + len(kept), length - len(kept))
        self.base = offset
        self._window = min(self._window * 2, _LAST_WINDOW)

    def jump(self, offset: int) -> None:
        """Give up the window: the next byte wanted is `offset`."""
        self.buffer = b""
        self.base = offset
        self._window = _FIRST_WINDOW

    def line(self, offset: int, longest: int) -> tuple[int, int]:
        """(first byte, byte after the newline) of the text argument at `offset`; its bytes may be left unread."""
        at = offset
        while True:
            self.fill(at, 1)
            end = self.buffer.find(b"\n", at - self.base)
            if end >= 0:
                end += self.base + 1
            else:
                at = self.base + len(self.buffer)
            if (end if end >= 0 else at) - offset > longest:
                raise LimitExceededError(f"a text argument is longer than {longest:,} bytes", offset=offset)
            if end >= 0:
                return offset, end
            if at == self.size:
                raise CorruptFileError("the pickle ends in a text argument without its newline", offset=offset)

    def read(self, offset: int, nbytes: int) -> bytes:
        """`nbytes` at absolute `offset`, whether or not they were stepped over."""
        if offset < 0 or nbytes < 0 or nbytes > self.size - offset:
            raise self.truncated(offset, nbytes)
        start = offset - self.base
        if 0 <= start <= len(self.buffer) - nbytes:
            return self.buffer[start : start + nbytes]
        if self._read_at is None:
            raise CorruptFileError(f"{nbytes:,} bytes lie before the start of the pickle", offset=offset)
        return self._fetch(self._read_at, offset, nbytes)

    def _fetch(self, read_at: ReadAt, offset: int, nbytes: int) -> bytes:
        data = read_at(offset, nbytes)
        if len(data) != nbytes:
            raise self.truncated(offset + len(data), nbytes - len(data))
        return data

    def value(self, lazy: LazyBytes) -> bytes | str:
        """The value that `lazy` stands for, read and decoded: all of it in memory, so ask for its `nbytes` first."""
        return decode(lazy, self.read(lazy.offset, lazy.nbytes))

    def truncated(self, offset: int, need: int) -> CorruptFileError:
        left = max(self.size - offset, 0)
        return CorruptFileError(
            f"the pickle needs {need:,} more bytes, but {left:,} are left",
            offset=offset,
            hint="the file is truncated or not what it says it is; fetch it again",
        )
