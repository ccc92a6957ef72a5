# SPDX-License-Identifier: Apache-2.0
"""The option parser: typer, with verbs that are imported when they are called and help in our own layout."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import tael
from tael.cli import app, help, screen
from tael.cli.text import safe
from tael.errors import TaelError

_HELP_NAMES = {"help_option_names": ["-h", "--help"]}


def program() -> Any:
    """The parser of the whole command line."""
    whole = typer.Typer(cls=LazyGroup, add_completion=False, rich_markup_mode=None, context_settings=_HELP_NAMES)

    @whole.callback()
    def tael_(version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True)) -> None:
        if version:
            sys.stdout.write(f"tael {tael.__version__}\n")
            raise typer.Exit

    return typer.main.get_group(whole)


def verb(name: str) -> Any:
    """The parser of one verb."""
    module = importlib.import_module(f"tael.cli.{name}")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, cls=VerbCommand, context_settings=_HELP_NAMES)(getattr(module, name))
    command: Any = typer.main.get_command(alone)
    command.examples = module.EXAMPLES
    return command


class LazyGroup(TyperGroup):
    """The verbs of the table."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(app.VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return verb(cmd_name) if cmd_name in app.VERBS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in app.VERBS and not args[0].startswith("-"):
            _unknown_verb(args[0])
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> Any:
        return _as_typed(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help.program_help(app.ABOUT, app.VERBS, self, ctx, app.EXAMPLES, screen.stdout()))


class VerbCommand(TyperCommand):
    """A verb with examples."""

    examples: tuple[help.Example, ...] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for param in self.params:  # an empty variable of a script must not read as "not given"
            given = ctx.params.get(param.name or "")
            if given == "" or (isinstance(given, (list, tuple)) and "" in given):
                name = max(param.opts, key=len) if param.param_type_name == "option" else (param.metavar or param.name)
                raise TaelError(f"{name} is empty", hint=f"see `{ctx.command_path} --help`")
        return rest

    def get_params(self, ctx: Any) -> Any:
        return _as_typed(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help.verb_help(self, ctx, screen.stdout()))


def _as_typed(params: Any) -> Any:
    """`params` without conversion of their values, which newer typers do by pydantic: 0.1 s to import."""
    for param in params:
        if hasattr(param, "_runtime_param"):
            param._runtime_param = _AsTyped()
    return params


class _AsTyped:
    """Every option of ours is a string, a list of strings or a flag."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        return bool(value) if getattr(param, "is_flag", False) else value


def _unknown_verb(word: str) -> NoReturn:
    near = difflib.get_close_matches(word, app.VERBS, n=1)
    if near:
        hint = f"did you mean `tael {near[0]}`?"
    elif os.path.exists(word) or "://" in word:
        hint = f"to look inside: tael inspect {safe(word)}"
    else:
        hint = "`tael --help` lists the verbs"
    raise TaelError(f"no verb '{safe(word, 80)}'", hint=hint)
