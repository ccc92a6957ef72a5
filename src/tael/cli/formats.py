# SPDX-License-Identifier: Apache-2.0
"""`tael formats`: the table of formats, from the registry."""

from __future__ import annotations

from typing import Any

from tael.cli import options, output, screen
from tael.cli.help import Example
from tael.cli.table import Column, table
from tael.cli.text import safe
from tael.formats.registry import Format

EXAMPLES = (
    Example("tael formats", "what can be read and written, and what each container can hold"),
    Example("tael formats --json", "the same with every dtype"),
)

_HOLDS = ("metadata", "aliases", "shards")  # what not every container can
_SUFFIXES = 4  # shown; --json has them all


def formats(as_json: options.Json = False, quiet: options.Quiet = False) -> int:
    """What can be read and written.

    A format is recognised by its content, whatever the file is called. With --to or --from it is named by its id.
    """
    from tael.formats import registry

    known = [*registry.builtin(), *registry.plugins()]
    if as_json:
        output.document("tael.formats/1", {"formats": [_as_json(fmt) for fmt in known]})
        return 0
    titles = () if quiet else ("id", "format", "suffixes", "read", "write", "keeps besides tensors")
    columns = [Column(title) for title in titles] or [Column()] * 6
    table(screen.stdout(), columns, [[fmt.id, *cells(fmt)] for fmt in known], indent=0)
    return 0


def cells(fmt: Format) -> list[str]:
    """A format's row, but for its id. The documentation shows the same table."""
    suffixes = " ".join(fmt.suffixes[:_SUFFIXES]) + (" ..." if len(fmt.suffixes) > _SUFFIXES else "")
    return [
        safe(fmt.title, 60),
        safe(suffixes, 60) or "a folder",
        "yes" if fmt.open else "no",
        "yes" if fmt.layout else "no",
        ", ".join(what for what in _HOLDS if what in fmt.capabilities),
    ]


def _as_json(fmt: Format) -> dict[str, Any]:
    return {
        "id": fmt.id,
        "title": fmt.title,
        "suffixes": list(fmt.suffixes),
        "capabilities": sorted(fmt.capabilities),
        "dtypes": sorted(fmt.dtypes),
    }
