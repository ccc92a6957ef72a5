# SPDX-License-Identifier: Apache-2.0
"""`tael quantize`: fewer bits per weight, byte for byte as llama-quantize."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from tael.cli import options, output, quantize_views, screen
from tael.cli.help import Example
from tael.cli.options import RUNNING, SAFETY, argument, flag, value
from tael.cli.progress import bar
from tael.errors import TaelError, TargetExistsError

WHICH = "Which type for which tensor"

EXAMPLES = (
    Example("tael quantize model-f16.gguf model-Q4_K_M.gguf -t Q4_K_M", "the usual choice"),
    Example(
        "tael quantize model-f16.gguf 'model-{type}.gguf' -t Q8_0,Q4_K_M,Q2_K", "three levels, the model read once"
    ),
    Example("tael quantize model-f16.gguf small.gguf -t Q4_K_M --dry-run", "every tensor's type, its bytes and why"),
    Example(
        "tael quantize model-f16.gguf small.gguf -t Q4_K_M --layers 0-1=Q6_K --embedding Q8_0", "a mix of your own"
    ),
    Example(
        "tael quantize model-f16.gguf small.gguf --recipe by-depth --report errors.json", "a shipped mix, measured"
    ),
)


def quantize(
    src: Annotated[str, argument("SRC", "A GGUF file or set, or another checkpoint with GGUF's tensor names.")],
    dst: Annotated[str, argument("DST", "The GGUF file to write; {type} in its name is filled in.")],
    types: Annotated[
        str | None,
        typer.Option(
            "--type", "-t", metavar="TYPE", help="Q4_K_M, Q6_K, IQ4_XS, ...; several with commas between them."
        ),
    ] = None,
    imatrix: Annotated[
        str | None, value("--imatrix", "FILE", "An importance matrix, GGUF or .dat; IQ1 and IQ2 need one.")
    ] = None,
    recipe: Annotated[
        str | None, value("--recipe", "FILE", "Types and choices from a TOML file, or a shipped recipe by its name.")
    ] = None,
    save_recipe: Annotated[
        str | None, value("--save-recipe", "FILE", "Write the type and the choices below as a recipe, to share.")
    ] = None,
    source_format: options.SourceFormat = None,
    shard_size: Annotated[
        str | None, value("--shard-size", "SIZE", "Start another file at SIZE: 5GB, 500MB, 4.2GiB.")
    ] = None,
    setting: Annotated[list[str] | None, value("--set", "KEY=VALUE", "Set a metadata key; may be given again.")] = None,
    tensor: Annotated[
        list[str] | None, value("--tensor", "REGEX=TYPE", "What matches gets this type; may be given again.", WHICH)
    ] = None,
    layers: Annotated[
        list[str] | None, value("--layers", "RANGE=TYPE", "These layers get this type, such as 0-10=Q6_K.", WHICH)
    ] = None,
    embedding: Annotated[str | None, value("--embedding", "TYPE", "The type of the token embedding.", WHICH)] = None,
    output_type: Annotated[str | None, value("--output-type", "TYPE", "The type of the output layer.", WHICH)] = None,
    keep: Annotated[
        list[str] | None, value("--keep", "REGEX", "Leave what matches as it is; may be given again.", WHICH)
    ] = None,
    pure: Annotated[bool, flag("--pure", "One type for every tensor that can be quantized.", WHICH)] = False,
    prune_layers: Annotated[
        str | None, value("--prune-layers", "LIST", "Leave these layers out, such as 20,21.", WHICH)
    ] = None,
    allow_requantize: Annotated[
        bool, flag("--allow-requantize", "Quantize what is quantized already; it loses twice.", SAFETY)
    ] = False,
    strict: Annotated[bool, flag("--strict", "Stop if the target cannot hold something.", SAFETY)] = False,
    force: Annotated[bool, flag("--force", "Replace DST if it is there.", SAFETY)] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Print every tensor's type and why; write nothing.", RUNNING)] = False,
    resume: Annotated[bool, flag("--resume", "Go on where an interrupted run stopped.", RUNNING)] = False,
    report: Annotated[
        str | None, value("--report", "FILE", "Write the errors of every tensor as JSON, measured in passing.", RUNNING)
    ] = None,
    threads: options.Threads = None,
    max_memory: Annotated[
        str | None, value("--max-memory", "SIZE", "Refuse a plan that needs more than this.", RUNNING)
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Fewer bits per weight, byte for byte as llama-quantize.

    It takes a fraction of the time, and memory that does not grow with the model.

    A TYPE is a recipe of llama.cpp, such as Q4_K_M, which gives each tensor its own type; where a single tensor is
    meant (--tensor, --layers, --embedding, --output-type) it is a tensor type, such as Q4_K. Several types read the
    source once, and measure their errors. The table at the end has the real bits per weight and what the model needs
    in memory.

    A REGEX may match anywhere in a name. A RANGE is 0-10, or 0%-25% of the depth.
    """
    from tael.convert.execute import default_threads
    from tael.quantize import quantize as run
    from tael.quantize.plan import parse_setting
    from tael.quantize.recipe_files import dumps

    workers = options.threads(threads)
    if report is not None and dry_run:
        raise TaelError("--report needs a run: a dry run measures nothing")
    for extra in (report, save_recipe):
        if extra is not None and os.path.lexists(extra) and not force:
            raise TargetExistsError("is there already", path=extra, hint="replace it with --force")
    names = [name.strip() for name in (types or "").split(",") if name.strip()]
    try:
        result = run(
            src,
            dst,
            names,
            recipe=recipe,
            imatrix=imatrix,
            tensor_types=tensor or (),
            layers=layers or (),
            embedding=embedding,
            output_type=output_type,
            keep=keep or (),
            pure=pure,
            prune_layers=_numbers(prune_layers),
            allow_requantize=allow_requantize,
            metadata=dict(parse_setting(text) for text in setting or ()),
            shard_size=options.size(shard_size),
            source_format=source_format,
            measure=report is not None or len(names) > 1,
            strict=strict,
            force=force,
            resume=resume,
            dry_run=dry_run,
            max_memory=options.size(max_memory),
            threads=workers,
            progress=bar(quiet),
        )
    except KeyboardInterrupt:
        from tael.convert.atomic import resume_hint

        raise KeyboardInterrupt(resume_hint(dst) or f"{dst} was not written") from None
    if report is not None:
        output.write_text(report, json.dumps(quantize_views.errors_json(result), indent=1) + "\n")
    if save_recipe is not None:
        output.write_text(save_recipe, dumps(result.levels[0].recipe.name, result.options))
    if as_json:
        output.document("tael.quantize/1", quantize_views.as_json(result, workers or default_threads()))
    elif dry_run:
        quantize_views.planned(screen.stdout(), result, workers or default_threads())
    else:
        quantize_views.done(screen.stderr() if quiet else screen.stdout(), result, quiet=quiet)
    return 0


def _numbers(text: str | None) -> list[int]:
    """Layers of "3,5-8"."""
    found: list[int] = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        first, sign, last = part.strip().partition("-")
        if not first.isdecimal() or (sign and not last.isdecimal()) or max(len(first), len(last)) > 5:
            raise TaelError(f"--prune-layers {text!r}: not a list of layers such as 3,5-8")
        found += range(int(first), int(last or first) + 1)
    return found
