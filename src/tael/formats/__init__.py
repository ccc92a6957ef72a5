# SPDX-License-Identifier: Apache-2.0
"""Formats: one module each, one table (registry.py), and detection by content (detect.py)."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from dataclasses import replace

from tael.core.checkpoint import Checkpoint
from tael.core.limits import DEFAULT, Limits
from tael.core.location import LocalLocation, expand, locate
from tael.core.problem import Problem
from tael.errors import UnsupportedFormatError
from tael.formats.detect import detect
from tael.formats.registry import Format, get

__all__ = ["open_checkpoint"]


def open_checkpoint(path: str | os.PathLike[str], format: str | None = None, limits: Limits = DEFAULT) -> Checkpoint:
    """Open a file, folder, shard set, pattern of files or URL: headers only, nothing in it is run.

    format: skip detection and read it as this format. Raises `TaelError` kinds: `SourceNotFoundError`,
    `NotAWeightFileError`, `UnsupportedFormatError`, `CorruptFileError`, ...
    """
    members = _without_rest_of_set(expand(path))
    if len(members) > 1:
        with _collector_paused():
            from tael.formats.shards import open_union

            return open_union(list(members), os.fspath(path), limits)
    location = members[0] if members else locate(path)
    fmt = get(format) if format else detect(location, limits)
    if fmt.open is None:
        raise UnsupportedFormatError(f"{fmt.title} can be written here, not read", path=location.path)
    with _collector_paused():
        checkpoint = fmt.open(location, limits)
    odd = _suffix_disagrees(location.name, fmt) if not location.is_dir else None
    more = [note for note in (odd, _sequential(checkpoint)) if note]
    return replace(checkpoint, problems=(*checkpoint.problems, *more)) if more else checkpoint


def _without_rest_of_set(members: list[LocalLocation]) -> list[LocalLocation]:
    """One file of a GGUF split set opens all of it: of a pattern that matches the set, the first is enough."""
    from tael.formats.gguf.splits import base_of

    bases = {base_of(member.name) for member in members}
    return members[:1] if len(bases) == 1 and None not in bases else members


def _sequential(checkpoint: Checkpoint) -> Problem | None:
    """The cost of compressed storage, told before anybody pays it."""
    count = sum(tensor.access == "sequential" for tensor in checkpoint.tensors.values())
    if not count:
        return None
    whose = "1 tensor is" if count == 1 else f"{count:,} tensors are"
    what = f"{whose} stored compressed or encoded: each is read from its start, so reading a part costs all before it"
    return Problem("note", what, checkpoint.path)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Headers become hundreds of thousands of objects that stay: walking them again and again took half the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _suffix_disagrees(name: str, fmt: Format) -> Problem | None:
    lower = name.lower()
    suffix = os.path.splitext(lower)[1]
    if not suffix or not fmt.suffixes or lower.endswith(fmt.suffixes):
        return None
    return Problem("note", f"the name ends in {suffix}, the content is {fmt.title}", name)
