# SPDX-License-Identifier: Apache-2.0
"""URLs as locations: http(s) by our own range reader, everything else (s3, gs, az, hf, memory, ...) through fsspec.

Names found in files only ever extend the folder of the URL that the user gave, and never bring a query along.
"""

from __future__ import annotations

import posixpath
import time
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from tael.core.location import LocalLocation, Location, safe_parts
from tael.core.source import ByteSource, FileSource
from tael.errors import SourceNotFoundError, SourceReadError, clip

if TYPE_CHECKING:
    from tael.core.remote_http import HttpSource

# What is asked for in a folder on a web server: weights, their indexes, and what goes with them.
_USUAL = (
    "model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin",
    "diffusion_pytorch_model.safetensors", "adapter_model.safetensors", "adapter_model.bin", "adapter_config.json",
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja",
)  # fmt: skip
_FOLDER_SECONDS = 10.0  # for asking after all of them


def locate_url(url: str) -> Location:
    """The location that `url` names. Raises `MissingExtraError`, `SourceNotFoundError` (of http, `source()` does)."""
    scheme = _scheme(url)
    if scheme in ("http", "https"):
        return UrlLocation(url)
    if scheme == "file":
        found: Location = LocalLocation(_local_path(url))
    else:
        from tael.core.remote_store import FsspecLocation, filesystem

        found = FsspecLocation(url, *filesystem(scheme, url))
    if not found.exists():
        raise SourceNotFoundError("no such file or folder", path=found.path)
    return found


def open_url(url: str) -> ByteSource:
    """The bytes behind `url`."""
    if _scheme(url) == "file":
        return FileSource(_local_path(url))
    return locate_url(url).source()


def open_ref(ref: Mapping[str, Any]) -> ByteSource:
    """The source that `ByteSource.ref` spoke of."""
    return open_url(ref["url"])


class UrlLocation:
    """http(s). A URL that ends in a slash is a folder."""

    def __init__(self, url: str) -> None:
        from tael.core.remote_client import split_url
        from tael.core.remote_pool import redact

        self.url = url
        self.path = redact(url)
        self._path = split_url(url).path
        self.is_dir = self._path.endswith("/")
        self._source: HttpSource | None = None
        self._names: list[str] | None = None

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
        """No web server lists a folder, so the usual names of a model's files are asked for, once."""
        if not self.is_dir:
            return None
        if self._names is None:
            self._names = self._ask_for_usual()
        return sorted(self._names) or None

    def _ask_for_usual(self) -> list[str]:
        from tael.core.remote_client import RefusedError

        names: list[str] = []
        denied, until = None, time.monotonic() + _FOLDER_SECONDS
        for name in _USUAL:
            if time.monotonic() > until:
                raise SourceReadError(
                    f"the server is too slow: {_FOLDER_SECONDS:.0f} s went by in asking which files the folder has",
                    path=self.path,
                    hint="name a file of it, or download it first",
                )
            try:
                if self.child(name).exists():
                    names.append(name)
            except RefusedError as error:  # some stores deny what is not there
                denied = error
        if denied is not None and not names:
            raise denied
        return names


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def _local_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise SourceNotFoundError("a file:// URL takes an absolute path: file:///...", path=clip(url))
    return urllib.request.url2pathname(parts.path)
