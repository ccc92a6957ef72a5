# SPDX-License-Identifier: Apache-2.0
"""Quantizing: Q1, Q4. Q3, D1, D2 and D8 are in tests/quantize/test_quantize.py, Q5 and Q6 in test_gguf_files.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.building import checkpoint

import tael
from tael.convert import plan_conversion
from tael.convert.execute import execute
from tael.errors import TransformError

LLAMA = {"general.architecture": "llama", "llama.block_count": 1}


def write(path: Path, contents: dict[str, np.ndarray], metadata: dict[str, object]) -> Path:
    execute(plan_conversion(checkpoint(contents, metadata=metadata), path))
    return path


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float16)


@pytest.mark.parametrize(
    ("shape", "kind", "words"),
    [
        ((4, 288), "IQ4_NL", "rows of 288 are no multiple of 256, the block of IQ4_XS: IQ4_NL instead (+6 %)"),
        ((4, 256), "IQ4_XS", "ffn_up"),
        ((4, 100), "F16", "rows of 100 are no multiple of 256, the block of IQ4_XS: F16 instead (+276 %)"),
        ((288, 256), "IQ4_XS", "ffn_up"),
    ],
)
def test_q1_columns_decide_and_the_fallback_says_rule_choice_and_size(
    tmp_path: Path, shape: tuple[int, int], kind: str, words: str
) -> None:
    source = write(tmp_path / "m.gguf", {"blk.0.ffn_up.weight": ones(*shape), "output.weight": ones(4, 256)}, LLAMA)
    result = tael.quantize(source, tmp_path / "q.gguf", "IQ4_XS", dry_run=True)
    choice = next(c for c in result.levels[0].choices if c.name == "blk.0.ffn_up.weight")
    assert (choice.dtype.name, choice.why) == (kind, words)
    assert choice.fallback == (kind != "IQ4_XS")


def importance(path: Path, entries: dict[str, tuple[int, int]]) -> Path:
    random = np.random.default_rng(3)
    contents = {}
    for name, shape in entries.items():
        contents[f"{name}.in_sum2"] = random.random(shape).astype(np.float32)
        contents[f"{name}.counts"] = np.ones((shape[0], 1), np.float32)
    return write(path, contents, {"general.type": "imatrix"})


def test_q4_split_and_stacked_experts_find_each_other(tmp_path: Path) -> None:
    stacked = write(tmp_path / "stacked.gguf", {"blk.0.ffn_gate_exps.weight": ones(3, 4, 256)}, LLAMA)
    split = write(tmp_path / "split.gguf", {f"blk.0.ffn_gate.{k}.weight": ones(4, 256) for k in range(3)}, LLAMA)
    for_stacked = importance(tmp_path / "a.gguf", {"blk.0.ffn_gate_exps.weight": (3, 256)})
    for_split = importance(tmp_path / "b.gguf", {f"blk.0.ffn_gate.{k}.weight": (1, 256) for k in range(3)})
    for model in (stacked, split):
        for matrix in (for_stacked, for_split):
            result = tael.quantize(model, tmp_path / "q.gguf", "IQ2_M", imatrix=matrix, dry_run=True)
            assert result.match is not None
            assert not result.match.without_entry
            assert not result.match.without_tensor


def test_q4_what_does_not_match_is_listed_on_both_sides_and_a_wrong_size_is_named(tmp_path: Path) -> None:
    contents = {"blk.0.ffn_gate.0.weight": ones(4, 256), "blk.0.ffn_up.weight": ones(4, 256)}
    model = write(tmp_path / "m.gguf", contents, LLAMA)
    matrix = importance(tmp_path / "i.gguf", {"blk.0.ffn_up.weight": (1, 256), "blk.9.ffn_up.weight": (1, 256)})
    result = tael.quantize(model, tmp_path / "q.gguf", "Q4_K_M", imatrix=matrix, dry_run=True)
    assert result.match is not None
    assert list(result.match.without_entry) == ["blk.0.ffn_gate.0.weight"]
    assert list(result.match.without_tensor) == ["blk.9.ffn_up.weight"]
    matrix = importance(tmp_path / "j.gguf", {"blk.0.ffn_up.weight": (1, 512)})
    with pytest.raises(TransformError, match="512 values for it, 256 are needed") as caught:
        tael.quantize(model, tmp_path / "q.gguf", "Q4_K_M", imatrix=matrix)
    assert caught.value.tensor == "blk.0.ffn_up.weight"
