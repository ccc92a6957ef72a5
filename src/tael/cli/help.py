# SPDX-License-Identifier: Apache-2.0
"""What `--help` prints: what the verb does, how it is called, its options by group, and examples that work."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

from tael.cli import screen

_WIDEST = 100
_COLUMN = 26  # where the explanations start


class Example(NamedTuple):
    """A command line that runs, and what it is good for."""

    command: str
    purpose: str


def verb_help(command: Any, ctx: Any, out: screen.Screen) -> str:
    """The help text of one verb."""
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    usage = " ".join([ctx.command_path, "[OPTIONS]", *(_metavar(param) for param in arguments)])
    summary, _, rest = (command.help or "").partition("\n\n")
    lines = [*_paragraphs(summary, out), "", f"{_title('Usage:', out)} {usage}", ""]
    if rest:
        lines += [*_paragraphs(rest, out), ""]
    if arguments:
        lines += [*_section("Arguments", [(_metavar(param), param.help or "") for param in arguments], out), ""]
    for group, rows in _groups(command, ctx):
        lines += [*_section(group, rows, out), ""]
    if command.examples:
        lines += [_title("Examples:", out)]
        for example in command.examples:
            lines += [f"  {out.paint('# ' + example.purpose, 'dim')}", f"  {example.command}"]
    return "\n".join(lines).rstrip() + "\n"


def _groups(command: Any, ctx: Any) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    """Options under their headings, in the order in which the headings first appear; "Output" last."""
    groups: dict[str, list[tuple[str, str]]] = {}
    params = [param for param in command.get_params(ctx) if param.param_type_name != "argument" and not param.hidden]
    for param in params:
        heading = getattr(param, "rich_help_panel", None) or "Options"
        if param.name == "help" and "Output" in groups:
            heading = "Output"
        groups.setdefault(heading, []).append((_spelling(param), param.help or ""))
    return sorted(groups.items(), key=lambda item: item[0] == "Output")


def _spelling(param: Any) -> str:
    names = ", ".join(sorted(param.opts, key=len))
    return names if param.is_flag else f"{names} {param.metavar or 'TEXT'}"


def _metavar(param: Any) -> str:
    name = param.metavar or param.name.upper()
    return f"{name}..." if param.nargs != 1 else name


def _title(text: str, out: screen.Screen) -> str:
    return out.paint(text, "bold")


def _section(title: str, rows: Iterable[tuple[str, str]], out: screen.Screen, column: int = _COLUMN) -> list[str]:
    lines = [_title(f"{title}:", out)]
    width = min(out.columns, _WIDEST) - column - 2
    for name, about in rows:
        wrapped = textwrap.wrap(about, width) or [""]
        first = f"  {out.paint(name, 'cyan')}"
        if len(name) > column - 2:
            lines.append(first)
        else:
            lines.append(f"{first}{' ' * (column - len(name))}{wrapped.pop(0)}".rstrip())
        lines += [f"{' ' * (column + 2)}{line}" for line in wrapped]
    return lines


def _paragraphs(text: str, out: screen.Screen) -> list[str]:
    """Paragraphs wrapped; indented ones as they are."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", textwrap.dedent(text).strip()):
        lines += [""] if lines else []
        indented = all(line.startswith("  ") for line in paragraph.splitlines())
        lines += (
            paragraph.splitlines()
            if indented
            else textwrap.wrap(" ".join(paragraph.split()), min(out.columns, _WIDEST))
        )
    return lines


def program_help(
    about: str, verbs: dict[str, str], command: Any, ctx: Any, examples: Iterable[tuple[str, str]], out: screen.Screen
) -> str:
    """The help text of the whole command."""
    lines = [*_paragraphs(about, out), "", f"{_title('Usage:', out)} {ctx.command_path} VERB [OPTIONS] ...", ""]
    lines += [*_section("Verbs", verbs.items(), out, column=12), ""]
    for group, rows in _groups(command, ctx):
        lines += [*_section(group, rows, out, column=12), ""]
    lines += [_title("Examples:", out)]
    for line, purpose in examples:
        lines += [f"  {out.paint('# ' + purpose, 'dim')}", f"  {line}"]
    return "\n".join([*lines, "", f"`{ctx.command_path} VERB --help` explains a verb."]) + "\n"
