# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io

import pytest

from tael.cli.screen import Screen
from tael.cli.table import Column, table


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Pipe(io.StringIO):
    encoding = "utf-8"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_a_terminal_gets_colours_and_a_pipe_does_not() -> None:
    assert Screen(Terminal()).paint("x", "red") == "\x1b[31mx\x1b[0m"
    assert Screen(Pipe()).paint("x", "red") == "x"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert Screen(Terminal()).paint("x", "red") == "x"


def test_colours_can_be_forced_into_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Screen(Pipe()).paint("x", "red") != "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen(Pipe()).paint("x", "red") == "x"


def test_the_width_of_the_terminal_is_kept_and_a_pipe_is_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    name = "model.layers.0.self_attn.q_proj.weight"
    columns = [Column("name", gives=True), Column("size", right=True)]
    for stream, cut in ((Terminal(), True), (Pipe(), False)):
        table(Screen(stream), columns, [(name, "1.2 MB"), ("b", "12 B")])
        lines = stream.getvalue().replace("\x1b[2m", "").replace("\x1b[0m", "").splitlines()
        assert (name not in lines[1]) == cut
        assert len({len(line) for line in lines}) == 1, "the last column is aligned to the right"
        assert not cut or max(map(len, lines)) <= 40


def test_painted_cells_stay_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = Pipe()
    table(Screen(stream), [Column(), Column()], [(("a", "red"), "x"), ("bbb", "y")])
    assert stream.getvalue() == "  \x1b[31ma\x1b[0m    x\n  bbb  y\n"


def test_wide_names_stay_aligned() -> None:
    stream = Pipe()
    table(Screen(stream), [Column(), Column()], [("权重", "x"), ("abcd", "y")])
    assert stream.getvalue() == "  权重  x\n  abcd  y\n"


def test_bars() -> None:
    screen = Screen(Pipe())
    assert screen.bar(1, 10) == "━" * 10
    assert screen.bar(0.5, 3) == "━╸"
    assert screen.bar(1e-9, 10) == "╸"
    assert screen.bar(0, 10) == ""


def test_an_ascii_terminal_gets_ascii() -> None:
    stream = Pipe()
    stream.encoding = "ascii"  # type: ignore[misc]
    screen = Screen(stream)
    assert (screen.bar(1, 4) + screen.dot).isascii()
