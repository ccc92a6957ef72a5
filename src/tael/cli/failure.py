# SPDX-License-Identifier: Apache-2.0
"""How a run that did not work ends: one to three lines on standard error, an exit code, never a traceback by itself.

0 done, 1 a finding or a difference, 2 an error, 3 not inspected (`scan`), 130 interrupted, 141 our reader left.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import signal
import sys
import traceback
from typing import Any, TextIO

from tael.cli import screen
from tael.cli.text import json_line, safe
from tael.errors import TaelError, clip_path

OK = 0
FINDING = 1
ERROR = 2
INTERRUPTED = 128 + signal.SIGINT
READER_LEFT = 128 + 13  # SIGPIPE, which Windows does not have

_LONGEST_LINE = 1200
_HINT_LINES = 3
_PRINTERS = ("tael.cli.", "typer.", "click.")


def report(error: BaseException, *, as_json: bool = False) -> int:
    """Say what went wrong, and return the exit code."""
    _flush(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return READER_LEFT
    interrupted = isinstance(error, KeyboardInterrupt)
    facts = explain(error)
    if isinstance(error, OSError) and facts["path"] is None and _of_output(error):
        facts["path"] = "standard output"
    if as_json and not interrupted:
        with contextlib.suppress(OSError):
            sys.stdout.write(json_line(json.dumps({"schema": "tael.error/1", **facts}, ensure_ascii=False)) + "\n")
    with contextlib.suppress(OSError):  # where nobody can be told, the exit code still says it
        if os.environ.get("TAEL_DEBUG"):
            traceback.print_exception(error, file=sys.stderr)
        if interrupted:
            _say("interrupted", "", str(error) or None)
        else:
            _tell(facts)
    _flush(sys.stdout)
    _flush(sys.stderr)
    return INTERRUPTED if interrupted else ERROR


def _of_output(error: OSError) -> bool:
    """Was it raised as something was printed? The system's error names no stream, but whoever wrote to it does."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_globals.get("__name__", "").startswith(_PRINTERS)


def _flush(stream: TextIO) -> None:
    """Write out what is waiting. A stream that cannot take it goes nowhere from now on, or Python's exit would fail."""
    try:
        stream.flush()
    except (OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):
            pass  # closed, or no stream of the system
        finally:
            os.close(nowhere)


def _tell(facts: dict[str, Any]) -> None:
    where = [safe(clip_path(facts["path"]))] if facts["path"] is not None else []
    if facts["tensor"] is not None:
        where.append(f"tensor '{safe(facts['tensor'], 120)}'")
    if facts["offset"] is not None:
        where.append(f"byte {facts['offset']:,}")
    label = "bug" if facts["bug"] else "error"
    _say(label, ": ".join([*([", ".join(where)] if where else []), safe(facts["cause"], _LONGEST_LINE)]), facts["hint"])


def explain(error: BaseException) -> dict[str, Any]:
    """The error as facts: the body of `tael.error/1`."""
    facts: dict[str, Any] = {
        "error": type(error).__name__, "cause": str(error), "path": None, "tensor": None, "offset": None, "hint": None,
        "bug": False,
    }  # fmt: skip
    if isinstance(error, TaelError):
        return facts | {name: getattr(error, name) for name in ("cause", "path", "tensor", "offset", "hint")}
    if hasattr(error, "format_message"):  # what the option parser raises
        return facts | {"error": "UsageError"} | _usage(error)
    if isinstance(error, FileNotFoundError) and error.filename is None and not _is_somewhere():
        return facts | {"cause": "the current folder is gone", "path": ".", "hint": "change to a folder that is there"}
    if isinstance(error, OSError) and error.strerror:
        return facts | {"cause": error.strerror.lower(), "path": error.filename}
    if isinstance(error, MemoryError):
        return facts | {"cause": "out of memory", "hint": "try --threads 1, or --max-memory to know before starting"}
    return facts | {
        "bug": True,
        "cause": f"{type(error).__name__}: {error}",
        "hint": "this is a mistake in tael, not in your file: run again with TAEL_DEBUG=1 and report what it prints",
    }


def _is_somewhere() -> bool:
    """Does the current folder exist?"""
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _usage(error: Any) -> dict[str, Any]:
    """A mistake in the command line, in our words."""
    context = getattr(error, "ctx", None)
    hint = f"see `{context.command_path} --help`" if context is not None else None
    name = getattr(error, "option_name", None)
    if name and context is not None and name not in (known := [o for p in context.command.params for o in p.opts]):
        near = difflib.get_close_matches(name, known, n=1)
        return {"cause": f"no such option: {name}", "hint": f"did you mean {near[0]}? {hint}" if near else hint}
    message = error.format_message().rstrip(".")
    return {"cause": message[:1].lower() + message[1:], "hint": hint}


def _say(label: str, what: str, hint: str | None) -> None:
    out = screen.stderr()
    out.line(f"tael: {out.paint(label, 'bold', 'red')}{': ' if what else ''}{what}")
    for line in (hint or "").splitlines()[:_HINT_LINES]:
        out.line(f"  {safe(line.strip(), _LONGEST_LINE)}")
