# SPDX-License-Identifier: Apache-2.0
"""The main job: open a source, apply transforms, plan the target, write it, prove it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from tael.convert import transforms
from tael.convert.blocks import KEY as KEPT_BLOCKS
from tael.convert.blocks import fitted
from tael.convert.blocks import restore as restore_blocks
from tael.convert.execute import ExecutionReport
from tael.convert.execute import execute as run_plan
from tael.convert.losses import losses as losses_of
from tael.convert.plan import Plan, Target
from tael.core.callable_module import make_callable
from tael.core.checkpoint import Checkpoint, Transform
from tael.core.limits import DEFAULT, Limits
from tael.core.problem import Problem
from tael.core.progress import SILENT, Progress
from tael.errors import (
    LossRefusedError,
    SourceNotFoundError,
    TaelError,
    TargetError,
    TransformError,
    UnsupportedFormatError,
    clip,
)
from tael.formats import open_checkpoint, registry
from tael.formats.registry import Format

if TYPE_CHECKING:
    from tael.verify.compare import Comparison

__all__ = ["Conversion", "convert", "plan_conversion"]


@dataclass(slots=True)
class Conversion:
    """A plan and what came of it. `report` is None after a dry run, `comparison` without `verify`."""

    plan: Plan
    source: str
    source_format: str
    problems: Sequence[Problem] = ()
    report: ExecutionReport | None = None
    comparison: Comparison | None = None
    notes: list[str] = field(default_factory=list)


def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    to: str | None = None,
    source_format: str | None = None,
    dtype: str | None = None,
    select: Sequence[str] = (),
    drop: Sequence[str] = (),
    rename: Sequence[str] = (),
    part: str | None = None,
    strip_prefix: str | None = None,
    fix_names: bool = False,
    weight_norm: str | None = None,
    keep_all: bool = False,
    shard_size: int | None = None,
    shard_tensors: int | None = None,
    reserve: int = 0,
    keep_blocks: bool = False,
    saturate: bool = False,
    allow_expand: bool = False,
    skip_damaged: bool = False,
    strict: bool = False,
    force: bool = False,
    resume: bool = False,
    dry_run: bool = False,
    verify: bool = False,
    max_memory: int | None = None,
    threads: int | None = None,
    progress: Progress = SILENT,
    limits: Limits = DEFAULT,
) -> Conversion:
    """Convert `src` (file, folder, shard set, URL) to `dst`; the format is `to`, else what `dst`'s name says.

    dtype: cast every float tensor to it; `saturate` clamps instead of overflowing to inf. Blocks (Q4_K, ...) are floats
    in that sense, and become F32 in a container that lacks them, unless `keep_blocks` keeps their bytes as U8.
    select, drop, rename: glob patterns, `OLD=NEW` rules (see `transforms`).
    part: which part of a training checkpoint ("weights" by default, "ema", ...); `keep_all` keeps everything.
    strip_prefix: a prefix to take off, or "auto" (`module.`, `_orig_mod.`, ...).
    fix_names: `LayerNorm.gamma` and `beta` become weight and bias.
    weight_norm: "fold" pairs into plain weights, or spell them the one way or the other.
    shard_size: bytes of one file, beyond which the target becomes a sharded set; GGUF: also `shard_tensors`, and
    `reserve`, bytes left free behind the metadata for later edits.
    strict: raise `LossRefusedError` if the target cannot hold something. verify: compare the result with the source.
    Memory stays within `max_memory`, which does not depend on the size of the model.
    """
    select, drop, rename = ((rules,) if isinstance(rules, str) else rules for rules in (select, drop, rename))
    if shard_size is not None and not isinstance(shard_size, int):
        raise TransformError(f"shard_size {shard_size!r} is not a number of bytes")
    with open_checkpoint(src, source_format, limits) as opened, naming(opened.path):
        fmt = target_format(os.fspath(dst), to)
        keep_blocks = keep_blocks or (dtype is None and KEPT_BLOCKS in opened.metadata)
        blocks = partial(fitted, dtypes=fmt.dtypes, to_float=dtype is not None, keep_blocks=keep_blocks)
        checkpoint = select_tensors(
            opened,
            dtype=dtype,
            blocks=blocks,
            select=select,
            drop=drop,
            rename=rename,
            part=part,
            strip_prefix=strip_prefix,
            fix_names=fix_names,
            weight_norm=weight_norm,
            keep_all=keep_all,
            saturate=saturate,
            allow_expand=allow_expand,
            skip_damaged=skip_damaged,
        )
        plan = plan_conversion(
            checkpoint, dst, to=to, shard_size=shard_size, shard_tensors=shard_tensors, reserve=reserve
        )
        if strict and plan.losses:
            raise LossRefusedError(
                "; ".join(str(loss) for loss in plan.losses),
                path=plan.path,
                hint="without --strict these are left out, and reported",
            )
        known = {problem.what for problem in opened.problems}
        new = [problem for problem in checkpoint.problems if problem.what not in known]
        notes = [*map(str, new), *_about_ties(checkpoint, plan)]
        result = Conversion(plan, opened.path, opened.format, opened.problems, notes=notes)
        if dry_run:
            return result
        result.report = run_plan(
            plan,
            inputs=opened.sources,
            input_folder=opened.path if os.path.isdir(opened.path) else None,
            threads=threads,
            max_memory=max_memory,
            force=force,
            resume=resume,
            progress=progress,
        )
        if verify:
            from tael.verify.compare import verify as compare

            with open_checkpoint(_reopened_path(plan), plan.format, limits) as written:
                result.comparison = compare(checkpoint, _as_named(written, checkpoint, plan), progress=progress)
        return result


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Errors about a tensor say in which file it is: its dtype, say, does not know."""
    try:
        yield
    except TaelError as error:
        if error.path is None and error.tensor is not None:
            error.path = path
        raise


