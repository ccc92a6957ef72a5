# SPDX-License-Identifier: Apache-2.0
"""A checkpoint without the parts that were not chosen: each is a loss, and what goes with the weights stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tael.convert.ties import tie
from tael.core.checkpoint import Checkpoint, owners
from tael.core.problem import Loss, Problem
from tael.errors import clip
from tael.formats.torch.tensors import QUANTIZATION
from tael.training.extras import without_structure
from tael.training.structure import Part


def cut(
    checkpoint: Checkpoint,
    chosen: Sequence[Part],
    found: Sequence[Part],
    kept: Mapping[str, str],
    tree: Any,
    notes: Sequence[str],
) -> Checkpoint:
    """The tensors of `kept` (old name -> new name) in the structure `tree`; `found` less `chosen` is lost."""
    group = owners(checkpoint.tensors)
    tensors = tie((checkpoint.tensors[old].renamed(new), group[old]) for old, new in kept.items())
    left = [one for one in found if one not in chosen]
    metadata = dict(checkpoint.metadata)
    losses = list(checkpoint.losses)
    for one in left:
        dropped = [name for name in one.values if not _stays(one, name)]
        for name in dropped:
            del metadata[name]
        gone = [name for name in one.tensors if name not in kept]
        if gone:
            losses.append(Loss("extras", f"{one.kind} {clip(one.name)!r}: {_size(gone, checkpoint)}", len(gone)))
        elif any(part_value not in ({}, []) for part_value in map(one.values.get, dropped)):
            losses.append(Loss("metadata", f"{one.kind} {clip(one.name)!r}", len(dropped)))
    for one in chosen if len(chosen) == 1 else ():
        for name in one.values:
            metadata[name.removeprefix(f"{one.name}.")] = metadata.pop(name)
    if QUANTIZATION in metadata:
        entries = {kept[name]: about for name, about in metadata[QUANTIZATION].items() if name in kept}
        metadata = {**metadata, QUANTIZATION: entries} if entries else _without(metadata, QUANTIZATION)
    problems = [problem for problem in checkpoint.problems if problem.tensor is None or problem.tensor in kept]
    problems = [replace(problem, tensor=kept[problem.tensor]) if problem.tensor else problem for problem in problems]
    problems += [Problem("note", note, checkpoint.path) for note in notes]
    extras = without_structure(checkpoint.extras, kept, tree)
    return checkpoint.with_tensors(tensors, metadata=metadata, extras=extras, problems=problems, losses=losses)


def _stays(part: Part, name: str) -> bool:
    """Hyperparameters, what nobody knows, and single values of the run (epoch, step) go along with the weights."""
    if part.kind == "state":
        return name == part.name and not isinstance(part.values[name], dict | list)
    return part.kind == "hyperparameters" or (part.kind == "other" and not part.tensors)


def _size(names: Sequence[str], checkpoint: Checkpoint) -> str:
    nbytes = sum(checkpoint.tensors[name].nbytes for name in names)
    return f"{len(names):,} tensor{'' if len(names) == 1 else 's'}, {nbytes:,} bytes"


def _without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name != key}
