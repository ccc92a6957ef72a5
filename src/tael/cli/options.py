# SPDX-License-Identifier: Apache-2.0
"""Arguments and options that several verbs share, and the words that stand for numbers in them.

Every option is a string, a list of strings or a flag: what a value means is checked here, in our words.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import typer

from tael.cli.text import parse_size, safe
from tael.errors import TaelError

TENSORS, SAFETY, RUNNING, OUTPUT = "Which tensors", "Safety", "Running", "Output"  # headings of the help


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def flag(name: str, help: str, group: str | None = None) -> Any:
    return typer.Option(name, help=help, rich_help_panel=group)


def value(name: str, metavar: str, help: str, group: str | None = None) -> Any:
    """An option with a value, or, where the parameter is a list, with one each time that it is given."""
    return typer.Option(name, metavar=metavar, help=help, show_default=False, rich_help_panel=group)


SourcePath: TypeAlias = Annotated[str, argument("PATH", "A file, a folder, one file of a sharded set, or a URL.")]
SourceFormat: TypeAlias = Annotated[
    str | None, value("--from", "FORMAT", "Read the source as this format, whatever it looks like.")
]
Select: TypeAlias = Annotated[
    list[str] | None, value("--select", "PATTERN", "Only tensors whose name matches; may be given again.", TENSORS)
]
Threads: TypeAlias = Annotated[str | None, value("--threads", "N", "Worker threads; at most 4 by default.", RUNNING)]
Json: TypeAlias = Annotated[bool, flag("--json", "Print one JSON document instead of text.", OUTPUT)]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only errors and what was asked for.", rich_help_panel=OUTPUT)
]


def size(text: str | None) -> int | None:
    """Bytes of "5GB"."""
    return None if text is None else parse_size(text)


def whole(option: str, text: str | None) -> int | None:
    """A number from 1."""
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise TaelError(f"{option} '{safe(text, 40)}': not a whole number from 1")
    return int(text)


def threads(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= 1024:
        raise TaelError(f"--threads '{safe(text, 40)}': not a number from 1 to 1024")
    return int(text)


def tolerance(option: str, text: str | None) -> float:
    """A number of zero or more; 0 when it was not given."""
    try:
        found = 0.0 if text is None else float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise TaelError(
            f"{option} '{safe(text, 40)}': not a number of zero or more", hint="write it like 1e-3 or 0.001"
        )
    return found
