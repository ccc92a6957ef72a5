# SPDX-License-Identifier: Apache-2.0
"""`tael inspect`: what is inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tael.cli import inspect_views as views
from tael.cli import module_views, options, output, screen
from tael.cli.help import Example
from tael.cli.options import flag
from tael.cli.progress import bar

if TYPE_CHECKING:
    from tael.core.checkpoint import Checkpoint
    from tael.inspection.stats import Stats

EXAMPLES = (
    Example("tael inspect model.safetensors", "the summary, on one screen however large the model is"),
    Example("tael inspect sharded/ --tensors --select '*norm*'", "one line for each tensor that matches"),
    Example("tael inspect model.pt --tree", "all modules, equal layers as one"),
    Example("tael inspect model.pt --stats", "read the values: range, mean, deviation, NaN, infinities, zeros"),
    Example("tael inspect model.safetensors --json > model.json", "everything, for programs"),
)

_VIEW = "What to show instead of the summary"


def inspect(
    path: options.SourcePath,
    tensors: Annotated[bool, flag("--tensors", "Every tensor: name, type, shape, size.", _VIEW)] = False,
    tree: Annotated[bool, flag("--tree", "The whole tree of modules.", _VIEW)] = False,
    stats: Annotated[bool, flag("--stats", "Statistics of every tensor; this reads the values.", _VIEW)] = False,
    metadata: Annotated[bool, flag("--metadata", "All metadata, uncut.", _VIEW)] = False,
    select: options.Select = None,
    source_format: options.SourceFormat = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """What is inside: tensors, types, sizes, training state, metadata, problems.

    Reads headers only, and executes nothing: safe on files from strangers. Exit code 1 when part of the file cannot be
    read; the rest is shown.

    A PATTERN is a glob over tensor names, such as '*.bias', or a regular expression behind re:.
    """
    from tael.convert.transforms import select as selected
    from tael.formats import open_checkpoint
    from tael.inspection.stats import stats_checkpoint

    with open_checkpoint(path, source_format) as checkpoint:
        if select:
            checkpoint = selected(select)(checkpoint)
        figures = list(stats_checkpoint(checkpoint, bar(quiet))) if stats else None
        if as_json:
            _print_json(checkpoint, figures)
        else:
            _print(checkpoint, figures, tensors or bool(select), tree=tree, metadata=metadata, quiet=quiet)
        return 1 if checkpoint.fatal() or any(found.damaged for found in figures or ()) else 0


def _print(
    checkpoint: Checkpoint, figures: list[Stats] | None, tensors: bool, *, tree: bool, metadata: bool, quiet: bool
) -> None:
    from tael.inspection.summary import summarize

    out, summary = screen.stdout(), summarize(checkpoint)
    if not quiet:
        views.title(out, summary, len(checkpoint.sources))
        if figures is not None or tree or metadata or tensors:
            out.line()
    if figures is not None:
        views.statistics(out, checkpoint, figures)
    elif tree:
        module_views.tree(out, summary.modules)
    elif metadata:
        views.metadata(out, summary.metadata, most=None)
    elif tensors:
        views.tensors(out, checkpoint)
    else:
        views.summary(out, summary)
        return
    views.problems(out, [problem for problem in summary.problems if problem.severity == "fatal"], 10, summary.path)


def _print_json(checkpoint: Checkpoint, figures: list[Stats] | None) -> None:
    from dataclasses import asdict

    from tael.inspection.summary import to_json

    body = to_json(checkpoint)
    if figures is not None:
        body["stats"] = [{key: output.plain(value) for key, value in asdict(found).items()} for found in figures]
    output.document(body.pop("schema"), body)
