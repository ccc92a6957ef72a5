# SPDX-License-Identifier: Apache-2.0
"""Several tensors into one and one into several: `stack` and `unstack` along a new axis, `split` along an old one.

In the patterns here `{}` is the running number of a piece and `*` any other part of the name: the experts
`layers.*.experts.{}.up` stack into `layers.*.up`, one for every layer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from tael.convert.names import compiled, filled, glob_regex, nothing_matches
from tael.convert.ties import tie
from tael.core import ops
from tael.core.checkpoint import Checkpoint, Transform, owners
from tael.core.node import Contiguous, Node, Span
from tael.core.tensor import Tensor, TensorInfo
from tael.errors import TaelError, TransformError, clip


def stack(pieces: str | Sequence[str], name: str, *, axis: int = 0) -> Transform:
    """Stacks along a new `axis`. `pieces`: a pattern with `{}`, where no number from 0 up may be missing; or the names.

    The new tensor stands where the first of its pieces stood. Stars in `name` are filled from the pattern's.
    """

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        groups = _numbered(checkpoint, pieces, name) if isinstance(pieces, str) else {name: _listed(checkpoint, pieces)}
        home = {part.name: new for new, parts in groups.items() for part in parts}
        made: dict[str, list[Tensor]] = {}
        for old in checkpoint.tensors:
            new = home.get(old)
            if new is None:
                continue
            made[old] = []
            parts = groups.pop(new, None)
            if parts:
                nodes = [part.data for part in parts]
                made[old] = [_derived(new, parts, lambda nodes=nodes: ops.stack(nodes, axis))]  # type: ignore[misc]
        return _replaced(checkpoint, made)

    return apply


def unstack(pattern: str, name: str, *, axis: int = 0) -> Transform:
    """The inverse of `stack`: one tensor for every index of `axis`, which goes; its number replaces `{}` in `name`."""
    if "{}" not in name:
        raise TransformError(f"{clip(name)!r} has no {{}} for the number of the piece")

    def names(stem: str, count: int) -> list[str]:
        return [stem.replace("{}", str(number)) for number in range(count)]

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        made = {}
        for tensor, (stem,) in _matching(checkpoint, pattern, [name]):
            _check_axis(tensor, axis)
            shape = tensor.shape[:axis] + tensor.shape[axis + 1 :]
            made[tensor.name] = [
                _derived(new, [tensor], lambda t=tensor, i=i, s=shape: ops.reshape(_part(t.data, axis, i, 1), s))  # type: ignore[misc]
                for i, new in enumerate(names(stem, tensor.shape[axis]))
            ]
        return _replaced(checkpoint, made)

    return apply


def split(pattern: str, names: Sequence[str], *, axis: int = 0, sizes: Sequence[int] | None = None) -> Transform:
    """Cuts what matches `pattern` along `axis` into `names`, of `sizes` elements each (without: equal ones)."""

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        made = {}
        for tensor, new in _matching(checkpoint, pattern, names):
            _check_axis(tensor, axis)
            lengths = _lengths(tensor, axis, len(names), sizes)
            starts = accumulate(lengths, initial=0)
            made[tensor.name] = [
                _derived(name, [tensor], lambda t=tensor, s=start, n=length: _part(t.data, axis, s, n))  # type: ignore[misc]
                for name, start, length in zip(new, starts, lengths, strict=False)
            ]
        return _replaced(checkpoint, made)

    return apply


def _lengths(tensor: Tensor, axis: int, pieces: int, sizes: Sequence[int] | None) -> Sequence[int]:
    length = tensor.shape[axis]
    if sizes is None:
        if pieces == 0 or length % pieces:
            raise TransformError(f"axis {axis} of {length} does not split in {pieces} equal parts", tensor=tensor.name)
        return [length // pieces] * pieces
    if len(sizes) != pieces or min(sizes, default=0) < 0 or sum(sizes) != length:
        raise TransformError(
            f"sizes {list(sizes)} do not make {pieces} parts of axis {axis}, which has {length}", tensor=tensor.name
        )
    return sizes


def _check_axis(tensor: Tensor, axis: int) -> None:
    if not 0 <= axis < len(tensor.shape):
        raise TransformError(f"there is no axis {axis} in {list(tensor.shape)}", tensor=tensor.name)


def _part(node: Node, axis: int, start: int, length: int) -> Node:
    """`length` indices of `axis` from `start`; a range of the same source where these lie in one piece."""
    rank = len(node.shape)
    whole = len(node.dtype.grid(node.shape)) == rank and (node.dtype.is_plain or axis < rank - 1)
    shape = (*node.shape[:axis], length, *node.shape[axis + 1 :])
    if isinstance(node, Contiguous) and whole and math.prod(node.shape[:axis]) == 1 and 0 not in node.shape:
        each = node.span.nbytes // node.shape[axis]
        return Contiguous(node.dtype, shape, Span(node.span.source, node.span.offset + start * each, length * each))
    return ops.slice_(node, [start if k == axis else 0 for k in range(rank)], shape)


# --- names to tensors -------------------------------------------------------------------------------------------------


def _numbered(checkpoint: Checkpoint, pattern: str, name: str) -> dict[str, list[Tensor]]:
    """New name -> its pieces in order, for a pattern with one `{}`."""
    before, braces, after = pattern.partition("{}")
    if not braces or "{}" in after:
        raise TransformError(f"{clip(pattern)!r} needs one {{}} for the number of the piece")
    regex = compiled(f"{glob_regex(before)}(?P<number>[0-9]+){glob_regex(after)}")
    number_group = regex.groupindex["number"] - 1
    found: dict[str, dict[int, Tensor]] = defaultdict(dict)
    for old, tensor in checkpoint.tensors.items():
        match = regex.fullmatch(old)
        if match:
            captured = [text for k, text in enumerate(match.groups()) if k != number_group]
            pieces = found[filled(name, captured)]
            if int(match["number"]) in pieces:
                raise TransformError(f"two pieces of {clip(filled(name, captured))!r} have this number", tensor=old)
            pieces[int(match["number"])] = tensor
    if not found:
        raise nothing_matches([pattern], checkpoint.tensors, checkpoint.path)
    for new, pieces in found.items():
        missing = next((k for k in range(len(pieces)) if k not in pieces), None)
        if missing is not None:
            raise TransformError(
                f"piece {missing} of {len(pieces)} or more is missing", path=checkpoint.path, tensor=new
            )
    return {new: [pieces[k] for k in range(len(pieces))] for new, pieces in found.items()}


def _listed(checkpoint: Checkpoint, names: Sequence[str]) -> list[Tensor]:
    missing = [name for name in names if name not in checkpoint.tensors]
    if missing or not names:
        raise nothing_matches(missing, checkpoint.tensors, checkpoint.path, "there is no tensor")
    if len(set(names)) != len(names):
        raise TransformError("a tensor is named twice among the pieces", path=checkpoint.path)
    return [checkpoint.tensors[name] for name in names]


def _matching(checkpoint: Checkpoint, pattern: str, templates: Sequence[str]) -> Iterator[tuple[Tensor, list[str]]]:
    """What matches `pattern`, with `templates` filled."""
    match = compiled(glob_regex(pattern)).fullmatch
    found = [(tensor, hit.groups()) for name, tensor in checkpoint.tensors.items() if (hit := match(name))]
    if not found:
        raise nothing_matches([pattern], checkpoint.tensors, checkpoint.path)
    for tensor, captured in found:
        yield tensor, [filled(template, captured) for template in templates]


def _derived(name: str, parts: Sequence[Tensor], build: Callable[[], Node]) -> Tensor:
    """The tensor `name` that `build` makes from `parts`: with their checks, and damaged where one is."""
    try:
        node = build()
    except TaelError as error:
        error.tensor = error.tensor or (parts[0].name if len(parts) == 1 else name)
        raise
    return replace(
        parts[0],
        info=TensorInfo(name, node.dtype, node.shape),
        data=node,
        access="sequential" if any(part.access == "sequential" for part in parts) else "random",
        checks=tuple(dict.fromkeys(check for part in parts for check in part.checks)),
        damaged=next((part.damaged for part in parts if part.damaged), None),
    )


def _replaced(checkpoint: Checkpoint, made: Mapping[str, Sequence[Tensor]]) -> Checkpoint:
    """`checkpoint` with the tensors `made` in the place of those they were made from."""
    group = owners(checkpoint.tensors)
    members = []
    for name, tensor in checkpoint.tensors.items():
        if name in made:
            members += [(new, ("made", new.name)) for new in made[name]]
        else:
            members.append((tensor, ("kept", group[name])))
    return checkpoint.with_tensors(tie(members))
