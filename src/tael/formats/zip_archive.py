# SPDX-License-Identifier: Apache-2.0
"""ZIP archives, read strictly and by range: the container of torch and npz files. Writing: zip_write.py.

    (local header | data | data descriptor?)*   directory   zip64 end record, locator?   end record | comment

    local header  PK\\3\\4  30 bytes, name, extra        sizes may be zero here (flag bit 3): they follow the data
    directory     PK\\1\\2  46 bytes, name, extra, comment per member; sizes, CRC-32, offset of the local header
    zip64         all ones in a size or offset: the value is in the extra field 0x0001, or in the zip64 end record

The directory is the authority. Where a member's data starts only its local header says (its extra field differs from
the directory's: torch pads there to 64 bytes), so that is read once per member, when its range is first asked for;
it must name the same member by the same method and size, and the data must end before the next member starts. Behind
a network that would be one request per member at the opening: there the range is left open (`MemberSource`) and the
header read just before the member's first byte.

Sources: PKWARE APPNOTE 6.3.10; miniz as in PyTorch; CPython's zipfile.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tael.core.limits import DEFAULT, Limits
from tael.core.node import Span
from tael.core.problem import Problem
from tael.core.source import ByteSource, BytesSource, FileSource, InflateSource, SourceId, open_ref, read
from tael.core.tensor import Check
from tael.errors import CorruptFileError, UnsupportedFormatError, clip

LOCAL = struct.Struct("<4s5H3I2H")  # signature, version, flags, method, time, date, crc, compressed, size, name, extra
CENTRAL = struct.Struct("<4s6H3I5H2I")
END = struct.Struct("<4s4H2IH")
END64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR64 = struct.Struct("<4sIQI")

STORED, DEFLATED = 0, 8
_METHODS = {1: "shrink", 6: "implode", 9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "zstandard", 95: "xz", 99: "AES"}
_ENCRYPTED, _DESCRIPTOR, _UTF8, _STRONG = 1 << 0, 1 << 3, 1 << 11, 1 << 6
_MOST_INFLATED = 1032  # deflate cannot expand further: 258 bytes from 2 bits
_M16, _M32 = 0xFFFF, 0xFFFFFFFF


class ZipEntry(NamedTuple):
    """One member as the directory has it. `has_crc`: its writer did compute the CRC-32."""

    name: str
    method: int
    crc32: int
    compressed: int
    size: int
    header_offset: int
    flags: int
    name_bytes: int

    @property
    def has_crc(self) -> bool:
        return self.crc32 != 0 or self.size == 0

    @property
    def access(self) -> Literal["random", "sequential"]:
        return "random" if self.method == STORED else "sequential"


@dataclass(slots=True)
class ZipArchive:
    """An opened directory: `entries` by name in directory order, the archive `comment`, what was noticed."""

    source: ByteSource
    entries: dict[str, ZipEntry]
    comment: bytes
    problems: list[Problem]
    starts: list[int]  # of the local headers, ascending; then of the directory
    _members: MemberSource | None = None
    _spans: dict[str, Span] = field(default_factory=dict)

    def entry_span(self, entry: ZipEntry) -> Span:
        """The member's bytes: a range of the archive, or of a sequential source when deflated.

        The same member gives the same `Span`. Raises `CorruptFileError` when local header and directory disagree.
        """
        found = self._spans.get(entry.name)
        if found is None:
            found = self._spans[entry.name] = self._locate(entry)
        return found

    def _locate(self, entry: ZipEntry) -> Span:
        if isinstance(self.source, FileSource | BytesSource):
            stored = Span(self.source, self.data_offset(entry), entry.compressed)
        else:
            if self._members is None:
                self._members = MemberSource(self)
            stored = Span(self._members, self._members.address(entry), entry.compressed)
        if entry.method == STORED:
            return stored
        name = f"{self.source.name}!{clip(entry.name)}"
        inflated = InflateSource(stored.source, stored.offset, stored.nbytes, entry.size, name)
        return Span(inflated, 0, entry.size)

    def check(self, entry: ZipEntry) -> Check | None:
        """The stored CRC-32 over the member's bytes; None when its writer left it out."""
        if not entry.has_crc:
            return None
        return Check(self.entry_span(entry), entry.crc32, f"member {clip(entry.name)!r}")

    def read(self, name: str, limits: Limits = DEFAULT) -> bytes:
        """All bytes of the member `name`, at most `limits.header_bytes`, its CRC-32 compared."""
        entry = self.entries.get(name)
        if entry is None:
            raise CorruptFileError(f"has no member {clip(name)!r}", path=self.source.name)
        limits.check(f"member {clip(name)!r}", entry.size, limits.header_bytes, path=self.source.name)
        span = self.entry_span(entry)
        data = read(span.source, span.offset, span.nbytes)
        check = self.check(entry)
        if check is not None:
            from tael import kernels

            check.compare(kernels.crc32(data))
        return data

    def head(self, entry: ZipEntry, offset: int, nbytes: int) -> bytes:
        """Bytes near the member's beginning. Of a deflated member all before them is inflated, and nothing kept."""
        span = self.entry_span(entry)
        source = span.source.again() if isinstance(span.source, InflateSource) else span.source
        return read(source, span.offset + offset, nbytes)

    def data_offset(self, entry: ZipEntry) -> int:
        """Where the member's stored bytes start, read from its local header and checked."""
        at = entry.header_offset
        head = read(self.source, at, LOCAL.size + entry.name_bytes)
        magic, _, flags, method, _, _, _, compressed, size, name_bytes, extra_bytes = LOCAL.unpack_from(head)
        start: int = at + LOCAL.size + name_bytes + extra_bytes
        if magic != b"PK\3\4":
            wrong = "has no local header"
        elif name_bytes != entry.name_bytes or _decode(head[LOCAL.size :], flags, self.source.name, at) != entry.name:
            wrong = "has another name in its local header"
        elif method != entry.method or flags & _ENCRYPTED:
            wrong = "is stored in another way than the directory says"
        # zero: a descriptor behind the data has the sizes; all ones: a zip64 field has them
        elif compressed not in (0, _M32, entry.compressed) or size not in (0, _M32, entry.size):
            wrong = "has other sizes in its local header"
        elif start + entry.compressed > self.starts[bisect_right(self.starts, at)]:
            wrong = "runs into the next member"
        else:
            return start
        raise CorruptFileError(f"member {clip(entry.name)!r} {wrong}", path=self.source.name, offset=at)


