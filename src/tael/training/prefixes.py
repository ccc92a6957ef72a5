# SPDX-License-Identifier: Apache-2.0
"""Prefixes that wrappers leave in names: DDP, torch.compile, FSDP, Lightning. One to one, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from tael.convert.transforms import rename_by
from tael.core.checkpoint import Checkpoint, Transform
from tael.core.problem import Problem
from tael.errors import TransformError, clip
from tael.training.extras import renamed
from tael.training.roles import LIGHTNING

AUTO = "auto"
# Components that only wrappers make, wherever they stand.
_NAMES = "(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)"
_WRAPPERS = re.compile(rf"^{_NAMES}\.|\.{_NAMES}(?=\.)")
_PARALLEL = "module."  # DDP, DataParallel, AveragedModel: around everything, so only when every name has it
_COUNTERS = frozenset({"n_averaged"})  # of AveragedModel, beside "module."
_LIGHTNING = ("model.", "net.")  # attributes in which a LightningModule usually has its network


def strip(prefix: str) -> Transform:
    """Takes `prefix` off the names that have it; "auto": what the wrappers above left.

    Raises `TransformError` when no name has the prefix, or two names would become one.
    """

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        if prefix == AUTO:
            return apply_names(checkpoint, auto_names(checkpoint), "took the prefixes of wrappers off")
        start = prefix if prefix.endswith(".") else f"{prefix}."
        names = {name: name.removeprefix(start) for name in checkpoint.tensors}
        if all(old == new for old, new in names.items()):
            heads = sorted({name.split(".")[0] for name in checkpoint.tensors})[:5]
            raise TransformError(
                f"no name starts with {clip(start)!r}",
                path=checkpoint.path,
                hint=f"names start with: {', '.join(map(clip, heads))}",
            )
        return apply_names(checkpoint, names, f"took {clip(start)!r} off")

    return apply


def auto_names(checkpoint: Checkpoint) -> dict[str, str]:
    """Name -> name without what wrappers put in."""
    names = list(checkpoint.tensors)
    now = list(names)
    while True:
        before = now
        now = [_WRAPPERS.sub("", name) for name in now]
        now = _all_without(now, _PARALLEL)
        if now == before:
            break
    if LIGHTNING in checkpoint.metadata:
        for prefix in _LIGHTNING:
            shorter = _all_without(now, prefix)
            if shorter != now:
                now = shorter
                break
    return dict(zip(names, now, strict=True))


def _all_without(names: Sequence[str], prefix: str) -> list[str]:
    """`names` without `prefix`, if every one has it."""
    if all(name.startswith(prefix) or name in _COUNTERS for name in names):
        return [name.removeprefix(prefix) for name in names]
    return list(names)


def apply_names(checkpoint: Checkpoint, names: Mapping[str, str], what: str) -> Checkpoint:
    """`checkpoint` under other names, its extras too, with a note that says `what` was done and to how many."""
    changed = [name for name, new in names.items() if name != new]
    if not changed:
        return checkpoint
    follow: Callable[[str], str] = lambda name: names[name]  # noqa: E731
    moved = rename_by(follow)(checkpoint)
    some = f"{clip(changed[0])} is now {clip(names[changed[0]])}"
    of = f"{len(changed):,} of {len(names):,} name{'s' * (len(names) != 1)}"
    note = Problem("note", f"{what} {of}: {some}", checkpoint.path)
    extras = renamed(checkpoint.extras, names)
    return moved.with_tensors(moved.tensors.values(), extras=extras, problems=[*moved.problems, note])
