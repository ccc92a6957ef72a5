# SPDX-License-Identifier: Apache-2.0
"""Small fields of a header, read one after the other through one window, so that a word costs no read of its own."""

from __future__ import annotations

import struct
from collections.abc import Callable

from tael.core.source import ByteSource, read
from tael.errors import CorruptFileError

WINDOW = 64 << 10
_F32 = struct.Struct("<f")


class CutShortError(CorruptFileError):
    """The file ends before a field does."""


class Cursor:
    """A position in `source`. `window`: how much is read at a time; small where the reader will jump soon."""

    def __init__(self, source: ByteSource, offset: int = 0, window: int = WINDOW) -> None:
        self.source, self.offset, self.window = source, offset, window
        self._data, self._start = b"", 0

    @property
    def left(self) -> int:
        """Bytes between here and the end of the file."""
        return self.source.size - self.offset

    def take(self, nbytes: int, what: str) -> bytes:
        """The next `nbytes`. Raises `CorruptFileError`, saying `what`, when the file ends before."""
        if nbytes > self.left:
            raise CutShortError(
                f"ends inside {what}: {nbytes:,} bytes are needed, {max(self.left, 0):,} are there",
                path=self.source.name,
                offset=self.offset,
                hint="the file is cut short, or is not what its first bytes say; fetch it again",
            )
        at = self.offset - self._start
        if not 0 <= at <= at + nbytes <= len(self._data):
            self._data = read(self.source, self.offset, min(self.left, max(nbytes, self.window)))
            self._start, at = self.offset, 0
        self.offset += nbytes
        return self._data[at : at + nbytes]

    def unpack(self, fmt: str, what: str) -> tuple[float, ...]:
        """Little-endian fields, as `struct` spells them."""
        return struct.unpack(f"<{fmt}", self.take(struct.calcsize(f"<{fmt}"), what))

    def words(
        self, count: int, scored: bool, longest: int, most_bytes: int, what: Callable[[int], str]
    ) -> tuple[list[bytes], list[float]]:
        """`count` times u32 length, bytes and, if `scored`, F32 score. The caller has bounded `count`."""
        words: list[bytes] = []
        scores: list[float] = []
        behind = 4 if scored else 0
        data, at, total = b"", 0, 0
        for index in range(count):
            if at + 4 > len(data):
                data, at = self._from(at, 4, what(index)), 0
            length = int.from_bytes(data[at : at + 4], "little")
            total += length
            if length > longest or total > most_bytes:
                raise CorruptFileError(
                    f"{what(index)} should have {length:,} bytes", path=self.source.name, offset=self.offset + at
                )
            end = at + 4 + length
            if end + behind > len(data):
                data, at = self._from(at, 4 + length + behind, what(index)), 0
                end = 4 + length
            words.append(data[at + 4 : end])
            if scored:
                scores.append(_F32.unpack_from(data, end)[0])
            at = end + behind
        self.offset += at
        return words, scores

    def _from(self, skip: int, nbytes: int, what: str) -> bytes:
        """Move on by `skip`, and give a window from there that holds at least `nbytes`."""
        self.offset += skip
        start = self.offset
        self.take(nbytes, what)
        self.offset = start
        return self._data[start - self._start :]
