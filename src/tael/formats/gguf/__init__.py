# SPDX-License-Identifier: Apache-2.0
"""GGUF: magic | version | counts | metadata | tensor infos | padding | payload. The container of llama.cpp.

    "GGUF" | version u32 | tensors u64 | keys u64
    per key:     str | type u32 | value               (values.py)
    per tensor:  name str | axes u32 | length of each axis u64, the last (contiguous) one first | type u32 | offset u64
    zeros to a multiple of the alignment; offsets count from there

The alignment is 32 unless `general.alignment` says otherwise. Every tensor starts at a multiple of it; none overlap.
Version 1 has u32 for counts and lengths. A version with its bytes swapped says that all numbers are big-endian, those
of the payload too. Several files can make a set (splits.py).

Source: gguf.md and gguf.cpp of ggml.
"""

from __future__ import annotations

from tael.convert.plan import Plan, Target
from tael.core import portable
from tael.core.checkpoint import Checkpoint
from tael.core.limits import Limits
from tael.core.location import Location
from tael.formats.detect import Probe
from tael.formats.gguf.header import MAGIC, SWAPPED
from tael.formats.gguf.tensors import NUMBERS
from tael.formats.registry import Confidence, Format


def match(probe: Probe) -> Confidence:
    return Confidence.CERTAIN if probe.head.startswith((MAGIC, SWAPPED)) else Confidence.NONE


def open(location: Location, limits: Limits) -> Checkpoint:
    """Headers only, of all files of a set. A file cut short is opened: what lies beyond its end is damaged."""
    from tael.formats.gguf.metadata import SHAPES, to_metadata
    from tael.formats.gguf.splits import read_set
    from tael.formats.gguf.tensors import unfolded

    part = read_set(location, limits)
    metadata, sections, notes = to_metadata(part.values, location.path)
    tensors = unfolded(part.tensors, sections.get(SHAPES))
    tied = portable.restore_aliases(tensors.values(), sections.get("aliases", {}))
    return Checkpoint(
        "gguf",
        location.path,
        {tensor.name: tensor for tensor in tied},
        metadata,
        problems=[*part.problems, *notes],
        sources=part.sources,
    )


def layout(checkpoint: Checkpoint, target: Target) -> Plan:
    """One file of version 3, or with `target.shard_size` or the option `shard_tensors` a split set."""
    from tael.formats.gguf.write import files

    return Plan("gguf", target.path, False, files(checkpoint, target))


FORMAT = Format(
    id="gguf",
    title="GGUF",
    suffixes=(".gguf",),
    dtypes=frozenset(NUMBERS),
    capabilities=frozenset({"read", "write", "metadata", "aliases", "shards"}),
    match=match,
    open=open,
    layout=layout,
)