class MemberSource:
    """The archive's bytes for distant sources, addressed so that no local header need be read beforehand.

    A member's data has the address just behind its header and name, which is where it would lie without an extra
    field; the real place is looked up at the first read.
    """

    def __init__(self, archive: ZipArchive) -> None:
        self.archive, self.inner = archive, archive.source
        self.name, self.size = self.inner.name, self.inner.size
        entries = sorted(archive.entries.values(), key=lambda entry: entry.header_offset)
        self._entries = [entry for entry in entries if entry.compressed]
        self._addresses = [self.address(entry) for entry in self._entries]
        self._shifts: dict[int, int] = {}
        self._lock = threading.Lock()

    @staticmethod
    def address(entry: ZipEntry) -> int:
        return entry.header_offset + LOCAL.size + entry.name_bytes

    @property
    def identity(self) -> SourceId:
        return (*self.inner.identity, "zip")

    @property
    def ref(self) -> Mapping[str, Any]:
        return {"zip": dict(self.inner.ref)}

    def read_into(self, offset: int, buffer: memoryview) -> None:
        number = bisect_right(self._addresses, offset) - 1
        entry = self._entries[number] if number >= 0 else None
        if entry is None or offset + buffer.nbytes > self._addresses[number] + entry.compressed:
            raise CorruptFileError("a range beyond its member", path=self.name, offset=offset)
        with self._lock:
            shift = self._shifts.get(number)
        if shift is None:
            shift = self.archive.data_offset(entry) - self._addresses[number]
            with self._lock:
                self._shifts[number] = shift
        self.inner.read_into(offset + shift, buffer)

    def check_unchanged(self) -> None:
        self.inner.check_unchanged()

    def close(self) -> None: ...


