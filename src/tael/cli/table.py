# SPDX-License-Identifier: Apache-2.0
"""Aligned columns without boxes. On a terminal one column gives way so that a row stays on one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tael.cli.screen import Screen
from tael.cli.text import cells, clip

_GAP = "  "
_NARROWEST = 12

Cell: TypeAlias = "str | tuple[str, str]"  # safe text, or safe text and the style of this one cell


@dataclass(frozen=True, slots=True)
class Column:
    """`right`: aligned to the right; `gives`: clipped when the terminal is narrow; `style`: of cells without one."""

    title: str = ""
    right: bool = False
    gives: bool = False
    style: str = ""


def table(screen: Screen, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, indent: int = 2) -> None:
    """Print `rows` under the titles, if any column has one."""
    body = [[cell if isinstance(cell, tuple) else (cell, "") for cell in row] for row in rows]
    head = [(column.title, "dim") for column in columns]
    lines = [head, *body] if any(text for text, _ in head) else body
    widths = [max((cells(line[i][0]) for line in lines), default=0) for i in range(len(columns))]
    if screen.width is not None:
        over = indent + len(_GAP) * (len(columns) - 1) + sum(widths) - screen.width
        for i, column in enumerate(columns):
            if column.gives and over > 0:
                less = min(over, max(widths[i] - _NARROWEST, 0))
                widths[i], over = widths[i] - less, over - less
    for line in lines:
        out = []
        for (text, style), column, width in zip(line, columns, widths, strict=True):
            shown = clip(text, width)
            blank = " " * (width - cells(shown))
            painted = screen.paint(shown, *(style or column.style).split())
            out.append(blank + painted if column.right else painted + blank)
        screen.line((" " * indent + _GAP.join(out)).rstrip())
