# SPDX-License-Identifier: Apache-2.0
"""Block types in and out of containers that lack them: dequantized by default, or kept as bytes and brought back."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.building import checkpoint

import tael
from tael import kernels
from tael.convert import convert, plan_conversion
from tael.convert.execute import execute
from tael.core.dtypes import DTYPES

VALUES = np.random.default_rng(9).standard_normal((6, 512)).astype(np.float32)


def blocks(name: str) -> tuple[str, tuple[int, int], bytes]:
    kind = DTYPES[name]
    out = np.empty(VALUES.size // kind.block * kind.block_bytes, np.uint8)
    assert kernels.quantize(name, VALUES, out, 512) == -1
    return name, (6, 512), out.tobytes()


def floats(name: str) -> np.ndarray:
    out = np.empty((6, 512), np.float32)
    kernels.dequantize(name, blocks(name)[2], out)
    return out


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    tensors = {"a.weight": blocks("Q4_K"), "b.weight": blocks("Q8_0"), "norm": np.ones(3, np.float32)}
    execute(plan_conversion(checkpoint(tensors, aliases={"tied.weight": "a.weight"}), path))
    return path


def same_content(path: Path, wanted: Path) -> None:
    """The same metadata, and every tensor's dtype and bytes; the order may be another container's."""
    with tael.open(path) as ours, tael.open(wanted) as theirs:
        assert ours.metadata == theirs.metadata
        assert {name: tensor.info for name, tensor in ours.tensors.items()} == {
            name: tensor.info for name, tensor in theirs.tensors.items()
        }
        for name, tensor in ours.tensors.items():
            assert b"".join(map(bytes, tensor.chunks())) == b"".join(map(bytes, theirs.tensors[name].chunks()))


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".npz"])
def test_blocks_become_floats(model: Path, tmp_path: Path, suffix: str) -> None:
    convert(model, tmp_path / f"x{suffix}")
    with tael.open(tmp_path / f"x{suffix}") as opened:
        assert opened.tensors["a.weight"].numpy().tobytes() == floats("Q4_K").tobytes()
        assert opened.tensors["b.weight"].numpy().tobytes() == floats("Q8_0").tobytes()
        assert opened.tensors["tied.weight"].info.alias_of == "a.weight"


def test_a_dtype_asks_for_floats_also_where_blocks_fit(model: Path, tmp_path: Path) -> None:
    convert(model, tmp_path / "x.gguf", dtype="bf16")
    with tael.open(tmp_path / "x.gguf") as opened:
        wanted = floats("Q4_K").astype(ml_dtypes.bfloat16)
        assert opened.tensors["a.weight"].numpy().tobytes() == wanted.tobytes()
        assert {tensor.dtype.name for tensor in opened.tensors.values()} == {"BF16"}


def test_without_a_dtype_gguf_keeps_blocks(model: Path, tmp_path: Path) -> None:
    convert(model, tmp_path / "x.gguf")
    assert (tmp_path / "x.gguf").read_bytes() == model.read_bytes()


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".npz"])
def test_kept_blocks_come_back_bit_for_bit(model: Path, tmp_path: Path, suffix: str) -> None:
    kept = tmp_path / f"kept{suffix}"
    convert(model, kept, keep_blocks=True)
    with tael.open(kept) as opened:
        assert opened.tensors["a.weight"].dtype.name == "U8"
        assert opened.tensors["a.weight"].shape == (6, 2 * 144)
    convert(kept, tmp_path / "back.gguf")
    same_content(tmp_path / "back.gguf", model)


def test_kept_blocks_stay_kept_between_such_containers(model: Path, tmp_path: Path) -> None:
    convert(model, tmp_path / "kept.safetensors", keep_blocks=True)
    convert(tmp_path / "kept.safetensors", tmp_path / "again.pt")
    convert(tmp_path / "again.pt", tmp_path / "back.gguf")
    same_content(tmp_path / "back.gguf", model)
    convert(tmp_path / "kept.safetensors", tmp_path / "floats.safetensors", dtype="f32")
    with tael.open(tmp_path / "floats.safetensors") as opened:
        assert opened.tensors["b.weight"].numpy().tobytes() == floats("Q8_0").tobytes()


def test_kept_blocks_may_be_renamed_and_selected(model: Path, tmp_path: Path) -> None:
    convert(model, tmp_path / "kept.safetensors", keep_blocks=True)
    convert(tmp_path / "kept.safetensors", tmp_path / "x.gguf", rename=["a.weight=c.weight"], drop=["b.weight"])
    with tael.open(tmp_path / "x.gguf") as opened:
        assert opened.tensors["c.weight"].dtype.name == "Q4_K"
        assert "b.weight" not in opened.tensors


def test_a_note_that_does_not_fit_leaves_the_bytes_alone(tmp_path: Path) -> None:
    tensors = {"a": np.zeros((2, 100), np.uint8), "b": np.zeros((2, 4), np.float32)}
    made = checkpoint(tensors, metadata={"tael.blocks": {"a": "Q4_K", "b": "Q8_0", "gone": "Q8_0", "x": 3}})
    execute(plan_conversion(made, tmp_path / "m.safetensors"))
    convert(tmp_path / "m.safetensors", tmp_path / "x.npz")
    with tael.open(tmp_path / "x.npz") as opened:
        assert opened.tensors["a"].dtype.name == "U8"
        assert opened.tensors["b"].dtype.name == "F32"
