# SPDX-License-Identifier: Apache-2.0
"""What fits where: the summary on one screen, rows within the terminal, the largest modules first."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from building import checkpoint
from cli import corpus
from tael.cli import app, inspect_views, module_views
from tael.cli.screen import Screen
from tael.cli.text import cells
from tael.core.checkpoint import Checkpoint
from tael.core.dtypes import DTYPES
from tael.core.problem import Problem
from tael.core.tensor import TensorInfo
from tael.inspection.modules import module_tree
from tael.inspection.summary import summarize


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Pipe(io.StringIO):
    encoding = "utf-8"


def shown(found: Checkpoint, monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> list[str]:
    """The whole summary, as a terminal of this width has it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    summary = summarize(found)
    inspect_views.title(Screen(stream), summary, files=3)
    inspect_views.summary(Screen(stream), summary)
    return stream.getvalue().splitlines()


def everything() -> Checkpoint:
    """Many of everything, with long names."""
    kinds = ["float32", "float16", "float64", "int64", "int32", "uint8", "bool", "complex64"]
    arrays = {
        f"{'part' * 9}{n % 17}.layers.{n}.{'sub' * 20}{n % 5}.weight": np.zeros((3, n + 1), kinds[n % len(kinds)])
        for n in range(200)
    }
    problems = [Problem("warning", f"something odd {n} " + "word " * 12, f"file{n}", f"tensor{n}") for n in range(30)]
    metadata = {f"{'key' * 10}{n}": "value " * 500 for n in range(50)}
    return checkpoint(arrays, format="safetensors", metadata=metadata, problems=problems)


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_the_summary_fits_on_one_screen(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(everything(), monkeypatch, columns)
    assert len(lines) <= (45 if columns < 100 else 40), "\n".join(lines)
    assert max(map(cells, lines)) <= columns
    text = "\n".join(lines)
    for part in ("types", "modules", "metadata", "problems", "... 26 more problems", "... 46 more entries"):
        assert part in text


def test_a_training_checkpoint_fits_on_one_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus.build(tmp_path)
    assert app.main(["inspect", str(tmp_path / "train.ckpt")]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 40


def test_an_empty_checkpoint_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(checkpoint({}, format="safetensors"), monkeypatch)[1].startswith("SafeTensors · 0 tensors")


def rows(names: dict[str, int], most: int) -> list[str]:
    stream = Pipe()
    found = checkpoint({name: np.zeros(size, np.uint8) for name, size in names.items()})
    module_views.modules(Screen(stream), module_tree(tensor.info for tensor in found.tensors.values()), most)
    return [line.rstrip("━╸ ").rstrip() for line in stream.getvalue().splitlines()[2:]]


def test_the_largest_modules_are_opened_and_small_ones_are_not() -> None:
    names = {"net.big.a.w": 500, "net.big.b.w": 400, "net.small.a.w": 1, "net.small.b.w": 1, "net.small.c.w": 1}
    assert [line.split()[0] for line in rows(names, 4)] == ["net.big", "a", "b", "net.small"]
    assert [line.split()[0] for line in rows(names, 9)] == ["net.big", "a", "b", "net.small", "a", "b", "c"]


def test_what_does_not_fit_is_summed_up() -> None:
    names = {f"m{chr(97 + n // 26)}{chr(97 + n % 26)}.w": n + 1 for n in range(100)}
    found = rows(names, 10)
    assert len(found) == 10
    assert found[-1].split()[:4] == ["...", "91", "more", "modules"]
    assert found[-1].split()[4] == f"{sum(range(1, 92)):,}"


def test_equal_layers_are_one_row() -> None:
    names = {f"h.{n}.{part}.w": 4 for n in range(12) for part in ("attn", "mlp")}
    assert [line.split()[:2] for line in rows(names, 12)] == [["h.*.attn", "×12"], ["h.*.mlp", "×12"]]
    stream = Pipe()
    found = checkpoint({name: np.zeros(size, np.uint8) for name, size in names.items()})
    module_views.tree(Screen(stream), module_tree(tensor.info for tensor in found.tensors.values()))
    assert "h.* ×12" in stream.getvalue()


def test_the_largest_of_many_modules_are_found_without_looking_at_all_again(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = module_tree(TensorInfo(f"t{i}", DTYPES["F32"], (1,)) for i in range(5000))
    calls: list[str] = []
    real = module_views.joined
    monkeypatch.setattr(module_views, "joined", lambda module: calls.append(module.name) or real(module))
    assert module_views.expanded(flat, 12) == {id(flat)}
    assert not calls
    names = [f"{a}.{b}.x{c}" for a in "abc" for b in "defg" for c in range(300)]
    deep = module_tree(TensorInfo(name, DTYPES["F32"], (1,)) for name in names)
    assert module_views.expanded(deep, 12) == {id(deep), id(deep.children["a"]), id(deep.children["b"])}
    assert len(calls) <= 12
