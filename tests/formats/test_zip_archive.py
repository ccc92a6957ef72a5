# SPDX-License-Identifier: Apache-2.0
"""The zip reader and builder, with Python's zipfile as the peer on both sides."""

from __future__ import annotations

import io
import json
import struct
import sys
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import building
from tael.convert.execute import execute
from tael.convert.plan import Deferred, FileBuilder, Literal, OutputFile, Plan
from tael.core.dtypes import DTYPES
from tael.core.limits import Limits
from tael.core.node import Contiguous, Span
from tael.core.source import BytesSource, FileSource, open_ref, read
from tael.core.tensor import Tensor, TensorInfo
from tael.errors import ChecksumError, CorruptFileError, LimitExceededError, TaelError, TransformError
from tael.formats.zip_archive import CENTRAL, LOCAL, ZipArchive, open_zip
from tael.formats.zip_write import ZipBuilder, finish_directory, finish_local_header

DATA = bytes(range(256)) * 5


def opened(data: bytes, **limits: Any) -> ZipArchive:
    return open_zip(BytesSource(data, "file.zip"), Limits(**limits))


def content(archive: ZipArchive, name: str) -> bytes:
    span = archive.entry_span(archive.entries[name])
    return read(span.source, span.offset, span.nbytes)


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
        archive.comment = comment
    return out.getvalue()


class Unseekable(io.BytesIO):
    """Makes zipfile write data descriptors."""

    def seekable(self) -> bool:
        return False

    def seek(self, *args: Any) -> int:
        raise io.UnsupportedOperation

    def tell(self) -> int:
        raise io.UnsupportedOperation


# --- reading what others wrote


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_are_those_of_zipfile(method: int) -> None:
    members = {"a/data/0": DATA, "empty": b"", "folder/": b"", "层 é.npy": b"x" * 100_000}
    archive = opened(zipped(members, method, b"a comment"))
    assert {name: content(archive, name) for name in archive.entries} == members
    assert list(archive.entries) == list(members)
    assert archive.comment == b"a comment"
    assert all(archive.read(name) == data for name, data in members.items())
    assert {entry.access for entry in archive.entries.values() if entry.size} == (
        {"random"} if method == zipfile.ZIP_STORED else {"sequential"}
    )


def test_a_streamed_zip_with_data_descriptors_and_zip64(tmp_path: Path) -> None:
    out = Unseekable()
    with zipfile.ZipFile(out, "w") as archive:
        for name, wide in (("plain", False), ("wide", True)):
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=wide) as member:
                member.write(DATA)
    assert out.getvalue()[6:8] == b"\x08\x00"  # bit 3
    found = opened(out.getvalue())
    assert content(found, "plain") == content(found, "wide") == DATA


def by_hand(local_extra: bytes, central_extra: bytes, sizes: tuple[int, int], flags: int = 0) -> bytes:
    crc = zlib.crc32(DATA)
    head = LOCAL.pack(b"PK\3\4", 45, flags, 0, 0, 0, 0, 0, 0, 1, len(local_extra)) + b"x" + local_extra
    body = head + DATA + (struct.pack("<4sI2Q", b"PK\7\x08", crc, len(DATA), len(DATA)) if flags & 8 else b"")
    numbers = (45, 45, flags, 0, 0, 0, crc, *sizes, 1, len(central_extra), 0, 0, 0, 0, 0)
    directory = CENTRAL.pack(b"PK\1\2", *numbers) + b"x" + central_extra
    return body + directory + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(directory), len(body), 0)


def test_p7_descriptor_zero_local_sizes_and_an_8_byte_zip64_field() -> None:
    other = struct.pack("<2H3s", 0x4142, 3, b"abc")  # a field that is not ours stands first
    one = struct.pack("<2HQ", 1, 8, len(DATA))
    data = by_hand(b"FB\2\0ZZ", other + one, (len(DATA), 0xFFFFFFFF), flags=8)
    assert zipfile.ZipFile(io.BytesIO(data)).read("x") == DATA
    archive = opened(data)
    assert content(archive, "x") == DATA
    assert archive.read("x") == DATA


