# SPDX-License-Identifier: Apache-2.0
"""The file types of llama.cpp as facts: each is a mix, which names a default tensor type and where it departs from it.

A recipe (Q4_K_M) is a choice for a whole file; a tensor type (Q4_K) is a layout of blocks. RULES are read from the top:
for a tensor of this category, under this recipe, the first row whose condition holds gives the type; without one it is
the recipe's default. Conditions are words of `choose.CONDITIONS`. Source: llama-quant.cpp of llama.cpp (MIT), whose
choices tests/vectors/quantize holds for many models.
"""

from __future__ import annotations

from typing import NamedTuple

from tael.core.dtypes import DTYPES, DType
from tael.core.ops import BLOCK_TYPES
from tael.errors import TransformError, clip


class Recipe(NamedTuple):
    """`ftype` is the number under `general.file_type`; None for a tensor type that has no file type."""

    name: str
    ftype: int | None
    dtype: DType


_FTYPES: tuple[tuple[str, int, str], ...] = (
    ("F32", 0, "F32"), ("F16", 1, "F16"), ("BF16", 32, "BF16"), ("Q8_0", 7, "Q8_0"),
    ("Q4_0", 2, "Q4_0"), ("Q4_1", 3, "Q4_1"), ("Q5_0", 8, "Q5_0"), ("Q5_1", 9, "Q5_1"),
    ("Q2_K", 10, "Q2_K"), ("Q2_K_S", 21, "Q2_K"),
    ("Q3_K_S", 11, "Q3_K"), ("Q3_K_M", 12, "Q3_K"), ("Q3_K_L", 13, "Q3_K"),
    ("Q4_K_S", 14, "Q4_K"), ("Q4_K_M", 15, "Q4_K"), ("Q5_K_S", 16, "Q5_K"), ("Q5_K_M", 17, "Q5_K"),
    ("Q6_K", 18, "Q6_K"),
    ("IQ1_S", 24, "IQ1_S"), ("IQ1_M", 31, "IQ1_M"),
    ("IQ2_XXS", 19, "IQ2_XXS"), ("IQ2_XS", 20, "IQ2_XS"), ("IQ2_S", 28, "IQ2_XS"), ("IQ2_M", 29, "IQ2_S"),
    ("IQ3_XXS", 23, "IQ3_XXS"), ("IQ3_XS", 22, "IQ3_S"), ("IQ3_S", 26, "IQ3_S"), ("IQ3_M", 27, "IQ3_S"),
    ("IQ4_NL", 25, "IQ4_NL"), ("IQ4_XS", 30, "IQ4_XS"),
    ("TQ1_0", 36, "TQ1_0"), ("TQ2_0", 37, "TQ2_0"), ("MXFP4_MOE", 38, "MXFP4"), ("Q1_0", 40, "Q1_0"),
    ("Q2_0", 41, "Q2_0"),
)  # fmt: skip
RECIPES: dict[str, Recipe] = {name: Recipe(name, number, DTYPES[kind]) for name, number, kind in _FTYPES}
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
# File types that a whole file of one tensor type has in llama.cpp, though no recipe makes one.
_PURE_FTYPES = {"NVFP4": 39, "MXFP4": 38, "Q3_K": 11, "Q4_K": 14, "Q5_K": 16}

# Types that may stand where one tensor is meant.
TENSOR_TYPES = frozenset(BLOCK_TYPES | {"F32", "F16", "BF16"})

IQ_LOW = "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M"
IQ2_SM = "IQ2_S IQ2_M"
ANY = ""

