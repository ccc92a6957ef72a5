# SPDX-License-Identifier: Apache-2.0
"""Tied names (aliases): kept through transforms, made (`dedupe`) and undone (`untie`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace

from tael.core.checkpoint import Checkpoint, Transform, owners
from tael.core.progress import SILENT, Progress
from tael.core.tensor import Tensor


def tie(members: Iterable[tuple[Tensor, Hashable]]) -> list[Tensor]:
    """Tensors with equal keys become one owner (the first that is none's alias, else the first) and its aliases.

    Those tied hold equal bytes: whoever calls sees to it.
    """
    members = list(members)
    owner: dict[Hashable, str] = {}
    for tensor, key in members:
        if tensor.info.alias_of is None:
            owner.setdefault(key, tensor.name)
    for tensor, key in members:
        owner.setdefault(key, tensor.name)
    out = []
    for tensor, key in members:
        alias_of = None if owner[key] == tensor.name else owner[key]
        out.append(tensor if alias_of == tensor.info.alias_of else tensor.renamed(tensor.name, alias_of))
    return out


def dedupe(progress: Progress = SILENT) -> Transform:
    """Ties tensors of equal dtype, shape and bytes. Reads the bytes of every tensor that may have an equal."""

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        from tael.verify.fingerprint import hash_tensors

        alike: dict[Hashable, list[Tensor]] = defaultdict(list)
        for tensor in checkpoint.owners:
            if tensor.nbytes and not tensor.damaged:
                alike[tensor.dtype, tensor.shape].append(tensor)
        candidates = [tensor for group in alike.values() if len(group) > 1 for tensor in group]
        ids = hash_tensors(candidates, progress=progress)
        group = owners(checkpoint.tensors)
        keys = ((t, ids.get(group[t.name]) or ("untouched", group[t.name])) for t in checkpoint.tensors.values())
        return checkpoint.with_tensors(tie(keys))

    return apply


def untie() -> Transform:
    """Every alias becomes a tensor of its own, with the same bytes."""

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        free = [t if t.info.alias_of is None else t.renamed(t.name) for t in checkpoint.tensors.values()]
        return replace(checkpoint, tensors={tensor.name: tensor for tensor in free})

    return apply
