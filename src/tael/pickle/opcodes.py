# SPDX-License-Identifier: Apache-2.0
"""The pickle opcodes, protocols 0 to 5, as facts: name, form of the argument, values taken from and put on the stack.

Source: CPython's Lib/pickle.py and Lib/pickletools.py. `takes` counts what must lie above the last mark; "mark" in
`takes` means everything above the last mark, and the mark itself.
"""

from __future__ import annotations

from typing import NamedTuple

MARK_ITEMS = -1  # in `takes`: all down to the mark

# Argument forms. Fixed sizes are numbers of bytes; the others:
LINE = "line"  # text up to a newline
LINES = "lines"  # two of them
SIZED = {"n1": 1, "n4": 4, "n8": 8}  # a little-endian length of that size, then the payload


class Opcode(NamedTuple):
    name: str
    argument: int | str
    takes: int
    puts: int


_ROWS: list[tuple[str, str, int | str, int, int]] = [
    ("(", "MARK", 0, 0, 0),
    (".", "STOP", 0, 1, 0),
    ("0", "POP", 0, 0, 0),  # of a value, or of a mark with nothing above it
    ("1", "POP_MARK", 0, MARK_ITEMS, 0),
    ("2", "DUP", 0, 1, 2),
    ("F", "FLOAT", LINE, 0, 1),
    ("I", "INT", LINE, 0, 1),
    ("J", "BININT", 4, 0, 1),
    ("K", "BININT1", 1, 0, 1),
    ("L", "LONG", LINE, 0, 1),
    ("M", "BININT2", 2, 0, 1),
    ("N", "NONE", 0, 0, 1),
    ("P", "PERSID", LINE, 0, 1),
    ("Q", "BINPERSID", 0, 1, 1),
    ("R", "REDUCE", 0, 2, 1),
    ("S", "STRING", LINE, 0, 1),
    ("T", "BINSTRING", "n4", 0, 1),
    ("U", "SHORT_BINSTRING", "n1", 0, 1),
    ("V", "UNICODE", LINE, 0, 1),
    ("X", "BINUNICODE", "n4", 0, 1),
    ("a", "APPEND", 0, 2, 1),
    ("b", "BUILD", 0, 2, 1),
    ("c", "GLOBAL", LINES, 0, 1),
    ("d", "DICT", 0, MARK_ITEMS, 1),
    ("}", "EMPTY_DICT", 0, 0, 1),
    ("e", "APPENDS", 0, MARK_ITEMS, 0),  # the list below the mark stays
    ("g", "GET", LINE, 0, 1),
    ("h", "BINGET", 1, 0, 1),
    ("i", "INST", LINES, MARK_ITEMS, 1),
    ("j", "LONG_BINGET", 4, 0, 1),
    ("l", "LIST", 0, MARK_ITEMS, 1),
    ("]", "EMPTY_LIST", 0, 0, 1),
    ("o", "OBJ", 0, MARK_ITEMS, 1),
    ("p", "PUT", LINE, 1, 1),
    ("q", "BINPUT", 1, 1, 1),
    ("r", "LONG_BINPUT", 4, 1, 1),
    ("s", "SETITEM", 0, 3, 1),
    ("t", "TUPLE", 0, MARK_ITEMS, 1),
    (")", "EMPTY_TUPLE", 0, 0, 1),
    ("u", "SETITEMS", 0, MARK_ITEMS, 0),
    ("G", "BINFLOAT", 8, 0, 1),
    ("\x80", "PROTO", 1, 0, 0),
    ("\x81", "NEWOBJ", 0, 2, 1),
    ("\x82", "EXT1", 1, 0, 1),
    ("\x83", "EXT2", 2, 0, 1),
    ("\x84", "EXT4", 4, 0, 1),
    ("\x85", "TUPLE1", 0, 1, 1),
    ("\x86", "TUPLE2", 0, 2, 1),
    ("\x87", "TUPLE3", 0, 3, 1),
    ("\x88", "NEWTRUE", 0, 0, 1),
    ("\x89", "NEWFALSE", 0, 0, 1),
    ("\x8a", "LONG1", "n1", 0, 1),
    ("\x8b", "LONG4", "n4", 0, 1),
    ("B", "BINBYTES", "n4", 0, 1),
    ("C", "SHORT_BINBYTES", "n1", 0, 1),
    ("\x8c", "SHORT_BINUNICODE", "n1", 0, 1),
    ("\x8d", "BINUNICODE8", "n8", 0, 1),
    ("\x8e", "BINBYTES8", "n8", 0, 1),
    ("\x8f", "EMPTY_SET", 0, 0, 1),
    ("\x90", "ADDITEMS", 0, MARK_ITEMS, 0),
    ("\x91", "FROZENSET", 0, MARK_ITEMS, 1),
    ("\x92", "NEWOBJ_EX", 0, 3, 1),
    ("\x93", "STACK_GLOBAL", 0, 2, 1),
    ("\x94", "MEMOIZE", 0, 1, 1),
    ("\x95", "FRAME", 8, 0, 0),
    ("\x96", "BYTEARRAY8", "n8", 0, 1),
    ("\x97", "NEXT_BUFFER", 0, 0, 1),
    ("\x98", "READONLY_BUFFER", 0, 1, 1),
]

TABLE: dict[int, Opcode] = {
    ord(code): Opcode(name, argument, takes, puts) for code, name, argument, takes, puts in _ROWS
}
