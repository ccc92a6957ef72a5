# SPDX-License-Identifier: Apache-2.0
"""Names: N2 N5 N6 N8."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases.files import converted, safetensors, values
from tael.convert import convert
from tael.errors import TransformError

A, B, C = (np.full((2, 2), number, np.float32) for number in (1, 2, 3))


def pickled(path: Path, content: Any) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path


def plain(tmp_path: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    path = tmp_path / "in.safetensors"
    path.write_bytes(safetensors(tensors))
    return path


def test_n2_orig_mod_goes_wherever_it_stands_in_the_name(tmp_path: Path) -> None:
    state = {"model._orig_mod.l.weight": A, "_orig_mod.module.b": B, "clean.c": C}
    source = pickled(tmp_path / "x.ckpt", {"state_dict": state, "epoch": 3})
    back = converted(source, tmp_path / "y.safetensors", strip_prefix="auto")
    assert back.keys() == {"model.l.weight", "module.b", "clean.c"} or back.keys() == {"model.l.weight", "b", "clean.c"}
    assert (back["model.l.weight"] == A).all()


def test_n2_a_collision_is_refused_with_both_names(tmp_path: Path) -> None:
    source = plain(tmp_path, {"_orig_mod.a": A, "a": B})
    with pytest.raises(TransformError, match=r"_orig_mod\.a"):
        convert(source, tmp_path / "y.safetensors", strip_prefix="auto")


NORMS = {"ls1.gamma": A, "LayerNorm.gamma": B, "LayerNorm.beta": C, "gamma_proj.weight": A}


def test_n5_gamma_and_beta_stay_unless_asked(tmp_path: Path) -> None:
    assert converted(plain(tmp_path, NORMS), tmp_path / "y.pt").keys() == NORMS.keys()


def test_n5_only_those_of_layernorm_are_renamed_and_it_is_said(tmp_path: Path) -> None:
    result = convert(plain(tmp_path, NORMS), tmp_path / "y.safetensors", fix_names=True)
    back = values(tmp_path / "y.safetensors")
    assert back.keys() == {"ls1.gamma", "LayerNorm.weight", "LayerNorm.bias", "gamma_proj.weight"}
    assert (back["LayerNorm.bias"] == C).all()
    assert "LayerNorm" in "\n".join(result.notes)


def weight_normed() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {"conv.weight_g": rng.random((8, 1, 1), np.float32), "conv.weight_v": rng.random((8, 4, 3), np.float32)}


def test_n6_weight_norm_names_map_both_ways(tmp_path: Path) -> None:
    pair = weight_normed()
    new = converted(plain(tmp_path, pair), tmp_path / "new.safetensors", weight_norm="parametrizations")
    prefix = "conv.parametrizations.weight.original"
    assert new.keys() == {f"{prefix}0", f"{prefix}1"}
    assert (new[f"{prefix}0"] == pair["conv.weight_g"]).all()
    old = converted(tmp_path / "new.safetensors", tmp_path / "old.safetensors", weight_norm="weight_g")
    assert {name: array.tobytes() for name, array in old.items()} == {n: a.tobytes() for n, a in pair.items()}


def test_n6_weight_norm_folds_to_a_plain_weight(tmp_path: Path) -> None:
    pair = weight_normed()
    g, v = pair.values()
    wanted = g * v / np.sqrt((v.astype(np.float64) ** 2).sum(axis=(1, 2), keepdims=True))
    back = converted(plain(tmp_path, pair), tmp_path / "y.safetensors", weight_norm="fold")
    assert back.keys() == {"conv.weight"}
    np.testing.assert_allclose(back["conv.weight"], wanted, rtol=2e-7)


def test_n8_ema_weights_are_the_ema_weights_under_the_plain_names(tmp_path: Path) -> None:
    state = {
        "model.diffusion_model.x": A * 0,
        "model_ema.diffusion_modelx": A,
        "model_ema.decay": np.float32(0.99).reshape(()),
    }
    source = pickled(tmp_path / "x.ckpt", {"state_dict": state, "global_step": 7})
    plain_weights = converted(source, tmp_path / "plain.safetensors")
    ema = converted(source, tmp_path / "ema.safetensors", part="ema")
    assert (plain_weights["model.diffusion_model.x"] == 0).all()
    assert ema.keys() == {"model.diffusion_model.x"}
    assert (ema["model.diffusion_model.x"] == 1).all()
