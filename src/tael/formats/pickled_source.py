# SPDX-License-Identifier: Apache-2.0
"""The bytes of an array that a pickle holds in encoded form: protocol 2 writes them as latin-1 characters in UTF-8.

Where byte n lies is known only by decoding all before it, so such a source is sequential: reading on is cheap, reading
backwards starts over.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from tael.core.source import ByteSource, SourceId, open_ref, read
from tael.errors import CorruptFileError
from tael.pickle import LazyBytes, decode_chunks

_STEP = 1 << 18  # stored bytes of one read


class DecodedSource:
    """`size` bytes that the stored payload `lazy` of `inner` decodes to."""

    def __init__(self, inner: ByteSource, lazy: LazyBytes, size: int, name: str) -> None:
        self.inner, self.lazy, self.size, self.name = inner, lazy, size, name
        self._lock = threading.Lock()
        self._restart()

    def _restart(self) -> None:
        self._pieces: Iterator[bytes] = decode_chunks(self.lazy, self._stored())
        self._position = 0  # of the first byte in _piece
        self._piece = memoryview(b"")

    def _stored(self) -> Iterator[bytes]:
        end = self.lazy.offset + self.lazy.nbytes
        for at in range(self.lazy.offset, end, _STEP):
            yield read(self.inner, at, min(_STEP, end - at))

    @property
    def identity(self) -> SourceId:
        return (*self.inner.identity, self.lazy.offset, self.lazy.nbytes, self.size)

    @property
    def ref(self) -> Mapping[str, Any]:
        stored = [self.lazy.offset, self.lazy.nbytes, self.lazy.encoding, self.size]
        return {"pickled": stored, "of": dict(self.inner.ref), "name": self.name}

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer = buffer.cast("B")
        if offset < 0 or offset + buffer.nbytes > self.size:
            raise CorruptFileError(f"needs bytes up to {offset + buffer.nbytes:,} of {self.size:,}", path=self.name)
        with self._lock:
            if offset < self._position:
                self._restart()
            done = 0
            while done < buffer.nbytes:
                start = offset + done - self._position
                if start >= len(self._piece):
                    self._position += len(self._piece)
                    self._piece = memoryview(self._next())
                    continue
                piece = self._piece[start : start + buffer.nbytes - done]
                buffer[done : done + len(piece)] = piece
                done += len(piece)

    def _next(self) -> bytes:
        for piece in self._pieces:
            return piece
        raise CorruptFileError(f"decodes to {self._position:,} bytes, {self.size:,} promised", path=self.name)

    def check_unchanged(self) -> None:
        self.inner.check_unchanged()

    def close(self) -> None: ...


def open_pickled(ref: Mapping[str, Any]) -> DecodedSource:
    """The source that a `DecodedSource.ref` speaks of."""
    offset, nbytes, encoding, size = ref["pickled"]
    return DecodedSource(open_ref(ref["of"]), LazyBytes(offset, nbytes, encoding), size, ref["name"])