def test_the_zip64_field_holds_only_what_is_all_ones_in_a_fixed_order() -> None:
    both = struct.pack("<2H2Q", 1, 16, len(DATA), len(DATA))
    assert content(opened(by_hand(b"", both, (0xFFFFFFFF, 0xFFFFFFFF))), "x") == DATA
    short = struct.pack("<2HQ", 1, 8, len(DATA))
    with pytest.raises(CorruptFileError, match="zip64 field is too short"):
        opened(by_hand(b"", short, (0xFFFFFFFF, 0xFFFFFFFF)))


def test_padding_in_the_local_header_alone_moves_the_data() -> None:
    archive = opened(by_hand(b"FB" + struct.pack("<H", 29) + b"Z" * 29, b"", (len(DATA), len(DATA))))
    assert archive.entry_span(archive.entries["x"]).offset == 64
    assert content(archive, "x") == DATA


def test_one_member_has_one_span() -> None:
    archive = opened(zipped({"a": DATA}, zipfile.ZIP_DEFLATED))
    entry = archive.entries["a"]
    assert archive.entry_span(entry) is archive.entry_span(entry)


def test_bytes_behind_the_archive_are_noted() -> None:
    archive = opened(zipped({"a": DATA}) + b"\0trailing")
    assert "9 bytes follow" in archive.problems[0].what
    assert content(archive, "a") == DATA


def test_checks_are_the_stored_crcs() -> None:
    data = zipped({"a": DATA, "none": DATA})
    at = data.rfind(b"PK\1\2")
    archive = opened(data[: at + 16] + bytes(4) + data[at + 20 :])  # torch may leave the CRC out, as zero
    assert archive.check(archive.entries["none"]) is None
    check = archive.check(archive.entries["a"])
    assert check is not None
    check.verify()
    flipped = bytearray(data)
    flipped[LOCAL.size + 1 + 7] ^= 1
    archive = opened(bytes(flipped))
    with pytest.raises(ChecksumError, match="member 'a'"):
        archive.read("a")


def test_deflated_heads_keep_no_state() -> None:
    archive = opened(zipped({"a": DATA * 100}, zipfile.ZIP_DEFLATED))
    entry = archive.entries["a"]
    assert archive.head(entry, 3, 20) == DATA[3:23]
    source = archive.entry_span(entry).source
    assert source._inflate is None
    assert content(archive, "a") == DATA * 100
    assert source._inflate is None


# --- what is refused


def patched(data: bytes, marker: bytes, offset: int, new: bytes) -> bytes:
    at = data.rfind(marker) + offset
    return data[:at] + new + data[at + len(new) :]


GOOD = zipped({"first": DATA, "other": DATA})
LONG = zipped({"x" * 60: b"", "y" * 60: b""})
SQUEEZED = zipped({"first": DATA}, zipfile.ZIP_DEFLATED)
U32 = struct.Struct("<I").pack