def select_tensors(
    checkpoint: Checkpoint,
    *,
    dtype: str | None = None,
    blocks: Transform | None = None,
    select: Sequence[str] = (),
    drop: Sequence[str] = (),
    rename: Sequence[str] = (),
    part: str | None = None,
    strip_prefix: str | None = None,
    fix_names: bool = False,
    weight_norm: str | None = None,
    keep_all: bool = False,
    saturate: bool = False,
    allow_expand: bool = False,
    skip_damaged: bool = False,
) -> Checkpoint:
    """`checkpoint` as `convert` would write it, in this order: part, damage, selection, names, blocks, dtype.

    Nothing is read, except with `skip_damaged`, which has to compare stored checksums to know what is damaged.
    """
    from tael.training import names
    from tael.training.parts import select as select_part

    checkpoint = select_part(restore_blocks(checkpoint), part, strip_prefix=strip_prefix, keep_all=keep_all)
    if select:
        checkpoint = transforms.select(select)(checkpoint)
    if drop:
        checkpoint = transforms.drop(drop)(checkpoint)
    if skip_damaged:
        checkpoint = transforms.skip_damaged()(checkpoint)
    else:
        checkpoint.require_intact()
    checkpoint = transforms.refuse_ungathered()(checkpoint)
    checkpoint = transforms.allow_expanded(allow_expand)(checkpoint)
    if fix_names:
        checkpoint = names.fix_layernorm_names(checkpoint)
    if weight_norm == "fold":
        checkpoint = names.fold_weight_norm(checkpoint)
    elif weight_norm == "parametrizations":
        checkpoint = names.rename_weight_norm("parametrizations")(checkpoint)
    elif weight_norm == "weight_g":
        checkpoint = names.rename_weight_norm("weight_g")(checkpoint)
    elif weight_norm is not None:
        raise TransformError(f"weight_norm {weight_norm!r}", hint="it is fold, parametrizations or weight_g")
    if rename:
        checkpoint = transforms.rename(rename)(checkpoint)
    if blocks is not None:
        checkpoint = blocks(checkpoint)
    if dtype is not None:
        checkpoint = transforms.cast(dtype, saturate=saturate)(checkpoint)
    return checkpoint


