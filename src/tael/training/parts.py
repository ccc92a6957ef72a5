# SPDX-License-Identifier: Apache-2.0
"""The parts of a training checkpoint, and the selection of one of them.

A checkpoint has parts when its top level (`extras["torch.tree"]`) is a dict in which roles.py finds weights, averages
or an optimizer. Everything else, a plain state dict first of all, is one part and is left alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tael.convert.ties import owners, tie
from tael.core.checkpoint import Checkpoint
from tael.core.problem import Loss, Problem
from tael.errors import TransformError, clip
from tael.formats import torch_tree
from tael.formats.torch_tensors import QUANTIZATION
from tael.formats.torch_tree import TensorLeaf, leaf_names
from tael.training import ema
from tael.training.extras import without_structure
from tael.training.prefixes import strip
from tael.training.roles import AVERAGED_IN_PLACE, Kind, averages_of_callbacks, holds_tensors, kind_of, preference

WEIGHTS: Kind = "weights"
EMA: Kind = "ema"
_LISTED = 4


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
    keys = _keys(checkpoint)
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


def select(
    checkpoint: Checkpoint, part: str | None = None, *, strip_prefix: str | None = None, keep_all: bool = False
) -> Checkpoint:
    """The part called `part` (its key or its kind; by default the weights), its container's key off the names.

    What is left out becomes a `Loss` for each part. keep_all: nothing is. strip_prefix: "auto" or a prefix, see
    prefixes.py. Raises `TransformError` when there is no such part.
    """
    if keep_all and part is not None:
        raise TransformError("one part, or everything: not both", path=checkpoint.path)
    if not keep_all:
        checkpoint = _take(checkpoint, part)
    return strip(strip_prefix)(checkpoint) if strip_prefix else checkpoint


def _take(checkpoint: Checkpoint, part: str | None) -> Checkpoint:
    trained = _keys(checkpoint) is not None
    if not trained and part in (None, WEIGHTS):
        return checkpoint
    found = parts(checkpoint)
    chosen = _choose(found, part, checkpoint, trained)
    kept, tree = _named(chosen, checkpoint)
    notes = _about_choice(chosen, found, part, checkpoint)
    if chosen[0].kind == EMA:
        kept, tree, more = _as_plain(kept, tree, found, checkpoint)
        notes += more
    return _cut(checkpoint, chosen, found, kept, tree, notes)


# --- which parts there are


def _keys(checkpoint: Checkpoint) -> dict[Any, Kind] | None:
    """Top-level key -> kind, when this is a training checkpoint."""
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
    group = owners(checkpoint.tensors)
    once = {group[name]: checkpoint.tensors[name].nbytes for name in names}
    return Part(name, kind, names, sum(once.values()), values)


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


# --- which one is wanted


def _choose(found: Sequence[Part], part: str | None, checkpoint: Checkpoint, trained: bool) -> list[Part]:
    """The chosen parts: one, or several containers of weights of which none is called so."""
    by_name = [one for one in found if one.name == part and one.tensors]
    of_kind = [one for one in found if one.kind == (part or WEIGHTS) and one.tensors]
    if by_name:
        return by_name
    if part is None and not of_kind:
        of_kind = [one for one in found if one.kind == EMA and one.tensors]
    if not of_kind:
        raise _no_such_part(found, part, checkpoint, trained)
    ranks = [preference(one.name) for one in of_kind]
    if part in (None, WEIGHTS) and min(ranks) == max(ranks):
        return of_kind
    return [of_kind[ranks.index(min(ranks))]]


def _no_such_part(found: Sequence[Part], part: str | None, checkpoint: Checkpoint, trained: bool) -> TransformError:
    names = list(dict.fromkeys(name for one in found if one.tensors for name in (one.kind, one.name) if name))
    near = difflib.get_close_matches(part or "", names, n=1)
    there = ", ".join(clip(name) for name in names) or "no part with tensors"
    hint = f"there is: {there}" + (f"; did you mean {near[0]}?" if near else "")
    what = f"has no part {part!r}" if trained else f"is no training checkpoint: it has no part {part!r}"
    return TransformError(what if part else "has no weights", path=checkpoint.path, hint=hint)


def _named(chosen: Sequence[Part], checkpoint: Checkpoint) -> tuple[dict[str, str], Any]:
    """Old name -> new name for what is chosen, and the structure that goes with the new names."""
    wanted = {name for one in chosen for name in one.tensors}
    tree: Any = checkpoint.extras.get(torch_tree.KEY)
    keys = {str(key): key for key in tree} if isinstance(tree, dict) else {}
    if len(chosen) == 1 and chosen[0].name in keys:
        inner: Any = tree[keys[chosen[0].name]]
        if type(inner) is TensorLeaf:
            inner = {chosen[0].name: inner}
    elif keys and all(one.name in keys for one in chosen):
        inner = {keys[one.name]: tree[keys[one.name]] for one in chosen}
    else:
        return {name: name.removeprefix(f"{one.name}.") for one in chosen for name in one.tensors}, None
    named, inner = torch_tree.flatten(inner, lambda value: type(value) is TensorLeaf)
    return {leaf.name: new for new, leaf in named if leaf.name in wanted}, inner


def _about_choice(chosen: Sequence[Part], found: Sequence[Part], part: str | None, checkpoint: Checkpoint) -> list[str]:
    """What to say when more than one part could have been meant."""
    if part is not None:
        return []
    notes = []
    others = [one.name for one in found if one.kind in (WEIGHTS, EMA) and one.tensors and one not in chosen]
    names = ", ".join(repr(clip(one.name)) for one in chosen[:_LISTED])
    if others:
        there = ", ".join(repr(clip(name)) for name in others[:_LISTED])
        notes.append(f"took the weights from {names}; {there} {'is' if len(others) == 1 else 'are'} there too (--part)")
    elif chosen[0].kind == EMA:
        notes.append(f"there are averaged weights only: took them from {names}")
    return notes


# --- averages under the names of the plain weights


def _as_plain(
    kept: dict[str, str], tree: Any, found: Sequence[Part], checkpoint: Checkpoint
) -> tuple[dict[str, str], Any, list[str]]:
    """The averages by the names that the plain weights have; what was not averaged is taken from these."""
    rivals = [one for one in found if one.kind == WEIGHTS and one.tensors]
    if not rivals:
        counters = [old for old, new in kept.items() if ema.is_counter(new)]
        return {old: new for old, new in kept.items() if old not in counters}, tree, []
    best = min(rivals, key=lambda one: preference(one.name))
    plain, plain_tree = _named([best], checkpoint)
    back = {new: old for old, new in plain.items()}
    within = ema.inside([*plain.values(), *(name.removeprefix(f"{best.name}.") for name in kept)])
    averages: dict[str, str] = {}
    if all(name.removeprefix(f"{best.name}.") in within for name in kept):
        for old in kept:
            new = within[old.removeprefix(f"{best.name}.")]
            averages |= {new: old} if new is not None else {}
    else:
        names = _lined_up(kept, plain, checkpoint) or ema.beside(list(kept.values()), list(back))
        averages = {names[new]: old for old, new in kept.items() if new in names}
    if not averages:
        return kept, tree, ["the averaged weights have other names than the plain ones: their names are kept"]
    rest = [new for new in back if new not in averages]
    note = f"{len(averages):,} averaged weights, under the names of the plain ones"
    if rest:
        some = ", ".join(map(clip, rest[:_LISTED])) + (", ..." if len(rest) > _LISTED else "")
        note += f"; {len(rest):,} that have no average are the plain ones: {some}"
    return {averages.get(new, old): new for new, old in back.items()}, plain_tree, [note]


def _lined_up(kept: Mapping[str, str], plain: Mapping[str, str], checkpoint: Checkpoint) -> Mapping[str, str] | None:
    """Averages that are a list without names (shadow_params), matched by order and shape."""
    listed = [new for new in kept.values() if "shadow_params" in new.split(".")]
    if not listed:
        return None
    shape = {new: checkpoint.tensors[old].shape for old, new in (*kept.items(), *plain.items())}
    return ema.by_position([(new, shape[new]) for new in listed], [(new, shape[new]) for new in plain.values()])


# --- the checkpoint that is left


def _cut(
    checkpoint: Checkpoint,
    chosen: Sequence[Part],
    found: Sequence[Part],
    kept: Mapping[str, str],
    tree: Any,
    notes: Sequence[str],
) -> Checkpoint:
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
