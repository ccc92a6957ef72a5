# SPDX-License-Identifier: Apache-2.0
"""`tael convert`: another container, precision, sharding or names."""

from __future__ import annotations

from typing import Annotated

from tael.cli import convert_views, options, output, screen
from tael.cli.help import Example
from tael.cli.options import RUNNING, SAFETY, TENSORS, argument, flag, value
from tael.cli.progress import bar
from tael.errors import TaelError

EXAMPLES = (
    Example("tael convert model.pt model.safetensors", "another container, every byte kept"),
    Example("tael convert model.safetensors small.safetensors --dtype bf16", "half the size, rounded to nearest even"),
    Example("tael convert model.safetensors sharded/ --shard-size 5GB", "a folder of shards with an index"),
    Example("tael convert train.ckpt weights.safetensors --part ema --strip-prefix auto", "the averaged weights only"),
    Example("tael convert model.pt part.npz --select '*norm*' --rename 'model.*=*'", "some tensors, under other names"),
    Example("tael convert model.pt model.safetensors --dry-run", "the plan: files, sizes, losses, memory"),
)


def convert(
    src: Annotated[str, argument("SRC", "A file, a folder, one file of a sharded set, or a URL.")],
    dst: Annotated[str, argument("DST", "The file or folder to write. Its name says the format.")],
    to: Annotated[str | None, value("--to", "FORMAT", "Write this format, whatever the name says.")] = None,
    source_format: options.SourceFormat = None,
    dtype: Annotated[
        str | None,
        value("--dtype", "TYPE", "Cast float tensors, rounding to nearest even: f32, f16, bf16, f8_e4m3, ..."),
    ] = None,
    saturate: Annotated[bool, flag("--saturate", "Clamp values that the type cannot hold, instead of inf.")] = False,
    shard_size: Annotated[
        str | None, value("--shard-size", "SIZE", "Start another file at SIZE: 5GB, 500MB, 4.2GiB.")
    ] = None,
    shard_tensors: Annotated[
        str | None, value("--shard-tensors", "N", "GGUF: start another file after N tensors.")
    ] = None,
    reserve: Annotated[
        str | None, value("--reserve", "SIZE", "GGUF: keep this much free for later edits of the metadata.")
    ] = None,
    keep_blocks: Annotated[
        bool, flag("--keep-blocks", "Keep the bytes of Q4_K and the like as U8, instead of making floats of them.")
    ] = False,
    select: options.Select = None,
    drop: Annotated[
        list[str] | None, value("--drop", "PATTERN", "Leave these out; may be given again.", TENSORS)
    ] = None,
    rename: Annotated[list[str] | None, value("--rename", "RULE", "Rename; may be given again.", TENSORS)] = None,
    part: Annotated[
        str | None, value("--part", "NAME", "One part of a training checkpoint, such as ema.", TENSORS)
    ] = None,
    strip_prefix: Annotated[
        str | None, value("--strip-prefix", "PREFIX", "Take this off the names; auto finds it.", TENSORS)
    ] = None,
    fix_names: Annotated[
        bool, flag("--fix-names", "LayerNorm.gamma and beta become weight and bias.", TENSORS)
    ] = False,
    weight_norm: Annotated[
        str | None,
        value("--weight-norm", "HOW", "fold pairs, or spell them parametrizations or weight_g.", TENSORS),
    ] = None,
    keep_all: Annotated[bool, flag("--all", "Keep the optimizer's tensors and the rest, too.", TENSORS)] = False,
    allow_expand: Annotated[
        bool, flag("--allow-expand", "Write out views that repeat what they store once.", TENSORS)
    ] = False,
    verify: Annotated[bool, flag("--verify", "Open the result and compare it with the plan.", SAFETY)] = False,
    strict: Annotated[bool, flag("--strict", "Stop if the target cannot hold something.", SAFETY)] = False,
    skip_damaged: Annotated[bool, flag("--skip-damaged", "Leave out tensors whose bytes are damaged.", SAFETY)] = False,
    force: Annotated[bool, flag("--force", "Replace DST if it is there.", SAFETY)] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Print the plan; write nothing.", RUNNING)] = False,
    resume: Annotated[bool, flag("--resume", "Go on where an interrupted run stopped.", RUNNING)] = False,
    threads: options.Threads = None,
    max_memory: Annotated[
        str | None, value("--max-memory", "SIZE", "Refuse a plan that needs more than this.", RUNNING)
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Change container, precision, names or sharding.

    Bytes that do not change are copied, never decoded. The result is complete or not there: it gets its name when
    everything is on disk. What the target cannot hold is listed as a loss. Memory does not grow with the model.

    A PATTERN is a glob over tensor names, such as '*.bias', or a regular expression behind re:. A rule to rename is
    OLD=NEW with * for any part, or s/REGEX/REPLACEMENT/.
    """
    from tael.convert import convert as run
    from tael.convert.execute import default_threads

    workers = options.threads(threads)
    if saturate and dtype is None:
        raise TaelError("--saturate without --dtype: nothing is cast", hint="see `tael convert --help`")
    try:
        result = run(
            src,
            dst,
            to=to,
            source_format=source_format,
            dtype=dtype,
            saturate=saturate,
            shard_size=options.size(shard_size),
            shard_tensors=options.whole("--shard-tensors", shard_tensors),
            reserve=options.size(reserve) or 0,
            keep_blocks=keep_blocks,
            select=select or (),
            drop=drop or (),
            rename=rename or (),
            part=part,
            strip_prefix=strip_prefix,
            fix_names=fix_names,
            weight_norm=weight_norm,
            keep_all=keep_all,
            allow_expand=allow_expand,
            verify=verify,
            strict=strict,
            skip_damaged=skip_damaged,
            force=force,
            dry_run=dry_run,
            resume=resume,
            threads=workers,
            max_memory=options.size(max_memory),
            progress=bar(quiet),
        )
    except KeyboardInterrupt:
        from tael.convert.atomic import resume_hint

        raise KeyboardInterrupt(resume_hint(dst) or f"{dst} was not written") from None
    if as_json:
        output.document("tael.convert/1", convert_views.as_json(result, workers or default_threads()))
    elif dry_run:
        convert_views.planned(screen.stdout(), result, workers or default_threads())
    else:
        convert_views.done(screen.stderr() if quiet else screen.stdout(), result, saturate=saturate, quiet=quiet)
    return 0 if result.comparison is None or result.comparison.equal else 1
