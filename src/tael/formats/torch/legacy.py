# SPDX-License-Identifier: Apache-2.0
"""The stream layout of torch files (torch.save before 1.6), and plain pickles. torch.py has the byte layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tael.core.limits import Limits
from tael.core.node import Span
from tael.core.problem import Problem
from tael.core.source import ByteSource, BytesSource, FileSource, read
from tael.errors import CorruptFileError, UnsupportedFormatError, clip
from tael.formats.pickled_source import DecodedSource
from tael.formats.torch.assembly import Parsed
from tael.formats.torch.storage import Stored, storage_bytes
from tael.pickle import (
    EmbeddedStorage,
    LazyBytes,
    Loaded,
    PersistentId,
    Reader,
    StorageRef,
    decode,
    load,
    storage_ref,
)

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
_MAGIC_BYTES = b"\x8a\x0a" + MAGIC.to_bytes(10, "little")
_MAGIC_TEXT = b"L%dL" % MAGIC  # pickle protocols 0 and 1
_MAGIC_WITHIN = 32  # bytes from the start: a protocol mark and a frame may come first
_SIZE_BYTES = 8  # element count before each storage


def is_stream(head: bytes) -> bool:
    """Whether a file that starts so is a legacy stream."""
    return _MAGIC_BYTES in head[:_MAGIC_WITHIN] or _MAGIC_TEXT in head[:_MAGIC_WITHIN]


def open_stream(source: ByteSource, limits: Limits) -> Parsed:
    """Read the pickles and lay out the storages behind them."""
    stream = read_stream(source, 0, source.size, limits)
    parsed = Parsed(source.name, "legacy", stream.loaded.value, stream.find, source, [source])
    parsed.take(stream.loaded)
    parsed.problems += stream.problems
    return parsed


def open_pickle(source: ByteSource, limits: Limits) -> Parsed:
    """A pickle that is no torch file: arrays inside of it, or tensors that pickle.dump took whole."""
    reader = reader_of(source, 0, source.size)
    loaded = load(reader, persistent=_any_id, limits=limits, path=source.name)
    finder = _Embedded(source, limits)
    parsed = Parsed(source.name, "pickle", loaded.value, finder.find, source, [source])
    parsed.take(loaded)
    parsed.problems.append(
        Problem("note", "this is a plain pickle, not a file of torch.save; it was read, not run", source.name)
    )
    if reader.left:
        parsed.problems.append(Problem("note", f"{reader.left:,} bytes follow the pickle", source.name))
    return parsed


@dataclass(slots=True)
class Stream:
    """A legacy stream, read: its object and where each storage lies."""

    loaded: Loaded
    table: dict[str, Stored]
    embedded: _Embedded
    problems: list[Problem]
    path: str

    def find(self, ref: StorageRef | EmbeddedStorage) -> Stored:
        if isinstance(ref, EmbeddedStorage):
            return self.embedded.find(ref)
        stored = self.table.get(ref.key)
        if stored is None:
            return no_bytes(self.path, f"its storage {clip(ref.key)!r} is not in the file")
        return part_of(stored, ref)


def read_stream(source: ByteSource, start: int, end: int, limits: Limits) -> Stream:
    """The stream between `start` and `end`. Raises `CorruptFileError` when its pickles are broken."""
    path = source.name
    reader = reader_of(source, start, end)

    def next_pickle(what: str) -> Any:
        if reader.left == 0:
            raise CorruptFileError(f"ends before {what}", path=path, hint="the file is truncated; fetch it again")
        return load(reader, limits=limits, path=path).value

    if next_pickle("its magic number") != MAGIC:
        raise CorruptFileError("this is no torch file: the magic number is another", path=path, offset=start)
    protocol = next_pickle("its protocol")
    if protocol != PROTOCOL:
        raise UnsupportedFormatError(f"a torch file of protocol {clip(str(protocol))}, {PROTOCOL} is known", path=path)
    next_pickle("the description of its machine")
    declared: dict[str, StorageRef] = {}

    def persistent(saved_id: object) -> object:
        if type(saved_id) is tuple and saved_id and saved_id[0] == "module":  # (module, class, file, source text)
            return saved_id[1] if len(saved_id) > 1 else PersistentId(saved_id)
        ref = storage_ref(saved_id)
        declared.setdefault(ref.key, ref)
        return ref

    loaded = load(reader, persistent=persistent, limits=limits, path=path)
    keys = next_pickle("the list of its storages")
    if type(keys) is not list or set(map(type, keys)) - {str}:
        raise CorruptFileError("the list of storages is none", path=path, offset=reader.position)
    problems: list[Problem] = []
    table = _lay_out(source, reader.position, end, keys, declared, problems)
    return Stream(loaded, table, _Embedded(source, limits), problems, path)


def _lay_out(
    source: ByteSource, at: int, end: int, keys: list[str], declared: dict[str, StorageRef], problems: list[Problem]
) -> dict[str, Stored]:
    """Where each storage lies: an element count and the elements, one after the other, little-endian."""
    path = source.name
    table: dict[str, Stored] = {}
    near = isinstance(source, FileSource | BytesSource)  # elsewhere every count would cost a request
    for key in keys:
        ref = declared.get(key)
        size = storage_bytes(ref) if ref else None
        if ref is None or size is None:
            raise CorruptFileError(f"storage {clip(key)!r} is listed but used by no tensor", path=path, offset=at)
        if key in table:
            raise CorruptFileError(f"storage {clip(key)!r} is listed twice", path=path, offset=at)
        if at + _SIZE_BYTES + size > end:
            lacking = min(size, at + _SIZE_BYTES + size - end)
            why = f"the file is truncated: {lacking:,} of {size:,} bytes of its storage are missing"
            table[key] = no_bytes(path, why)
        else:
            if near:
                count = int.from_bytes(read(source, at, _SIZE_BYTES), "little", signed=True)
                if count != ref.numel:
                    raise CorruptFileError(
                        f"storage {clip(key)!r} has {count:,} elements, the pickle says {ref.numel:,}",
                        path=path,
                        offset=at,
                    )
            table[key] = Stored(Span(source, at + _SIZE_BYTES, size))
        at += _SIZE_BYTES + size
    if at < end:
        problems.append(Problem("note", f"{end - at:,} bytes follow the last storage", path))
    return table


class _Embedded:
    """Storages that the pickle holds as whole legacy streams of their own: tensors taken by pickle.dump."""

    def __init__(self, source: ByteSource, limits: Limits) -> None:
        self.source, self.limits = source, limits
        self._found: dict[int, tuple[EmbeddedStorage, Stored]] = {}  # kept with its storage: ids are of living objects

    def find(self, ref: StorageRef | EmbeddedStorage) -> Stored:
        if not isinstance(ref, EmbeddedStorage):
            return no_bytes(self.source.name, "its storage is not in the file")
        if id(ref) not in self._found:
            self._found[id(ref)] = ref, embedded_storage(ref, self.source, self.limits)
        return self._found[id(ref)][1]


def embedded_storage(ref: EmbeddedStorage, source: ByteSource, limits: Limits) -> Stored:
    """The storage in the stream that `ref` holds; `source` is where its `LazyBytes` lie."""
    data = ref.data
    if isinstance(data, bytes):
        inner: ByteSource = BytesSource(data, source.name)
        start, end = 0, len(data)
    elif data.encoding == "raw":
        inner, start, end = source, data.offset, data.offset + data.nbytes
    else:
        inner, start, end = _decoded(source, data)
    if not is_stream(read(inner, start, min(_MAGIC_WITHIN, end - start))):
        return no_bytes(source.name, "its storage is embedded in a layout that is not known")
    stream = read_stream(inner, start, end, limits)
    root = stream.loaded.value
    if isinstance(root, StorageRef):
        return replace(stream.find(root), dtype=root.dtype)
    return no_bytes(source.name, "its embedded storage is none")


def _decoded(source: ByteSource, lazy: LazyBytes) -> tuple[ByteSource, int, int]:
    """Bytes written at protocol 2 as text: decoded once, to know how many there are."""
    value = decode(lazy, read(source, lazy.offset, lazy.nbytes))
    size = len(value)
    return DecodedSource(source, lazy, size, source.name), 0, size


def part_of(stored: Stored, ref: StorageRef) -> Stored:
    """The part of `stored` that `ref` is a view of (torch before 0.4 saved views of storages)."""
    if ref.view is None or stored.damaged:
        return stored
    whole = storage_bytes(ref)
    unit = whole // ref.numel if whole and ref.numel else 1
    _, offset, numel = ref.view
    span = Span(stored.span.source, stored.span.offset + offset * unit, numel * unit)
    return Stored(span, checks=stored.checks, access=stored.access)


def no_bytes(path: str, why: str) -> Stored:
    return Stored(Span(BytesSource(b"", path), 0, 0), damaged=why)


def reader_of(source: ByteSource, start: int, end: int) -> Reader:
    """A pickle reader over a part of `source`."""
    return Reader.over(lambda offset, nbytes: read(source, offset, nbytes), end, start=start)


def _any_id(saved_id: object) -> object:
    """In a plain pickle anything may be a persistent id; torch's own are storages that lie elsewhere."""
    try:
        return storage_ref(saved_id)
    except CorruptFileError:
        return PersistentId(saved_id)
