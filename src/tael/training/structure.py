# SPDX-License-Identifier: Apache-2.0
"""The parts of a training checkpoint.

A checkpoint has parts when its top level (`extras["torch.tree"]`) is a dict in which roles.py finds weights, averages
or an optimizer. Everything else, a plain state dict first of all, is one part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tael.core.checkpoint import Checkpoint
from tael.formats.torch import tree as torch_tree
from tael.formats.torch.tree import TensorLeaf, leaf_names
from tael.training import ema
from tael.training.roles import AVERAGED_IN_PLACE, Kind, averages_of_callbacks, holds_tensors, kind_of

WEIGHTS: Kind = "weights"
EMA: Kind = "ema"


@dataclass(frozen=True, slots=True)
class Part:
    """One part: `name` is the key it lies under (what `--part` takes, besides the kind), `tensors` their names.

    `nbytes` counts tied tensors once. `values`: the metadata that belongs to it, under its full names.
    """

    name: str
    kind: Kind
    tensors: tuple[str, ...]
    nbytes: int
    values: Mapping[str, Any] = field(default_factory=dict)


def parts(checkpoint: Checkpoint) -> list[Part]:
    """Every tensor is in exactly one part. One part of kind "weights" where there is no training structure."""
    keys = top_level(checkpoint)
    if keys is None:
        return _with_inside(
            [_part(checkpoint, WEIGHTS, WEIGHTS, list(checkpoint.tensors), checkpoint.metadata)], checkpoint
        )
    tree = checkpoint.extras[torch_tree.KEY]
    values = _values(checkpoint, [str(key) for key in tree])
    found = []
    listed: set[str] = set()
    for key, subtree in tree.items():
        names = [name for name in leaf_names(subtree) if name in checkpoint.tensors and name not in listed]
        listed.update(names)
        averages = averages_of_callbacks(subtree) if keys[key] == "state" else None
        if averages:
            at, inner = averages
            among = [name for name in leaf_names(inner) if name in checkpoint.tensors]
            found.append(_part(checkpoint, ".".join(map(str, (key, *at))), EMA, among, {}))
            names = [name for name in names if name not in among]
        found.append(_part(checkpoint, str(key), keys[key], names, values.get(str(key), {})))
    rest = [name for name in checkpoint.tensors if name not in listed]
    if rest:
        found.append(_part(checkpoint, "", "other", rest, {}))
    return _with_inside(found, checkpoint)


def top_level(checkpoint: Checkpoint) -> dict[Any, Kind] | None:
    """Top-level key -> kind; None when this is no training checkpoint."""
    tree = checkpoint.extras.get(torch_tree.KEY)
    if not isinstance(tree, dict):
        return None
    kinds: dict[Any, Kind] = {key: kind_of(str(key), subtree) for key, subtree in tree.items()}
    loose = [key for key, subtree in tree.items() if _is_container(subtree) and kinds[key] == "other"]
    if EMA not in kinds.values() and WEIGHTS not in kinds.values() and "optimizer" not in kinds.values():
        return None
    if all(key in kinds for key in AVERAGED_IN_PLACE):
        kinds[AVERAGED_IN_PLACE[0]] = EMA
    if WEIGHTS not in kinds.values():
        kinds.update(dict.fromkeys(loose, WEIGHTS))
    return kinds


def _is_container(subtree: Any) -> bool:
    return type(subtree) is not TensorLeaf and holds_tensors(subtree)


def _part(checkpoint: Checkpoint, name: str, kind: Kind, tensors: Iterable[str], values: Mapping[str, Any]) -> Part:
    names = tuple(tensors)
    own = {checkpoint.tensors[name].info.alias_of or name for name in names}
    return Part(name, kind, names, sum(checkpoint.tensors[name].nbytes for name in own), values)


def _values(checkpoint: Checkpoint, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Top-level key -> the metadata under it."""
    found: dict[str, dict[str, Any]] = {}
    by_length = sorted(keys, key=len, reverse=True)
    for name, value in checkpoint.metadata.items():
        key = name if name in keys else next((key for key in by_length if name.startswith(f"{key}.")), None)
        if key is not None:
            found.setdefault(key, {})[name] = value
    return found


def _with_inside(found: list[Part], checkpoint: Checkpoint) -> list[Part]:
    """Averages that lie among the weights as a part of their own."""
    out = []
    for part in found:
        averages = ema.inside(part.tensors) if part.kind == WEIGHTS else {}
        if averages:
            plain = [name for name in part.tensors if name not in averages]
            out.append(_part(checkpoint, part.name, WEIGHTS, plain, part.values))
            out.append(_part(checkpoint, ema.place(next(iter(averages))), EMA, averages, {}))
        else:
            out.append(part)
    return out
