# SPDX-License-Identifier: Apache-2.0
"""What `tael quantize` prints: each tensor's type and why before a run, the levels and their errors after it."""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

from tael.cli import output
from tael.cli.convert_views import changed, existing
from tael.cli.screen import Screen
from tael.cli.table import Cell, Column, table
from tael.cli.text import LONGEST_NAME, count, plural, safe, seconds, size
from tael.convert.plan import to_dict
from tael.quantize.memory import kv_cache_bytes

if TYPE_CHECKING:
    from tael.kernels import Errors
    from tael.quantize import Quantization
    from tael.quantize.plan import Level

CONTEXTS = (4096, 32768)
_SHOWN = 8


def done(out: Screen, result: Quantization, *, quiet: bool) -> None:
    """The levels as a table, and what is worth knowing. With --quiet only the latter."""
    report = result.report
    if report is None:
        return
    if not quiet:
        parameters = result.levels[0].checkpoint.parameters
        rate = (
            f" ({count(int(parameters * len(result.levels) / report.seconds))} weights/s)"
            if report.seconds > 0.05
            else ""
        )
        resumed = f", {size(report.resumed_bytes)} were there already" if report.resumed_bytes else ""
        what = out.dot.join(
            [
                plural(len(result.levels), "file"),
                plural(len(result.levels[0].choices), "tensor"),
                f"{count(parameters)} weights",
            ]
        )
        out.line(f"{what} in {seconds(report.seconds)}{rate}{resumed}")
        _levels(out, result)
    _mind(out, result)


def planned(out: Screen, result: Quantization, threads: int) -> None:
    """Every tensor of every level: type, bits, bytes, why."""
    for level in result.levels:
        out.heading(f"{level.recipe.name}{out.dot}{safe(level.path, LONGEST_NAME)}")
        columns = [
            Column("tensor", gives=True), Column("from"), Column("to"), Column("bits", right=True),
            Column("size", right=True), Column("why", style="dim"),
        ]  # fmt: skip
        rows: list[list[Cell]] = []
        for choice in level.choices:
            source = level.source_dtypes[choice.name]
            tensor = level.checkpoint.tensors[choice.name]
            bits = f"{tensor.nbytes * 8 / max(1, tensor.info.parameters):.2f}"
            rows.append(
                [
                    safe(choice.name, LONGEST_NAME),
                    source,
                    choice.dtype.name,
                    bits,
                    size(tensor.nbytes),
                    safe(choice.why),
                ]
            )
        table(out, columns, rows)
        kinds = Counter(choice.dtype.name for choice in level.choices)
        out.line(f"  {', '.join(f'{number} {kind}' for kind, number in kinds.most_common())}")
    out.heading("levels")
    _levels(out, result)
    free = shutil.disk_usage(existing(result.plan.path)).free
    out.heading("needs")
    enough = f"{size(free)} free" if free >= result.plan.nbytes else f"only {size(free)} free"
    table(out, [Column(), Column(right=True), Column(style="dim")], [
        ("memory", size(result.plan.peak_memory(threads)), f"at most, with {plural(threads, 'thread')}"),
        ("disk", size(result.plan.nbytes), enough),
    ])  # fmt: skip
    _mind(out, result)


def _levels(out: Screen, result: Quantization) -> None:
    errors = {level.recipe.name: total_error(result, level) for level in result.levels}
    measured = any(error is not None for error in errors.values())
    columns = [
        Column("type"),
        Column("file", gives=True),
        Column("bits/weight", right=True),
        Column("size", right=True),
    ]
    if measured:
        columns.append(Column("error", right=True))
    columns += [Column(f"memory, {context // 1024}k", right=True) for context in CONTEXTS]
    rows: list[list[Cell]] = []
    for level in result.levels:
        row: list[Cell] = [
            level.recipe.name, safe(os.path.basename(level.path), LONGEST_NAME), f"{level.bits_per_weight:.2f}",
            size(sum(result.plan.files[number].size for number in level.files)),
        ]  # fmt: skip
        if measured:
            error = errors[level.recipe.name]
            row.append("" if error is None else f"{relative(error):.3%}")
        for context in CONTEXTS:
            cache = kv_cache_bytes(level.checkpoint.metadata, context)
            row.append("?" if cache is None else size(level.nbytes + cache))
        rows.append(row)
    table(out, columns, rows)
    if measured:
        out.line(
            out.paint("  error: root mean square over that of the weights; memory: weights and an F16 KV cache", "dim")
        )


