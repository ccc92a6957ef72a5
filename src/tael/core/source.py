# SPDX-License-Identifier: Apache-2.0
"""ByteSource: bytes that can be read at any offset, from many threads. Files and bytes live here; HTTP in remote.py.

A source can be told in JSON (`ref`) and opened again elsewhere (`open_ref`): that is what makes a
plan portable and a resumed job sure that it reads the same input (`identity`).
"""

from __future__ import annotations

import base64
import contextlib
import errno
import importlib
import os
import stat
import threading
import zlib
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from tael.errors import CorruptFileError, SourceChangedError, SourceNotFoundError, SourceReadError

SourceId = tuple[Any, ...]  # JSON scalars only: size, mtime_ns, inode, or an ETag


@runtime_checkable
class ByteSource(Protocol):
    """`size` bytes, readable by offset from any thread. `name` is for messages."""

    name: str
    size: int

    @property
    def identity(self) -> SourceId: ...

    @property
    def ref(self) -> Mapping[str, Any]: ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`; a short read raises `CorruptFileError`."""
        ...

    def check_unchanged(self) -> None:
        """Raise `SourceChangedError` when what is behind the source is no longer what was opened."""
        ...

    def close(self) -> None: ...


def read(source: ByteSource, offset: int, nbytes: int) -> bytes:
    """`nbytes` at `offset` as bytes; the range is checked against the source before anything is allocated."""
    if offset < 0 or nbytes < 0 or offset + nbytes > source.size:
        raise CorruptFileError(
            f"needs {nbytes:,} bytes at {offset:,}, but the file ends at {source.size:,}",
            path=source.name,
            hint="the file is truncated or not what it says it is; fetch it again",
        )
    buffer = bytearray(nbytes)
    if nbytes:
        source.read_into(offset, memoryview(buffer))
    return bytes(buffer)


class FileSource:
    """A local regular file, read by pread."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.name = self.path
        self.fd = -1
        try:
            self.fd = _open_for_reading(self.path)
            status = os.fstat(self.fd)
        except (FileNotFoundError, ValueError):  # ValueError: a name with a NUL in it
            raise SourceNotFoundError("no such file", path=self.path) from None
        except OSError as error:
            raise SourceReadError(f"cannot be opened: {error.strerror}", path=self.path) from None
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise SourceReadError("is not a regular file", path=self.path)
        self.size = status.st_size
        self.identity: SourceId = (status.st_size, status.st_mtime_ns, status.st_ino)
        self._lock = threading.Lock()  # for systems without preadv

    @property
    def ref(self) -> Mapping[str, Any]:
        return {"file": os.path.abspath(self.path)}

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer = buffer.cast("B")
        if offset < 0:  # preadv would take -1 for "where the last read ended"
            raise CorruptFileError(f"needs bytes at {offset:,}", path=self.path)
        done, total = 0, buffer.nbytes
        while done < total:
            try:
                got = self._pread(offset + done, buffer[done:])
            except OSError as error:
                raise SourceReadError(f"read failed: {error.strerror}", path=self.path, offset=offset + done) from None
            if got == 0:
                raise CorruptFileError(
                    f"ends at byte {offset + done:,}, {total - done:,} bytes early",
                    path=self.path,
                    hint="the file is truncated, or was cut while it was read",
                )
            done += got

    def _pread(self, offset: int, buffer: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.fd, [buffer], offset)
        with self._lock:
            os.lseek(self.fd, offset, os.SEEK_SET)
            data = os.read(self.fd, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def check_unchanged(self) -> None:
        try:
            by_handle, by_name = os.fstat(self.fd), os.stat(self.path)
        except OSError:
            raise SourceChangedError("was removed while it was read", path=self.path) from None
        for status in (by_handle, by_name):
            if (status.st_size, status.st_mtime_ns, status.st_ino) != self.identity:
                raise SourceChangedError(
                    "changed while it was read", path=self.path, hint="run again when nothing writes to it"
                )

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def _open_for_reading(path: str) -> int:
    # O_NONBLOCK: a named pipe must not hang the open.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        return os.open(path, flags)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    # Sets of thousands of shards: the soft limit on open files is often 1024, the hard one far higher.
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return os.open(path, flags)


class BytesSource:
    """Bytes in memory: small control tensors, numbers found inside a pickle, tests."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "<memory>") -> None:
        self.data = memoryview(data).cast("B")
        self.name = name
        self.size = self.data.nbytes

    @property
    def identity(self) -> SourceId:
        return (self.size, zlib.crc32(self.data))

    @property
    def ref(self) -> Mapping[str, Any]:
        return {"bytes": base64.b64encode(self.data).decode(), "name": self.name}

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer = buffer.cast("B")
        if offset < 0 or offset + buffer.nbytes > self.size:
            raise CorruptFileError(f"needs bytes up to {offset + buffer.nbytes:,} of {self.size:,}", path=self.name)
        buffer[:] = self.data[offset : offset + buffer.nbytes]

    def check_unchanged(self) -> None: ...

    def close(self) -> None: ...


class InflateSource:
    """A deflated range of another source: sequential. Reading backwards starts over, and costs accordingly."""

    sequential = True
    _STEP = 1 << 18

    def __init__(self, inner: ByteSource, offset: int, stored: int, size: int, name: str) -> None:
        self.inner, self.offset, self.stored, self.size, self.name = inner, offset, stored, size, name
        self._lock = threading.Lock()
        self._restart()

    def again(self) -> InflateSource:
        """The same bytes, from the beginning."""
        return InflateSource(self.inner, self.offset, self.stored, self.size, self.name)

    def _restart(self) -> None:
        self._inflate: Any = None  # holds 40 KiB, and there may be 100,000 of us
        self._fed = self._position = 0
        self._pending = b""

    @property
    def identity(self) -> SourceId:
        return (*self.inner.identity, self.offset, self.stored, self.size)

    @property
    def ref(self) -> Mapping[str, Any]:
        where = [self.offset, self.stored, self.size]
        return {"inflate": where, "of": dict(self.inner.ref), "name": self.name}

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer = buffer.cast("B")
        if offset < 0 or offset + buffer.nbytes > self.size:
            raise CorruptFileError(f"needs bytes up to {offset + buffer.nbytes:,} of {self.size:,}", path=self.name)
        with self._lock:
            if offset < self._position:
                self._restart()
            while self._position < offset:
                self._take(min(self._STEP, offset - self._position))
            done = 0
            while done < buffer.nbytes:
                piece = self._take(min(self._STEP, buffer.nbytes - done))
                buffer[done : done + len(piece)] = piece
                done += len(piece)
            if self._position == self.size:
                self._restart()

    def _take(self, most: int) -> bytes:
        """Up to `most` (> 0) inflated bytes, at least one."""
        while True:
            if not self._pending and self._fed < self.stored:
                step = min(self._STEP, self.stored - self._fed)
                self._pending = read(self.inner, self.offset + self._fed, step)
                self._fed += step
            had = self._pending
            if self._inflate is None:
                self._inflate = zlib.decompressobj(-15)
            try:
                piece: bytes = self._inflate.decompress(had, most)
            except zlib.error as error:
                raise CorruptFileError(f"deflated data is broken: {error}", path=self.name) from None
            self._pending = self._inflate.unconsumed_tail
            if piece:
                self._position += len(piece)
                return piece
            if self._inflate.eof or (not self._pending and self._fed >= self.stored):
                raise CorruptFileError(f"inflates to {self._position:,} bytes, {self.size:,} promised", path=self.name)

    def check_unchanged(self) -> None:
        self.inner.check_unchanged()

    def close(self) -> None: ...


def open_ref(ref: Mapping[str, Any]) -> ByteSource:
    """The source a `ref` speaks of, opened again."""
    for key, where in _OPENERS.items():
        if key in ref:
            module, _, function = where.partition(":")
            source: ByteSource = getattr(importlib.import_module(module), function)(ref)
            return source
    raise SourceReadError(f"unknown kind of source: {sorted(ref)}")


def _file(ref: Mapping[str, Any]) -> ByteSource:
    return FileSource(ref["file"])


def _bytes(ref: Mapping[str, Any]) -> ByteSource:
    return BytesSource(base64.b64decode(ref["bytes"]), ref.get("name", "<memory>"))


def _inflate(ref: Mapping[str, Any]) -> ByteSource:
    offset, stored, size = ref["inflate"]
    return InflateSource(open_ref(ref["of"]), offset, stored, size, ref["name"])


# Key of a ref -> "module:function" that opens it, loaded when used.
_OPENERS: dict[str, str] = {
    "file": "tael.core.source:_file",
    "url": "tael.core.remote:open_ref",
    "bytes": "tael.core.source:_bytes",
    "zip": "tael.formats.zip_archive:open_member_source",
    "inflate": "tael.core.source:_inflate",
    "pickled": "tael.formats.pickled_source:open_pickled",
}
