# SPDX-License-Identifier: Apache-2.0
"""GGML files in the programs that read them: ctransformers the old file, llama.cpp the GGUF made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggml_files as made
from peers.run_model import Run, run
from tael.convert import plan_conversion
from tael.convert.execute import execute
from tael.core.limits import DEFAULT
from tael.core.location import locate
from tael.formats import ggml

pytestmark = pytest.mark.peer

VECTORS = Path(__file__).parent.parent / "vectors" / "ggml"
GENERATED: dict[str, Any] = json.loads((VECTORS / "generated.json").read_text("utf-8"))
OLDER = {  # the same numbers in older containers and blocks -> the file that ctransformers was asked about
    "ggmf-llama-q4_0.bin": "ggjt3-llama-q4_0.bin",
    "ggjt1-llama-q4_0.bin": "ggjt3-llama-q4_0.bin",
    "ggjt2-llama-q4_0.bin": "ggjt3-llama-q4_0.bin",
}


def as_gguf(old: Path, folder: Path) -> Path:
    target = folder / f"{old.stem}.gguf"
    with ggml.open(locate(old), DEFAULT) as checkpoint:
        execute(plan_conversion(checkpoint, target))
    return target


def in_llama_cpp(old: Path, folder: Path, prompt: Sequence[int] | str) -> Run:
    return run("llama.cpp", as_gguf(old, folder), prompt)


def assert_close(found: Sequence[float], wanted: Sequence[float]) -> None:
    """ctransformers looks its GELU up in a table of F16, and quantizes activations by older code."""
    a, b = np.array(found), np.array(wanted)
    assert a.shape == b.shape
    assert np.abs(a - b).max() < 0.05 * np.abs(b).max()


@pytest.mark.parametrize("name", [name for name in GENERATED if not name.startswith("gptj")] + list(OLDER))
def test_llama_cpp_goes_on_as_the_old_program_did(name: str, tmp_path: Path) -> None:
    wanted = GENERATED[OLDER.get(name, name)]
    found = in_llama_cpp(VECTORS / name, tmp_path, wanted["prompt"])
    assert found.tokens == wanted["tokens"]
    assert_close(found.logits, wanted["logits"])


@pytest.mark.parametrize("name", ["ggml-llama-f16.bin", "gpt2-q4_0-v1.bin", "bloom-f16.bin"])
def test_what_no_old_program_reads_loads_and_generates(name: str, tmp_path: Path) -> None:
    found = in_llama_cpp(VECTORS / name, tmp_path, [50, 51, 52])
    assert len(found.tokens) == 8
    assert np.isfinite(found.logits).all()


BIG = made.Size(embd=256, heads=4, layers=2)
TYPES = {
    "llama": (made.llama(kind="Q8_0", size=BIG), "llama"),
    "gpt2": (made.gpt2("F16", size=BIG, head=True), "gpt2"),
    "gptneox": (made.gptneox("F16", size=BIG, parallel=0), "gpt_neox"),
    "mpt": (made.mpt("F16", size=BIG, clip=1.5), "mpt"),
}


@pytest.mark.parametrize("family", TYPES)
def test_two_layers_and_four_heads(family: str, tmp_path: Path) -> None:
    data, kind = TYPES[family]
    (tmp_path / "old.bin").write_bytes(data)
    prompt = [70, 104, 105, 50, 200, 33]
    wanted = run(kind, tmp_path / "old.bin", prompt, 4)
    found = run("llama.cpp", as_gguf(tmp_path / "old.bin", tmp_path), prompt, 4)
    assert found.tokens == wanted.tokens
    assert_close(found.logits, wanted.logits)


@pytest.mark.parametrize("name", ["gpt2-f16.bin", "mpt-q8_0.bin", "gptneox-q8_0.bin", "replit-q4_0.bin"])
def test_text_is_cut_into_the_same_tokens(name: str, tmp_path: Path) -> None:
    text = "hello the" if name.startswith("replit") else "hello the and in"
    wanted = run(GENERATED[name]["type"], VECTORS / name, text)
    assert in_llama_cpp(VECTORS / name, tmp_path, text).prompt == wanted.prompt


def test_text_of_a_llama_begins_with_a_space(tmp_path: Path) -> None:
    """What llama.cpp's program put there itself in those days; a text that has one is cut alike by both."""
    name = "ggjt3-llama-q4_0.bin"
    wanted = run("llama", VECTORS / name, " hello the")
    assert in_llama_cpp(VECTORS / name, tmp_path, "hello the").prompt == wanted.prompt


@pytest.mark.parametrize("name", GENERATED)
def test_the_golden_files_are_read_by_ctransformers(name: str) -> None:
    wanted = GENERATED[name]
    found = run(wanted["type"], VECTORS / name, wanted["prompt"])
    assert found.tokens == wanted["tokens"]