def open_member_source(ref: Mapping[str, Any]) -> MemberSource:
    """The source that a `MemberSource.ref` speaks of."""
    return MemberSource(open_zip(open_ref(ref["zip"])))


def open_zip(source: ByteSource, limits: Limits = DEFAULT) -> ZipArchive:
    """Read the directory of `source`; no member is touched.

    Raises `CorruptFileError` (no directory, sizes past the end, members that overlap, a name twice),
    `UnsupportedFormatError` (encrypted, another method than stored and deflated) or `LimitExceededError`.
    """
    tail_at = max(0, source.size - END.size - _M16)
    tail = read(source, tail_at, source.size - tail_at)

    def fetch(offset: int, nbytes: int) -> bytes:
        inside = tail_at <= offset and offset + nbytes <= source.size
        return tail[offset - tail_at :][:nbytes] if inside else read(source, offset, nbytes)

    count, size, offset, comment, end, problems = _end_record(tail, tail_at, fetch, source.name)
    limits.check("the zip directory", size, limits.header_bytes, path=source.name)
    limits.check("the number of zip members", count, limits.tensors, path=source.name)
    if offset + size != end:
        raise CorruptFileError(
            f"the zip directory should end at byte {offset + size:,} but its end record is at {end:,}",
            path=source.name,
            hint="bytes were lost or put in; fetch the file again",
        )
    entries = _directory(fetch(offset, size), count, offset, source.name)
    starts = _check_ranges(entries, offset, source.name)
    return ZipArchive(source, entries, comment, problems, starts)


def _end_record(
    tail: bytes, base: int, fetch: Callable[[int, int], bytes], path: str
) -> tuple[int, int, int, bytes, int, list[Problem]]:
    """Members, directory size and offset, comment, where the end records start, notes; `tail` begins at `base`."""
    at = tail.rfind(b"PK\5\6", 0, len(tail) - END.size + 4) if len(tail) >= END.size else -1
    if at < 0:
        raise CorruptFileError(
            "the zip directory at the end of the file is missing",
            path=path,
            hint="the file is truncated: fetch it again, or the writer did not finish",
        )
    _, disk, start_disk, here, count, size, offset, comment_size = END.unpack_from(tail, at)
    comment = tail[at + END.size :][:comment_size]
    after = len(tail) - at - END.size - comment_size
    if after < 0:
        raise CorruptFileError("the zip comment runs past the end of the file", path=path, offset=base + at)
    problems = [Problem("note", f"{after:,} bytes follow the end of the zip archive", path)] if after else []
    end = base + at
    if end >= LOCATOR64.size:
        magic, _, where, disks = LOCATOR64.unpack(fetch(end - LOCATOR64.size, LOCATOR64.size))
        if magic == b"PK\6\7":
            record = END64.unpack(fetch(where, END64.size))
            magic64, length, _, _, disk, start_disk, here, count, size, offset = record
            if magic64 != b"PK\6\6" or where + 12 + length != end - LOCATOR64.size or disks > 1:
                raise CorruptFileError("the zip64 end record is broken", path=path, offset=where)
            end = where
    if disk or start_disk or here != count:
        raise UnsupportedFormatError("a zip archive of several disks", path=path)
    return count, size, offset, comment, end, problems


