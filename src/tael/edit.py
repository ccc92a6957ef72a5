# SPDX-License-Identifier: Apache-2.0
"""Edits the metadata of a GGUF file: in place where the new header fits into the old one's room, else by a copy.

The room is what lies before the first tensor: it never moves, so tensor bytes are not touched. What a shorter header
leaves over is filled by one string of spaces, `tael.reserved`, which readers pass over. Before the file is changed its
old header is written to NAME.header beside it; an edit that was interrupted is undone by the next one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tael.convert.atomic import target_error
from tael.convert.execute import execute
from tael.convert.plan import FileBuilder, Plan
from tael.core.callable_module import make_callable
from tael.core.limits import DEFAULT, Limits
from tael.core.node import Span
from tael.core.progress import SILENT, Progress
from tael.core.source import FileSource, read
from tael.errors import CorruptFileError, TargetError, TransformError, UnsupportedFormatError, clip
from tael.formats.gguf.header import ALIGNMENT_KEY, MAGIC, SWAPPED, Header, encode_header, parse
from tael.formats.gguf.metadata import RESERVED
from tael.formats.gguf.values import Value, fits, infer, is_kind

TEMPLATE = "tokenizer.chat_template"
TOKENS = "tokenizer.ggml.tokens"
JOURNAL = ".header"
_JOURNAL_MAGIC = b"tael header of "

Change = Callable[[dict[str, Value]], None]


@dataclass(slots=True)
class Edit:
    """What an edit did, or would do: key -> (before, after), None for what is not there."""

    path: str
    in_place: bool
    changes: dict[str, tuple[Value | None, Value | None]] = field(default_factory=dict)
    header_bytes: int = 0
    room: int = 0
    restored: bool = False  # an interrupted edit was undone first


def edit(
    path: str | os.PathLike[str],
    *,
    set: Mapping[str, Any] | None = None,
    retype: Mapping[str, str] | None = None,
    rename: Mapping[str, str] | None = None,
    delete: Sequence[str] = (),
    chat_template: str | None = None,
    tokens: Mapping[int, str] | None = None,
    reserve: int = 0,
    dst: str | os.PathLike[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = SILENT,
    limits: Limits = DEFAULT,
) -> Edit:
    """Change metadata of the GGUF file `path`, in this order: rename, retype, set, template and tokens, delete.

    set: key -> value; a key that is there keeps its type if the value fits. retype: key -> "u32", "[str]", ...
    tokens: number -> text, in `tokenizer.ggml.tokens`. reserve: bytes to keep free for later edits.
    dst: write a changed copy there instead. Raises `TransformError` for keys that are not there and values that do not
    fit, `UnsupportedFormatError` for what is no GGUF file in this machine's byte order.
    """
    where = os.fspath(path)
    restored = dst is None and not dry_run and _undo(where)
    source = FileSource(where)
    try:
        if read(source, 0, min(4, source.size)) not in (MAGIC, SWAPPED):
            raise UnsupportedFormatError("is no GGUF file: only those are edited", path=where)
        header = parse(source, limits)
        if header.big_endian:
            raise UnsupportedFormatError(
                "a big-endian file is not edited", path=where, hint="`tael convert` makes a little-endian one of it"
            )
        values = dict(header.values)
        slack = values.pop(RESERVED, None)
        before = dict(values)
        for change in _changes(set, retype, rename, delete, chat_template, tokens, where):
            change(values)
        result = Edit(where, False, _difference(before, values), restored=restored)
        if not result.changes and not reserve:
            raise TransformError("nothing changes", path=where)
        if reserve <= 0 and slack is not None and dst is not None:
            values[RESERVED] = slack
        fitted = _fitted(values, header, reserve)
        result.in_place = dst is None and fitted is not None
        data = fitted if fitted is not None else _with_reserve(values, header, reserve)
        result.header_bytes, result.room = len(data), header.data_start
        if dry_run:
            return result
        if result.in_place:
            _replace_header(where, source, data, header.data_start)
        else:
            _copy(source, header, data, where, os.fspath(dst) if dst is not None else None, force, progress)
        return result
    finally:
        source.close()


# --- what changes -----------------------------------------------------------------------------------------------------


def _changes(
    set: Mapping[str, Any] | None,
    retype: Mapping[str, str] | None,
    rename: Mapping[str, str] | None,
    delete: Sequence[str],
    chat_template: str | None,
    tokens: Mapping[int, str] | None,
    path: str,
) -> list[Change]:
    steps: list[Change] = []
    steps += [_renaming(old, new, path) for old, new in (rename or {}).items()]
    steps += [_retyping(key, kind, path) for key, kind in (retype or {}).items()]
    steps += [_setting(key, value, path) for key, value in (set or {}).items()]
    if chat_template is not None:
        steps.append(_setting(TEMPLATE, chat_template, path))
    if tokens:
        steps.append(_tokens(tokens, path))
    steps += [_deleting(key, path) for key in delete]
    return steps


def _present(values: Mapping[str, Value], key: str, path: str) -> Value:
    if key not in values:
        import difflib

        near = difflib.get_close_matches(key, values, n=3)
        hint = f"there is {', '.join(map(clip, near))}" if near else "`tael inspect --metadata` lists the keys"
        raise TransformError(f"there is no key {clip(key)!r}", path=path, hint=hint)
    return values[key]


def _renaming(old: str, new: str, path: str) -> Change:
    def change(values: dict[str, Value]) -> None:
        _present(values, old, path)
        if new in values:
            raise TransformError(f"there is a key {clip(new)!r} already", path=path)
        if not new or not fits("str", new):
            raise TransformError(f"{clip(new)!r} cannot be a key", path=path)
        items = [(new if key == old else key, value) for key, value in values.items()]
        values.clear()
        values.update(items)

    return change


def _retyping(key: str, kind: str, path: str) -> Change:
    def change(values: dict[str, Value]) -> None:
        value = _present(values, key, path).value
        if not is_kind(kind):
            raise TransformError(f"{clip(kind)!r} is no type of GGUF", path=path, hint="such as u32, f32, str, [i32]")
        if isinstance(value, float) and value.is_integer() and kind[:1] in "ui":
            value = int(value)
        if not fits(kind, value):
            raise TransformError(f"the value of {clip(key)!r} does not fit into {kind}", path=path)
        values[key] = Value(kind, float(value) if kind in ("f32", "f64") else value)

    return change


def _setting(key: str, value: Any, path: str) -> Change:
    def change(values: dict[str, Value]) -> None:
        if key == ALIGNMENT_KEY:
            raise TransformError("the alignment is where the tensors lie: it is not edited", path=path)
        old = values.get(key)
        kind = old.kind if old is not None and fits(old.kind, value) else infer(key, value)
        if old is not None and old.kind == "str" and kind != "str":
            raise TransformError(
                f"{clip(key)!r} is text; {clip(str(value))} is none", path=path, hint="--retype it first"
            )
        if kind is None or not key or not fits("str", key):
            raise TransformError(f"GGUF has no type for the value of {clip(key)!r}", path=path)
        values[key] = Value(kind, float(value) if kind in ("f32", "f64") else value)

    return change


def _tokens(tokens: Mapping[int, str], path: str) -> Change:
    def change(values: dict[str, Value]) -> None:
        old = _present(values, TOKENS, path)
        texts = list(old.value)
        for number, text in tokens.items():
            if not 0 <= number < len(texts):
                raise TransformError(f"there is no token {number:,}: there are {len(texts):,}", path=path)
            if not fits("str", text):
                raise TransformError(f"token {number:,} cannot be {clip(text)!r}", path=path)
            texts[number] = text
        values[TOKENS] = Value("[str]", texts)

    return change


def _deleting(key: str, path: str) -> Change:
    def change(values: dict[str, Value]) -> None:
        if key == ALIGNMENT_KEY:
            raise TransformError("the alignment is where the tensors lie: it is not deleted", path=path)
        _present(values, key, path)
        del values[key]

    return change


def _difference(
    before: Mapping[str, Value], after: Mapping[str, Value]
) -> dict[str, tuple[Value | None, Value | None]]:
    keys = [*before, *(key for key in after if key not in before)]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


# --- writing ----------------------------------------------------------------------------------------------------------


def _fitted(values: Mapping[str, Value], header: Header, reserve: int) -> bytes | None:
    """The new header so that the tensors stay where they are, or None. `reserve` bytes of it must be free."""
    plain = encode_header(values, header.infos)
    if not reserve and header.data_start - header.alignment < len(plain) <= header.data_start:
        return plain
    empty = len(encode_header({**values, RESERVED: Value("str", "")}, header.infos))
    free = header.data_start - empty
    if free < max(reserve, 0):
        return None
    return encode_header({**values, RESERVED: Value("str", " " * free)}, header.infos)


def _with_reserve(values: Mapping[str, Value], header: Header, reserve: int) -> bytes:
    extra = {RESERVED: Value("str", " " * reserve)} if reserve > 0 else {}
    return encode_header({**values, **extra}, header.infos)


def _copy(
    source: FileSource, header: Header, data: bytes, path: str, dst: str | None, force: bool, progress: Progress
) -> None:
    """The new header and all tensor bytes to `dst`, or to a file that then takes the place of `path`."""
    target = dst or f"{path}.edited"
    builder = FileBuilder(os.path.basename(target))
    builder.literal(data)
    builder.pad(header.alignment)
    builder.copy(Span(source, header.data_start, max(0, source.size - header.data_start)), "tensors")
    plan = Plan("gguf", target, False, (builder.finish(),))
    execute(plan, inputs=[source], force=force or dst is None, progress=progress)
    if dst is None:
        try:
            os.chmod(target, os.stat(path).st_mode & 0o7777)
            os.replace(target, path)
        except OSError as error:
            raise target_error(error, path) from None


def _replace_header(path: str, source: FileSource, data: bytes, room: int) -> None:
    """Write the header over the old one, which lies in the journal until the new one is on disk."""
    journal = path + JOURNAL
    old = os.pread(source.fd, room, 0)
    source.check_unchanged()
    try:
        with open(journal, "xb") as file:
            file.write(_JOURNAL_MAGIC + str(len(old)).encode() + b" bytes\n" + old)
            file.flush()
            os.fsync(file.fileno())
        fd = os.open(path, os.O_WRONLY)
        try:
            _write_all(fd, data.ljust(room, b"\0"))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.unlink(journal)
    except FileExistsError:
        raise TargetError("is there already, and is no header of an interrupted edit", path=journal) from None
    except OSError as error:
        raise target_error(error, path) from None


def _undo(path: str) -> bool:
    """Put the header of an interrupted edit back. False when there is none."""
    journal = path + JOURNAL
    try:
        with open(journal, "rb") as file:
            line = file.readline(64)
            old = file.read()
    except OSError:
        return False
    if not line.startswith(_JOURNAL_MAGIC):
        return False
    number = line[len(_JOURNAL_MAGIC) :].removesuffix(b" bytes\n")
    if number.isdigit() and int(number) == len(old):  # else it was cut short, and the file itself not yet touched
        if not os.path.isfile(path) or os.path.getsize(path) < len(old) or not old.startswith(b"GGUF"):
            raise CorruptFileError("the header of an interrupted edit does not belong to this file", path=journal)
        try:
            fd = os.open(path, os.O_WRONLY)
            try:
                _write_all(fd, old)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise target_error(error, path) from None
    os.unlink(journal)
    return True


def _write_all(fd: int, data: bytes) -> None:
    at = 0
    while at < len(data):
        at += os.pwrite(fd, data[at:], at)


make_callable(__name__, edit)
