# SPDX-License-Identifier: Apache-2.0
"""Tensors that are not what a target needs: damaged, expanded beyond their storage, never gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tael.core.checkpoint import Checkpoint, Transform, owners
from tael.core.node import Node, Op, Strided, Tiled, nbytes
from tael.core.problem import Loss
from tael.core.tensor import Check
from tael.errors import CorruptFileError, TransformError, clip

EXPANDED = "torch.expanded"  # in a checkpoint's extras: names of views that repeat elements of their storage


def listed(names: Sequence[str], most: int = 3) -> str:
    """Names for a message: the first few, and how many more."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(clip(name) for name in names[:most]) + more


def skip_damaged() -> Transform:
    """Leaves out what cannot be read, as a loss. Reads everything that has a stored checksum, to compare it.

    Afterwards no problem is fatal.
    """

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        group = owners(checkpoint.tensors)
        bad = {
            group[name]
            for name, tensor in checkpoint.tensors.items()
            if tensor.damaged or not all(map(_holds, tensor.checks))
        }
        intact = [tensor for name, tensor in checkpoint.tensors.items() if group[name] not in bad]
        names = [name for name in checkpoint.tensors if group[name] in bad]
        # Fatal, too: a tensor that is missing, or without a name a whole file of the set.
        names += [p.tensor or str(p) for p in checkpoint.fatal() if p.tensor not in checkpoint.tensors]
        if names and not intact:
            raise TransformError("no tensor is intact", path=checkpoint.path)
        losses = list(checkpoint.losses)
        if names:
            losses.append(Loss("damaged", f"cannot be read: {listed(names)}", len(names)))
        problems = [replace(p, severity="warning") if p.severity == "fatal" else p for p in checkpoint.problems]
        return checkpoint.with_tensors(intact, problems=problems, losses=losses)

    return apply


def _holds(check: Check) -> bool:
    try:
        check.verify()
    except CorruptFileError:
        return False
    return True


def allow_expanded(allow: bool) -> Transform:
    """Views that repeat elements of a smaller storage: written out in full, as a loss, or refused.

    Nine bytes of a hostile file can speak of terabytes this way.
    """

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        flagged = set(checkpoint.extras.get(EXPANDED, ()))
        found = [t for t in checkpoint.owners if t.name in flagged or _is_expanded(t.data)]
        if not found:
            return checkpoint
        names = [tensor.name for tensor in found]
        if not allow:
            raise TransformError(
                f"{listed(names)}: a view that repeats its storage; written out, {found[0].nbytes:,} bytes",
                path=checkpoint.path,
                hint="--allow-expand writes every element out",
            )
        loss = Loss("expand", f"repeated elements written out: {listed(names)}", len(names))
        return replace(checkpoint, losses=[*checkpoint.losses, loss])

    return apply


def _is_expanded(node: Node) -> bool:
    match node:
        case Strided(storage=storage):
            return nbytes(node) > storage.nbytes
        case Tiled(tiles=tiles):
            return any(_is_expanded(inner) for _, inner in tiles)
        case Op(inputs=inputs):
            return any(map(_is_expanded, inputs))
        case _:
            return False


def refuse_ungathered() -> Transform:
    """Refuses a checkpoint whose every tensor has shape (0,): placeholders for weights that lie on other ranks."""

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        tensors = checkpoint.tensors.values()
        if len(tensors) > 1 and all(tensor.shape == (0,) for tensor in tensors):
            raise TransformError(
                f"all {len(tensors):,} tensors are empty: placeholders for weights that were not gathered",
                path=checkpoint.path,
                hint="ZeRO stage 3 keeps the weights in pieces beside this file: convert that folder instead",
            )
        return checkpoint

    return apply
