# SPDX-License-Identifier: Apache-2.0
"""Which tensors share bytes of a source without being aliases: views that overlap.

Slices of one flat buffer do not overlap, nor do the columns that a fused matrix was cut into, though their extents
do. So overlap is exact for views of any strides: two have a common byte when a sum of bounded multiples of their
strides equals the distance of their beginnings. Views without gaps need one sweep. Where the exact search would take
too long, overlapping extents count as overlap.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tael.core.node import Contiguous, Node, Op, Strided, Tiled, contiguous_strides
from tael.core.source import ByteSource
from tael.core.tensor import Tensor

MOST_STEPS = 2_000  # of the search for a common byte of two views
MOST_PAIRS = 50_000  # of views looked at one against one

Interval = tuple[int, int, int]  # first byte, end, whose


@dataclass(frozen=True, slots=True)
class View:
    """Bytes of a source: `item` of them at `base` + every sum of i * step, 0 <= i < count over `counts` and `steps`."""

    source: ByteSource
    base: int
    item: int
    counts: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.base + self.item + sum((n - 1) * step for n, step in zip(self.counts, self.steps, strict=True))

    @property
    def solid(self) -> bool:
        """Without gaps from first to last byte."""
        if not self.counts:
            return True
        size = self.item
        for step, count in sorted(zip(self.steps, self.counts, strict=True)):
            if count > 1:
                if step > size:
                    return False
                size += (count - 1) * step
        return True

    @property
    def key(self) -> tuple[object, ...]:
        axes = [(n, step) for n, step in zip(self.counts, self.steps, strict=True) if n > 1]
        return (id(self.source), self.base, self.item, *axes)


def overlapping(tensors: Iterable[Tensor]) -> list[str]:
    """The names, in order, of the tensors that share bytes with another one. Equal views are copies made on purpose."""
    groups: dict[object, list[str]] = defaultdict(list)
    by_source: dict[int, list[tuple[View, int]]] = defaultdict(list)
    order: dict[str, int] = {}
    for tensor in tensors:
        order[tensor.name] = len(order)
        views = views_of(tensor.data)
        group = groups[tensor.dtype.name, tensor.shape, *(view.key for view in views)]
        if not group:
            for view in views:
                by_source[id(view.source)].append((view, len(groups) - 1))
        group.append(tensor.name)
    shared: set[int] = set()
    for members in by_source.values():
        shared |= _shared(members)
    numbered = enumerate(groups.values())
    return sorted((name for number, names in numbered if number in shared for name in names), key=order.__getitem__)


def views_of(node: Node) -> list[View]:
    """The bytes that `node` is made of; more than that where a slice of something computed is hard to follow."""
    match node:
        case Contiguous(span=span):
            return [View(span.source, span.offset, span.nbytes, (), ())] if span.nbytes else []
        case Strided():
            view = _affine(node)
            return [view] if view and math.prod(view.counts) else []
        case Tiled(tiles=tiles):
            return [view for _, inner in tiles for view in views_of(inner)]
        case Op(name="slice"):
            view = _affine(node)
            if view:
                return [view] if math.prod(view.counts) else []
    return [view for inner in node.inputs for view in views_of(inner)]


def _affine(node: Node) -> View | None:
    """`node` as one view, one count and step for every axis of its grid; None when it is not that simple."""
    match node:
        case Contiguous(span=span):
            grid, size = node.dtype.grid(node.shape), node.dtype.block_bytes
            return View(span.source, span.offset, size, grid, tuple(step * size for step in contiguous_strides(grid)))
        case Strided(storage=storage, start=start, strides=strides):
            size = node.dtype.block_bytes
            steps = tuple(step * size for step in strides)
            return View(storage.source, storage.offset + start * size, size, node.shape, steps)
        case Op(name="slice", inputs=(inner,)):
            view = _affine(inner)
            if view is None:
                return None
            moved = sum(start * step for start, step in zip(node.params["starts"], view.steps, strict=True))
            return replace(view, base=view.base + moved, counts=node.dtype.grid(node.shape))
        case Op(name="transpose", inputs=(inner,)):
            view = _affine(inner)
            perm = node.params["perm"]
            return view and replace(
                view, counts=tuple(view.counts[k] for k in perm), steps=tuple(view.steps[k] for k in perm)
            )
        case Op(name="cast" | "byteswap", inputs=(inner,)) if node.dtype.is_plain and inner.dtype.is_plain:
            return _affine(inner)
        case _:
            return None


# --- overlap ----------------------------------------------------------------------------------------------------------


def _shared(members: Sequence[tuple[View, int]]) -> set[int]:
    """The numbers whose views share bytes with a view of another number."""
    members = sorted(members, key=lambda member: member[0].base)
    solid = {number: member for number, member in enumerate(members) if member[0].solid}
    found = _sweep([(view.base, view.end, owner) for view, owner in solid.values()])
    if len(solid) == len(members):
        return found
    pairs = 0
    open_solid: list[tuple[View, int]] = []
    open_gapped: list[tuple[View, int]] = []
    for number, (view, owner) in enumerate(members):
        open_gapped = [member for member in open_gapped if member[0].end > view.base]
        if number in solid:
            others = open_gapped
        else:
            open_solid = [member for member in open_solid if member[0].end > view.base]
            others = open_gapped + open_solid
        pairs += len(others)
        if pairs > MOST_PAIRS:
            return _sweep([(view.base, view.end, owner) for view, owner in members])
        for other, its_owner in others:
            if owner != its_owner and not (owner in found and its_owner in found) and meet(view, other):
                found |= {owner, its_owner}
        (open_solid if number in solid else open_gapped).append((view, owner))
    return found


def _sweep(intervals: Iterable[Interval]) -> set[int]:
    """Those whose intervals overlap one of another owner: looked for from the front, then from the back."""
    intervals = list(intervals)
    return _overlaps_earlier(intervals) | _overlaps_earlier([(-end, -start, owner) for start, end, owner in intervals])


def _overlaps_earlier(intervals: Iterable[Interval]) -> set[int]:
    found: set[int] = set()
    # The furthest end so far, and the furthest before that of another owner.
    furthest: tuple[float, int] = (-math.inf, -1)
    second: tuple[float, int] = (-math.inf, -1)
    for start, end, owner in sorted(intervals):
        reach, other = second if furthest[1] == owner else furthest
        if reach > start:
            found |= {owner, other}
        if owner == furthest[1]:
            furthest = (max(end, furthest[0]), owner)
        elif end > furthest[0]:
            furthest, second = (end, owner), furthest
        # Else it ends before the furthest, overlaps it, and both are found: no need to remember it.
    return found


def meet(a: View, b: View) -> bool:
    """Do two views of one source have a common byte? True, too, when finding out takes too long."""
    bounds: dict[int, list[int]] = defaultdict(lambda: [0, 0])  # step -> least and most multiple
    bounds[1] = [1 - b.item, a.item - 1]
    for count, step in zip(a.counts, a.steps, strict=True):
        bounds[step][1] += count - 1
    for count, step in zip(b.counts, b.steps, strict=True):
        bounds[step][0] -= count - 1
    terms = [(step, low, high) for step, (low, high) in sorted(bounds.items(), reverse=True) if step]
    reach = [(0, 0)]  # what the terms from k on can add up to
    for step, low, high in reversed(terms):
        reach.append((reach[-1][0] + step * low, reach[-1][1] + step * high))
    reach.reverse()
    todo, steps = [(0, b.base - a.base)], 0
    while todo:
        k, rest = todo.pop()
        if not reach[k][0] <= rest <= reach[k][1]:
            continue
        if k == len(terms):
            return True
        step, low, high = terms[k]
        least = max(low, -((reach[k + 1][1] - rest) // step))
        most = min(high, (rest - reach[k + 1][0]) // step)
        steps += most - least + 1
        if steps > MOST_STEPS:
            return True
        todo += [(k + 1, rest - step * i) for i in range(least, most + 1)]
    return False
