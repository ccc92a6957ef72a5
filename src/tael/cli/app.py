# SPDX-License-Identifier: Apache-2.0
"""The command `tael`: finds the verb, runs it, turns what went wrong into words and an exit code.

A verb is one line of VERBS and one module with the function of its name and EXAMPLES. The module is imported when the
verb is asked for; the table carries the short help, so that `tael --help` imports none of them.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

import tael

if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS: dict[str, str] = {  # the first line of each verb's help
    "inspect": "What is inside: tensors, types, sizes, training state, metadata, problems.",
    "convert": "Change container, precision, names or sharding.",
    "quantize": "Fewer bits per weight, byte for byte as llama-quantize.",
    "verify": "Prove that two checkpoints hold the same tensors.",
    "diff": "What changed between two checkpoints.",
    "hash": "Ids of the tensors and of the whole, the same in every container.",
    "edit": "Change the metadata of a GGUF file, in place.",
    "formats": "What can be read and written.",
    "doctor": "Is this installation in order?",
}

ABOUT = "tael: one tool for neural-network weight files. Open them safely, see what is inside, convert, prove."
EXAMPLES = (
    ("tael inspect model.safetensors", "look inside"),
    ("tael convert model.pt model.safetensors --dtype bf16", "change container and precision"),
    ("tael verify model.pt model.safetensors --rtol 1e-2", "compare the two"),
)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit code."""
    line = list(sys.argv[1:] if args is None else args)
    try:  # imports, too, take long enough to be interrupted
        _prepare_streams()
        if line == ["--version"]:  # asked for by scripts: no need to load the option parser
            sys.stdout.write(f"tael {tael.__version__}\n")
            code = 0
        else:
            gc.set_threshold(100_000, 50, 50)  # headers are many objects that stay: by default they are walked often
            code = _run(line)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        from tael.cli import failure

        return failure.report(error, as_json="--json" in line)
    return code


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller (`>&-`)
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):  # a name that this terminal cannot spell is no reason to stop
            stream.reconfigure(errors="backslashreplace")


def _run(line: list[str]) -> int:
    import typer

    from tael.cli import parser

    program = parser.program()
    if "_TAEL_COMPLETE" in os.environ:
        return int(program.main(line, prog_name="tael", standalone_mode=False) or 0)
    try:
        with program.make_context("tael", line or ["--help"]) as context:
            return int(program.invoke(context) or 0)
    except typer.Exit as end:
        return end.exit_code
