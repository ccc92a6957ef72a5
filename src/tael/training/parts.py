# SPDX-License-Identifier: Apache-2.0
"""The selection of one part of a training checkpoint: the weights unless told otherwise."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tael.core.checkpoint import Checkpoint
from tael.core.problem import Problem
from tael.errors import TransformError, clip
from tael.formats.torch import tree as torch_tree
from tael.formats.torch.tree import TensorLeaf
from tael.training import ema
from tael.training.cut import cut
from tael.training.prefixes import auto_names, strip
from tael.training.roles import LIGHTNING, preference
from tael.training.structure import EMA, WEIGHTS, Part, parts, top_level

__all__ = ["Part", "parts", "select"]

_LISTED = 4


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
    return strip(strip_prefix)(checkpoint) if strip_prefix else _about_wrappers(checkpoint)


def _about_wrappers(checkpoint: Checkpoint) -> Checkpoint:
    """A note when names have the prefixes of wrappers: the model alone does not load with them."""
    changed = [name for name, new in auto_names(checkpoint).items() if name != new]
    if not changed or LIGHTNING in checkpoint.metadata:
        return checkpoint
    names = "1 name has" if len(changed) == 1 else f"{len(changed):,} names have"
    what = f"{names} a wrapper's prefix ({clip(changed[0])}): --strip-prefix auto takes it off"
    return replace(checkpoint, problems=[*checkpoint.problems, Problem("note", what, checkpoint.path)])


def _take(checkpoint: Checkpoint, part: str | None) -> Checkpoint:
    trained = top_level(checkpoint) is not None
    if not trained and part in (None, WEIGHTS):
        return checkpoint
    found = parts(checkpoint)
    chosen = _choose(found, part, checkpoint, trained)
    kept, tree = _named(chosen, checkpoint)
    notes = _about_choice(chosen, found, part, checkpoint)
    if chosen[0].kind == EMA:
        kept, tree, more = _as_plain(kept, tree, found, checkpoint)
        notes += more
    return cut(checkpoint, chosen, found, kept, tree, notes)


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
