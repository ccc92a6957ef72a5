# SPDX-License-Identifier: Apache-2.0
"""The header of a GGUF file, read and written: metadata and tensor infos, before anything is made of them.

Reading goes through a buffer of the file's beginning that grows as it is needed, so that a vocabulary of 256 000
strings costs a handful of reads. Arrays are walked over, not decoded. Every count is compared with the bytes that are
left before anything is built from it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tael import kernels
from tael.core.limits import Limits
from tael.core.source import ByteSource
from tael.errors import CorruptFileError, LimitExceededError, UnsupportedFormatError, clip
from tael.formats.gguf.values import (
    ARRAY,
    CODES,
    DEEPEST,
    NAMES,
    SIZES,
    Array,
    Value,
    encode,
    type_id,
)

MAGIC = b"GGUF"
SWAPPED = b"FUGG"  # of writers on big-endian machines that wrote the magic as a number
VERSION = 3
ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
MOST_AXES = 4

_FIRST_READ = 512 << 10
_MOST_KEYS = 100_000
_MOST_ARRAYS = 10_000  # in arrays
_LARGEST_ALIGNMENT = 1 << 30


class Info(NamedTuple):
    """What a header says of a tensor. `shape` is row-major (GGUF's `ne`, reversed); `offset` counts from the data."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header. `end` is the first byte behind it, `data_start` that rounded up to `alignment`."""

    version: int
    big_endian: bool
    alignment: int
    values: dict[str, Value]
    infos: list[Info]
    end: int
    data_start: int


def parse(source: ByteSource, limits: Limits) -> Header:
    """Raises `CorruptFileError`, `LimitExceededError`, and `UnsupportedFormatError` for a version to come."""
    cursor = _Cursor(source, limits)
    magic = cursor.take(4, "the magic")
    if magic not in (MAGIC, SWAPPED):
        raise CorruptFileError(f"starts with {magic!r}, not with {MAGIC!r}", path=source.name)
    cursor.order = ">" if magic == SWAPPED else "<"
    version = cursor.number("I", "the version")
    if version and version & 0xFFFF == 0:  # 1, 2 or 3 the other way round
        cursor.order = ">" if cursor.order == "<" else "<"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if not 1 <= version <= VERSION:
        raise UnsupportedFormatError(
            f"this is GGUF version {version:,}; 1 to {VERSION} are read",
            path=source.name,
            hint="is there a newer tael?",
        )
    cursor.width = 4 if version == 1 else 8
    tensors = cursor.count("the number of tensors", cursor.width + 16)
    keys = cursor.count("the number of metadata keys", cursor.width + 5)
    limits.check("the number of tensors", tensors, limits.tensors, path=source.name)
    limits.check("the number of metadata keys", keys, _MOST_KEYS, path=source.name)
    values = _values(cursor, keys)
    alignment = _alignment(values, source.name)
    infos = [_info(cursor) for _ in range(tensors)]
    start = -(-cursor.at // alignment) * alignment
    return Header(version, cursor.order == ">", alignment, values, infos, cursor.at, start)


def encode_header(values: Mapping[str, Value], infos: Iterable[Info]) -> bytes:
    """A header of version 3, little-endian, up to the last info: the writer pads it to the alignment."""
    infos = list(infos)
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(infos), len(values))]
    for key, (kind, value) in values.items():
        parts += [encode("str", key), struct.pack("<I", type_id(kind)), encode(kind, value)]
    for info in infos:
        rank = len(info.shape)
        numbers = struct.pack(f"<I{rank}QIQ", rank, *reversed(info.shape), info.type, info.offset)
        parts += [encode("str", info.name), numbers]
    return b"".join(parts)


class _Cursor:
    """Reads on from `at`, through the file's first bytes in memory. `order` and `width` are set once they are known."""

    def __init__(self, source: ByteSource, limits: Limits) -> None:
        self.source, self.limits = source, limits
        self.order, self.width = "<", 8
        self.at = self.arrays = 0
        self.buffer = bytearray()

    def take(self, count: int, what: str) -> bytes:
        self._need(count, what)
        start, self.at = self.at, self.at + count
        return bytes(memoryview(self.buffer)[start : self.at])

    def number(self, code: str, what: str) -> int:
        size = struct.calcsize("<" + code)
        return int(struct.unpack(self.order + code, self.take(size, what))[0])

    def size(self, what: str) -> int:
        return self.number("I" if self.width == 4 else "Q", what)

    def count(self, what: str, least: int) -> int:
        """A count of things of which each takes `least` bytes, checked against what is left."""
        start = self.at
        count = self.size(what)
        if count * least > self.source.size - self.at:
            raise CorruptFileError(
                f"{what} is {count:,}, but only {self.source.size - self.at:,} bytes follow",
                path=self.source.name,
                offset=start,
                hint="the file is cut short, or damaged; fetch it again",
            )
        return count

    def string(self, what: str) -> str:
        return self.take(self.count(f"the length of {what}", 1), what).decode("utf-8", "surrogateescape")

    def skip_strings(self, count: int) -> bytes:
        """The bytes of `count` strings with their lengths."""
        start = self.at
        if self.order == ">":
            for _ in range(count):
                self.take(self.count("the length of a string", 1), "a string")
            return bytes(memoryview(self.buffer)[start : self.at])
        self._need(count * self.width, "an array of strings")
        while (end := kernels.skip_strings(self.buffer, start, count, self.width)) < 0:
            self._need(len(self.buffer) - start + 1, "an array of strings")
        self.at = end
        return bytes(memoryview(self.buffer)[start:end])

    def _need(self, count: int, what: str) -> None:
        end, have = self.at + count, len(self.buffer)
        if end <= have:
            return
        if end > self.source.size:
            raise CorruptFileError(
                f"ends at byte {self.source.size:,}, inside of {what}",
                path=self.source.name,
                offset=self.at,
                hint="the file is cut short, or damaged; fetch it again",
            )
        self.limits.check("the header's length", end, self.limits.header_bytes, path=self.source.name)
        most = min(self.source.size, self.limits.header_bytes)
        grown = bytearray(min(most, max(end, 4 * have, _FIRST_READ)))
        grown[:have] = self.buffer
        self.source.read_into(have, memoryview(grown)[have:])
        self.buffer = grown


