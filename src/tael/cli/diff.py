# SPDX-License-Identifier: Apache-2.0
"""`tael diff`: what changed between two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from tael.cli import options, output, screen
from tael.cli.help import Example
from tael.cli.options import argument
from tael.cli.progress import bar
from tael.cli.text import number, plural, safe, shape

if TYPE_CHECKING:
    from tael.core.tensor import TensorInfo
    from tael.verify.diff import Diff

EXAMPLES = (
    Example("tael diff base.safetensors tuned.safetensors", "which tensors came, went or moved, and how far"),
    Example("tael diff old.pt new.safetensors --json", "the same for programs"),
)

_SHOWN = 12  # of each kind; --json has them all


def diff(
    a: Annotated[str, argument("A", "Before: a file, a folder, one file of a sharded set, or a URL.")],
    b: Annotated[str, argument("B", "After.")],
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """What changed between two checkpoints.

    Tensors added, removed, renamed, retyped, reshaped, and how far values moved; metadata, too. Exit code 0: nothing;
    1: something.
    """
    from tael.formats import open_checkpoint
    from tael.verify.diff import diff as compare

    with open_checkpoint(a) as left, open_checkpoint(b) as right:
        found = compare(left, right, bar(quiet))
    if as_json:
        output.document("tael.diff/1", {"a": a, "b": b} | _as_json(found))
    elif not quiet:
        _print(found, screen.stdout())
    return 0 if found.equal else 1


def _print(found: Diff, out: screen.Screen) -> None:
    if found.equal:
        out.line(out.dot.join([out.paint("no change", "green"), plural(found.same, "tensor")]))
        return
    groups = [(style, word, list(lines)) for style, word, lines in _groups(found)]
    totals = [f"{len(lines):,} {'in ' if word == 'metadata' else ''}{word}" for _, word, lines in groups if lines]
    out.line(out.dot.join([*totals, f"{plural(found.same, 'tensor')} unchanged"]))
    out.line()
    for style, word, lines in groups:
        for line in lines[:_SHOWN]:
            out.line(f"  {out.paint(f'{word:<10}', style)}  {line}")
        if len(lines) > _SHOWN:
            out.line(f"  {'':<10}  ... {len(lines) - _SHOWN:,} more; --json lists all")


def _groups(found: Diff) -> Iterator[tuple[str, str, Iterator[str]]]:
    """Style, word and lines of each kind of change."""
    yield "red", "removed", (f"{_name(info.name)}  {_described(info)}" for info in found.removed)
    yield "green", "added", (f"{_name(info.name)}  {_described(info)}" for info in found.added)
    yield "cyan", "renamed", (f"{_name(pair.before)} -> {_name(pair.after)}" for pair in found.renamed)
    yield (
        "yellow",
        "reshaped",
        (f"{_name(pair.name)}  {_described(pair.before)} -> {_described(pair.after)}" for pair in found.reshaped),
    )
    yield (
        "yellow",
        "retyped",
        (
            f"{_name(pair.name)}  {pair.before} -> {pair.after}{_moved(pair.max_abs, pair.rms)}"
            for pair in found.retyped
        ),
    )
    yield (
        "yellow",
        "changed",
        (f"{_name(one.name)}  {plural(one.count, 'value')}{_moved(one.max_abs, one.rms)}" for one in found.changed),
    )
    yield "red", "unreadable", (f"{_name(one.name)}  {safe(one.detail, 300)}" for one in found.unreadable)
    yield "dim", "metadata", _metadata(found)


def _metadata(found: Diff) -> Iterator[str]:
    changes = found.metadata
    for key, (before, after) in changes.changed.items():
        yield f"{_name(key)}  {safe(before, 40)} -> {safe(after, 40)}"
    for key, value in changes.added.items():
        yield f"{_name(key)}  added: {safe(value, 60)}"
    for key, value in changes.removed.items():
        yield f"{_name(key)}  removed: {safe(value, 60)}"


def _name(name: str) -> str:
    return safe(name, 120)


def _described(info: TensorInfo) -> str:
    return f"{info.dtype.name} {shape(info.shape)}"


def _moved(max_abs: float | None, rms: float | None) -> str:
    return "" if max_abs is None or rms is None else f", by at most {number(max_abs)} (rms {number(rms)})"


def _as_json(found: Diff) -> dict[str, Any]:
    """The body of `tael.diff/1`, but for what was compared."""
    from dataclasses import asdict

    from tael.inspection.plain import plain

    def info(tensor: TensorInfo) -> dict[str, Any]:
        return {"name": tensor.name, "dtype": tensor.dtype.name, "shape": list(tensor.shape)}

    body = {
        "equal": found.equal,
        "same": found.same,
        "added": [info(one) for one in found.added],
        "removed": [info(one) for one in found.removed],
        "renamed": [asdict(one) for one in found.renamed],
        "retyped": [asdict(one) for one in found.retyped],
        "reshaped": [
            {"name": one.name, "before": info(one.before), "after": info(one.after)} for one in found.reshaped
        ],
        "changed": [asdict(one) for one in found.changed],
        "unreadable": [{"name": one.name, "detail": one.detail} for one in found.unreadable],
        "metadata": asdict(found.metadata),
    }
    return {key: plain(value) for key, value in body.items()}
