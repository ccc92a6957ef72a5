# SPDX-License-Identifier: Apache-2.0
"""What `tael inspect` shows: the summary on one screen, and its parts at full length."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from tael.cli import module_views, output
from tael.cli.screen import Screen
from tael.cli.table import Cell, Column, table
from tael.cli.text import LONGEST_NAME, cells, clip, count, cut, number, plural, safe, shape, size

if TYPE_CHECKING:
    from tael.core.checkpoint import Checkpoint
    from tael.core.problem import Problem
    from tael.inspection.stats import Stats
    from tael.inspection.summary import Summary

_LINES = 40  # of the summary; modules get what the rest leaves, from _FEWEST to _MOST
_FEWEST, _MOST = 5, 12
_TYPES = 4
_PARTS = 4
_CONFIG = 40  # values looked at
_METADATA = 4
_ITEMS = 3
_PROBLEMS = 4
_SEVERITY = {"fatal": 0, "warning": 1, "note": 2}


def title(out: Screen, summary: Summary, files: int) -> None:
    """The path, and what it is in one line."""
    from tael.formats import registry

    facts = [
        registry.get(summary.format).title,
        plural(summary.tensors, "tensor"),
        f"{count(summary.parameters)} parameter{'s' * (summary.parameters != 1)}",
        size(summary.nbytes),
    ]
    out.line(out.paint(safe(summary.path), "bold"))
    out.line(out.dot.join([*facts, *([plural(files, "file")] if files > 1 else [])]))


def summary(out: Screen, summary: Summary) -> None:
    """One screen, whatever is in it."""
    if summary.parameters:
        kinds = out.dot.join(f"{share.name} {count(share.parameters)}" for share in summary.roles if share.parameters)
        out.line(out.paint(cut(kinds, out.width or len(kinds)), "dim"))
        _types(out, summary)
    if summary.training:
        training(out, summary.training, summary.nbytes)
    if summary.parameters:
        module_views.modules(out, summary.modules, max(_FEWEST, min(_MOST, _LINES - _taken(out, summary))))
    if summary.metadata:
        metadata(out, summary.metadata, most=_METADATA)
    problems(out, summary.problems, _PROBLEMS, summary.path)


def _taken(out: Screen, summary: Summary) -> int:
    """Lines that everything but the rows of the modules takes."""
    sections = ((summary.dtypes, _TYPES), (summary.metadata, _METADATA))
    lines = 6 + sum(min(len(entries), most + 1) + 2 for entries, most in sections if entries)
    if summary.training:
        lines += 6 + min(len(summary.training["parts"]), _PARTS)
    if summary.problems:
        shown = ranked(summary.problems)[:_PROBLEMS]
        lines += 3 + sum(len(output.problem_lines(out, problem, summary.path)) for problem in shown)
    return lines


def _types(out: Screen, summary: Summary) -> None:
    out.heading("types")
    rows = [
        (
            share.name,
            plural(share.tensors, "tensor"),
            count(share.parameters),
            size(share.nbytes),
            *output.share_bar(out, share.nbytes, summary.nbytes),
        )
        for share in summary.dtypes[:_TYPES]
    ]
    columns = [Column(), *[Column(right=True)] * 3, Column(right=True, style="dim"), Column(style="cyan")]
    table(out, columns, rows)
    _more(out, len(summary.dtypes) - _TYPES, "type")
    others = {name: nbytes for name, nbytes in summary.predicted.items() if nbytes != summary.nbytes}
    if others:
        sizes = out.dot.join(f"{name} {size(nbytes)}" for name, nbytes in others.items())
        out.line(f"  {out.paint(clip(f'as {sizes}', (out.width or 200) - 2), 'dim')}")


def training(out: Screen, state: Mapping[str, Any], total: int) -> None:
    """How far the run was, with what, and which parts were saved."""
    out.heading("training")
    facts = [f"{name} {state[name]:,}" for name in ("epoch", "step") if name in state]
    if "framework" in state:
        facts.append(safe(state["framework"], 60))
    rows = [("reached", out.dot.join(facts))] if facts else []
    for key, label in (("optimizers", "optimizer"), ("schedulers", "scheduler")):
        rows += [(label, _entries(out, about)) for about in state.get(key, [])[:2]]
    if "hyperparameters" in state:
        rows.append(("config", _entries(out, flat(state["hyperparameters"]))))
    width = (out.width or 100) - 15
    table(out, [Column(style="dim"), Column()], [[f"{label:<9}", cut(text, width)] for label, text in rows])
    parts = sorted(state["parts"], key=lambda part: -part["nbytes"])
    columns = [Column(style="dim"), Column(gives=True), *[Column(right=True)] * 2]
    table(
        out,
        [*columns, Column(right=True, style="dim"), Column(style="cyan")],
        [
            [
                f"{part['kind']:<9}",
                safe(part["name"], 60),
                plural(part["tensors"], "tensor"),
                size(part["nbytes"]),
                *output.share_bar(out, part["nbytes"], total),
            ]
            for part in parts[:_PARTS]
        ],
    )
    _more(out, len(parts) - _PARTS, "part")


def _entries(out: Screen, about: Mapping[str, Any]) -> str:
    """ "AdamW · lr 0.001 · weight_decay 0.01" """
    shown = {key: number(value) if isinstance(value, float) else _value(value) for key, value in about.items()}
    if shown.get("groups") == "1":
        del shown["groups"]
    return out.dot.join(safe(value if key == "class" else f"{key} {value}", 60) for key, value in shown.items())


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a run was given, without the dicts around it: the first values under their own names."""
    out: dict[str, Any] = {}
    for key, value in islice(values.items(), _CONFIG):
        out.update(flat(value) if isinstance(value, Mapping) else {key: value})
    return out


