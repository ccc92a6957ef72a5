# SPDX-License-Identifier: Apache-2.0
"""The table of dtypes against numpy, ml_dtypes and ggml's block layouts."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tael.core.dtypes import DTYPES, DType, dtype
from tael.errors import UnsupportedFormatError, UnsupportedTensorError

# Elements and bytes of one block, from the C structs of ggml: a scale is 2 bytes (ggml_half), a byte holds
# 8 / bits numbers. gguf-py's table gives 40 for Q8_1, which ggml left in 2023 (two halves now, two floats then).
GGML = {
    "Q4_0": (32, 2 + 16),
    "Q4_1": (32, 2 + 2 + 16),
    "Q5_0": (32, 2 + 4 + 16),
    "Q5_1": (32, 2 + 2 + 4 + 16),
    "Q8_0": (32, 2 + 32),
    "Q8_1": (32, 2 + 2 + 32),
    "Q2_K": (256, 16 + 64 + 2 + 2),
    "Q3_K": (256, 32 + 64 + 12 + 2),
    "Q4_K": (256, 2 + 2 + 12 + 128),
    "Q5_K": (256, 2 + 2 + 12 + 32 + 128),
    "Q6_K": (256, 128 + 64 + 16 + 2),
    "Q8_K": (256, 4 + 256 + 32),
    "IQ1_S": (256, 2 + 32 + 16),
    "IQ1_M": (256, 32 + 16 + 8),
    "IQ2_XXS": (256, 2 + 64),
    "IQ2_XS": (256, 2 + 64 + 8),
    "IQ2_S": (256, 2 + 64 + 8 + 8),
    "IQ3_XXS": (256, 2 + 96),
    "IQ3_S": (256, 2 + 64 + 8 + 32 + 4),
    "IQ4_NL": (32, 2 + 16),
    "IQ4_XS": (256, 2 + 2 + 4 + 128),
    "TQ1_0": (256, 48 + 4 + 2),
    "TQ2_0": (256, 64 + 2),
    "MXFP4": (32, 1 + 16),
    "NVFP4": (64, 4 + 32),
    "Q1_0": (128, 2 + 16),
    "Q2_0": (64, 2 + 16),
}


def test_quantized_blocks_are_ggmls() -> None:
    assert {n: (k.block, k.block_bytes) for n, k in DTYPES.items() if k.kind == "quantized"} == GGML


@pytest.mark.parametrize("kind", [k for k in DTYPES.values() if k.numpy_name], ids=str)
def test_plain_kinds_are_numpys(kind: DType) -> None:
    theirs = kind.numpy()
    name = kind.numpy_name or ""
    if kind.is_plain:
        assert theirs.itemsize == kind.block_bytes
        assert 8 * theirs.itemsize == kind.bits
    else:
        bits = (ml_dtypes.finfo if kind.is_float else ml_dtypes.iinfo)(theirs).bits
        assert kind.bits == bits == int("".join(filter(str.isdigit, name))[0])
        assert kind.block * bits == 8 * kind.block_bytes
    family = {"int": "iV", "uint": "uV", "float": "fV", "bool": "b", "complex": "c"}[kind.kind]
    assert theirs.kind in family
    assert kind.is_float == (kind.kind == "float")


def test_every_plain_kind_that_numpy_and_ml_dtypes_have_is_in_the_table() -> None:
    ours = {kind.numpy_name for kind in DTYPES.values()}
    theirs = {name for name in dir(ml_dtypes) if name.startswith(("float", "bfloat", "int", "uint"))}
    # ml_dtypes has more 8-bit floats than any weight format, and 1-bit integers in its newest releases.
    assert theirs - ours <= {
        "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "int1", "uint1",
    }  # fmt: skip
    assert {"float16", "float32", "float64", "bool", "complex64", "complex128"} <= ours


def test_names_are_their_own_spelling_and_upper_case() -> None:
    for name, kind in DTYPES.items():
        assert name == kind.name == str(kind) == name.upper()
        assert dtype(name) is dtype(name.lower()) is dtype(kind) is kind


@pytest.mark.parametrize(
    ("text", "name"),
    [("bfloat16", "BF16"), ("torch.bfloat16", "BF16"), ("fp16", "F16"), ("half", "F16"), ("float", "F32"),
     ("double", "F64"), ("float8_e4m3fn", "F8_E4M3"), ("fp8", "F8_E4M3"), ("torch.float8_e5m2", "F8_E5M2"),
     ("q4_k", "Q4_K"), ("float4_e2m1fn", "F4_E2M1"), ("float4_e2m1fn_x2", "F4_E2M1")],
)  # fmt: skip
def test_spellings(text: str, name: str) -> None:
    assert dtype(text).name == name


def test_numpys_own_names_are_known() -> None:
    for kind in DTYPES.values():
        if kind.numpy_name:
            assert dtype(kind.numpy_name) is kind


@pytest.mark.parametrize("text", ["", "F33", "torch.", "Q4_K_M", "float128", "F32 "])
def test_unknown_names(text: str) -> None:
    with pytest.raises(UnsupportedFormatError, match="unknown dtype"):
        dtype(text)


@given(st.sampled_from(list(DTYPES.values())), st.lists(st.integers(0, 6), max_size=4), st.integers(0, 3))
def test_nbytes_is_bits_times_elements(kind: DType, lead: list[int], blocks: int) -> None:
    shape = (*lead, blocks * kind.block)
    assert kind.nbytes(shape) * 8 == kind.bits * math.prod(shape)
    assert math.prod(kind.grid(shape)) * kind.block == math.prod(shape)


@pytest.mark.parametrize(
    ("name", "shape", "grid", "nbytes"),
    [
        ("F32", (), (), 4),
        ("F32", (0,), (0,), 0),
        ("F32", (2, 0, 3), (2, 0, 3), 0),
        ("C128", (2, 2), (2, 2), 64),
        ("U4", (3, 4), (3, 2), 6),
        ("U4", (2, 3), (3,), 3),  # rows end in the middle of a byte: packed over the whole tensor
        ("U4", (0, 3), (0, 3), 0),
        ("F6_E2M3", (4,), (1,), 3),
        ("F6_E2M3", (2, 2), (1,), 3),
        ("I2", (2, 2, 2), (2,), 2),
        ("Q8_0", (2, 64), (2, 2), 136),
        ("Q4_K", (1, 256), (1, 1), 144),
        ("Q4_K", (0, 256), (0, 1), 0),
        ("Q4_K", (5, 0), (5, 0), 0),
    ],
)
def test_grids(name: str, shape: tuple[int, ...], grid: tuple[int, ...], nbytes: int) -> None:
    assert DTYPES[name].grid(shape) == grid
    assert DTYPES[name].grid(list(shape)) == grid
    assert DTYPES[name].nbytes(shape) == nbytes


@pytest.mark.parametrize(
    ("name", "shape"),
    [("U4", ()), ("U4", (3,)), ("U4", (3, 3)), ("F6_E3M2", (2,)), ("Q8_0", ()), ("Q8_0", (31,)),
     ("Q8_0", (32, 1)), ("Q4_K", (2, 128))],
)  # fmt: skip
def test_shapes_that_blocks_do_not_fill(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedTensorError):
        DTYPES[name].nbytes(shape)


@pytest.mark.parametrize("name", ["Q4_0", "C32", "STRING"])
def test_kinds_that_numpy_has_not(name: str) -> None:
    with pytest.raises(UnsupportedTensorError, match="no numpy dtype"):
        DTYPES[name].numpy()


def test_huge_shapes_cost_nothing() -> None:
    assert DTYPES["F32"].nbytes((2**40, 2**40)) == 2**82


def test_numpy_dtypes_hold_the_canonical_bytes() -> None:
    assert np.frombuffer(b"\x80\x3f", DTYPES["BF16"].numpy())[0] == 1.0
    assert DTYPES["F32"].numpy() == np.dtype("<f4")
