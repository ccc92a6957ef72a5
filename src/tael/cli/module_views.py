# SPDX-License-Identifier: Apache-2.0
"""The tree of modules: its largest in a few rows with bars, or all of it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tael.cli import output
from tael.cli.screen import Screen
from tael.cli.table import Column, table
from tael.cli.text import LONGEST_NAME, count, plural, safe, shape, size

if TYPE_CHECKING:
    from tael.inspection.modules import Module

_LONGEST_MODULE = 60


def modules(out: Screen, root: Module, most: int) -> None:
    """The largest, in about `most` rows."""
    out.heading("modules")
    name, repeats, top = joined(root)
    rows = [
        [*row, *output.share_bar(out, nbytes, root.nbytes)]
        for row, nbytes in _rows(out, top, expanded(top, most), most, f"{name}." if name else "", repeats)
    ]
    columns = [Column(gives=True), Column(right=True), Column(right=True), Column(right=True, style="dim")]
    table(out, [*columns, Column(style="cyan")], rows)


def joined(module: Module, *, whole: bool = False) -> tuple[str, list[int], Module]:
    """`module`, or where it has but one child, the first below it that has not: the name that leads there, the repeats
    on the way, and it. A tensor alone in its module (`norm.weight`) is joined only if the `whole` name is wanted."""
    name, repeats = module.name, [module.repeats]
    while len(module.children) == 1:
        (child,) = module.children.values()
        if not child.children and not whole:
            break
        module, name = child, f"{name}.{child.name}" if name else child.name
        repeats.append(child.repeats)
    return name, [times for times in repeats if times > 1], module


def expanded(root: Module, most: int) -> set[int]:
    """Which modules to open so that about `most` rows are shown, the largest first. By `id`, root included."""
    opened, rows = {id(root)}, len(root.children)
    waiting = [joined(child)[2] for child in root.children.values()] if rows < most else []
    while waiting and rows + 2 <= most:  # else nothing fits: so there are never more than `most` to choose from
        module = max(waiting, key=lambda candidate: candidate.nbytes)
        waiting.remove(module)
        if len(module.children) > 1 and rows + len(module.children) <= most:
            opened.add(id(module))
            rows += len(module.children)
            waiting += [joined(child)[2] for child in module.children.values()]
    return opened


def _rows(
    out: Screen,
    module: Module,
    opened: set[int],
    most: int,
    prefix: str = "",
    above: Sequence[int] = (),
    depth: int = 0,
) -> Iterator[tuple[list[str], int]]:
    """The cells of a module's children, and of theirs as far as they are opened, each with its bytes."""
    children = list(module.children.values())
    shown, rest = children, []
    if len(children) > most:
        largest = {id(child) for child in heapq.nlargest(most - 1, children, key=lambda child: child.nbytes)}
        shown = [child for child in children if id(child) in largest]
        rest = [child for child in children if id(child) not in largest]
    for child in shown:
        name, repeats, below = joined(child)
        text = f"{'  ' * depth}{safe(prefix + name, _LONGEST_MODULE)}{_times(out, [*above, *repeats])}"
        yield [text, count(child.parameters), size(child.nbytes)], child.nbytes
        if id(below) in opened:
            yield from _rows(out, below, opened, most, depth=depth + 1)
    if rest:
        nbytes = sum(child.nbytes for child in rest)
        text = f"{'  ' * depth}... {plural(len(rest), 'more module')}"
        yield [text, count(sum(child.parameters for child in rest)), size(nbytes)], nbytes


def _times(out: Screen, repeats: Sequence[int]) -> str:
    return "".join(f" {'×' if out.unicode else 'x'}{times}" for times in repeats)


def tree(out: Screen, root: Module) -> None:
    """All modules and tensors, equal layers as one."""
    columns = [Column(gives=True), Column(right=True), Column(right=True), Column(style="dim"), Column(style="dim")]
    table(out, columns, list(_branches(out, root)))


def _branches(out: Screen, module: Module, depth: int = 0) -> Iterator[list[str]]:
    for child in module.children.values():
        name, repeats, below = joined(child, whole=True)
        dims = "" if below.shape is None else shape(below.shape)
        text = f"{'  ' * depth}{safe(name, LONGEST_NAME)}{_times(out, repeats)}"
        yield [text, count(child.parameters), size(child.nbytes), below.dtype or "", dims]
        yield from _branches(out, below, depth + 1)
