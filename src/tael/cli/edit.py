# SPDX-License-Identifier: Apache-2.0
"""`tael edit`: metadata of a GGUF file, in place where it fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tael.cli import options, output, screen
from tael.cli.help import Example
from tael.cli.options import RUNNING, SAFETY, argument, flag, value
from tael.cli.progress import bar
from tael.cli.table import Column, table
from tael.cli.text import parse_size, plural, safe, size
from tael.edit import Edit
from tael.errors import SourceNotFoundError, TaelError

EXAMPLES = (
    Example("tael edit model.gguf --set general.name='My model'", "another name, in place"),
    Example("tael edit model.gguf --chat-template template.jinja", "the chat template from a file"),
    Example("tael edit model.gguf --rename general.url=general.source.url --delete general.tags", "keys"),
    Example("tael edit model.gguf --token '5=<|im_end|>' --dry-run", "what a changed token would do"),
    Example("tael edit model.gguf --set general.version=2 --reserve 64KiB -o new.gguf", "a copy with room for more"),
)


def edit(
    path: Annotated[str, argument("PATH", "A GGUF file; of a split set, the first.")],
    setting: Annotated[
        list[str] | None,
        value("--set", "KEY=VALUE", "Set a key: numbers, true, false, text, JSON lists; may be given again."),
    ] = None,
    delete: Annotated[list[str] | None, value("--delete", "KEY", "Delete a key; may be given again.")] = None,
    rename: Annotated[list[str] | None, value("--rename", "OLD=NEW", "Rename a key; may be given again.")] = None,
    retype: Annotated[
        list[str] | None, value("--retype", "KEY=TYPE", "Give a key's value this type: u32, f32, str, [i32], ...")
    ] = None,
    chat_template: Annotated[
        str | None, value("--chat-template", "FILE", "Replace the chat template by this file's text.")
    ] = None,
    token: Annotated[
        list[str] | None, value("--token", "N=TEXT", "Replace the text of token N; may be given again.")
    ] = None,
    reserve: Annotated[
        str | None, value("--reserve", "SIZE", "Keep this much free for later edits, such as 64KiB.")
    ] = None,
    dst: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="DST", help="Write a changed copy here, and leave PATH as it is."),
    ] = None,
    force: Annotated[bool, flag("--force", "Replace DST if it is there.", SAFETY)] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Print what would change; write nothing.", RUNNING)] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Change the metadata of a GGUF file, in place.

    A header that fits into the old one's room is written in place, tensors untouched; the old header lies beside the
    file until the new one is on disk, so that an interrupted edit is undone by the next. A larger one needs a copy of
    the file, which then takes its place. Keys keep their type where the new value fits it.
    """
    from tael.edit import edit as run

    result = run(
        path,
        set=dict(_setting(text) for text in setting or ()),
        delete=delete or (),
        rename=dict(_pair("--rename", text) for text in rename or ()),
        retype=dict(_pair("--retype", text) for text in retype or ()),
        chat_template=None if chat_template is None else _text_of(chat_template),
        tokens={_number(n): text for n, text in (_pair("--token", t) for t in token or ())},
        reserve=0 if reserve is None else parse_size(reserve),
        dst=dst,
        force=force,
        dry_run=dry_run,
        progress=bar(quiet),
    )
    if as_json:
        output.document("tael.edit/1", _as_json(result, dry_run))
    elif not quiet:
        _show(screen.stdout(), result, dst, dry_run)
    return 0


def _pair(option: str, text: str) -> tuple[str, str]:
    left, sign, right = text.partition("=")
    if not sign or not left:
        raise TaelError(f"{option} '{safe(text, 80)}': two sides with = between them are needed")
    return left, right


def _setting(text: str) -> tuple[str, Any]:
    key, written = _pair("--set", text)
    try:
        found = json.loads(written)
    except (ValueError, RecursionError):
        return key, written
    return key, found if isinstance(found, bool | int | float | list) else written


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise TaelError(f"--token '{safe(text, 40)}=...': not the number of a token")
    return int(text)


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SourceNotFoundError("there is no such file", path=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaelError(f"cannot be read as text: {error}", path=path) from None


def _show(out: screen.Screen, result: Edit, dst: str | None, dry_run: bool) -> None:
    how = "in place" if result.in_place else f"a copy at {safe(dst)}" if dst else "by a copy that takes its place"
    verb = "would change" if dry_run else "changed"
    restored = "; an interrupted edit was undone first" if result.restored else ""
    out.line(f"{out.paint(safe(result.path), 'bold')}: {plural(len(result.changes), 'key')} {verb}, {how}{restored}")
    rows = [(safe(key, 80), _shown(a), _shown(b)) for key, (a, b) in result.changes.items()]
    table(out, [Column("key", gives=True), Column("before", gives=True), Column("after", gives=True)], rows)
    if result.in_place:
        out.line(out.paint(f"  header {size(result.header_bytes)} of {size(result.room)}", "dim"))


def _shown(found: Any) -> str:
    if found is None:
        return "-"
    kind, content = found
    if kind.startswith("["):
        return f"{len(content):,} x {kind[1:-1]}"
    return f"{safe(content, 60)} ({kind})"


def _as_json(result: Edit, dry_run: bool) -> dict[str, Any]:
    def one(found: Any) -> Any:
        if found is None:
            return None
        kind, content = found
        return {"type": kind, "value": output.plain(content) if not kind.startswith("[") else f"{len(content)} items"}

    return {
        "path": result.path,
        "dry_run": dry_run,
        "in_place": result.in_place,
        "restored": result.restored,
        "header_nbytes": result.header_bytes,
        "room": result.room,
        "changes": {key: {"before": one(a), "after": one(b)} for key, (a, b) in result.changes.items()},
    }
