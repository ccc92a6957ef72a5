# SPDX-License-Identifier: Apache-2.0
"""Names of recipes and of tensor types, and recipes as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tael.core.dtypes import DTYPES
from tael.core.tensor import TensorInfo
from tael.errors import SourceNotFoundError, TransformError
from tael.quantize.choose import choose
from tael.quantize.options import Options
from tael.quantize.recipe_files import dumps, load, shipped
from tael.quantize.recipes import recipe_of, tensor_type


def test_names_in_any_case_and_aliases() -> None:
    assert recipe_of("q4_k_m") is recipe_of("Q4_K") is recipe_of("Q4_K_M")
    assert tensor_type("q4_K") is DTYPES["Q4_K"]
    assert recipe_of("Q4_K", pure=True).dtype.name == "Q4_K"


@pytest.mark.parametrize("kind", ["NVFP4", "MXFP4", "Q8_K"])
def test_type_without_a_recipe_only_when_pure(kind: str) -> None:
    with pytest.raises(TransformError) as caught:
        recipe_of(kind)
    if kind != "Q8_K":  # that one is llama.cpp's own intermediate
        assert "--pure" in str(caught.value.hint)
        assert recipe_of(kind, pure=True).dtype.name == kind


@pytest.mark.parametrize(
    ("name", "hint"), [("Q4_K_N", "Q4_K_M"), ("COPY", "convert"), ("Q9", "did you mean|there is"), ("", "there is")]
)
def test_unknown_recipe_gets_a_hint(name: str, hint: str) -> None:
    with pytest.raises(TransformError) as caught:
        recipe_of(name)
    assert any(word in str(caught.value.hint) for word in hint.split("|"))


def test_recipe_where_a_tensor_type_is_meant() -> None:
    with pytest.raises(TransformError, match="recipe for a whole file") as caught:
        tensor_type("IQ3_M")
    assert "IQ3_S" in str(caught.value.hint)


# --- files


def test_file_round_trip(tmp_path: Path) -> None:
    asked = Options.of(
        tensor_types=['a"\\d+=Q6_K', "é=F16"],
        layers=["0-3=Q6_K", "88%-100%=Q8_0"],
        embedding="Q8_0",
        output="Q6_K",
        keep=["x", "y$"],
        leave_output=True,
    )
    (tmp_path / "r.toml").write_text(dumps("Q4_K_M", asked), encoding="utf-8")
    assert load(tmp_path / "r.toml") == ("Q4_K_M", asked)
    (tmp_path / "pure.toml").write_text(dumps("NVFP4", Options(pure=True)))
    assert load(tmp_path / "pure.toml") == ("NVFP4", Options.of(pure=True))


def test_what_is_typed_comes_before_the_file() -> None:
    saved = Options.of(tensor_types=["a=Q8_0"], embedding="Q8_0", output="Q6_K")
    both = Options.of(tensor_types=["a=F16"], embedding="F16").over(saved)
    assert [dtype.name for _, dtype in both.tensors] == ["F16", "Q8_0"]
    assert both.embedding is DTYPES["F16"]
    assert both.output is DTYPES["Q6_K"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('type = "Q4_K_M"\nembeding = "Q8_0"', "embeding"),
        ('type = "Q4_K_M"\ntensors = "a=Q8_0"', "tensors is not a list"),
        ('type = "Q4_K_M"\nkeep = [1]', "keep is not a list"),
        ('type = "Q4_K_M"\npure = "yes"', "pure is not true or false"),
        ("type = 4", "type is not text"),
        ('type = "Q4_K_Z"', "Q4_K_Z"),
        ('embedding = "Q8_0"', "says no type"),
        ('type = "Q4_K_M"\nlayers = ["x"]', "RANGE=TYPE"),
        ("type = ", "no recipe"),
        ("\x00", "no recipe"),
    ],
)
def test_bad_file_names_the_key_and_the_file(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(TransformError, match=words) as caught:
        load(path)
    assert caught.value.path == str(path)


def test_missing_file_lists_what_is_shipped(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError) as caught:
        load(tmp_path / "none.toml")
    assert "by-depth" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "raised"),
    [
        ("embedding-first", {"token_embd.weight"}),
        ("output-first", {"output.weight"}),
        ("attention-first", {f"blk.{layer}.attn_{part}.weight" for layer in range(16) for part in "qkv"}),
        ("by-depth", {f"blk.{layer}.{part}.weight" for layer in (0, 1, 14, 15) for part in ("attn_k", "ffn_up")}),
    ],
)
def test_shipped_strategies_raise_what_they_are_named_for(name: str, raised: set[str]) -> None:
    base, options = load(name)
    parts = ("attn_q", "attn_k", "attn_v", "ffn_up", "ffn_down")
    names = ["token_embd.weight", "output.weight"] + [f"blk.{n}.{part}.weight" for n in range(16) for part in parts]
    tensors = [TensorInfo(tensor, DTYPES["F16"], (4, 256)) for tensor in names]
    metadata = {"general.architecture": "llama", "llama.block_count": 16}
    plain, chosen = (
        {c.name: c.dtype.bits for c in choose(tensors, recipe_of(base), metadata=metadata, options=asked)}
        for asked in (Options(), options)
    )
    assert all(chosen[tensor] > plain[tensor] for tensor in raised)
    assert all(chosen[tensor] >= plain[tensor] for tensor in names)


def test_all_strategies_are_shipped() -> None:
    assert shipped() == ["attention-first", "by-depth", "embedding-first", "output-first"]
