# SPDX-License-Identifier: Apache-2.0
"""Whether bytes are the start of a pickle: followed opcode by opcode, because most of the magic is one byte at most."""

from __future__ import annotations

import re

from tael.pickle.handlers import HIGHEST_PROTOCOL
from tael.pickle.opcodes import LINE, LINES, MARK_ITEMS, SIZED, TABLE

_LONGEST_TEXT = 4096  # bytes of a line, unless it holds a string
_ENOUGH = 3  # opcodes followed, unless STOP comes first
_PROTO = 0x80
_FIRST_TEXT_OPCODES = frozenset(b"(]}c")  # what protocol 0 and 1 pickles of anything but a scalar start with

_TEXT_FORMS = {  # what the line of each text opcode must look like
    name: re.compile(form)
    for name, form in {
        "FLOAT": rb"[-+]?[0-9.einfaEINFA+-]+",
        "INT": rb"[-+]?[0-9]+",
        "LONG": rb"[-+]?[0-9]+L?",
        "GET": rb"[0-9]+",
        "PUT": rb"[0-9]+",
        "STRING": rb"'.*'|\".*\"",
        "UNICODE": rb".*",
        "PERSID": rb".*",
        "GLOBAL": rb"[A-Za-z_][\w.]*",
        "INST": rb"[A-Za-z_][\w.]*",
    }.items()
}


def looks_like_pickle(head: bytes) -> bool:
    """Whether `head` (the first bytes of a file, some hundred at least) starts a pickle of protocol 0 to 5."""
    if len(head) < 2:
        return False
    if head[0] == _PROTO:
        return 2 <= head[1] <= HIGHEST_PROTOCOL and _follows(head, 2)
    return head[0] in _FIRST_TEXT_OPCODES and _follows(head, 0)


def _follows(head: bytes, pos: int) -> bool:
    """Whether opcodes from `pos` on are valid, their arguments in form, and none takes what is not on the stack."""
    depths = [0]  # values above each mark
    followed = 0
    arguments = 0  # opcodes with one: a text of nothing but brackets is no pickle
    while pos < len(head):
        code = TABLE.get(head[pos])
        if code is None:
            return False
        after = _argument(head, pos + 1, code.name, code.argument)
        if after is None or not _fits(code.name, code.takes, code.puts, depths):
            return False
        if code.name == "STOP":
            return followed > 0
        followed += 1
        arguments += code.argument != 0
        pos = after
    return followed >= _ENOUGH and arguments > 0


def _argument(head: bytes, pos: int, name: str, form: int | str) -> int | None:
    """Where the argument at `pos` ends, maybe beyond `head`; None when it cannot be one."""
    if isinstance(form, int):
        return pos + form
    if form in SIZED:
        start = pos + SIZED[form]
        size = int.from_bytes(head[pos:start], "little")
        return start + size if size < 1 << 62 else None
    for _ in range({LINE: 1, LINES: 2}[form]):
        end = head.find(b"\n", pos)
        if end < 0:
            # UNICODE holds any character but newlines as it is: Python 3 puts arrays there at protocol 0
            return len(head) if name == "UNICODE" or _could_be_text(head[pos:]) else None
        if end - pos > _LONGEST_TEXT and name not in ("STRING", "UNICODE"):
            return None
        if not _TEXT_FORMS[name].fullmatch(head, pos, end):
            return None
        pos = end + 1
    return pos


def _could_be_text(line: bytes) -> bool:
    return all(byte >= 0x20 or byte == 0x09 for byte in line[:_LONGEST_TEXT])


def _fits(name: str, takes: int, puts: int, depths: list[int]) -> bool:
    if name == "MARK":
        depths.append(0)
        return True
    if name == "POP" and depths[-1] == 0:
        takes = MARK_ITEMS
    elif name == "POP":
        takes = 1
    if takes == MARK_ITEMS:
        if len(depths) < 2:
            return False
        depths.pop()
    elif depths[-1] < takes:
        return False
    else:
        depths[-1] -= takes
    depths[-1] += puts
    return True