def plan_conversion(
    checkpoint: Checkpoint,
    dst: str | os.PathLike[str],
    *,
    to: str | None = None,
    shard_size: int | None = None,
    shard_tensors: int | None = None,
    reserve: int = 0,
) -> Plan:
    """The plan that writes `checkpoint` to `dst`, with every loss. No payload is read."""
    path = os.fspath(dst)
    if "://" in path:
        raise TargetError("outputs are written to local disks", path=path, hint="write here, then upload the result")
    if not path.strip("/"):
        raise TargetError(f"the target {path!r} names no file or folder", hint="is a shell variable empty?")
    if path == "-":
        raise TargetError("tael writes files, not to standard output", path=path, hint="a file of this name is ./-")
    fmt = target_format(path, to)
    if fmt.layout is None:
        raise UnsupportedFormatError(f"{fmt.title} can be read here, not written", path=path, hint="see `tael formats`")
    if not checkpoint.tensors:
        raise SourceNotFoundError("holds no tensors to write", path=checkpoint.path)
    if shard_size is not None and "shards" not in fmt.capabilities:
        raise UnsupportedFormatError(
            f"{fmt.title} is one file: it is not written in shards",
            path=path,
            hint="SafeTensors, GGUF and folders can be",
        )
    options = {key: value for key, value in (("shard_tensors", shard_tensors), ("reserve", reserve)) if value}
    if options and fmt.id != "gguf":
        raise UnsupportedFormatError(f"{fmt.title} has no {' and no '.join(options)}: that is for GGUF", path=path)
    folder = "folder" in fmt.capabilities
    plan = fmt.layout(checkpoint, Target(path.rstrip("/") if folder else path, shard_size, folder, options))
    known = {(loss.kind, loss.detail) for loss in plan.losses}
    more = [loss for loss in (*checkpoint.losses, *losses_of(checkpoint, fmt)) if (loss.kind, loss.detail) not in known]
    checks = {id(check): check for tensor in checkpoint.tensors.values() for check in tensor.checks}
    return plan.with_losses(more).with_checks(checks.values())


def target_format(path: str, to: str | None = None) -> Format:
    """The format of a target: `to`, else by its name; a folder (no suffix, trailing slash) is a Hugging Face folder."""
    if to is not None:
        return registry.get(to)
    if path.endswith("/") or os.path.isdir(path):
        return registry.get("hf")
    found = registry.by_suffix(path)
    if found:
        return found
    suffix = os.path.splitext(path)[1]
    if not suffix:
        return registry.get("hf")
    writable = [fmt for fmt in registry.builtin() if fmt.layout and fmt.suffixes]
    raise UnsupportedFormatError(
        f"no format is written to names ending in {suffix!r}",
        path=path,
        hint=f"name it with --to, or end in {', '.join(fmt.suffixes[0] for fmt in writable)}",
    )


def _about_ties(checkpoint: Checkpoint, plan: Plan) -> list[str]:
    """What readers other than tael do not see in a container whose tensors cannot share their bytes."""
    ties = [f"{alias} = {owner}" for alias, owner in checkpoint.aliases.items()]
    if not ties or plan.format == "torch" or any(loss.kind == "alias" for loss in plan.losses):
        return []
    more = f" and {len(ties) - 3:,} more" if len(ties) > 3 else ""
    count = "1 tied name is" if len(ties) == 1 else f"{len(ties):,} tied names are"
    return [f"{count} stored once, the tie in the metadata: {clip(', '.join(ties[:3]))}{more}"]


def _reopened_path(plan: Plan) -> str:
    if plan.folder:
        return plan.path
    return os.path.join(os.path.dirname(plan.path), plan.files[-1].name)


def _as_named(written: Checkpoint, wanted: Checkpoint, plan: Plan) -> Checkpoint:
    """A container of one nameless tensor is compared under the name that went into it."""
    if "one-tensor" not in registry.get(plan.format).capabilities:
        return written
    (name,), (tensor,) = wanted.tensors, written.tensors.values()
    return replace(written, tensors={name: tensor.renamed(name)})


make_callable(__name__, convert)
