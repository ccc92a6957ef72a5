# SPDX-License-Identifier: Apache-2.0
"""Location: a file with siblings, a folder, or a URL. Formats reach every byte of a set through one.

Names found inside files (an index, an external-data reference) go through `sibling` and `child`,
which refuse everything that could leave the folder.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from typing import Protocol

from tael.core.source import ByteSource, FileSource
from tael.errors import SourceNotFoundError, SourceReadError, UnsafeContentError, clip


class Location(Protocol):
    path: str  # as the user wrote it, for messages
    is_dir: bool

    @property
    def name(self) -> str:
        """Last component."""
        ...

    def source(self) -> ByteSource:
        """The file's bytes; opened once and kept."""
        ...

    def sibling(self, name: str) -> Location:
        """The file `name` (a relative path from inside a file: checked) beside this file."""
        ...

    def child(self, name: str) -> Location:
        """The file `name` inside this folder."""
        ...

    def exists(self) -> bool: ...

    def names(self) -> list[str] | None:
        """File names in this folder (for a file: beside it), sorted; None where that cannot be listed."""
        ...


class LocalLocation:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.is_dir = os.path.isdir(self.path)
        self._source: FileSource | None = None

    @property
    def name(self) -> str:
        return os.path.basename(os.path.abspath(self.path))

    def source(self) -> ByteSource:
        if self._source is None or self._source.fd < 0:
            self._source = FileSource(self.path)
        return self._source

    def sibling(self, name: str) -> LocalLocation:
        return self._inside(os.path.dirname(self.path), name)

    def child(self, name: str) -> LocalLocation:
        return self._inside(self.path, name)

    def _inside(self, folder: str, name: str) -> LocalLocation:
        path = os.path.join(folder, *safe_parts(name, self.path))
        root = os.path.realpath(folder or ".")
        real = os.path.realpath(path)
        if os.path.commonpath([root, real]) != root and not _same_model_cache(root, real):
            raise UnsafeContentError(f"{clip(name)!r} leads outside of the folder", path=self.path)
        return LocalLocation(path)

    def exists(self) -> bool:
        return os.path.exists(self.path)

    def names(self) -> list[str] | None:
        folder = self.path if self.is_dir else (os.path.dirname(self.path) or ".")
        try:
            return sorted(os.listdir(folder))
        except OSError as error:
            raise SourceReadError(f"cannot be listed: {error.strerror}", path=folder) from None


def _same_model_cache(root: str, real: str) -> bool:
    """The hub's cache: models--X/snapshots/REVISION/name is a symlink to ../../blobs/DIGEST of the same model."""
    parts = root.split(os.sep)
    return any(
        part.startswith(("models--", "datasets--", "spaces--"))
        and below == "snapshots"
        and os.path.dirname(real) == os.sep.join([*parts[: at + 1], "blobs"])
        for at, (part, below) in enumerate(itertools.pairwise(parts))
    )


def safe_parts(name: str, path: str) -> list[str]:
    """The components of a relative path that came out of a file; anything that could lead elsewhere is refused.

    The rules are those of every system at once: a set must not be safe on one machine and hostile on another.
    """
    parts = name.split("/")
    if (
        not name
        or "\0" in name
        or "\\" in name
        or name.startswith("/")
        or re.match(r"^[A-Za-z]:", name)
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise UnsafeContentError(
            f"names the file {clip(name)!r}: not a plain relative path",
            path=path,
            hint="such an index is not to be trusted",
        )
    return parts


def expand(where: str | os.PathLike[str]) -> list[LocalLocation]:
    """The files a pattern (`model-*.safetensors`) matches, sorted; none for what is no pattern, or exists as it is."""
    text = os.fspath(where)
    if "://" in text or not glob.has_magic(text) or os.path.lexists(text):
        return []
    found = [LocalLocation(path) for path in sorted(glob.glob(text))]
    if not found:
        raise SourceNotFoundError("no file matches this pattern", path=text)
    return found


def locate(where: str | os.PathLike[str]) -> Location:
    """The location of a path or URL. Raises `SourceNotFoundError`."""
    text = os.fspath(where)
    if "://" in text:
        from tael.core.remote import locate_url

        return locate_url(text)
    found = LocalLocation(text)
    if not found.exists():
        raise SourceNotFoundError("no such file or folder", path=text)
    return found
