# SPDX-License-Identifier: Apache-2.0
"""What `tael convert` prints: the plan of a dry run, the line at the end, and the same as JSON."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tael.cli import output
from tael.cli.screen import Screen
from tael.cli.table import Column, table
from tael.cli.text import plural, safe, seconds, size
from tael.convert.plan import Compute, Copy, OutputFile, to_dict

if TYPE_CHECKING:
    from tael.convert import Conversion

_SHOWN = 10  # tensors of a kind; --json has them all


def done(out: Screen, conversion: Conversion, *, saturate: bool, quiet: bool) -> None:
    """One line, and what is not as it was. With --quiet only the latter."""
    report = conversion.report
    if report is None:
        return
    if not quiet:
        rate = f" ({size(report.nbytes / report.seconds)}/s)" if report.seconds >= 0.05 else ""
        resumed = f", {size(report.resumed_bytes)} were there already" if report.resumed_bytes else ""
        out.line(f"{_what(conversion, out)} in {seconds(report.seconds)}{rate}{resumed}")
    lines = [*_warnings(conversion, out), *output.loss_lines(out, conversion.plan.losses)]
    lines += changed(out, report.overflow, f"beyond the range of the type{', clamped' if saturate else ''}")
    lines += changed(out, report.nan_lost, "NaN, which the type does not have")
    if conversion.comparison is not None and not (quiet and conversion.comparison.equal):
        from tael.cli.verify import verdict_lines

        lines += verdict_lines(conversion.comparison, out)
    for line in lines:
        out.line(f"  {line}")


def changed(out: Screen, counts: Mapping[str, int], what: str) -> list[str]:
    """Values that a cast could not keep, by tensor."""
    lines = []
    for name, number in list(counts.items())[:_SHOWN]:
        lines += output.labelled(out, "changed", "yellow", f"{safe(name, 120)}: {plural(number, 'value')} {what}")
    if len(counts) > _SHOWN:
        rest = sum(list(counts.values())[_SHOWN:])
        lines += output.labelled(
            out, "changed", "yellow", f"... and {rest:,} in {plural(len(counts) - _SHOWN, 'more tensor')}"
        )
    return lines


def planned(out: Screen, conversion: Conversion, threads: int) -> None:
    plan = conversion.plan
    out.line(f"{out.paint('plan', 'dim')}  {_what(conversion, out)}")
    out.heading("files")
    shown = plan.files if len(plan.files) <= 20 else (*plan.files[:17], *plan.files[-2:])
    rows = [(safe(file.name, 200), size(file.size), _counted(file)) for file in shown]
    table(out, [Column(gives=True), Column(right=True), Column(right=True)], rows)
    if len(shown) < len(plan.files):
        out.line(f"  ... {len(plan.files) - len(shown)} more")
    free = shutil.disk_usage(existing(plan.path)).free
    out.heading("needs")
    table(out, [Column(), Column(right=True), Column(style="dim")], [
        ("memory", size(plan.peak_memory(threads)), f"at most, with {plural(threads, 'thread')}"),
        ("disk", size(plan.nbytes), f"{size(free)} free" if free >= plan.nbytes else f"only {size(free)} free"),
    ])  # fmt: skip
    lines = [*_warnings(conversion, out), *output.loss_lines(out, plan.losses)]
    if lines:
        out.heading("mind")
    for line in lines:
        out.line(f"  {line}")


def _what(conversion: Conversion, out: Screen) -> str:
    """ "model.safetensors · SafeTensors · 272 tensors · 538.1 MB" """
    from tael.formats import registry

    plan = conversion.plan
    tensors = {name for file in plan.files for name in _tensors(file)}
    facts = [
        out.paint(safe(plan.path), "bold"),
        registry.get(plan.format).title,
        plural(len(tensors), "tensor"),
        size(plan.nbytes),
    ]
    return out.dot.join(facts)


def _counted(file: OutputFile) -> str:
    tensors = _tensors(file)
    return plural(len(tensors), "tensor") if tensors else ""


def _tensors(file: OutputFile) -> set[str]:
    """Names of the tensors in a file. A side file is one part that carries the file's own name."""
    return {part.tensor for part in file.parts if isinstance(part, (Copy, Compute)) and part.tensor != file.name}


def _warnings(conversion: Conversion, out: Screen) -> list[str]:
    """Problems of the source that matter for the conversion, and what the conversion itself noticed.

    Damaged tensors are a loss of the plan; here are only those that have no name, with the set that lacks them.
    """
    found = [
        one for one in conversion.problems if one.severity != "note" and not (one.severity == "fatal" and one.tensor)
    ]
    lines = [line for problem in found[:_SHOWN] for line in output.problem_lines(out, problem, conversion.source)]
    if len(found) > _SHOWN:
        lines += output.labelled(out, "", "", f"... and {plural(len(found) - _SHOWN, 'more problem')}")
    for note in conversion.notes:
        lines += output.labelled(out, "note", "dim", safe(note.removeprefix(f"{conversion.source}: "), 600))
    return lines


def existing(path: str) -> Path:
    """The nearest folder above `path` that is there."""
    return next(folder for folder in (Path(path).absolute().parents) if folder.exists())


def as_json(conversion: Conversion, threads: int) -> dict[str, Any]:
    """The body of `tael.convert/1`."""
    plan, report = conversion.plan, conversion.report
    body: dict[str, Any] = {
        "source": conversion.source,
        "source_format": conversion.source_format,
        "path": plan.path,
        "format": plan.format,
        "dry_run": report is None,
        "files": [{"name": file.name, "nbytes": file.size} for file in plan.files],
        "nbytes": plan.nbytes,
        "peak_memory": plan.peak_memory(threads),
        "losses": [output.loss_json(loss) for loss in plan.losses],
        "problems": [output.problem_json(problem) for problem in conversion.problems],
        "notes": list(conversion.notes),
    }
    if report is None:
        return body | {"plan": to_dict(plan)}
    body |= {
        "seconds": report.seconds,
        "resumed_nbytes": report.resumed_bytes,
        "overflow": report.overflow,
        "nan_lost": report.nan_lost,
    }
    if conversion.comparison is not None:
        from tael.cli.verify import comparison_json

        body["verified"] = comparison_json(conversion.comparison)
    return body
