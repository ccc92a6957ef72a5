# SPDX-License-Identifier: Apache-2.0
"""URLs as locations: http(s) by our own range reader, everything else (s3, gs, az, hf, memory, ...) through fsspec.

Names found in files only ever extend the folder of the URL that the user gave, and never bring a query along.
"""

from __future__ import annotations

import datetime
import functools
import posixpath
import urllib.request
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from tael.core.location import LocalLocation, Location, safe_parts
from tael.core.readahead import ReadAhead
from tael.core.source import ByteSource, FileSource, SourceId
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

if TYPE_CHECKING:
    from tael.core.remote_http import HttpSource

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


def locate_url(url: str) -> Location:
    """The location that `url` names. Raises `MissingExtraError`, `SourceNotFoundError` (of http, `source()` does)."""
    scheme = _scheme(url)
    if scheme in ("http", "https"):
        return UrlLocation(url)
    if scheme == "file":
        found: Location = LocalLocation(_local_path(url))
    else:
        found = FsspecLocation(url, *_filesystem(scheme, url))
    if not found.exists():
        raise SourceNotFoundError("no such file or folder", path=found.path)
    return found


def open_url(url: str) -> ByteSource:
    """The bytes behind `url`."""
    if _scheme(url) == "file":
        return FileSource(_local_path(url))
    return locate_url(url).source()


class UrlLocation:
    """http(s). A URL that ends in a slash is a folder; what lies in it can be asked for by name but not listed."""

    def __init__(self, url: str) -> None:
        from tael.core.remote_client import split_url
        from tael.core.remote_pool import redact

        self.url = url
        self.path = redact(url)
        self._path = split_url(url).path
        self.is_dir = self._path.endswith("/")
        self._source: HttpSource | None = None

    @property
    def name(self) -> str:
        return unquote(posixpath.basename(self._path.rstrip("/")))

    def source(self) -> ByteSource:
        if self._source is None:
            from tael.core.remote_http import HttpSource

            self._source = HttpSource(self.url)
        return self._source

    def sibling(self, name: str) -> UrlLocation:
        return self._inside(posixpath.dirname(self._path), name)

    def child(self, name: str) -> UrlLocation:
        return self._inside(self._path.rstrip("/"), name)

    def _inside(self, folder: str, name: str) -> UrlLocation:
        parts = [quote(part, safe="") for part in safe_parts(name, self.path)]
        path = "/".join([folder.rstrip("/"), *parts])
        return UrlLocation(urlsplit(self.url)._replace(path=path, query="", fragment="").geturl())

    def exists(self) -> bool:
        if self.is_dir:
            return True
        try:
            self.source()
        except SourceNotFoundError:
            return False
        return True

    def names(self) -> list[str] | None:
        return None


class FsspecLocation:
    """A file or folder of an fsspec filesystem; `info` is what it says about it, None when there is nothing."""

    def __init__(self, url: str, fs: Any, inner: str) -> None:
        from tael.core.remote_pool import redact

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

        from tael.core.remote_pool import redact

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


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def _local_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise SourceNotFoundError("a file:// URL takes an absolute path: file:///...", path=clip(url))
    return urllib.request.url2pathname(parts.path)


def _filesystem(scheme: str, url: str) -> tuple[Any, str]:
    """The driver for `scheme` and the path of `url` in its terms."""
    from fsspec import get_filesystem_class

    from tael.core.remote_pool import redact

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
        raise SourceReadError(f"the store fails ({type(error).__name__})", path=name, hint="run again") from None


def _version(info: Mapping[str, Any]) -> str | float | None:
    for key in _VERSION_KEYS:
        value = info.get(key)
        if value is not None:
            return value.isoformat() if isinstance(value, datetime.datetime) else str(value)
    return None