def _directory(data: bytes, count: int, base: int, path: str) -> dict[str, ZipEntry]:
    if count * CENTRAL.size > len(data):
        raise CorruptFileError(f"the zip directory is too small for {count:,} members", path=path, offset=base)
    entries: dict[str, ZipEntry] = {}
    unpack, at = CENTRAL.unpack_from, 0
    for _ in range(count):
        if at + CENTRAL.size > len(data):
            raise CorruptFileError("the zip directory ends within an entry", path=path, offset=base + at)
        magic, _, _, flags, method, _, _, crc, stored, size, n, m, k, _, _, _, start = unpack(data, at)
        name_end = at + CENTRAL.size + n
        if magic != b"PK\1\2" or name_end + m + k > len(data):
            raise CorruptFileError("the zip directory is broken", path=path, offset=base + at)
        name = _decode(data[at + CENTRAL.size : name_end], flags, path, base + at)
        if size == _M32 or stored == _M32 or start == _M32:
            size, stored, start = _zip64(data[name_end : name_end + m], size, stored, start, path, base + at)
        if name in entries:
            raise CorruptFileError(f"two members are named {clip(name)!r}", path=path, offset=base + at)
        if method not in (STORED, DEFLATED) or flags & (_ENCRYPTED | _STRONG):
            raise _unreadable(name, method, flags, path)
        if method == STORED and size != stored:
            raise CorruptFileError(f"member {clip(name)!r} is stored, but has two sizes", path=path, offset=base + at)
        if size > stored * _MOST_INFLATED:
            raise CorruptFileError(
                f"member {clip(name)!r} cannot inflate from {stored:,} to {size:,} bytes", path=path, offset=base + at
            )
        entries[name] = ZipEntry(name, method, crc, stored, size, start, flags, n)
        at = name_end + m + k
    if at != len(data):
        raise CorruptFileError("the zip directory has more than it says", path=path, offset=base + at)
    return entries


def _unreadable(name: str, method: int, flags: int, path: str) -> UnsupportedFormatError:
    if flags & (_ENCRYPTED | _STRONG):
        return UnsupportedFormatError(f"member {clip(name)!r} is encrypted", path=path, hint="decrypt it first")
    what = _METHODS.get(method, f"method {method}")
    return UnsupportedFormatError(
        f"member {clip(name)!r} is compressed by {what}", path=path, hint="pack the archive anew, stored or deflated"
    )


def _zip64(extra: bytes, size: int, stored: int, start: int, path: str, at: int) -> tuple[int, int, int]:
    """The sizes and the offset, those that are all ones taken from the zip64 field, in this order."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        position += 4
        if kind == 1:
            body = extra[position : position + length]
            values = [value for (value,) in struct.iter_unpack("<Q", body[: len(body) // 8 * 8])]
            wanted = [size, stored, start]
            for index, value in enumerate(wanted):
                if value == _M32:
                    if not values:
                        raise CorruptFileError("a zip64 field is too short", path=path, offset=at)
                    wanted[index] = values.pop(0)
            return wanted[0], wanted[1], wanted[2]
        position += length
    return size, stored, start  # exactly 4 GiB - 1 is a legal size


def _decode(raw: bytes, flags: int, path: str, at: int) -> str:
    try:
        name = raw.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError:
        raise CorruptFileError("a member name is no UTF-8", path=path, offset=at) from None
    if not name or "\0" in name:
        raise CorruptFileError(f"a member has the name {clip(name)!r}", path=path, offset=at)
    return name


def _check_ranges(entries: Mapping[str, ZipEntry], directory: int, path: str) -> list[int]:
    """The headers' offsets in order, then the directory's. No member reaches into the next: bombs are made that way."""
    ordered = sorted(entries.values(), key=lambda entry: entry.header_offset)
    starts = [entry.header_offset for entry in ordered]
    starts.append(directory)
    for index, entry in enumerate(ordered):
        if entry.header_offset + LOCAL.size + entry.name_bytes + entry.compressed > starts[index + 1]:
            what = "past the start of the directory" if starts[index + 1] == directory else "into the next member"
            raise CorruptFileError(f"member {clip(entry.name)!r} runs {what}", path=path, offset=entry.header_offset)
    return starts
