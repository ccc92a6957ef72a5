# SPDX-License-Identifier: Apache-2.0
"""Quantize a model to one or several levels in one pass: `tael.quantize(src, dst, "Q4_K_M")`.

recipes.py and choose.py know which tensor gets which type, recipe_files.py keeps such choices, imatrix.py reads
importance matrices, plan.py makes a plan of it all, which the executor of every conversion runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tael.convert import naming
from tael.convert.execute import ExecutionReport, execute
from tael.core.callable_module import make_callable
from tael.core.checkpoint import Checkpoint
from tael.core.limits import DEFAULT, Limits
from tael.core.problem import Problem
from tael.core.progress import SILENT, Progress
from tael.errors import LossRefusedError, TransformError, clip
from tael.quantize.options import Options

if TYPE_CHECKING:
    from tael.convert.plan import Plan
    from tael.quantize.imatrix import Match
    from tael.quantize.plan import Level
    from tael.quantize.recipes import Recipe

__all__ = ["Quantization", "quantize"]


@dataclass(slots=True)
class Quantization:
    """A plan and what came of it. `report` is None after a dry run; its `errors` are there if they were measured."""

    plan: Plan
    levels: Sequence[Level]
    source: str
    source_format: str
    match: Match | None = None
    problems: Sequence[Problem] = ()
    report: ExecutionReport | None = None
    options: Options = field(default_factory=Options)


def quantize(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    types: str | Sequence[str] = (),
    *,
    recipe: str | os.PathLike[str] | None = None,
    imatrix: str | os.PathLike[str] | None = None,
    tensor_types: Sequence[str] = (),
    layers: Sequence[str] = (),
    embedding: str | None = None,
    output_type: str | None = None,
    keep: Sequence[str] = (),
    leave_output: bool = False,
    pure: bool = False,
    prune_layers: Sequence[int] = (),
    allow_requantize: bool = False,
    metadata: Mapping[str, Any] | None = None,
    shard_size: int | None = None,
    shard_tensors: int | None = None,
    source_format: str | None = None,
    measure: bool = False,
    strict: bool = False,
    force: bool = False,
    resume: bool = False,
    dry_run: bool = False,
    max_memory: int | None = None,
    threads: int | None = None,
    progress: Progress = SILENT,
    limits: Limits = DEFAULT,
) -> Quantization:
    """Quantize `src`, a checkpoint whose tensors have GGUF's names, to the GGUF file `dst`.

    types: levels such as "Q4_K_M"; with several, `dst` holds `{type}`, and every source tensor is read once for all.
    recipe: a TOML file of a type and the choices below (see recipe_files.py), or the name of a shipped one.
    imatrix: an importance matrix, GGUF or the older .dat; the 1- and 2-bit types need one.
    tensor_types: `REGEX=TYPE`, the first that matches decides; layers: `0-10=TYPE`; embedding, output_type: the types
    of those tensors; keep: regular expressions of tensors left as they are; pure: one type for all.
    prune_layers: layers to leave out. metadata: keys to set; None deletes one. measure: errors against the source.
    The bytes are those that llama-quantize writes. Raises as `convert` does.
    """
    from tael.formats import open_checkpoint
    from tael.quantize.imatrix import match, read
    from tael.quantize.plan import Request, original_names, plan_levels
    from tael.quantize.recipe_files import load
    from tael.quantize.recipes import RECIPES, recipe_of

    names = [types] if isinstance(types, str) else list(types)
    options = Options.of(
        tensor_types=tensor_types,
        layers=layers,
        embedding=embedding,
        output=output_type,
        keep=keep,
        leave_output=leave_output,
        pure=pure,
    )
    if recipe is not None:
        base, saved = load(recipe)
        options = options.over(saved)
        names = names or [base]
    if not names:
        raise TransformError("no type to quantize to", hint=f"such as -t Q4_K_M; there is {', '.join(RECIPES)}")
    recipes: list[Recipe] = [recipe_of(name, pure=options.pure) for name in names]
    with open_checkpoint(src, source_format, limits) as checkpoint, naming(checkpoint.path):
        checkpoint.require_intact()
        _require_names(checkpoint)
        matrix = read(imatrix) if imatrix is not None else None
        found = None
        if matrix is not None:
            table = original_names(checkpoint.tensors, prune_layers)
            found = match(matrix, [tensor.info for tensor in checkpoint.owners], names=table)
            options = replace(options, has_imatrix=True)
        request = Request(
            options=options,
            match=found,
            allow_requantize=allow_requantize,
            prune_layers=prune_layers,
            metadata=metadata or {},
            shard_size=shard_size,
            layout={"shard_tensors": shard_tensors} if shard_tensors else {},
        )
        plan, levels = plan_levels(checkpoint, recipes, os.fspath(dst), request)
        if strict and plan.losses:
            raise LossRefusedError(
                "; ".join(map(str, plan.losses)), path=plan.path, hint="without --strict they are only shown"
            )
        result = Quantization(
            plan, levels, checkpoint.path, checkpoint.format, found, checkpoint.problems, options=options
        )
        if dry_run:
            return result
        sources = [*checkpoint.sources, *(matrix.sources if matrix is not None else ())]
        result.report = execute(
            plan,
            inputs=sources,
            input_folder=checkpoint.path if os.path.isdir(checkpoint.path) else None,
            threads=threads,
            max_memory=max_memory,
            force=force,
            resume=resume,
            measure=measure,
            progress=progress,
        )
        return result


def _require_names(checkpoint: Checkpoint) -> None:
    """Raise for a model under other names than GGUF's: no program would find its tensors in the result."""
    if checkpoint.format in ("gguf", "ggml"):  # whatever they are called there, they are called so on purpose
        return
    if not any(name.startswith(("blk.", "token_embd.", "output.")) for name in checkpoint.tensors):
        raise TransformError(
            f"its tensors do not have GGUF's names: {clip(next(iter(checkpoint.tensors), ''))!r}",
            path=checkpoint.path,
            hint="convert the model to GGUF first, with llama.cpp's converter: tael does not map these names",
        )


make_callable(__name__, quantize)
