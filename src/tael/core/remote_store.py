# SPDX-License-Identifier: Apache-2.0
"""Object stores and whatever else fsspec has a driver for (s3, gs, az, hf, memory, ...), as locations and sources."""

from __future__ import annotations

import datetime
import functools
import posixpath
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tael.core.location import safe_parts
from tael.core.readahead import ReadAhead
from tael.core.remote_pool import redact
from tael.core.source import ByteSource, SourceId
from tael.errors import (
    CorruptFileError,
    MissingExtraError,
    SourceChangedError,
    SourceNotFoundError,
    SourceReadError,
    TaelError,
    UnsafeContentError,
    clip,
)

T = TypeVar("T")

STEP = 4 << 20  # fsspec hands out bytes: this much is held twice

# Drivers of fsspec that are no store of their own but wrap another, or run something.
_WRAPPERS = frozenset((
    "asyncwrapper", "blockcache", "cached", "data", "dir", "filecache", "generic", "libarchive", "local",
    "reference", "simplecache", "tar", "zip",
))  # fmt: skip
_EXTRAS = {"s3": "tael[s3]", "s3a": "tael[s3]", "hf": "tael[hf]", "gs": "gcsfs", "gcs": "gcsfs"}
_EXTRAS |= dict.fromkeys(("az", "abfs", "abfss", "adl"), "adlfs")

# What drivers call the version of an object; the first one present is it.
_VERSION_KEYS = (
    "ETag", "etag", "e_tag", "sha256", "blob_id", "md5Hash", "md5", "checksum", "generation", "version_id", "VersionId",
    "LastModified", "last_modified", "mtime", "modified", "updated", "created",
)  # fmt: skip

_NETWORK: tuple[tuple[type[Exception], str], ...] = (
    (socket.gaierror, "the server's name cannot be resolved"),
    (ConnectionRefusedError, "cannot connect to the server"),
    (ConnectionError, "the connection broke"),
    (TimeoutError, "the server does not answer"),
)


class FsspecLocation:
    """A file or folder of an fsspec filesystem; `info` is what it says about it, None when there is nothing."""

    def __init__(self, url: str, fs: Any, inner: str) -> None:
        self.url, self.path = url, redact(url)
        self._fs, self._inner = fs, inner
        self.info: Mapping[str, Any] | None
        try:
            self.info = _driver(self.path, lambda: fs.info(inner))
        except SourceNotFoundError:
            self.info = None
        self.is_dir = self.info is not None and self.info.get("type") == "directory"
        self._source: FsspecSource | None = None

    @property
    def name(self) -> str:
        return posixpath.basename(self._inner.rstrip("/"))

    def source(self) -> ByteSource:
        if self._source is None:
            if self.info is None:
                raise SourceNotFoundError("no such file", path=self.path)
            self._source = FsspecSource(self.url, self._fs, self._inner, self.info)
        return self._source

    def sibling(self, name: str) -> FsspecLocation:
        head, _, last = self.url.partition("?")[0].rstrip("/").rpartition("/")
        return self._inside(head if last else self.url, posixpath.dirname(self._inner.rstrip("/")), name)

    def child(self, name: str) -> FsspecLocation:
        return self._inside(self.url.partition("?")[0].rstrip("/"), self._inner.rstrip("/"), name)

    def _inside(self, url: str, folder: str, name: str) -> FsspecLocation:
        parts = safe_parts(name, self.path)
        if any(mark in name for mark in "?#@"):  # a plan's reader of the URL would take these for more
            raise UnsafeContentError(f"names the file {clip(name)!r}: not a plain relative path", path=self.path)
        return FsspecLocation("/".join([url, *parts]), self._fs, "/".join([folder, *parts]))

    def exists(self) -> bool:
        return self.info is not None

    def names(self) -> list[str] | None:
        folder = self._inner if self.is_dir else posixpath.dirname(self._inner.rstrip("/"))
        found = _driver(self.path, lambda: self._fs.ls(folder, detail=False))
        names = {posixpath.basename(str(name).rstrip("/")) for name in found}
        return sorted(names - {"", posixpath.basename(folder.rstrip("/"))}) if found else []


