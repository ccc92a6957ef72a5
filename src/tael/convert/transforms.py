# SPDX-License-Identifier: Apache-2.0
"""What may happen to a checkpoint between reader and writer. Each function makes a `Transform`; all are lazy.

Only `dedupe` and `skip_damaged` read tensor bytes, and say so. Tied names stay tied: a rename moves the tie along,
a cast or a transposition of an owner is one of all its names, and when an owner goes, its first alias takes over.
Patterns and rename rules: names.py. Wrong arguments, and patterns that match nothing, raise `TransformError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tael.convert.damage import allow_expanded, refuse_ungathered, skip_damaged
from tael.convert.names import matcher, near, nothing_matches, renamer_of
from tael.convert.pieces import split, stack, unstack
from tael.convert.ties import dedupe, tie, untie
from tael.core import ops
from tael.core.checkpoint import Checkpoint, Transform, owners
from tael.core.dtypes import DTYPES, DType
from tael.core.dtypes import dtype as dtype_of
from tael.core.limits import DEFAULT
from tael.core.node import Node
from tael.core.tensor import Tensor
from tael.errors import TaelError, TransformError, clip

__all__ = [
    "allow_expanded",
    "cast",
    "chain",
    "dedupe",
    "drop",
    "permute",
    "refuse_ungathered",
    "rename",
    "rename_by",
    "select",
    "skip_damaged",
    "split",
    "stack",
    "transpose",
    "unstack",
    "untie",
]


def chain(transforms: Iterable[Transform]) -> Transform:
    """One transform that applies `transforms` in order."""
    steps = list(transforms)

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        for step in steps:
            checkpoint = step(checkpoint)
        return checkpoint

    return apply


# --- which tensors ----------------------------------------------------------------------------------------------------


def select(patterns: Sequence[str]) -> Transform:
    """Keeps the tensors whose names match one of `patterns`."""
    keep = matcher(patterns)

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        if not any(map(keep, checkpoint.tensors)):
            raise nothing_matches(patterns, checkpoint.tensors, checkpoint.path)
        return _kept(checkpoint, keep)

    return apply


def drop(patterns: Sequence[str]) -> Transform:
    """Leaves out the tensors whose names match one of `patterns`."""
    gone = matcher(patterns)

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        count = sum(map(gone, checkpoint.tensors))
        if count == 0:
            raise nothing_matches(patterns, checkpoint.tensors, checkpoint.path)
        if count == len(checkpoint.tensors):
            raise TransformError("every tensor would be dropped", path=checkpoint.path)
        return _kept(checkpoint, lambda name: not gone(name))

    return apply


def _kept(checkpoint: Checkpoint, keep: Callable[[str], bool]) -> Checkpoint:
    """What `keep` wants, and the problems that concern it (or the whole)."""
    group = owners(checkpoint.tensors)
    tensors = tie((tensor, group[name]) for name, tensor in checkpoint.tensors.items() if keep(name))
    problems = [problem for problem in checkpoint.problems if problem.tensor is None or keep(problem.tensor)]
    return checkpoint.with_tensors(tensors, problems=problems)


# --- names ------------------------------------------------------------------------------------------------------------


def rename(rules: Sequence[str] | Mapping[str, str]) -> Transform:
    """Renames one to one. `rules`: in order, each applied to what the last one made; or a map of whole names, at once.

    A rule, or a name in the map, that matches nothing raises, and so do two tensors that would get one name.
    """
    if isinstance(rules, Mapping):
        table = dict(rules)

        def by_table(checkpoint: Checkpoint) -> Checkpoint:
            for name in table:
                if name not in checkpoint.tensors:
                    raise nothing_matches([name], checkpoint.tensors, checkpoint.path, "there is no tensor")
            return rename_by(lambda name: table.get(name, name))(checkpoint)

        return by_table
    steps = [(rule, renamer_of(rule)) for rule in rules]

    def by_rules(checkpoint: Checkpoint) -> Checkpoint:
        names = {name: name for name in checkpoint.tensors}
        for rule, step in steps:
            before, names = names, {name: step(now) for name, now in names.items()}
            if before == names:
                close = ", ".join(clip(name) for name in near(rule.partition("=")[0], before.values()))
                raise TransformError(
                    f"the rule {clip(rule)!r} changes no name",
                    path=checkpoint.path,
                    hint=close and f"there is: {close}",
                )
        return _renamed(checkpoint, names)

    return by_rules


def rename_by(function: Callable[[str], str]) -> Transform:
    """Renames every tensor to what `function` makes of its name. Two that would get one name raise."""

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        return _renamed(checkpoint, {name: function(name) for name in checkpoint.tensors})

    return apply


def _renamed(checkpoint: Checkpoint, names: Mapping[str, str]) -> Checkpoint:
    taken: dict[str, str] = {}
    for old, new in names.items():
        if not new:
            raise TransformError("the new name would be empty", path=checkpoint.path, tensor=old)
        if len(new) > DEFAULT.name_bytes and new != old:
            raise TransformError(
                f"the new name would have {len(new):,} characters, the limit is {DEFAULT.name_bytes:,}",
                path=checkpoint.path,
                tensor=old,
            )
        if taken.setdefault(new, old) != old:
            raise TransformError(
                f"{clip(taken[new])!r} and {clip(old)!r} would both be named {clip(new)!r}",
                path=checkpoint.path,
                hint="renaming is one to one: drop one of them first, or rename it to something else",
            )
    tensors = []
    for old, tensor in checkpoint.tensors.items():
        alias_of = tensor.info.alias_of
        tensors.append(tensor.renamed(names[old], None if alias_of is None else names.get(alias_of, alias_of)))
    problems = [replace(p, tensor=names.get(p.tensor, p.tensor)) if p.tensor else p for p in checkpoint.problems]
    return checkpoint.with_tensors(tensors, problems=problems)


# --- numbers and axes -------------------------------------------------------------------------------------------------


def cast(dtype: str | DType, *, only: Sequence[str] | None = None, saturate: bool = False) -> Transform:
    """Casts floats to `dtype`, rounding to nearest even; every other kind of number stays as it is.

    only: patterns; a tied tensor is cast when any of its names matches, and all its names are then of the new dtype.
    saturate: what is beyond the range becomes the largest finite value, not infinity.
    """
    to = dtype_of(dtype)
    if not to.is_float:
        floats = ", ".join(kind.name for kind in DTYPES.values() if kind.is_float)
        raise TransformError(f"cannot cast to {to}: casts are between float types", hint=f"one of {floats}")
    wanted = matcher(only) if only is not None else lambda name: True

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        group = owners(checkpoint.tensors)
        chosen = {group[name] for name in checkpoint.tensors if wanted(name)}
        if only is not None and not chosen:
            raise nothing_matches(only, checkpoint.tensors, checkpoint.path)
        done: dict[str, Node] = {}

        def one(tensor: Tensor) -> Tensor:
            owner = group[tensor.name]
            if not tensor.dtype.is_float or tensor.dtype == to or owner not in chosen:
                return tensor
            if owner not in done:
                done[owner] = _on(tensor, lambda node: ops.cast(node, to, saturate=saturate))
            return _changed(tensor, done[owner])

        return checkpoint.with_tensors(map(one, checkpoint.tensors.values()))

    return apply


def permute(patterns: Sequence[str], perm: Sequence[int]) -> Transform:
    """Axis k of the result is axis `perm[k]` of what matches."""
    return _axes(patterns, lambda rank: perm)


def transpose(patterns: Sequence[str]) -> Transform:
    """Swaps the last two axes of what matches."""

    def perm(rank: int) -> Sequence[int]:
        if rank < 2:
            raise TransformError(f"a tensor of {rank} axes cannot be transposed")
        return [*range(rank - 2), rank - 1, rank - 2]

    return _axes(patterns, perm)


def _axes(patterns: Sequence[str], perm: Callable[[int], Sequence[int]]) -> Transform:
    wanted = matcher(patterns)

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        group = owners(checkpoint.tensors)
        done: dict[str, Node] = {}
        members = []
        for name, tensor in checkpoint.tensors.items():
            if wanted(name):
                if group[name] not in done:
                    done[group[name]] = _on(tensor, lambda node: ops.transpose(node, perm(len(node.shape))))
                # Of tied names, those that do not match keep the old axes: two groups come of one.
                members.append((_changed(tensor, done[group[name]]), (group[name], "moved")))
            else:
                members.append((tensor, (group[name], "kept")))
        if not done:
            raise nothing_matches(patterns, checkpoint.tensors, checkpoint.path)
        return checkpoint.with_tensors(tie(members))

    return apply


def _on(tensor: Tensor, change: Callable[[Node], Node]) -> Node:
    try:
        return change(tensor.data)
    except TaelError as error:
        error.tensor = error.tensor or tensor.name
        raise


def _changed(tensor: Tensor, data: Node) -> Tensor:
    """`tensor` computed from `data`; unlike `with_data`, an alias stays one."""
    info = replace(tensor.info, dtype=data.dtype, shape=data.shape)
    return replace(tensor, info=info, data=data)
