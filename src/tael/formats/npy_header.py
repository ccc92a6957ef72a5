# SPDX-License-Identifier: Apache-2.0
"""The header of a .npy array: a Python dict display, read by a parser that knows nothing else, written as by numpy.

Source: numpy/lib/_format_impl.py of numpy 2.4.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from tael.errors import CorruptFileError, LimitExceededError, UnsupportedFormatError

MAGIC = b"\x93NUMPY"
FIRST_READ = 128  # holds the header of almost every plain array

_LONGEST = 64 * 1024
_DEEPEST = 8  # lists in lists: only descr of structured arrays nests
_ALIGNMENT = 64
_GROWTH = 21  # room that numpy leaves for the first axis to grow

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<text> '[^'\\\n]*' | "[^"\\\n]*" ) |
    (?P<number> 0 | [1-9]\d{0,19} ) L? |  # 3L: so Python 2 wrote long integers
    (?P<word> True | False ) |
    (?P<mark> [{}()\[\]:,] ))""",
    re.VERBOSE | re.ASCII,
)


class NpyHeader(NamedTuple):
    descr: Any  # str, or a list of fields
    fortran_order: bool
    shape: tuple[int, ...]
    data_offset: int


def parse_header(fetch: Callable[[int, int], bytes], size: int) -> NpyHeader:
    """The header of an array that begins at 0 of `size` bytes; `fetch(offset, n)` reads.

    Raises `CorruptFileError`, without a path: the caller knows what it is reading.
    """
    head = fetch(0, min(size, FIRST_READ))
    if not head.startswith(MAGIC) or len(head) < 10:
        raise CorruptFileError("no .npy array: its first bytes are not \\x93NUMPY")
    major = head[6]
    if major not in (1, 2, 3):
        raise UnsupportedFormatError(f"version {major}.{head[7]} of the .npy format")
    start = 10 if major == 1 else 12
    length = int.from_bytes(head[8:start], "little")
    if start + length > size:
        raise CorruptFileError(f"the header should have {length:,} bytes, {max(0, size - start):,} are there")
    if length > _LONGEST:
        raise LimitExceededError(f"the .npy header has {length:,} bytes, the limit is {_LONGEST:,}")
    raw = head[start : start + length]
    raw += fetch(start + len(raw), length - len(raw)) if len(raw) < length else b""
    descr, order, shape = (_fields_again if length <= FIRST_READ else _fields)(raw, major)
    return NpyHeader(descr, order, shape, start + length)


def _fields(raw: bytes, major: int) -> tuple[Any, bool, tuple[int, ...]]:
    """descr, fortran_order and shape."""
    try:
        fields = _parse(raw.decode("utf-8" if major == 3 else "latin-1"))
    except UnicodeDecodeError:
        raise CorruptFileError("the header is no UTF-8") from None
    if not isinstance(fields, dict) or fields.keys() != {"descr", "fortran_order", "shape"}:
        raise CorruptFileError("the header does not have exactly the keys descr, fortran_order and shape")
    descr, order, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    if type(order) is not bool or type(shape) is not tuple or any(type(length) is not int for length in shape):
        raise CorruptFileError("the header's shape or fortran_order is malformed")
    if type(descr) not in (str, list):
        raise CorruptFileError("the header's descr is malformed")
    return descr, order, shape


_fields_again = lru_cache(256)(_fields)  # the arrays of an archive have few different headers


def header_bytes(descr: str, shape: tuple[int, ...]) -> bytes:
    """The header that `numpy.save` writes for a C-ordered array."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}"
    if shape:
        text += " " * (_GROWTH - len(repr(shape[0])))
    body = text.encode("latin-1")
    body += b" " * (_ALIGNMENT - (11 + len(body)) % _ALIGNMENT) + b"\n"
    return MAGIC + b"\1\0" + struct.pack("<H", len(body)) + body


class _Parser:
    """One value: dict, list, tuple, string without escapes, unsigned integer, True or False."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.next()

    def next(self) -> None:
        match = _TOKEN.match(self.text, self.at)
        self.kind, self.token = (match.lastgroup or "", match[match.lastgroup or 0]) if match else ("", "")
        self.at = match.end() if match else self.at

    def value(self, depth: int = 0) -> Any:
        kind, token = self.kind, self.token
        if kind == "" or depth > _DEEPEST:
            raise CorruptFileError("the header is not what numpy writes", offset=self.at)
        self.next()
        if kind == "text":
            return token[1:-1]
        if kind == "number":
            return int(token)
        if kind == "word":
            return token == "True"
        if token == "{":
            return self.mapping(depth)
        if token == "[":
            return self.items("]", depth)[0]
        if token == "(":
            items, commas = self.items(")", depth)
            return tuple(items) if commas or not items else items[0]
        raise CorruptFileError("the header is not what numpy writes", offset=self.at)

    def items(self, end: str, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        commas = 0
        while self.token != end or self.kind != "mark":
            if len(found) > commas:
                raise CorruptFileError("the header lacks a comma", offset=self.at)
            found.append(self.value(depth + 1))
            if self.token == "," and self.kind == "mark":
                commas += 1
                self.next()
        self.next()
        return found, commas

    def mapping(self, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        while self.token != "}" or self.kind != "mark":
            key = self.value(depth + 1)
            if type(key) is not str or key in found or self.token != ":":
                raise CorruptFileError("the header's keys are malformed", offset=self.at)
            self.next()
            found[key] = self.value(depth + 1)
            if self.token == ",":
                self.next()
            elif self.token != "}":
                raise CorruptFileError("the header lacks a comma", offset=self.at)
        self.next()
        return found


def _parse(text: str) -> Any:
    parser = _Parser(text)
    value = parser.value()
    if parser.kind or text[parser.at :].strip():
        raise CorruptFileError("the header goes on behind its dict", offset=parser.at)
    return value
