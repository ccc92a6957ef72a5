# SPDX-License-Identifier: Apache-2.0
"""Lays out a zip archive: stored members, aligned, sizes known beforehand, CRC-32s filled in when the data is there.

    builder = ZipBuilder(FileBuilder("model.pt"))
    builder.add_bytes("model/version", b"3\\n")
    builder.add_tensor("model/data/0", tensor)
    output_file = builder.finish()

No data descriptors: a tensor's local header is a `Deferred` part that gets the CRC-32 of the part behind it, the
directory is another. A zip64 field stands exactly where a value needs one. An extra field 'FB' moves the data to its
alignment, as in PyTorch's own files. All dates are 1980-01-01: equal input gives equal files.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from tael.convert.plan import FileBuilder, OutputFile
from tael.core.tensor import Tensor
from tael.errors import TransformError, clip
from tael.formats.zip_archive import CENTRAL, END, END64, LOCAL, LOCATOR64, STORED

ALIGNMENT = 64
COMMENT_BYTES = 0xFFFF  # the longest archive comment

_PAD, _ZIP64 = 0x4246, 0x0001  # extra fields: "FB", and 64-bit sizes
_DATE = 0x0021  # 1980-01-01
_PLAIN_VERSION, _ZIP64_VERSION = 20, 45
_UTF8 = 1 << 11
_M16, _M32 = 0xFFFF, 0xFFFFFFFF


class _Member(NamedTuple):
    """A list in a plan's JSON. The data is a known start with `crc32`, then the part `part` of `rest` bytes."""

    name: str
    size: int
    offset: int  # of the local header
    pad: int  # bytes of its FB field
    crc32: int
    part: int = -1  # none
    rest: int = 0

    @property
    def zip64(self) -> bool:
        return self.size >= _M32


class ZipBuilder:
    """Appends members to `file`, front to back. Their data starts at multiples of `alignment` (4 or more)."""

    def __init__(self, file: FileBuilder, alignment: int = ALIGNMENT) -> None:
        self.file = file
        self.alignment = alignment
        self._members: list[_Member] = []
        self._names: set[str] = set()
        self._directory_bytes = 0

    def add_bytes(self, name: str, data: bytes) -> None:
        """A member whose bytes are known. Raises `TransformError` for a name that is there already or too long."""
        from tael import kernels

        member, _ = self._place(name, len(data), kernels.crc32(data))
        self.file.literal(_local_header(member, member.crc32) + data)

    def add_tensor(self, name: str, tensor: Tensor, prefix: bytes = b"") -> None:
        """A member of `prefix` and the tensor's canonical bytes."""
        size = tensor.nbytes
        if size == 0:
            return self.add_bytes(name, prefix)
        file, crc32 = self.file, 0
        if prefix:
            from tael import kernels

            crc32 = kernels.crc32(prefix)
        part = len(file.parts) + (2 if prefix else 1)
        member, header_bytes = self._place(name, len(prefix) + size, crc32, part, size)
        file.deferred(header_bytes, "zip.local_header", {"member": member})
        if prefix:
            file.literal(prefix)
        file.tensor(tensor, digest=True)
        return None

    def _place(self, name: str, size: int, crc32: int, part: int = -1, rest: int = 0) -> tuple[_Member, int]:
        """The member at the file's end, and the bytes of its local header."""
        raw = len(name.encode(errors="replace"))
        if name in self._names:
            raise TransformError(f"two members would be named {clip(name)!r}", path=self.file.name)
        if not 0 < raw <= _M16 or "\0" in name or not _is_text(name):
            raise TransformError(f"no zip member can be named {clip(name)!r}", path=self.file.name)
        self._names.add(name)
        offset = self.file.offset
        header = LOCAL.size + raw + (20 if size >= _M32 else 0)
        pad = -(offset + header) % self.alignment
        if 0 < pad < 4:  # a field has a head of 4 bytes
            pad += self.alignment
        member = _Member(name, size, offset, pad, crc32, part, rest)
        self._members.append(member)
        wide = (2 if size >= _M32 else 0) + (1 if offset >= _M32 else 0)
        self._directory_bytes += CENTRAL.size + raw + (4 + 8 * wide if wide else 0)
        return member, header + pad

    def finish(self, comment: bytes = b"") -> OutputFile:
        """The file, with its directory and at most `COMMENT_BYTES` of comment behind the members."""
        if len(comment) > COMMENT_BYTES:
            raise TransformError(f"a zip comment of {len(comment):,} bytes", path=self.file.name)
        count, offset, size = len(self._members), self.file.offset, self._directory_bytes
        if count:
            self.file.deferred(size, "zip.directory", {"members": self._members})
        tail = b""
        if count >= _M16 or offset >= _M32 or size >= _M32:
            version = _ZIP64_VERSION
            tail += END64.pack(b"PK\6\6", END64.size - 12, version, version, 0, 0, count, count, size, offset)
            tail += LOCATOR64.pack(b"PK\6\7", 0, offset + size, 1)
        few = min(count, _M16)
        tail += END.pack(b"PK\5\6", 0, 0, few, few, min(size, _M32), min(offset, _M32), len(comment))
        self.file.literal(tail + comment)
        return self.file.finish()


def _is_text(name: str) -> bool:
    """Whether `name` is free of lone surrogates."""
    return name.isascii() or name.encode(errors="ignore").decode() == name


def finish_local_header(params: Mapping[str, Any], digests: Mapping[int, int]) -> bytes:
    """The header of one member, when the CRC-32 of its part is known."""
    member = _Member(*params["member"])
    return _local_header(member, _crc32(member, digests))


def finish_directory(params: Mapping[str, Any], digests: Mapping[int, int]) -> bytes:
    """All directory entries."""
    return b"".join([_central_header(member, _crc32(member, digests)) for member in map(_from_json, params["members"])])


def _from_json(values: list[Any]) -> _Member:
    return _Member(*values)


def _crc32(member: _Member, digests: Mapping[int, int]) -> int:
    if member.part < 0:
        return member.crc32
    from tael import kernels

    return kernels.crc32_combine(member.crc32, digests[member.part], member.rest)


def _local_header(member: _Member, crc32: int) -> bytes:
    name = member.name.encode()
    extra = struct.pack("<2H2Q", _ZIP64, 16, member.size, member.size) if member.zip64 else b""
    if member.pad:
        extra += struct.pack("<2H", _PAD, member.pad - 4) + bytes(member.pad - 4)
    size = _M32 if member.zip64 else member.size
    version = _ZIP64_VERSION if member.zip64 else _PLAIN_VERSION
    flags = 0 if name.isascii() else _UTF8
    head = LOCAL.pack(b"PK\3\4", version, flags, STORED, 0, _DATE, crc32, size, size, len(name), len(extra))
    return head + name + extra


def _central_header(member: _Member, crc32: int) -> bytes:
    name = member.name.encode()
    wide = [member.size, member.size] if member.zip64 else []
    if member.offset >= _M32:
        wide.append(member.offset)
    extra = struct.pack(f"<2H{len(wide)}Q", _ZIP64, 8 * len(wide), *wide) if wide else b""
    size, offset = (_M32 if member.zip64 else member.size), min(member.offset, _M32)
    version = _ZIP64_VERSION if wide else _PLAIN_VERSION
    flags = 0 if name.isascii() else _UTF8
    numbers = (version, version, flags, STORED, 0, _DATE, crc32, size, size, len(name), len(extra), 0, 0, 0, 0, offset)
    return CENTRAL.pack(b"PK\1\2", *numbers) + name + extra
