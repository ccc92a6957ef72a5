# SPDX-License-Identifier: Apache-2.0
"""What the terminal can do: width, colour, characters. A pipe gets plain text, never cut, never coloured."""

from __future__ import annotations

import os
import sys
from typing import TextIO

_STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}

PIPE_WIDTH = 100  # of bars and paragraphs where there is no terminal to ask


class Screen:
    """Standard output or standard error. `width` is None where nothing may be cut to fit."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.is_terminal = stream.isatty()
        self.width = _terminal_width(stream) if self.is_terminal else None
        self.colour = _wants_colour(self.is_terminal)
        self.unicode = (stream.encoding or "ascii").lower().replace("-", "").startswith("utf")

    @property
    def columns(self) -> int:
        """Columns to lay out paragraphs and bars in."""
        return min(self.width or PIPE_WIDTH, 120)

    def line(self, text: str = "") -> None:
        self.stream.write(f"{text}\n")

    def paint(self, text: str, *styles: str) -> str:
        """`text` in these styles, where colours are wanted."""
        if not self.colour or not text or not styles:
            return text
        codes = ";".join(_STYLES[style] for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m"

    def bar(self, fraction: float, width: int) -> str:
        """A bar of at most `width` columns; whatever is not nothing shows as half a column at least."""
        halves = max(round(fraction * width * 2), 1 if fraction > 0 else 0)
        full, half = ("━", "╸") if self.unicode else ("=", "-")
        return full * (halves // 2) + half * (halves % 2)

    @property
    def dot(self) -> str:
        """Between the facts of one line."""
        return " · " if self.unicode else ", "

    def heading(self, text: str) -> None:
        self.line()
        self.line(self.paint(text, "bold"))


def stdout() -> Screen:
    return Screen(sys.stdout)


def stderr() -> Screen:
    return Screen(sys.stderr)


def _terminal_width(stream: TextIO) -> int:
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdecimal() and len(wanted) < 9 and int(wanted) > 0:
        return max(int(wanted), 20)
    try:
        return max(os.get_terminal_size(stream.fileno()).columns, 20)
    except (OSError, ValueError):
        return 80


def _wants_colour(is_terminal: bool) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal and os.environ.get("TERM") != "dumb"
