# SPDX-License-Identifier: Apache-2.0
"""The tar layout of torch files, as torch.save wrote it in 2016. torch.py has the byte layout."""

from __future__ import annotations

import struct
from typing import NamedTuple

from tael.core.limits import Limits
from tael.core.node import Span
from tael.core.source import ByteSource, read
from tael.errors import CorruptFileError
from tael.formats.torch.assembly import Parsed
from tael.formats.torch.legacy import no_bytes, reader_of
from tael.formats.torch.storage import Stored, storage_bytes
from tael.pickle import EmbeddedStorage, PersistentId, Reader, StorageRef, StorageType, TensorRef, load

BLOCK = 512
MEMBERS = frozenset({"storages", "tensors", "pickle"})
_MOST_MEMBERS = 64  # headers looked at


class Member(NamedTuple):
    offset: int
    size: int


def is_tar(head: bytes) -> bool:
    """Whether a file that starts so is a tar archive."""
    return len(head) >= BLOCK and head[257:262] == b"ustar" and _checksum(head[:BLOCK])


def members(source: ByteSource) -> dict[str, Member]:
    """The regular files at the start of the archive, by name without "./"."""
    found: dict[str, Member] = {}
    at = 0
    for _ in range(_MOST_MEMBERS):
        if at + BLOCK > source.size:
            break
        header = read(source, at, BLOCK)
        if not header.strip(b"\0"):
            break
        if not _checksum(header):
            raise CorruptFileError("a tar header is broken", path=source.name, offset=at)
        size = _number(header[124:136], source.name, at)
        name = header[:100].split(b"\0")[0].decode("utf-8", "replace").removeprefix("./")
        if header[156:157] in (b"0", b"\0"):
            found.setdefault(name, Member(at + BLOCK, size))
        at += BLOCK + -(-size // BLOCK) * BLOCK
    return found


def open_tar(source: ByteSource, limits: Limits) -> Parsed:
    """Read the three members. Raises `CorruptFileError` when one is missing or broken."""
    path = source.name
    found = members(source)
    if not found.keys() >= MEMBERS:
        missing = ", ".join(sorted(MEMBERS - found.keys()))
        raise CorruptFileError(f"a tar archive without the members {missing}", path=path)
    storages = _storages(_reader(source, found["storages"]), source, limits)
    tensors = _tensors(_reader(source, found["tensors"]), storages, limits, path)

    def persistent(saved_id: object) -> object:
        if type(saved_id) is tuple and saved_id:  # (class, file, source text)
            return saved_id[0]
        key = int(saved_id) if isinstance(saved_id, str) and saved_id.isdecimal() and len(saved_id) < 24 else saved_id
        if type(key) is int and (key in tensors or key in storages):
            return tensors[key] if key in tensors else storages[key][0]
        return PersistentId(saved_id)

    loaded = load(_reader(source, found["pickle"]), persistent=persistent, limits=limits, path=path)
    by_key = {ref.key: stored for ref, stored in storages.values()}

    def find(ref: StorageRef | EmbeddedStorage) -> Stored:
        stored = by_key.get(ref.key) if isinstance(ref, StorageRef) else None
        return stored or no_bytes(path, "its storage is not in the file")

    parsed = Parsed(path, "tar", loaded.value, find, source, [source])
    parsed.take(loaded)
    return parsed


def _storages(reader: Reader, source: ByteSource, limits: Limits) -> dict[int, tuple[StorageRef, Stored]]:
    """Count, then (key, location, storage class) and the storage for each, then the views into others."""
    path = source.name
    found: dict[int, tuple[StorageRef, Stored]] = {}
    for _ in range(_count(reader, limits, path)):
        at = reader.position
        entry = load(reader, limits=limits, path=path).value
        if type(entry) is not tuple or tuple(map(type, entry)) != (int, str, StorageType):
            raise CorruptFileError("a storage without its key and class", path=path, offset=at)
        key, location, kind = entry
        numel = int.from_bytes(reader.read(reader.position, 8), "little")
        ref = StorageRef(str(key), kind.dtype, str(location), numel)
        size = storage_bytes(ref)
        start = reader.position + 8
        if size is None or size > reader.size - start:
            raise CorruptFileError(f"storage {key} runs past the end of its member", path=path, offset=at)
        found[key] = ref, Stored(Span(source, start, size))
        reader.position = start + size
    views = load(reader, limits=limits, path=path).value
    for view in views if isinstance(views, list | tuple) else ():
        if type(view) is not tuple or len(view) != 4 or set(map(type, view)) != {int} or view[1] not in found:
            raise CorruptFileError("a view of a storage is broken", path=path)
        target, root, offset, numel = view
        whole, stored = found[root]
        if not 0 <= offset <= offset + numel <= whole.numel:
            raise CorruptFileError("a view reaches beyond its storage", path=path)
        unit = stored.span.nbytes // max(1, whole.numel)
        part = StorageRef(str(target), whole.dtype, whole.location, numel)
        found[target] = part, Stored(Span(source, stored.span.offset + offset * unit, numel * unit))
    return found


def _tensors(
    reader: Reader, storages: dict[int, tuple[StorageRef, Stored]], limits: Limits, path: str
) -> dict[int, TensorRef]:
    """Count, then (key, key of the storage, tensor class) and the geometry for each."""
    found: dict[int, TensorRef] = {}
    for _ in range(_count(reader, limits, path)):
        at = reader.position
        entry = load(reader, limits=limits, path=path).value
        if type(entry) is not tuple or len(entry) != 3 or type(entry[0]) is not int or entry[1] not in storages:
            raise CorruptFileError("a tensor without its key and storage", path=path, offset=at)
        rank, _ = struct.unpack("<ii", reader.read(reader.position, 8))
        limits.check("the rank of a tensor", max(rank, 0), limits.rank, path=path)
        numbers = struct.unpack(f"<{2 * rank + 1}q", reader.read(reader.position + 8, 8 * (2 * rank + 1)))
        if rank < 0 or min(numbers) < 0:
            raise CorruptFileError("a tensor with an impossible size", path=path, offset=at)
        found[entry[0]] = TensorRef(storages[entry[1]][0], numbers[-1], numbers[:rank], numbers[rank : 2 * rank])
        reader.position += 8 + 8 * (2 * rank + 1)
    return found


def _count(reader: Reader, limits: Limits, path: str) -> int:
    count = load(reader, limits=limits, path=path).value
    if type(count) is not int or count < 0:
        raise CorruptFileError("a number of storages or tensors is none", path=path)
    limits.check("the number of tensors", count, limits.tensors, path=path)
    return count


def _reader(source: ByteSource, member: Member) -> Reader:
    if member.offset + member.size > source.size:
        raise CorruptFileError("a tar member runs past the end", path=source.name, hint="the file is truncated")
    return reader_of(source, member.offset, member.offset + member.size)


def _checksum(header: bytes) -> bool:
    text = header[148:156].strip(b" \0")
    if not text or set(text) - set(b"01234567"):
        return False
    return int(text, 8) == sum(header) - sum(header[148:156]) + 8 * 0x20


def _number(field: bytes, path: str, at: int) -> int:
    """Octal digits; or, with the highest bit set, a big-endian number."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    else:
        text = field.strip(b" \0")
        if set(text) - set(b"01234567"):
            raise CorruptFileError("a tar header is broken", path=path, offset=at)
        value = int(text or b"0", 8)
    return value
