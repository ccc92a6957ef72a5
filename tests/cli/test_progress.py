# SPDX-License-Identifier: Apache-2.0
"""The bar appears on a terminal only, after a second, and leaves nothing behind."""

from __future__ import annotations

import io
import sys

import pytest

from tael.cli import progress
from tael.core.progress import SILENT


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setenv("TERM", "xterm")
    return now


def test_a_pipe_and_quiet_get_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert progress.bar(quiet=False) is SILENT
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert progress.bar(quiet=False) is not SILENT
    assert progress.bar(quiet=True) is SILENT


def test_quick_work_shows_nothing_and_does_not_load_rich(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setitem(sys.modules, "rich.progress", None)  # importing it would fail
    bar = progress.bar(quiet=False)
    bar.start(100, "hash model")
    for _ in range(9):
        clock[0] += 0.1
        bar.advance(10)
    bar.finish()
    assert stream.getvalue() == ""


def test_long_work_shows_what_how_much_and_how_fast(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "100")
    bar = progress.bar(quiet=False)
    bar.start(4_000_000, "hash evil\x1b[2J\nname[bold]")
    clock[0] += 2
    bar.advance(1_000_000)
    bar.advance(1_000_000)
    bar.finish()
    printed = stream.getvalue()
    assert "hash evil\\x1b[2J\\nname[bold]" in printed
    assert "/4.0 MB" in printed
    assert printed.endswith(("\x1b[2K", "\x1b[?25h", "\r")) or "\x1b[2K" in printed, "it is wiped away"


def test_a_second_piece_of_work_starts_anew(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    bar = progress.bar(quiet=False)
    bar.start(10, "one")
    clock[0] += 2
    bar.advance(10)
    bar.start(10, "two")
    bar.advance(10)
    bar.finish()
    assert "one" in stream.getvalue()
    assert "two" not in stream.getvalue()