# category, recipes (all when empty), condition, type
RULES: tuple[tuple[str, str, str, str], ...] = (
    ("output", "MXFP4_MOE", "", "Q8_0"),
    ("output", ANY, "falcon", "Q8_0"),
    ("output", ANY, "row cuts a block", "Q8_0"),
    ("output", f"{IQ_LOW} IQ3_XXS", "", "Q5_K"),
    ("output", "Q8_0", "", "Q8_0"),
    ("output", ANY, "", "Q6_K"),
    ("embedding", "IQ1_S IQ1_M IQ2_XXS IQ2_XS", "", "Q2_K"),
    ("embedding", f"{IQ2_SM} IQ3_XXS", "", "IQ3_S"),
    ("embedding", "TQ1_0 TQ2_0 Q2_0", "", "Q4_K"),
    # 8 experts share what attention reads, so a few more bits there cost next to nothing.
    ("attn_v", IQ_LOW, "gqa 4 or more", "Q4_K"),
    ("attn_v", IQ_LOW, "4 or more experts", "Q4_K"),
    ("attn_v", IQ2_SM, "", "IQ3_S"),
    ("attn_v", IQ_LOW, "", "Q2_K"),
    ("attn_v", ANY, "8 experts", "Q8_0"),
    ("attn_v", "Q2_K", "gqa 4 or more", "Q4_K | 70B: Q5_K"),
    ("attn_v", "Q2_K", "", "Q3_K | 70B: Q5_K"),
    ("attn_v", "Q2_K_S", "gqa 4 or more", "Q4_K | 70B: Q5_K"),
    ("attn_v", "IQ3_XXS", "gqa 4 or more", "Q4_K | 70B: Q5_K"),
    ("attn_v", "IQ3_XXS", "no imatrix", "IQ3_S"),
    ("attn_v", "IQ3_XS IQ3_S", "gqa 4 or more", "Q4_K | 70B: Q5_K"),
    ("attn_v", "IQ3_M", "", "Q4_K | 70B: Q5_K"),
    ("attn_v", "Q3_K_M", "among the first 2", "Q5_K"),
    ("attn_v", "Q3_K_M", "", "Q4_K | 70B: Q5_K"),
    ("attn_v", "Q3_K_L", "", "Q5_K"),
    ("attn_v", "IQ4_NL IQ4_XS", "gqa 4 or more", "Q5_K"),
    ("attn_v", "Q4_K_M Q5_K_M", "more bits", "Q6_K"),
    ("attn_v", "Q4_K_S", "among the first 4", "Q5_K"),
    ("attn_v", "Q3_K_S Q4_K_S Q4_K_M", "70B", "Q5_K"),
    ("attn_k", IQ_LOW, "8 experts", "Q4_K"),
    ("attn_k", ANY, "8 experts", "Q8_0"),
    ("attn_k", "IQ3_XS", "", "IQ3_XXS"),
    ("attn_k", "IQ3_XXS", "", "IQ2_S"),
    ("attn_q", "IQ3_XS", "", "IQ3_XXS"),
    ("attn_q", "IQ3_XXS", "", "IQ2_S"),
    ("ffn_down", IQ2_SM, "counted in the first eighth", "IQ3_S"),
    ("ffn_down", IQ_LOW, "counted in the first eighth", "Q2_K"),
    ("ffn_down", "Q2_K", "", "Q3_K"),
    ("ffn_down", "Q2_K_S", "first eighth", "Q4_K"),
    ("ffn_down", "IQ3_XXS", "no imatrix, first eighth", "Q4_K"),
    ("ffn_down", "IQ3_XXS", "no imatrix", "Q3_K"),
    ("ffn_down", "Q3_K_M", "first sixteenth", "Q5_K"),
    ("ffn_down", "Q3_K_M", "not falcon", "Q4_K"),
    ("ffn_down", "Q3_K_M", "more bits", "Q4_K"),
    ("ffn_down", "IQ3_M", "first eighth", "Q4_K"),
    ("ffn_down", "IQ3_M", "8 experts, more bits", "Q4_K"),
    ("ffn_down", "Q3_K_L", "falcon", "Q4_K"),
    ("ffn_down", "Q3_K_L", "", "Q5_K"),
    ("ffn_down", "Q4_K_M", "falcon, first sixteenth", "Q6_K"),
    ("ffn_down", "Q4_K_M", "falcon, more bits", "Q5_K"),
    ("ffn_down", "Q4_K_M", "not falcon, more bits", "Q6_K"),
    ("ffn_down", "IQ4_NL IQ4_XS", "no imatrix, first eighth", "Q5_K"),
    ("ffn_down", "Q5_K_M", "more bits", "Q6_K"),
    ("ffn_down", "Q4_K_S", "not falcon, first eighth", "Q5_K"),
    ("ffn_down", "Q4_0", "imatrix, first eighth", "Q4_1"),
    ("ffn_down", "Q5_0", "imatrix, first eighth", "Q5_1"),
    ("attn_output", IQ_LOW, "8 experts", "Q5_K"),
    ("attn_output", "IQ1_S IQ1_M", "", "IQ2_XXS"),
    ("attn_output", IQ2_SM, "", "IQ3_S"),
    ("attn_output", "Q3_K_L", "falcon", "Q4_K"),
    ("attn_output", ANY, "falcon", "default"),
    (
        "attn_output",
        "Q2_K IQ3_XS IQ3_XXS Q3_K_S Q3_K_M IQ4_NL Q4_K_S Q4_K_M IQ3_S IQ3_M IQ4_XS",
        "8 experts",
        "Q5_K",
    ),
    ("attn_output", ANY, "8 experts", "default"),
    ("attn_output", "Q2_K", "", "Q3_K"),
    ("attn_output", "IQ3_XXS", "", "IQ3_S"),
    ("attn_output", "Q3_K_M", "", "Q4_K"),
    ("attn_output", "Q3_K_L", "", "Q5_K"),
    ("attn_output", "IQ3_M", "", "Q4_K"),
    ("ffn_gate", "IQ3_XS", "in the middle", "IQ3_XXS"),
    ("ffn_up", "IQ3_XS", "in the middle", "IQ3_XXS"),
)

# What a type becomes where the row is no multiple of its block.
FALLBACK = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}


def recipe_of(name: str, *, pure: bool = False) -> Recipe:
    """The recipe called `name`, in any case; with `pure` also a tensor type. Raises `TransformError`."""
    key = name.upper()
    if pure and key in TENSOR_TYPES:
        found = RECIPES.get(key)
        return found or Recipe(key, _PURE_FTYPES.get(key), DTYPES[key])
    key = ALIASES.get(key, key)
    if key in RECIPES:
        return RECIPES[key]
    if key == "COPY":
        raise TransformError("COPY changes no type", hint="`tael convert` writes the tensors as they are")
    if key in TENSOR_TYPES:
        raise TransformError(
            f"{key} is a type of tensors that no recipe of llama.cpp has for whole files",
            hint=f"--pure makes every tensor {key}" + ("; MXFP4_MOE makes experts so" if key == "MXFP4" else ""),
        )
    raise TransformError(f"no type is called {clip(name)!r}", hint=_near(key, [*RECIPES, *ALIASES]))


def tensor_type(name: str) -> DType:
    """The dtype for one tensor. Raises `TransformError`; a recipe's name gets a clear answer."""
    key = name.upper()
    if key in TENSOR_TYPES:
        return DTYPES[key]
    if key in RECIPES:
        raise TransformError(
            f"{key} is a recipe for a whole file, not the type of one tensor",
            hint=f"its tensors are mostly {RECIPES[key].dtype}",
        )
    raise TransformError(f"no tensor type is called {clip(name)!r}", hint=_near(key, TENSOR_TYPES))


def _near(name: str, known: object) -> str:
    import difflib

    names = sorted(known)  # type: ignore[call-overload]
    near = difflib.get_close_matches(name, names, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(names)}"
