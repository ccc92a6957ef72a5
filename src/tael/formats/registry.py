# SPDX-License-Identifier: Apache-2.0
"""The table of formats. A built-in is one line here; it is imported when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from tael.errors import UnsupportedFormatError

if TYPE_CHECKING:
    from tael.convert.plan import Plan, Target
    from tael.core.checkpoint import Checkpoint
    from tael.core.limits import Limits
    from tael.core.location import Location
    from tael.formats.detect import Probe

API_VERSION = 1


class Confidence(IntEnum):
    NONE = 0
    POSSIBLE = 1  # plausible, nothing contradicts
    LIKELY = 2  # structure fits
    CERTAIN = 3  # a magic number, or several independent signs
    SET = 4  # a known file, and one of a set that is there: the set is what was meant


class Format(NamedTuple):
    """What a format module exports as FORMAT.

    capabilities: of read, write, rewrite, build; and what a written file can hold besides tensors:
    metadata, aliases, shards, folder (the target is a folder), one-tensor.
    """

    id: str
    title: str
    suffixes: tuple[str, ...]
    dtypes: frozenset[str]  # names it can hold
    capabilities: frozenset[str]
    match: Callable[[Probe], Confidence]
    open: Callable[[Location, Limits], Checkpoint] | None = None
    layout: Callable[[Checkpoint, Target], Plan] | None = None
    api: int = API_VERSION


# Order matters for listings only: detection asks all and takes the most confident.
BUILTIN: dict[str, str] = {
    "safetensors": "tael.formats.safetensors:FORMAT",
    "torch": "tael.formats.torch:FORMAT",
    "npz": "tael.formats.npz:FORMAT",
    "npy": "tael.formats.npy:FORMAT",
    "gguf": "tael.formats.gguf:FORMAT",
    "shards": "tael.formats.shards:FORMAT",
    "ggml": "tael.formats.ggml:FORMAT",
    "hf": "tael.formats.hf_repo:FORMAT",
}


def get(format_id: str) -> Format:
    """The format called `format_id`: a built-in, else an installed plug-in. Raises `UnsupportedFormatError`."""
    if format_id in BUILTIN:
        return _load(BUILTIN[format_id])
    for plugin in plugins():
        if plugin.id == format_id:
            return plugin
    known = ", ".join(BUILTIN)
    raise UnsupportedFormatError(f"unknown format {format_id!r}", hint=f"known: {known}; see `tael formats`")


def builtin() -> list[Format]:
    return [_load(where) for where in BUILTIN.values()]


def plugins() -> list[Format]:
    """Formats that installed packages offer (entry point group `tael.formats`). Never override a built-in."""
    from importlib.metadata import entry_points

    found = []
    for entry in entry_points(group="tael.formats"):
        fmt = entry.load()
        if isinstance(fmt, Format) and fmt.api == API_VERSION and fmt.id not in BUILTIN:
            found.append(fmt)
    return found


def by_suffix(path: str, capability: str = "write") -> Format | None:
    """The format a target's name asks for."""
    lower = path.lower()
    for fmt in builtin():
        if capability in fmt.capabilities and any(lower.endswith(suffix) for suffix in fmt.suffixes):
            return fmt
    return None


def _load(where: str) -> Format:
    module, _, attribute = where.partition(":")
    fmt: Format = getattr(importlib.import_module(module), attribute)
    return fmt
