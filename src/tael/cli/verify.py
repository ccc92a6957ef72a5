# SPDX-License-Identifier: Apache-2.0
"""`tael verify`: are these the same tensors?"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated, Any

from tael.cli import options, output, screen
from tael.cli.help import Example
from tael.cli.options import TENSORS, argument, flag, value
from tael.cli.progress import bar
from tael.cli.text import plural, safe, size

if TYPE_CHECKING:
    from tael.verify.compare import Comparison, Difference

EXAMPLES = (
    Example("tael verify model.pt model.safetensors", "bit for bit, whatever the containers"),
    Example("tael verify model.safetensors half.safetensors --tolerance 1e-3", "within 0.001, across float types"),
    Example("tael verify model.pt part.npz --ignore-missing", "B may hold less than A"),
)

_SHOWN = 20  # differences printed; --json has them all


def verify(
    a: Annotated[str, argument("A", "A file, a folder, one file of a sharded set, or a URL.")],
    b: Annotated[str, argument("B", "What to compare it with.")],
    tolerance: Annotated[
        str | None, value("--tolerance", "ABS", "Floats may differ by ABS, whatever their types.")
    ] = None,
    rtol: Annotated[str | None, value("--rtol", "REL", "Floats may differ by REL times the value in B.")] = None,
    select: options.Select = None,
    ignore_missing: Annotated[bool, flag("--ignore-missing", "Tensors of A may be missing in B.", TENSORS)] = False,
    ignore_extra: Annotated[bool, flag("--ignore-extra", "B may have tensors that A has not.", TENSORS)] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Prove that two checkpoints hold the same tensors.

    Compares names, shapes, types and values. Without a tolerance every bit counts. Exit code 0: the same; 1: not.
    """
    from tael.formats import open_checkpoint
    from tael.verify.compare import verify as compare

    atol, relative = options.tolerance("--tolerance", tolerance), options.tolerance("--rtol", rtol)
    with open_checkpoint(a) as left, open_checkpoint(b) as right:
        comparison = compare(
            left,
            right,
            atol=atol,
            rtol=relative,
            only=select or None,
            ignore_missing=ignore_missing,
            ignore_extra=ignore_extra,
            progress=bar(quiet),
        )
    if as_json:
        output.document("tael.verify/1", {"a": a, "b": b, "atol": atol, "rtol": relative} | comparison_json(comparison))
    elif not (quiet and comparison.equal):
        out = screen.stdout()
        for line in verdict_lines(comparison, out, exact=atol == relative == 0):
            out.line(line)
    return 0 if comparison.equal else 1


def verdict_lines(comparison: Comparison, out: screen.Screen, *, exact: bool = True) -> list[str]:
    """The verdict, then what differs."""
    if comparison.equal:
        how = "every bit" if exact else "within tolerance"
        return [
            out.dot.join(
                [out.paint("equal", "green"), plural(comparison.tensors, "tensor"), size(comparison.nbytes), how]
            )
        ]
    found = comparison.differences
    lines = [out.dot.join([out.paint("different", "red"), f"{len(found):,} of {plural(_names(comparison), 'tensor')}"])]
    for difference in found[:_SHOWN]:
        kind = out.paint(f"{difference.kind:<10}", "yellow")
        lines.append(f"  {kind}  {safe(difference.name, 120)}")
        detail = textwrap.wrap(safe(difference.detail, 400), max((out.width or 500) - 14, 30), break_on_hyphens=False)
        lines += [f"{'':<14}{out.paint(line, 'dim')}" for line in detail]
    if len(found) > _SHOWN:
        lines.append(f"  ... and {len(found) - _SHOWN:,} more; --json lists all")
    return lines


def _names(comparison: Comparison) -> int:
    """Names on either side."""
    return comparison.tensors + sum(difference.kind in ("missing", "extra") for difference in comparison.differences)


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The body of `tael.verify/1`, but for what was compared."""
    return {
        "equal": comparison.equal,
        "tensors": comparison.tensors,
        "nbytes": comparison.nbytes,
        "differences": [_difference_json(difference) for difference in comparison.differences],
    }


def _difference_json(difference: Difference) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": difference.kind, "name": difference.name, "detail": difference.detail}
    if difference.kind == "values":
        found |= {
            "count": difference.count,
            "first_index": list(difference.first_index or ()),
            "left": output.plain(difference.left),
            "right": output.plain(difference.right),
            "max_abs": output.plain(difference.max_abs),
            "max_rel": output.plain(difference.max_rel),
            "rms": output.plain(difference.rms),
        }
    return found
