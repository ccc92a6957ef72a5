# SPDX-License-Identifier: Apache-2.0
"""Text for people: names made harmless, sizes and counts in and out.

Tensor names, metadata and paths come out of files from strangers: control characters, ANSI escapes, line breaks and
bidirectional overrides would let a file draw on the terminal. Everything of theirs passes `safe` before it is printed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

from tael.errors import TaelError

LONGEST_NAME = 200  # characters of a tensor's name that a table shows
_OURS = str.maketrans("", "", "━╸…·×")  # what we draw with: one cell each
_HIDDEN = re.compile(r"[^\x20-\x7e\n]")  # and what may be
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}


def safe(text: object, limit: int | None = None) -> str:
    """`text` with everything that is not plainly visible as a backslash escape, cut to `limit` characters."""
    raw = str(text)
    if limit is not None and len(raw) > limit:
        raw = raw[:limit]  # first: a name may be megabytes long
        return clip(safe(raw) + "…", limit)
    if raw.isprintable():
        return raw
    return "".join(char if char.isprintable() else _escape(char) for char in raw)


def _escape(char: str) -> str:
    code = ord(char)
    if char in _ESCAPES:
        return _ESCAPES[char]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def json_line(text: str) -> str:
    """JSON with what is not plainly visible as its escapes: it may be shown on a terminal, and a surrogate of a file
    name that is no UTF-8 can be spelled in no other way. The line breaks between values stay.
    """
    if text.isascii() and "\x7f" not in text:
        return text
    return _HIDDEN.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


def clip(text: str, width: int) -> str:
    """`text` in at most `width` terminal cells; the middle goes, because names differ at their ends."""
    if cells(text) <= width:
        return text
    keep = max(width - 1, 0)
    head = tail = ""
    left, right, room, from_head = 0, len(text), keep, True
    while left < right:
        char = text[left] if from_head else text[right - 1]
        size = cells(char)
        if size > room:
            break
        room -= size
        if from_head:
            head, left = head + char, left + 1
        else:
            tail, right = char + tail, right - 1
        from_head = not from_head
    return f"{head}…{tail}"


def cut(text: str, width: int) -> str:
    """`text` in at most `width` terminal cells; the end goes."""
    if cells(text) <= width:
        return text
    kept, room = [], width - 1
    for char in text[:width]:
        room -= cells(char)
        if room < 0:
            break
        kept.append(char)
    return "".join(kept) + "…"


def cells(text: str) -> int:
    """Columns that `text` takes on a terminal (a Chinese character takes two)."""
    if text.isascii() or text.translate(_OURS).isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


_SIZE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_COUNT_UNITS = ("", "K", "M", "B", "T")


def size(nbytes: float) -> str:
    """Bytes in decimal units, as disks and hubs count them: "538.1 MB"."""
    value, unit = _scaled(nbytes, len(_SIZE_UNITS))
    return f"{value:.1f} {_SIZE_UNITS[unit]}" if unit else f"{int(nbytes)} B"


def count(number: int) -> str:
    """Parameters as people say them: "576", "134.5M", "7.24B"."""
    if number < 10_000:
        return f"{number:,}"
    value, unit = _scaled(number, len(_COUNT_UNITS))
    return f"{value:.{2 if unit >= 3 else 1}f}{_COUNT_UNITS[unit]}"


def _scaled(value: float, units: int) -> tuple[float, int]:
    unit = 0
    while value >= 999.95 and unit < units - 1:
        value, unit = value / 1000, unit + 1
    return value, unit


def plural(number: int, noun: str) -> str:
    """ "1 tensor", "3,072 tensors" """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("ry") else f"{number:,} {noun}s"


def seconds(value: float) -> str:
    """A duration: "40 ms", "1.3 s", "59 s", "3 min 05 s", "2 h 10 min"."""
    if value < 0.9995:
        return f"{max(round(value * 1000), 1)} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def number(value: float) -> str:
    """A statistic in at most ten characters; `nan` and `inf` as they are."""
    if not math.isfinite(value):
        return str(value)
    return "0" if value == 0 else f"{value:.4g}"


def shape(dims: Sequence[int]) -> str:
    """ "[49152, 576]"; a scalar is "[]"."""
    return f"[{', '.join(map(str, dims))}]"


_SIZE = re.compile(r"([0-9]{0,20})(?:\.([0-9]{1,20}))?\s*([a-z]*)", re.IGNORECASE)
_FACTORS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def parse_size(text: str) -> int:
    """ "5GB", "4.2GiB", "500 MB", "1000000" in bytes. Raises `TaelError`."""
    found = _SIZE.fullmatch(text.strip())
    value = 0
    if found:
        whole, decimals, unit = found[1], found[2] or "", found[3].lower()
        value = int(f"0{whole}{decimals}") * _FACTORS.get(unit, 0) // 10 ** len(decimals)
    if value < 1:
        raise TaelError(f"'{safe(text, 40)}' is no size", hint="write it like 5GB, 4.2GiB, 500MB or 1000000")
    return value