BROKEN = {
    "empty": (b"", "directory at the end of the file is missing"),
    "cut": (GOOD[:-30], "directory at the end of the file is missing"),
    "cut in front": (GOOD[100:], "bytes were lost or put in"),
    "something in front": (b"#!/bin/sh\n" + GOOD, "bytes were lost or put in"),
    "comment past the end": (patched(GOOD, b"PK\5\6", 20, b"\x10\0"), "comment runs past the end"),
    "several disks": (patched(GOOD, b"PK\5\6", 4, b"\1\0"), "several disks"),
    "more members than directory": (patched(LONG, b"PK\5\6", 8, b"\3\0\3\0"), "ends within an entry"),
    "far more members": (patched(GOOD, b"PK\5\6", 8, b"\xfe\xff\xfe\xff"), "too small for"),
    "fewer members": (patched(GOOD, b"PK\5\6", 8, b"\1\0\1\0"), "has more than it says"),
    "directory without its mark": (patched(GOOD, b"PK\1\2", 0, b"PK\1\3"), "directory is broken"),
    "name longer than the directory": (patched(GOOD, b"PK\1\2", 28, b"\xff\xff"), "directory is broken"),
    "encrypted": (patched(GOOD, b"PK\1\2", 8, b"\1\0"), "is encrypted"),
    "lzma": (patched(GOOD, b"PK\1\2", 10, b"\x0e\0"), "compressed by LZMA"),
    "method 77": (patched(GOOD, b"PK\1\2", 10, b"\x4d\0"), "method 77"),
    "stored with two sizes": (patched(GOOD, b"PK\1\2", 24, U32(7)), "two sizes"),
    "reaches into the directory": (patched(GOOD, b"PK\1\2", 20, U32(2000) * 2), "past the start of the directory"),
    "starts past the end": (patched(GOOD, b"PK\1\2", 42, U32(1 << 30)), "past the start of the directory"),
    "two in one place": (patched(GOOD, b"PK\1\2", 42, U32(0)), "into the next member"),
    "one in another": (patched(GOOD, b"PK\1\2", 42, U32(20)), "into the next member"),
    "a bomb": (patched(SQUEEZED, b"PK\1\2", 24, U32(1 << 31)), "cannot inflate"),
    "the name twice": (zipped({"a": b"1", "b": b"2"}).replace(b"b", b"a"), "two members are named 'a'"),
    "NUL in the name": (GOOD.replace(b"other", b"oth\0r"), "has the name"),
    "no UTF-8": (patched(GOOD, b"PK\1\2", 8, b"\0\x08").replace(b"other", b"oth\xffr"), "no UTF-8"),
    "zip64 locator to nowhere": (
        GOOD[:-22] + struct.pack("<4sIQI", b"PK\6\7", 0, 1 << 60, 1) + GOOD[-22:],
        "file ends at",
    ),
    "zip64 locator to elsewhere": (
        GOOD[:-22] + struct.pack("<4sIQI", b"PK\6\7", 0, 0, 1) + GOOD[-22:],
        "zip64 end record is broken",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_directory_is_named(kind: str) -> None:
    data, message = BROKEN[kind]
    with pytest.raises(TaelError, match=message) as error:
        opened(data)
    assert error.value.path == "file.zip"


LOCALLY_BROKEN = {
    "no mark": (0, b"PK\3\5", "no local header"),
    "another name": (30, b"f1rst", "another name"),
    "a shorter name": (26, b"\4\0", "another name"),
    "another method": (8, b"\x08\0", "another way"),
    "encrypted": (6, b"\1\0", "another way"),
    "another size": (18, U32(9), "other sizes"),
    "a long extra field": (28, b"\xff\xff", "runs into the next member"),
}


@pytest.mark.parametrize("distant", [False, True])
@pytest.mark.parametrize("kind", LOCALLY_BROKEN)
def test_a_local_header_that_contradicts_is_found_before_any_byte_is_given(kind: str, distant: bool) -> None:
    offset, new, message = LOCALLY_BROKEN[kind]
    data = GOOD[:offset] + new + GOOD[offset + len(new) :]
    archive = open_zip(Distant(data)) if distant else opened(data)
    assert content(archive, "other") == DATA
    with pytest.raises(CorruptFileError, match=message):
        content(archive, "first")


def test_limits_are_kept() -> None:
    with pytest.raises(LimitExceededError, match="zip directory"):
        opened(GOOD, header_bytes=50)
    with pytest.raises(LimitExceededError, match="number of zip members"):
        opened(GOOD, tensors=1)
    with pytest.raises(LimitExceededError, match="member 'first'"):
        opened(GOOD).read("first", Limits(header_bytes=1000))
    with pytest.raises(CorruptFileError, match="has no member 'nothing'"):
        opened(GOOD).read("nothing")


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(GOOD)))
def test_damage_gives_a_tael_error_or_an_archive(changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value
    try:
        archive = opened(bytes(data[: cut if len(changes) % 2 else len(data)]))
        for name in archive.entries:
            archive.read(name)
    except TaelError:
        pass


# --- sources at a distance


class Distant:
    """What a URL looks like from here: every read is a request."""

    def __init__(self, data: bytes) -> None:
        self.inner = BytesSource(data)
        self.name, self.size = "https://host/file.zip", len(data)
        self.identity, self.ref = self.inner.identity, self.inner.ref
        self.requests = 0

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.requests += 1
        self.inner.read_into(offset, buffer)

    def check_unchanged(self) -> None: ...

    def close(self) -> None: ...


def test_opening_a_distant_archive_takes_two_requests_whatever_it_holds() -> None:
    data = zipped({f"archive/data/{n}": DATA[:n] for n in range(500)})
    source = Distant(data)
    archive = open_zip(source)
    spans = {name: archive.entry_span(entry) for name, entry in archive.entries.items()}
    assert source.requests <= 2
    assert all(read(span.source, span.offset, span.nbytes) == DATA[: span.nbytes] for span in spans.values())
    assert source.requests <= 2 + 2 * 500


def test_distant_ranges_are_those_of_the_file_in_any_order_and_from_json() -> None:
    pieces = {f"m{n}": bytes([n]) * (n % 7) for n in range(40)}
    data = torch_like(pieces)
    archive = open_zip(Distant(data))
    for name in reversed(pieces):
        assert content(archive, name) == pieces[name]
    span = archive.entry_span(archive.entries["m13"])
    assert read(span.source, span.offset + 2, 3) == pieces["m13"][2:5]
    with pytest.raises(CorruptFileError, match="beyond its member"):
        read(span.source, span.offset + 2, 5)
    again = open_ref(json.loads(json.dumps(span.source.ref)))
    assert read(again, span.offset, span.nbytes) == pieces["m13"]
    assert again.size == len(data)


def torch_like(members: dict[str, bytes]) -> bytes:
    builder = ZipBuilder(FileBuilder("x"))
    for name, data in members.items():
        builder.add_bytes(name, data)
    return rendered(builder.finish(b"done"))


# --- writing


def rendered(file: OutputFile) -> bytes:
    """The bytes of a file of literals and what depends on them."""
    out = bytearray(file.size)
    for part in file.parts:
        if isinstance(part, Literal):
            out[part.offset : part.offset + part.nbytes] = part.data
        elif isinstance(part, Deferred):
            out[part.offset : part.offset + part.nbytes] = finish_directory(part.params, {})
    return bytes(out)


def test_what_is_built_is_whole_for_zipfile_and_aligned(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {f"t{n}": rng.integers(0, 255, n * 13, np.uint8) for n in range(9)}
    tensors["层/é"] = np.arange(6, dtype=np.float32)
    checkpoint = building.checkpoint(tensors)
    builder = ZipBuilder(FileBuilder("out.zip"))
    builder.add_bytes("archive/version", b"3\n")
    for tensor in checkpoint.tensors.values():
        builder.add_tensor(f"archive/{tensor.name}", tensor)
        builder.add_tensor(f"archive/{tensor.name}.npy", tensor, prefix=b"prefix")
    path = tmp_path / "out.zip"
    execute(Plan("zip", str(path), False, (builder.finish(b"the comment"),)))
    wanted = {name: array.tobytes() for name, array in tensors.items()}
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment == b"the comment"
        assert archive.read("archive/version") == b"3\n"
        for name, raw in wanted.items():
            assert archive.read(f"archive/{name}") == raw
            assert archive.read(f"archive/{name}.npy") == b"prefix" + raw
    found = open_zip(FileSource(path))
    assert all(found.entry_span(entry).offset % 64 == 0 for entry in found.entries.values())
    local = [LOCAL.unpack(path.read_bytes()[entry.header_offset :][: LOCAL.size]) for entry in found.entries.values()]
    assert [fields[6] for fields in local] == [entry.crc32 for entry in found.entries.values()]
    assert not any(fields[2] & 8 for fields in local)


def test_names_that_cannot_be_are_refused() -> None:
    builder = ZipBuilder(FileBuilder("out.zip"))
    builder.add_bytes("a", b"")
    for name in ("a", "", "x" * 70_000, "a\0b", "\ud800"):
        with pytest.raises(TransformError):
            builder.add_bytes(name, b"")
    with pytest.raises(TransformError, match="comment"):
        builder.finish(b"x" * 70_000)


def test_an_archive_of_nothing() -> None:
    data = torch_like({})
    assert zipfile.ZipFile(io.BytesIO(data)).namelist() == []
    assert opened(data).entries == {}


def test_more_members_than_16_bits_count() -> None:
    data = torch_like({str(n): b"%d" % n for n in range(66_000)})
    archive = opened(data)
    assert len(archive.entries) == 66_000
    assert content(archive, "65999") == b"65999"
    with zipfile.ZipFile(io.BytesIO(data)) as peer:
        assert peer.read("65535") == b"65535"


def huge(nbytes: int, name: str) -> Tensor:
    source = BytesSource(b"", name)
    source.size = nbytes  # none of them there
    node = Contiguous(DTYPES["U8"], (nbytes,), Span(source, 0, nbytes))
    return Tensor(TensorInfo(name, node.dtype, node.shape), node)


def zeros_crc(count: int) -> int:
    """CRC-32 of `count` zero bytes, in few steps."""
    from tael import kernels

    crc, one, size = 0, zlib.crc32(b"\0"), 1
    while count:
        if count & 1:
            crc = kernels.crc32_combine(crc, one, size)
        one, size, count = kernels.crc32_combine(one, one, size), size * 2, count >> 1
    return crc


def test_beyond_4_gib_sizes_and_offsets_are_zip64(tmp_path: Path) -> None:
    size = (5 << 30) + 3
    small = building.tensor("small", np.arange(50, dtype=np.float32))
    builder = ZipBuilder(FileBuilder("big.zip"))
    builder.add_tensor("big", huge(size, "big"))
    builder.add_bytes("version", b"3\n")
    builder.add_tensor("behind", small)
    file = builder.finish()
    digests = {1: zeros_crc(size), 4: zlib.crc32(building.raw_bytes(small))}
    path = tmp_path / "big.zip"
    with path.open("wb") as out:  # sparse: the tensor itself is left a hole
        out.truncate(file.size)
        for number, part in enumerate(file.parts):
            out.seek(part.offset)
            if isinstance(part, Literal):
                out.write(part.data)
            elif isinstance(part, Deferred):
                finish = finish_local_header if part.finisher == "zip.local_header" else finish_directory
                data = finish(json.loads(json.dumps(part.params)), digests)
                assert len(data) == part.nbytes
                out.write(data)
            elif number == 4:
                out.write(building.raw_bytes(small))
    archive = open_zip(FileSource(path))
    assert archive.entries["big"].size == size
    assert archive.entries["big"].crc32 == digests[1]
    assert archive.entry_span(archive.entries["big"]).offset % 64 == 0
    assert archive.entries["behind"].header_offset > 1 << 32
    assert archive.read("behind") == building.raw_bytes(small)
    with zipfile.ZipFile(path) as peer:
        assert peer.getinfo("big").file_size == size
        assert peer.read("behind") == building.raw_bytes(small)
        with peer.open("big") as member:
            assert member.read(64) == bytes(64)


def test_sizes_just_below_4_gib_need_no_zip64() -> None:
    for size, wide in ((0xFFFFFFFE, False), (0xFFFFFFFF, True)):
        builder = ZipBuilder(FileBuilder("x"))
        builder.add_tensor("a", huge(size, "a"))
        header = next(part for part in builder.file.parts if isinstance(part, Deferred))
        raw = finish_local_header(header.params, {1: 5})
        assert len(raw) == header.nbytes
        assert (raw[18:26] == b"\xff" * 8) is wide
        assert builder.file.parts[1].offset % 64 == 0


def test_a_hundred_thousand_members_are_laid_out_in_no_time() -> None:
    tensors = [huge(8, f"archive/data/{n}") for n in range(100_000)]
    began = time.process_time()
    builder = ZipBuilder(FileBuilder("x"))
    for tensor in tensors:
        builder.add_tensor(tensor.name, tensor)
    file = builder.finish()
    seconds = time.process_time() - began
    sys.stdout.write(f"100,000 members laid out in {seconds:.2f} s\n")
    assert seconds < 4
    assert len(file.parts) == 200_002
