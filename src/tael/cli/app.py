# SPDX-License-Identifier: Apache-2.0
"""The command `tael`: finds the verb, runs it, turns what went wrong into words and an exit code.

A verb is one line of VERBS and one module with the function of its name and EXAMPLES. The module is imported when the
verb is asked for; the table carries the short help, so that `tael --help` imports none of them.
"""

from __future__ import annotations

import difflib
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import tael

VERBS: dict[str, str] = {  # the first line of each verb's help
    "inspect": "What is inside: tensors, types, sizes, training state, metadata, problems.",
    "convert": "Change container, precision, names or sharding.",
    "verify": "Prove that two checkpoints hold the same tensors.",
    "diff": "What changed between two checkpoints.",
    "hash": "Ids of the tensors and of the whole, the same in every container.",
    "formats": "What can be read and written.",
    "doctor": "Is this installation in order?",
}

_ABOUT = "tael: one tool for neural-network weight files. Open them safely, see what is inside, convert, prove."
EXAMPLES = (
    ("tael inspect model.safetensors", "look inside"),
    ("tael convert model.pt model.safetensors --dtype bf16", "change container and precision"),
    ("tael verify model.pt model.safetensors --rtol 1e-2", "compare the two"),
)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit code."""
    line = list(sys.argv[1:] if args is None else args)
    if line == ["--version"]:  # asked for by scripts: no need to load the option parser
        sys.stdout.write(f"tael {tael.__version__}\n")
        return 0
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a name that this terminal cannot spell is no reason to stop
            stream.reconfigure(errors="backslashreplace")
    from tael.cli import failure

    gc.set_threshold(100_000, 50, 50)  # headers are many objects that stay: the defaults walk them again and again
    try:
        code = _run(line)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        return failure.report(error, as_json="--json" in line)
    return code


def _run(line: list[str]) -> int:
    import typer

    program = group()
    if "_TAEL_COMPLETE" in os.environ:
        return int(program.main(line, prog_name="tael", standalone_mode=False) or 0)
    try:
        with program.make_context("tael", line or ["--help"]) as context:
            return int(program.invoke(context) or 0)
    except typer.Exit as end:
        return end.exit_code


def group() -> Any:
    """The option parser of the whole command line."""
    import typer
    from typer.core import TyperGroup

    from tael.cli import help, screen

    class LazyGroup(TyperGroup):
        """Verbs from the table, imported when they are called."""

        def list_commands(self, ctx: Any) -> list[str]:
            return list(VERBS)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            return verb(cmd_name) if cmd_name in VERBS else None

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args[0] not in VERBS and not args[0].startswith("-"):
                _unknown_verb(args[0], ctx)
            return super().resolve_command(ctx, args)

        def format_help(self, ctx: Any, formatter: Any) -> None:
            formatter.write(help.program_help(_ABOUT, VERBS, self, ctx, EXAMPLES, screen.stdout()))

    app = typer.Typer(
        cls=LazyGroup,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def program(version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True)) -> None:
        if version:
            sys.stdout.write(f"tael {tael.__version__}\n")
            raise typer.Exit

    return typer.main.get_group(app)


def verb(name: str) -> Any:
    """The parser of one verb."""
    import typer

    from tael.cli import help

    module = importlib.import_module(f"tael.cli.{name}")
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {"help_option_names": ["-h", "--help"]}
    app.command(name, cls=help.VerbCommand, context_settings=settings)(getattr(module, name))
    command: Any = typer.main.get_command(app)
    command.examples = module.EXAMPLES
    for param in command.params:
        if hasattr(param, "_runtime_param"):  # newer typers coerce by pydantic, which takes 0.1 s to import
            param._runtime_param = _AsTyped()
    return command


class _AsTyped:
    """Values as they were typed: every option of ours is a string, a list of strings or a flag."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        return value


def _unknown_verb(word: str, ctx: Any) -> NoReturn:
    from tael.cli.text import safe
    from tael.errors import TaelError

    near = difflib.get_close_matches(word, VERBS, n=1)
    if near:
        hint = f"did you mean `tael {near[0]}`?"
    elif os.path.exists(word) or "://" in word:
        hint = f"to look inside: tael inspect {safe(word)}"
    else:
        hint = "`tael --help` lists the verbs"
    raise TaelError(f"no verb '{safe(word, 80)}'", hint=hint)