def tensors(out: Screen, checkpoint: Checkpoint) -> None:
    """One line for each tensor."""
    rows: list[list[Cell]] = []
    for tensor in checkpoint.tensors.values():
        info = tensor.info
        mark: Cell = ("damaged", "red") if tensor.damaged else ""
        if info.alias_of is not None:
            mark = (f"= {safe(info.alias_of, LONGEST_NAME)}", "dim")
        rows.append([safe(info.name, LONGEST_NAME), info.dtype.name, shape(info.shape), size(info.nbytes), mark])
    table(out, [Column(gives=True), Column(), Column(), Column(right=True), Column(gives=True)], rows)


def statistics(out: Screen, checkpoint: Checkpoint, figures: Sequence[Stats]) -> None:
    """One line for each tensor, NaN and infinities in red."""
    titles = ("", "type", "min", "max", "mean", "std", "zeros", "nan", "inf")
    columns = [Column(name, right=bool(name) and name != "type", gives=not name) for name in titles]
    rows: list[list[Cell]] = []
    for found in figures:
        name, kind = safe(found.name, LONGEST_NAME), checkpoint.tensors[found.name].dtype.name
        values = ["-" if value is None else number(value) for value in (found.min, found.max, found.mean, found.std)]
        counts: list[Cell] = [(f"{n:,}", "red") if n else "0" for n in (found.nan, found.inf)]
        rows.append([name, kind, *values, f"{found.zeros:,}", *counts])
    table(out, columns, rows)
    for found in figures:
        if found.error:
            why = out.paint("damaged", "red") if found.damaged else out.paint("no figures", "yellow")
            out.line(f"  {why}  {safe(found.name, 120)}: {safe(found.error, 300)}")


def metadata(out: Screen, entries: Mapping[str, Any], most: int | None) -> None:
    """Keys and values: the first `most` cut to one line each, or all of them in full."""
    if most is None:
        table(out, [Column(), Column()], [[safe(key), safe(_value(value))] for key, value in entries.items()])
        return
    out.heading("metadata")
    keys = [safe(key, 40) for key in list(entries)[:most]]
    width = (out.width or 100) - 4 - max(map(cells, keys), default=0)
    values = [cut(safe(_value(value)[:1000]), width) for value in list(entries.values())[:most]]
    table(out, [Column(), Column(style="dim")], list(zip(keys, values, strict=True)))
    _more(out, len(entries) - most, "entry", " with --metadata")


def _value(value: Any) -> str:
    from tael.inspection.plain import LONG, plain

    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and len(value) > LONG:
        first = ", ".join(map(_value_inside, islice(value, _ITEMS)))
        return f"{len(value):,} items: {first}, ..."
    return repr(_shortest(value)) if isinstance(value, float) else _value_inside(plain(value, brief=True))


def _value_inside(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _shortest(value: float) -> float:
    """The shortest decimal of a value that has single precision: 1e-05, not 9.999999747378752e-06."""
    short = float(f"{value:.7g}")
    try:
        same = struct.pack("<f", short) == struct.pack("<f", value)
        single: bool = struct.unpack("<f", struct.pack("<f", value))[0] == value
    except OverflowError:
        return value
    return short if same and single else value


def problems(out: Screen, found: Sequence[Problem], most: int, path: str) -> None:
    """The worst first. `path` has been said already."""
    if found:
        out.heading("problems")
    for problem in ranked(found)[:most]:
        for line in output.problem_lines(out, problem, path):
            out.line(f"  {line}")
    _more(out, len(found) - most, "problem", " with --json")


def ranked(found: Sequence[Problem]) -> list[Problem]:
    """The worst first, else as they were noticed."""
    return sorted(found, key=lambda problem: _SEVERITY[problem.severity])


def _more(out: Screen, left: int, noun: str, how: str = "") -> None:
    if left > 0:
        out.line(out.paint(f"  ... {plural(left, f'more {noun}')}{how}", "dim"))