class FsspecSource:
    """A file of an fsspec filesystem."""

    def __init__(self, url: str, fs: Any, inner: str, info: Mapping[str, Any]) -> None:
        from fsspec import AbstractFileSystem

        self.url, self.name = url, redact(url)
        self._fs, self._inner = fs, inner
        size = info.get("size")
        if info.get("type") == "directory" or not isinstance(size, int) or size < 0:
            raise SourceReadError("is not a file of known size", path=self.name)
        self.size = size
        self.identity: SourceId = (size, _version(info))
        # The default cat_file opens the file, with a cache of its own that would read more than is asked for.
        plain = type(fs).cat_file is AbstractFileSystem.cat_file
        self._options = {"cache_type": "none"} if plain else {}
        self._ahead = ReadAhead(self._fetch, size)

    @property
    def ref(self) -> Mapping[str, Any]:
        return {"url": self.url}

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer = buffer.cast("B")
        if offset < 0 or offset + buffer.nbytes > self.size:
            raise CorruptFileError(
                f"needs bytes up to {offset + buffer.nbytes:,}, but the file ends at {self.size:,}", path=self.name
            )
        self._ahead.read_into(offset, buffer)

    def _fetch(self, offset: int, buffer: memoryview) -> None:
        for at in range(0, len(buffer), STEP):
            piece = buffer[at : at + STEP]
            start = offset + at
            fetch = functools.partial(self._fs.cat_file, self._inner, start, start + len(piece), **self._options)
            data = _driver(self.name, fetch)
            if len(data) != len(piece):
                raise SourceChangedError(f"gives {len(data):,} bytes at {start:,}, not {len(piece):,}", path=self.name)
            piece[:] = data

    def check_unchanged(self) -> None:
        _driver(self.name, self._fs.invalidate_cache)
        try:
            info = _driver(self.name, lambda: self._fs.info(self._inner))
        except SourceNotFoundError:
            raise SourceChangedError("was removed while it was read", path=self.name) from None
        if (info.get("size"), _version(info)) != self.identity:
            raise SourceChangedError("changed while it was read", path=self.name, hint="run again")

    def close(self) -> None:
        self._ahead.close()


def filesystem(scheme: str, url: str) -> tuple[Any, str]:
    """The driver for `scheme` and the path of `url` in its terms."""
    from fsspec import get_filesystem_class

    name = clip(redact(url))
    try:
        driver = None if scheme in _WRAPPERS else get_filesystem_class(scheme)
    except ValueError:
        driver = None
    except ImportError:
        package = _EXTRAS.get(scheme)
        hint = f"pip install '{package}'" if package else "install the fsspec driver for it"
        raise MissingExtraError(
            f"reading {scheme}:// needs a package that is not installed", path=name, hint=hint
        ) from None
    if driver is None:
        raise SourceNotFoundError(
            f"no such kind of URL: {clip(scheme)}://", path=name, hint="known: https, s3, gs, az, hf"
        )
    strip = driver._strip_protocol
    options = driver._get_kwargs_from_urls
    return _driver(name, lambda: driver(**options(url))), _driver(name, lambda: strip(url))


def _driver(name: str, call: Callable[[], T]) -> T:
    """`call()`, with whatever a driver raises turned into our errors. Its text may hold secrets: the kind must do."""
    try:
        return call()
    except TaelError:
        raise
    except FileNotFoundError:
        raise SourceNotFoundError("no such file or folder", path=name) from None
    except PermissionError:
        raise SourceReadError("access denied", path=name, hint="check your credentials for this store") from None
    except Exception as error:
        cause = next((text for kind, text in _NETWORK if isinstance(error, kind)), None)
        raise SourceReadError(
            cause or f"the store fails ({type(error).__name__})",
            path=name,
            hint="check the connection and the link, then run again" if cause else "run again",
        ) from None


def _version(info: Mapping[str, Any]) -> str | float | None:
    for key in _VERSION_KEYS:
        value = info.get(key)
        if value is not None:
            return value.isoformat() if isinstance(value, datetime.datetime) else str(value)
    return None
