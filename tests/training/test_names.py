# SPDX-License-Identifier: Apache-2.0
"""Prefixes of wrappers, and the names that changed with the libraries."""

from __future__ import annotations

import numpy as np
import pytest

import building
from tael.core.checkpoint import Checkpoint
from tael.errors import TransformError
from tael.formats.torch.tree import TensorLeaf
from tael.training.names import fix_layernorm_names, fold_weight_norm, rename_weight_norm, weight_norm_pairs
from tael.training.parts import select


def named(*names: str, **fields: object) -> Checkpoint:
    return building.checkpoint({name: np.full(1, n, np.float32) for n, name in enumerate(names)}, **fields)


def stripped(*names: str, prefix: str = "auto", **fields: object) -> list[str]:
    return list(select(named(*names, **fields), strip_prefix=prefix).tensors)


def test_n2_orig_mod_anywhere_in_the_name() -> None:
    assert stripped("model._orig_mod.l.weight", "_orig_mod.module.b", "clean") == [
        "model.l.weight",
        "module.b",
        "clean",
    ]
    assert stripped("_orig_mod.module._orig_mod.w", "_orig_mod.module.b") == ["w", "b"]
    assert stripped("a._orig_mod_x.w", "my_orig_mod.w") == ["a._orig_mod_x.w", "my_orig_mod.w"]


def test_n2_a_collision_is_refused_with_both_names() -> None:
    with pytest.raises(TransformError, match=r"'_orig_mod\.a' and 'a' would both be named 'a'"):
        stripped("_orig_mod.a", "a")


def test_wrappers_of_parallel_training() -> None:
    assert stripped("module.a", "module.b.w") == ["a", "b.w"]
    assert stripped("module.module.a", "module.module.b") == ["a", "b"]
    assert stripped("module.a", "head.b") == ["module.a", "head.b"]
    assert stripped("n_averaged", "module.a") == ["n_averaged", "a"]
    assert stripped("_fsdp_wrapped_module.a._fsdp_wrapped_module.w", "b._checkpoint_wrapped_module.w") == ["a.w", "b.w"]


def test_lightnings_attribute_only_when_every_name_has_it_and_only_of_lightning() -> None:
    lightning = {"pytorch-lightning_version": "2.6"}
    assert stripped("model.a", "model.b", metadata=lightning) == ["a", "b"]
    assert stripped("net.a", "net.b", metadata=lightning) == ["a", "b"]
    assert stripped("model.a", "loss.b", metadata=lightning) == ["model.a", "loss.b"]
    assert stripped("model.a", "model.b") == ["model.a", "model.b"]


def test_a_named_prefix() -> None:
    assert stripped("net.a", "other.b", prefix="net") == ["a", "other.b"]
    assert stripped("net.a.w", prefix="net.a.") == ["w"]
    with pytest.raises(TransformError, match=r"no name starts with 'model\.'") as error:
        stripped("net.a", "other.b", prefix="model")
    assert "net, other" in str(error.value)
    with pytest.raises(TransformError, match="would both be named"):
        stripped("net.a", "a", prefix="net")


def test_a_renaming_takes_ties_structure_and_lists_along() -> None:
    names = ("module.a", "module.b")
    tree = {name: TensorLeaf(name) for name in (*names, "module.tied")}
    source = named(
        *names, aliases={"module.tied": "module.a"}, extras={"torch.tree": tree, "torch.requires_grad": names}
    )
    result = select(source, strip_prefix="auto")
    assert result.aliases == {"tied": "a"}
    assert result.extras["torch.tree"] == {name: TensorLeaf(name) for name in ("a", "b", "tied")}
    assert result.extras["torch.requires_grad"] == ("a", "b")
    assert "of 3 names: module.a is now a" in str(result.problems[-1])


def test_without_being_asked_nothing_is_renamed() -> None:
    source = named("module.LayerNorm.gamma", "_orig_mod.weight_g", "model.x")
    assert select(source).tensors is source.tensors


def test_n5_only_layernorms_gamma_and_beta() -> None:
    source = named(
        "ls1.gamma", "bert.LayerNorm.gamma", "LayerNorm.beta", "gamma_proj.weight", "MyLayerNorm.gamma", "beta"
    )
    result = fix_layernorm_names(source)
    assert list(result.tensors) == [
        "ls1.gamma", "bert.LayerNorm.weight", "LayerNorm.bias", "gamma_proj.weight", "MyLayerNorm.gamma", "beta",
    ]  # fmt: skip
    assert "LayerNorm's gamma and beta in 2 of 6 names" in str(result.problems[-1])
    with pytest.raises(TransformError, match="would both be named"):
        fix_layernorm_names(named("LayerNorm.gamma", "LayerNorm.weight"))


def weight_normed() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    g, v = rng.normal(size=(8, 1, 1)).astype(np.float32), rng.normal(size=(8, 4, 3)).astype(np.float32)
    norm = np.sqrt((v.astype(np.float64) ** 2).sum((1, 2), keepdims=True))
    return g, v, (g * v / norm).astype(np.float32)


OLD = ["conv.weight_g", "conv.weight_v", "conv.bias"]
NEW = ["conv.parametrizations.weight.original0", "conv.parametrizations.weight.original1", "conv.bias"]


def test_n6_weight_norm_pairs_in_both_spellings() -> None:
    g, v, _ = weight_normed()
    source = building.checkpoint(dict(zip(OLD, (g, v, g[:, 0, 0]), strict=True)))
    modern = rename_weight_norm("parametrizations")(source)
    assert list(modern.tensors) == NEW
    assert rename_weight_norm("parametrizations")(modern) is modern
    assert list(rename_weight_norm("weight_g")(modern).tensors) == OLD


def test_n6_names_that_only_look_like_a_pair_stay() -> None:
    source = building.checkpoint(
        {"pos_g": np.ones((3, 2), np.float32), "pos_v": np.ones((8, 4), np.float32), "q_g": np.ones(1)}
    )
    assert weight_norm_pairs(source) == []
    assert rename_weight_norm()(source) is source


@pytest.mark.parametrize("names", [OLD, NEW])
def test_n6_folded_to_a_plain_weight(names: list[str]) -> None:
    g, v, expected = weight_normed()
    source = building.checkpoint(
        dict(zip(names, (g, v, g[:, 0, 0]), strict=True)),
        aliases={"head.weight_g": names[0], "head.weight_v": names[1]},
    )
    result = fold_weight_norm(source)
    assert list(result.tensors) == ["conv.weight", "conv.bias", "head.weight"]
    assert np.allclose(result.tensors["conv.weight"].numpy(), expected, rtol=1e-6, atol=0)
    assert result.aliases == {"head.weight": "conv.weight"}


def test_n6_folding_over_other_axes_and_in_half_precision() -> None:
    v = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    whole = building.checkpoint({"w_g": np.array(2, np.float32), "w_v": v})
    assert np.allclose(fold_weight_norm(whole).tensors["w"].numpy(), 2 * v / np.sqrt((v**2).sum()))
    columns = building.checkpoint({"w_g": np.array([[1, 2, 3]], np.float16), "w_v": v.astype(np.float16)})
    folded = fold_weight_norm(columns).tensors["w"]
    assert folded.dtype.name == "F16"
    assert np.allclose(folded.numpy(), [[1, 2, 3]] * v / np.sqrt((v**2).sum(0)), rtol=1e-3)
    with pytest.raises(TransformError, match="no weight-normed pair"):
        fold_weight_norm(named("a"))
