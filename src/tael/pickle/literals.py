# SPDX-License-Identifier: Apache-2.0
"""Opcodes with a literal behind them: numbers, strings, bytes; and how arguments are read.

A handler finds `m.pos` after the opcode byte and leaves it after the argument. No length is believed before it is
compared with the bytes that are left.
"""

from __future__ import annotations

from typing import Any

from tael.errors import CorruptFileError, LimitExceededError
from tael.pickle.lazy import decode, decode_text
from tael.pickle.machine import Handler, Machine
from tael.pickle.names import LONGEST_GLOBAL
from tael.pickle.reader import LAZY_ABOVE, LONGEST_LINE
from tael.pickle.stubs import LazyBytes

LONGEST_INT = 1024  # bytes; more than 4300 digits would make CPython's own int() and str() quadratic, then refuse
LONGEST_NUMBER = 4300  # characters
_ESCAPED = ("string-escape", "raw-unicode-escape")


def take(m: Machine, size: int) -> bytes:
    at = m.reader.base + m.pos
    m.reader.fill(at, size)
    start = at - m.reader.base
    m.pos = start + size
    return m.reader.buffer[start : m.pos]


def number(m: Machine, size: int) -> int:
    return int.from_bytes(take(m, size), "little")


def line(m: Machine, longest: int = LONGEST_NUMBER) -> bytes:
    first, last = m.reader.line(m.reader.base + m.pos, longest)
    line = m.reader.read(first, last - 1 - first)
    _move(m, last)
    return line


def word(m: Machine) -> str:
    return decode_text(line(m, 4 * LONGEST_GLOBAL), "utf-8")


def _payload(m: Machine, size: int, encoding: str = "raw", text: bool = False) -> Any:
    """`size` bytes of the source as a value, or as `LazyBytes` when they are too many to hold or slow to decode."""
    at = m.reader.base + m.pos
    if size > m.reader.size - at:
        raise m.reader.truncated(at, size)
    lazy = LazyBytes(at, size, encoding, text)
    if size > (LAZY_ABOVE if encoding in _ESCAPED else m.reader.lazy_above):
        m.reader.skipped += size
        _move(m, at + size)
        return lazy
    return decode(lazy, take(m, size))


def _move(m: Machine, at: int) -> None:
    pos = at - m.reader.base
    if not 0 <= pos <= len(m.reader.buffer):
        m.reader.jump(at)
        pos = 0
    m.pos = pos


def _float(m: Machine) -> None:
    m.stack.append(float(line(m)))


def _int(m: Machine) -> None:
    digits = line(m)
    m.stack.append(digits == b"01" if digits in (b"00", b"01") else int(digits, 0))


def _long(m: Machine) -> None:
    m.stack.append(int(line(m).removesuffix(b"L"), 0))


def _long_bytes(size_of_size: int) -> Handler:
    def long_bytes(m: Machine) -> None:
        size = int.from_bytes(take(m, size_of_size), "little", signed=size_of_size == 4)
        if size < 0:
            raise CorruptFileError(f"an integer of {size} bytes")
        if size > m.reader.size - m.offset:
            raise m.reader.truncated(m.offset, size)
        if size > LONGEST_INT:
            raise LimitExceededError(f"an integer of {size:,} bytes, the limit is {LONGEST_INT:,}")
        m.stack.append(int.from_bytes(take(m, size), "little", signed=True))

    return long_bytes


def _sized(size_of_size: int, encoding: str, text: bool) -> Handler:
    def sized(m: Machine) -> None:
        m.stack.append(_payload(m, number(m, size_of_size), encoding, text))

    return sized


def _byte_array(m: Machine) -> None:
    value = _payload(m, number(m, 8))
    m.stack.append(bytearray(value) if type(value) is bytes else value)


def _python2_bytes(size_of_size: int) -> Handler:
    """A Python 2 str: text where it is ASCII; else bytes or text, nobody knows, so latin-1, which keeps both."""

    def python2_bytes(m: Machine) -> None:
        size = int.from_bytes(take(m, size_of_size), "little", signed=size_of_size == 4)
        if size < 0:
            raise CorruptFileError(f"a string of {size} bytes")
        _push_python2(m, _payload(m, size, "raw", True))

    return python2_bytes


def _push_python2(m: Machine, value: str | LazyBytes) -> None:
    if type(value) is str and not value.isascii():
        m.note("Python 2 strings that are not ASCII, read as latin-1")
    m.stack.append(value)


def _string(m: Machine) -> None:
    first, last = m.reader.line(m.reader.base + m.pos, LONGEST_LINE)
    size = last - 1 - first
    quotes = {m.reader.read(first, 1), m.reader.read(last - 2, 1)} if size >= 2 else set()
    if quotes not in ({b"'"}, {b'"'}):
        raise CorruptFileError("a string without its quotes")
    _move(m, first + 1)
    _push_python2(m, _payload(m, size - 2, "string-escape", True))
    _move(m, last)


def _unicode(m: Machine) -> None:
    first, last = m.reader.line(m.reader.base + m.pos, LONGEST_LINE)
    _move(m, first)
    m.stack.append(_payload(m, last - 1 - first, "raw-unicode-escape", True))
    _move(m, last)


LITERALS: dict[int, Handler] = {
    ord(code): handler
    for code, handler in {
        "F": _float, "I": _int, "L": _long, "\x8a": _long_bytes(1), "\x8b": _long_bytes(4),
        "S": _string, "T": _python2_bytes(4), "U": _python2_bytes(1), "V": _unicode,
        "X": _sized(4, "utf-8", True), "\x8c": _sized(1, "utf-8", True), "\x8d": _sized(8, "utf-8", True),
        "B": _sized(4, "raw", False), "C": _sized(1, "raw", False), "\x8e": _sized(8, "raw", False),
        "\x96": _byte_array,
    }.items()
}  # fmt: skip
