# SPDX-License-Identifier: Apache-2.0
"""What several verbs print: one JSON document, the problems of a source, the losses of a conversion."""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tael.cli.screen import Screen
from tael.cli.text import json_line, safe
from tael.core.problem import Loss, Problem

_STYLES = {"note": "dim", "warning": "yellow", "fatal": "red"}
_LONGEST = 600
_LABEL = 10  # columns
_BAR = 24


def document(schema: str, body: Mapping[str, Any]) -> None:
    """Print `body` as JSON that names its schema: one line, on a terminal many. It has no nan, no inf: `plain`."""
    indent = 2 if sys.stdout.isatty() else None
    text = json.dumps({"schema": schema, **body}, ensure_ascii=False, allow_nan=False, default=str, indent=indent)
    sys.stdout.write(json_line(text) + "\n")


def write_text(path: str, text: str) -> None:
    """Writes a small file whole; `TargetError` when it cannot be."""
    from tael.convert.atomic import target_error

    part = f"{path}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    except OSError as error:
        raise target_error(error, path) from None


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: nan, inf and complex numbers as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, complex) else value


def share_bar(out: Screen, part: int, whole: int) -> tuple[str, str]:
    """ "43%" and a bar of that length"""
    fraction = part / whole if whole else 0.0
    return f"{fraction:.0%}" if fraction >= 0.01 or not part else "<1%", out.bar(fraction, _BAR)


def problem_json(problem: Problem) -> dict[str, Any]:
    return {"severity": problem.severity, "what": problem.what, "where": problem.where, "tensor": problem.tensor}


def loss_json(loss: Loss) -> dict[str, Any]:
    return {"kind": loss.kind, "detail": loss.detail, "count": loss.count}


def problem_lines(out: Screen, problem: Problem, path: str | None = None) -> list[str]:
    """Its severity in colour, and what and where, unless that is `path`. Further lines are indented alike."""
    where = [problem.where] if problem.where not in (None, path) else []
    if problem.tensor is not None:
        where.append(f"'{safe(problem.tensor, 120)}'")
    text = safe(": ".join([*([", ".join(where)] if where else []), problem.what]), _LONGEST)
    return labelled(out, problem.severity, _STYLES[problem.severity], text)


def labelled(out: Screen, label: str, style: str, text: str) -> list[str]:
    """A label in colour, and `text` beside it, wrapped on a terminal."""
    width = max((out.width or _LONGEST) - _LABEL - 4, 30)
    first, *rest = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    return [
        f"{out.paint(label, style)}{' ' * (_LABEL - len(label))}{first}",
        *(f"{' ' * _LABEL}{line}" for line in rest),
    ]


def loss_lines(out: Screen, losses: Sequence[Loss]) -> list[str]:
    """What the target does not hold."""
    return [line for loss in losses for line in labelled(out, "not kept", "yellow", safe(loss, _LONGEST))]