def _mind(out: Screen, result: Quantization) -> None:
    lines: list[str] = []
    for problem in result.problems:
        if problem.severity != "note":
            lines += output.problem_lines(out, problem, result.source)
    lines += output.loss_lines(out, result.plan.losses)
    if result.report is not None:
        lines += changed(out, result.report.overflow, "beyond the range of the type")
    match = result.match
    if match is not None:
        for label, names in (
            ("no entry in the matrix", match.without_entry),
            ("entry without a tensor", match.without_tensor),
        ):
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                shown = ", ".join(safe(name, 80) for name in names[:_SHOWN])
                lines += output.labelled(out, "imatrix", "yellow", f"{label}: {shown}{more}")
        for note in match.notes:
            lines += output.labelled(out, "imatrix", "dim", safe(note, 600))
    fell_back: dict[tuple[str, str], list[str]] = {}
    for level in result.levels:
        for choice in level.choices:
            if choice.fallback:
                fell_back.setdefault((level.recipe.name, choice.why), []).append(choice.name)
    for (recipe, why), names in fell_back.items():
        which = safe(names[0], 80) + (f" and {len(names) - 1:,} more" if len(names) > 1 else "")
        lines += output.labelled(out, "fallback", "yellow", f"{recipe}: {safe(why)}: {which}")
    if lines:
        out.heading("mind")
    for line in lines:
        out.line(f"  {line}")


# --- errors -----------------------------------------------------------------------------------------------------------


def total_error(result: Quantization, level: Level) -> Errors | None:
    """The errors of a level's quantized tensors together; None when they were not measured."""
    from tael.kernels import Errors

    found = level_errors(result, level)
    total = Errors()
    for errors in found.values():
        total = total.merged(errors)
    return total if found else None


def level_errors(result: Quantization, level: Level) -> dict[str, Errors]:
    """By tensor, in the order of the file."""
    report = result.report
    if report is None:
        return {}
    mine = {name: errors for (number, name), errors in report.errors.items() if number in level.files}
    return {choice.name: mine[choice.name] for choice in level.choices if choice.name in mine}


def relative(errors: Errors) -> float:
    """Root mean square of the error over that of the weights."""
    return math.sqrt(errors.squared_error / errors.squares_reference) if errors.squares_reference else 0.0


def errors_json(result: Quantization) -> dict[str, Any]:
    """The file that --report writes: `tael.quantize.errors/1`."""
    levels = []
    for level in result.levels:
        tensors = []
        for name, errors in level_errors(result, level).items():
            tensor = level.checkpoint.tensors[name]
            norm = math.sqrt(errors.squares_reference * errors.squares)
            noise, signal = errors.squared_error, errors.squares_reference
            tensors.append({
                "name": name,
                "dtype": tensor.dtype.name,
                "shape": list(tensor.shape),
                "rmse": math.sqrt(noise / max(1, tensor.info.parameters)),
                "relative_error": relative(errors),
                "cosine": errors.products / norm if norm else None,
                "snr_db": 10 * math.log10(signal / noise) if noise and signal else None,
                "max_error": errors.largest,
            })  # fmt: skip
        total = total_error(result, level)
        levels.append({
            "type": level.recipe.name,
            "path": level.path,
            "bits_per_weight": level.bits_per_weight,
            "relative_error": None if total is None else relative(total),
            "tensors": tensors,
        })  # fmt: skip
    return {"schema": "tael.quantize.errors/1", "source": result.source, "levels": levels}


def as_json(result: Quantization, threads: int) -> dict[str, Any]:
    """The body of `tael.quantize/1`."""
    plan, report, match = result.plan, result.report, result.match
    body: dict[str, Any] = {
        "source": result.source,
        "source_format": result.source_format,
        "dry_run": report is None,
        "levels": [
            {
                "type": level.recipe.name,
                "path": level.path,
                "files": [plan.files[number].name for number in level.files],
                "nbytes": sum(plan.files[number].size for number in level.files),
                "bits_per_weight": level.bits_per_weight,
                "memory": {str(context): _memory(level, context) for context in CONTEXTS},
                "tensors": [
                    {
                        "name": choice.name,
                        "dtype": choice.dtype.name,
                        "nbytes": level.checkpoint.tensors[choice.name].nbytes,
                        "why": choice.why,
                    }
                    for choice in level.choices
                ],
            }
            for level in result.levels
        ],
        "nbytes": plan.nbytes,
        "peak_memory": plan.peak_memory(threads),
        "losses": [output.loss_json(loss) for loss in plan.losses],
        "problems": [output.problem_json(problem) for problem in result.problems],
    }
    if match is not None:
        body["imatrix"] = {"without_entry": list(match.without_entry), "without_tensor": list(match.without_tensor)}
    if report is None:
        return body | {"plan": to_dict(plan)}
    body |= {"seconds": report.seconds, "resumed_nbytes": report.resumed_bytes, "overflow": report.overflow}
    return body | ({"errors": errors_json(result)["levels"]} if report.errors else {})


def _memory(level: Level, context: int) -> int | None:
    cache = kv_cache_bytes(level.checkpoint.metadata, context)
    return None if cache is None else level.nbytes + cache
