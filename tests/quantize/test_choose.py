# SPDX-License-Identifier: Apache-2.0
"""Which tensor gets which type: as llama-quantize chooses for every model of the vectors, and what is asked for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tael.core.dtypes import DTYPES
from tael.core.tensor import TensorInfo
from tael.errors import TransformError
from tael.quantize.choose import Options, choose, output_order, requires_imatrix
from tael.quantize.recipes import ALIASES, RECIPES, recipe_of

TABLES = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "vectors" / "quantize" / "types.json.gz").read_bytes())
)
MODELS = {model["name"]: model for model in TABLES["models"]}


def infos(model: dict[str, Any]) -> list[TensorInfo]:
    return [TensorInfo(name, DTYPES[dtype], tuple(shape)) for name, dtype, shape in model["tensors"]]


def options_of(options: dict[str, Any], has_imatrix: bool) -> Options:
    made = Options.of(**options)
    return Options(**{name: getattr(made, name) for name in Options.__slots__} | {"has_imatrix": has_imatrix})


@pytest.mark.parametrize("name", MODELS)
def test_types_are_those_of_llama_quantize(name: str) -> None:
    model = MODELS[name]
    tensors = infos(model)
    # Without a line of its own, a matrix makes no difference.
    runs = {(recipe, weighted, json.dumps(options)): types for recipe, weighted, options, types in model["runs"]}
    runs = {(recipe, True, "{}"): types for (recipe, _, options), types in runs.items() if options == "{}"} | runs
    compared = 0
    for (recipe, weighted, options), types in runs.items():
        asked = options_of(json.loads(options), weighted)
        found = choose(tensors, recipe_of(recipe), metadata=model["metadata"], options=asked)
        assert [choice.name for choice in found] == [tensor.name for tensor in tensors]
        if types is None:  # llama-quantize gives up where no row fits
            assert any(choice.fallback and choice.dtype.name == "F16" for choice in found)
            continue
        expected = dict(zip((tensor.name for tensor in tensors), types.split(), strict=True))
        wrong = {c.name: (c.dtype.name, expected[c.name]) for c in found if c.dtype.name != expected[c.name]}
        assert not wrong, (recipe, weighted, options, wrong)
        compared += 1
    assert compared >= 50


def test_recipes_and_their_numbers_are_those_of_llama_quantize() -> None:
    theirs = {name: number for name, number in TABLES["recipes"].items() if name != "COPY"}
    assert {name: recipe_of(name).ftype for name in theirs} == theirs
    assert set(theirs) == {*RECIPES, *ALIASES}


@pytest.mark.parametrize("name", ["llama-7b", "mixtral-8x7b-split", "t5-small", "gemma3n-e2b"])
def test_order_is_that_of_the_file_llama_quantize_writes(name: str) -> None:
    names = [tensor[0] for tensor in MODELS[name]["tensors"]]
    assert output_order(sorted(names, reverse=True)) == names


def test_imatrix_is_required_as_in_llama_quantize() -> None:
    low, small = recipe_of("IQ2_XS"), recipe_of("Q2_K_S")
    needing = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")
    for dtype in DTYPES.values():
        assert requires_imatrix("blk.0.ffn_up.weight", dtype, low) == (dtype.name in needing)
    assert requires_imatrix("blk.0.ffn_up.weight", DTYPES["Q2_K"], small)
    assert not requires_imatrix("blk.0.ffn_up.weight", DTYPES["Q2_K"], recipe_of("Q2_K"))
    for name in ("output.weight", "token_embd.weight", "per_layer_token_embd.weight"):
        assert not requires_imatrix(name, DTYPES["IQ2_XS"], low)


# --- what is asked for

LLAMA = {"general.architecture": "llama", "llama.block_count": 4}


def model(rows: int = 256) -> list[TensorInfo]:
    parts = [f"blk.{layer}.{part}.weight" for layer in range(4) for part in ("attn_q", "attn_v", "ffn_down", "ffn_up")]
    names = ["output.weight", "token_embd.weight", *parts]
    return [TensorInfo("output_norm.weight", DTYPES["F32"], (rows,))] + [
        TensorInfo(name, DTYPES["F16"], (4, rows)) for name in names
    ]


def types(recipe: str, tensors: list[TensorInfo] | None = None, **asked: Any) -> dict[str, str]:
    found = choose(
        tensors or model(),
        recipe_of(recipe, pure=asked.get("pure", False)),
        metadata=LLAMA,
        options=Options.of(**asked),
    )
    return {choice.name.removesuffix(".weight"): choice.dtype.name for choice in found}


@pytest.mark.parametrize(("rows", "expected"), [(288, "Q4_0"), (256, "Q2_K"), (100, "F16")])
def test_row_that_no_block_divides_falls_back_and_says_why(rows: int, expected: str) -> None:
    tensor = TensorInfo("blk.0.ffn_up.weight", DTYPES["F16"], (4, rows))
    (choice,) = choose([tensor], recipe_of("Q2_K"), metadata=LLAMA, options=Options())
    assert (choice.dtype.name, choice.fallback) == (expected, rows != 256)
    if choice.fallback:
        effect = {"Q4_0": "+71 %", "F16": "+510 %"}[expected]
        for word in (f"{rows}", "256", "Q2_K", expected, effect):
            assert word in choice.why


@pytest.mark.parametrize("recipe", sorted({*RECIPES} - {"F32"}))
def test_every_recipe_has_a_type_for_odd_rows(recipe: str) -> None:
    for rows in (1, 31, 33, 4000):
        for tensor in choose(model(rows), recipe_of(recipe), metadata=LLAMA, options=Options()):
            assert rows % tensor.dtype.block == 0


def test_first_matching_pattern_wins_over_layers_and_recipe() -> None:
    found = types("Q4_K_M", tensor_types=["blk.0.*_v=Q8_0", "attn_v=Q6_K"], layers=["0-1=Q5_K", "1-3=IQ4_XS"])
    assert [found[f"blk.{n}.attn_v"] for n in range(4)] == ["Q8_0", "Q6_K", "Q6_K", "Q6_K"]
    assert [found[f"blk.{n}.attn_q"] for n in range(4)] == ["Q5_K", "Q5_K", "IQ4_XS", "IQ4_XS"]
    assert found["output"] == "Q6_K"


def test_layers_as_parts_of_the_depth() -> None:
    found = types("Q4_0", layers=["0%-25%=Q8_0", "75%-100%=Q5_0"])
    assert [found[f"blk.{n}.ffn_up"] for n in range(4)] == ["Q8_0", "Q4_0", "Q4_0", "Q5_0"]


def test_embedding_output_keep_and_leave() -> None:
    found = types("Q4_0", embedding="Q5_1", output="BF16", keep=["blk.2"])
    assert (found["token_embd"], found["output"], found["output_norm"]) == ("Q5_1", "BF16", "F32")
    assert {found[f"blk.2.{part}"] for part in ("attn_q", "attn_v", "ffn_down", "ffn_up")} == {"F16"}
    assert types("Q4_0", leave_output=True)["output"] == "F16"


def test_pure_gives_every_matrix_one_type() -> None:
    for kind in ("Q4_K", "NVFP4", "MXFP4", "Q8_0"):
        assert set(types(kind, pure=True).values()) == {"F32", kind}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"tensor_types": ["nothing=Q8_0"]}, "nothing"),
        ({"tensor_types": ["norm=Q8_0"]}, "can be quantized"),
        ({"keep": ["nothing"]}, "nothing"),
        ({"tensor_types": ["(=Q8_0"]}, "regular expression"),
        ({"tensor_types": ["Q8_0"]}, "REGEX=TYPE"),
        ({"tensor_types": ["attn=Q4_K_M"]}, "recipe for a whole file"),
        ({"tensor_types": ["attn=Q4_Z"]}, "Q4_Z"),
        ({"layers": ["3-1=Q8_0"]}, "end before"),
        ({"layers": ["0-50%=Q8_0"]}, "RANGE=TYPE"),
        ({"layers": ["all=Q8_0"]}, "RANGE=TYPE"),
        ({"embedding": "Q3_K_S"}, "recipe for a whole file"),
        ({"output": "I8"}, "I8"),
    ],
)
def test_nonsense_is_refused_in_words(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(TransformError, match=words):
        types("Q4_0", **asked)