# --- metadata ---------------------------------------------------------------------------------------------------------


def _values(cursor: _Cursor, count: int) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for _ in range(count):
        start = cursor.at
        key = cursor.string("a key")
        if key in values:
            raise CorruptFileError(
                f"the key {clip(key)!r} stands twice in the metadata", path=cursor.source.name, offset=start
            )
        values[key] = _value(cursor, cursor.number("I", "a type"), clip(key), 0)
    return values


def _value(cursor: _Cursor, number: int, key: str, depth: int) -> Value:
    if number == ARRAY:
        return _array(cursor, key, depth + 1)
    kind = NAMES.get(number)
    if kind is None:
        raise CorruptFileError(
            f"the type of {key!r} is {number:,}, which GGUF does not have",
            path=cursor.source.name,
            offset=cursor.at - 4,
        )
    if kind == "str":
        return Value(kind, cursor.string(f"the value of {key!r}"))
    raw = cursor.take(SIZES[kind], f"the value of {key!r}")
    if kind == "bool":
        return Value(kind, raw != b"\0")
    return Value(kind, struct.unpack(cursor.order + CODES[kind], raw)[0])


def _array(cursor: _Cursor, key: str, depth: int) -> Value:
    if depth > DEEPEST:
        raise LimitExceededError(f"arrays in arrays more than {DEEPEST} deep under {key!r}", path=cursor.source.name)
    cursor.arrays += depth > 1
    cursor.limits.check("the number of arrays in arrays", cursor.arrays, _MOST_ARRAYS, path=cursor.source.name)
    number = cursor.number("I", "the type of an array")
    item = NAMES.get(number)
    what = f"the number of items of {key!r}"
    if number == ARRAY:
        count = cursor.count(what, 4 + cursor.width)
        inner = [_array(cursor, key, depth + 1) for _ in range(count)]
        return Value(_of_arrays([each.kind for each in inner]), [each.value for each in inner])
    if item is None:
        raise CorruptFileError(
            f"the items of {key!r} are of type {number:,}, which GGUF does not have",
            path=cursor.source.name,
            offset=cursor.at - 4,
        )
    if item == "str":
        count = cursor.count(what, cursor.width)
        raw = cursor.skip_strings(count)
    else:
        count = cursor.count(what, SIZES[item])
        raw = cursor.take(count * SIZES[item], f"the items of {key!r}")
    array = Array(item, count, raw, cursor.order, cursor.width)
    return Value(array.kind, array)


def _of_arrays(kinds: list[str]) -> str:
    """The type of an array of arrays. One that is empty says nothing of its arrays: any type will do."""
    same = len(set(kinds)) <= 1
    return f"[{kinds[0] if kinds else '[u8]'}]" if same else f"[{','.join(kinds)}]"


def _alignment(values: Mapping[str, Value], path: str) -> int:
    if ALIGNMENT_KEY not in values:
        return ALIGNMENT
    kind, value = values[ALIGNMENT_KEY]
    if kind != "u32" or not is_alignment(value):
        what = f"{value:,}" if isinstance(value, int) else "none"
        raise CorruptFileError(f"{ALIGNMENT_KEY} is {what} ({clip(kind)}), not a power of two as u32", path=path)
    return int(value)


def is_alignment(value: object) -> bool:
    """A power of two, not so large that no file could follow it."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return 0 < value <= _LARGEST_ALIGNMENT and value & (value - 1) == 0


# --- tensor infos -----------------------------------------------------------------------------------------------------


def _info(cursor: _Cursor) -> Info:
    path = cursor.source.name
    length = cursor.count("the length of a name", 1)
    cursor.limits.check("the length of a name", length, cursor.limits.name_bytes, path=path)
    name = cursor.take(length, "a name").decode("utf-8", "surrogateescape")
    rank = cursor.number("I", "the number of axes")
    if rank > MOST_AXES:
        raise CorruptFileError(
            f"has {rank:,} axes, of which GGUF allows {MOST_AXES}", path=path, tensor=name, offset=cursor.at - 4
        )
    code = "I" if cursor.width == 4 else "Q"
    layout = f"{cursor.order}{rank}{code}IQ"
    *lengths, number, offset = struct.unpack(layout, cursor.take(struct.calcsize(layout), "a tensor's info"))
    return Info(name, tuple(reversed(lengths)), number, offset)
