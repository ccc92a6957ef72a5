# SPDX-License-Identifier: Apache-2.0
"""The zip layout of torch files (torch.save since 1.6) and TorchScript archives. torch.py has the byte layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tael.core.limits import Limits
from tael.core.portable import unpack
from tael.core.problem import Problem
from tael.core.source import ByteSource
from tael.errors import CorruptFileError, TaelError, UnsupportedFormatError, clip
from tael.formats.torch import script
from tael.formats.torch.assembly import Parsed
from tael.formats.torch.legacy import embedded_storage, no_bytes
from tael.formats.torch.storage import Stored, storage_bytes
from tael.formats.torch.write import METADATA_RECORD
from tael.formats.zip_archive import ZipArchive, ZipEntry, open_zip
from tael.pickle import TABLE, EmbeddedStorage, Loaded, Reader, Rule, StorageRef, load, storage_ref

PICKLE, CONSTANTS = "data.pkl", "constants.pkl"
# Folders of storages: data since 1.5, tensors in the first version of the layout (1.4, on request).
_FOLDERS = ("data/", "tensors/")
_RECORDS = ("version", "byteorder", ".format_version", ".storage_alignment", ".data/serialization_id")
_RECORD_BYTES = 256
_OTHERS = {  # a record's last component -> what such an archive is
    "model.json": "a TorchScript archive of PyTorch 1.0, or a torch.export program",
    "extern_modules": "a torch.package archive",
    "archive_format": "a torch.export program (.pt2)",
    "attributes.pkl": "a TorchScript archive of PyTorch 1.2 or older",
}


def root_of(names: Mapping[str, Any]) -> str | None:
    """What stands before "data.pkl" in a torch archive ("archive/", "model/", ""); None when it is none."""
    roots = [name.removesuffix(PICKLE) for name in names if name == PICKLE or name.endswith(f"/{PICKLE}")]
    return min(roots, key=len) if roots else None


def open_archive(source: ByteSource, limits: Limits) -> Parsed:
    """Read `data.pkl` and the directory. Raises `CorruptFileError`, `UnsupportedFormatError`, `LimitExceededError`."""
    archive = open_zip(source, limits)
    root = root_of(archive.entries)
    if root is None:
        raise _stranger(archive)
    members = Members(archive, root, limits)
    scripted = members.entry(CONSTANTS) is not None
    loaded, home = members.unpickle(PICKLE, script.RULES if scripted else TABLE)
    parsed = Parsed(source.name, "zip", loaded.value, members.find, home, [source])
    parsed.take(loaded)
    parsed.problems += archive.problems
    parsed.extras["torch.records"] = members.records
    if members.without_crc:
        what = f"{members.without_crc:,} records were written without CRC-32: damage would not show"
        parsed.problems.append(Problem("note", what, source.name))
    _read_metadata(members, parsed)
    if scripted:
        script.take(members, parsed, limits)
    return parsed


class Members:
    """The records under one root. `find` gives a storage of `folders`, the same one each time."""

    def __init__(self, archive: ZipArchive, root: str, limits: Limits, folders: tuple[str, ...] = _FOLDERS) -> None:
        self.archive, self.root, self.limits, self.folders = archive, root, limits, folders
        self._found: dict[str, Stored] = {}
        self._embedded: dict[int, Stored] = {}
        self.records = self._small_records()
        order = self.records.get("byteorder", "little")
        if order not in ("little", "big"):
            raise CorruptFileError(f"the byte order is {clip(order)!r}", path=archive.source.name)
        self.big_endian = order == "big"
        self.home: ByteSource = archive.source
        self.without_crc = sum(not entry.has_crc for name, entry in archive.entries.items() if name.startswith(root))

    def in_folder(self, folder: str) -> Members:
        """The same archive, the storages in another folder."""
        return Members(self.archive, self.root, self.limits, (folder,))

    def names(self) -> list[str]:
        """Record names below the root."""
        return [name.removeprefix(self.root) for name in self.archive.entries if name.startswith(self.root)]

    def entry(self, name: str) -> ZipEntry | None:
        return self.archive.entries.get(self.root + name)

    def unpickle(self, name: str, rules: Mapping[str, Rule] = TABLE) -> tuple[Loaded, ByteSource]:
        """The pickle in record `name`, and the source in which its `LazyBytes` lie."""
        entry = self.entry(name)
        if entry is None:
            raise CorruptFileError(f"has no record {name!r}", path=self.archive.source.name)
        data = self.archive.read(entry.name, self.limits)
        span = self.archive.entry_span(entry)
        self.home = span.source

        def read_at(offset: int, nbytes: int) -> bytes:
            return data[offset - span.offset : offset - span.offset + nbytes]

        reader = Reader.over(read_at, span.offset + len(data), start=span.offset)
        loaded = load(reader, persistent=storage_ref, limits=self.limits, path=self.archive.source.name, rules=rules)
        return loaded, span.source

    def find(self, ref: StorageRef | EmbeddedStorage) -> Stored:
        if type(ref) is EmbeddedStorage:
            return self._embedded_in(ref)
        assert not isinstance(ref, EmbeddedStorage)
        stored = self._found.get(ref.key)
        if stored is None:
            stored = self._found[ref.key] = self._locate(ref.key)
        if stored.damaged:
            return stored
        wanted = storage_bytes(ref)
        if wanted is not None and wanted > stored.span.nbytes:
            have = stored.span.nbytes
            return no_bytes(self.archive.source.name, f"its record has {have:,} bytes, the pickle says {wanted:,}")
        return stored

    def _locate(self, key: str) -> Stored:
        for folder in self.folders:
            entry = self.archive.entries.get(f"{self.root}{folder}{key}")
            if entry is None:
                continue
            try:
                span, check = self.archive.entry_span(entry), self.archive.check(entry)
            except TaelError as error:
                return no_bytes(self.archive.source.name, error.cause)
            return Stored(span, self.big_endian, (check,) if check else (), entry.access)
        return no_bytes(self.archive.source.name, f"its record {clip(self.folders[0] + key)!r} is missing")

    def _embedded_in(self, ref: EmbeddedStorage) -> Stored:
        if id(ref) not in self._embedded:
            self._embedded[id(ref)] = embedded_storage(ref, self.home, self.limits)
        return self._embedded[id(ref)]

    def _small_records(self) -> dict[str, str]:
        found = {}
        for name in _RECORDS:
            entry = self.entry(name)
            if entry is not None and entry.size <= _RECORD_BYTES:
                found[name] = self.archive.read(entry.name).decode("ascii", "replace").strip()
        return found


def _read_metadata(members: Members, parsed: Parsed) -> None:
    """The record in which tael keeps what a state dict has no place for."""
    if members.entry(METADATA_RECORD) is None:
        return
    text = members.archive.read(members.root + METADATA_RECORD)
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError):
        stored = None
    if not isinstance(stored, dict) or not all(isinstance(value, str) for value in stored.values()):
        parsed.problems.append(Problem("note", f"the record {METADATA_RECORD!r} is not what tael writes", parsed.path))
        return
    parsed.metadata, _, problems = unpack(stored, parsed.path)
    parsed.problems += problems


def _stranger(archive: ZipArchive) -> TaelError:
    for name in archive.entries:
        what = _OTHERS.get(name.rsplit("/", 1)[-1])
        if what:
            return UnsupportedFormatError(f"this is {what}: no reader for it in this version", path=archive.source.name)
    return CorruptFileError("the zip has no record data.pkl: no torch file", path=archive.source.name)
