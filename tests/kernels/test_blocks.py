# SPDX-License-Identifier: Apache-2.0
"""Block types: the bytes of ggml's reference code (tests/vectors/blocks), and what is no number or does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tael import kernels
from tael.core.dtypes import DTYPES
from tael.core.ops import BLOCK_TYPES, IGNORE_WEIGHTS, NEED_WEIGHTS

VECTORS = Path(__file__).parent.parent / "vectors" / "blocks" / "blocks.npz"
TYPES = sorted(BLOCK_TYPES)


@pytest.fixture(scope="module")
def golden() -> Mapping[str, np.ndarray]:
    with np.load(VECTORS) as archive:
        return dict(archive)


def quantized(name: str, values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    kind = DTYPES[name]
    out = np.full((len(values), values.shape[1] // kind.block * kind.block_bytes), 0xA5, np.uint8)
    assert kernels.quantize(name, values, out, values.shape[1], weights) == -1
    return out


def dequantized(name: str, blocks: np.ndarray) -> np.ndarray:
    kind = DTYPES[name]
    out = np.full((len(blocks), blocks.shape[1] // kind.block_bytes * kind.block), np.nan, np.float32)
    kernels.dequantize(name, blocks, out)
    return out


@pytest.mark.parametrize("name", sorted(BLOCK_TYPES - NEED_WEIGHTS))
def test_quantizes_to_the_bytes_of_ggml(name: str, golden: Mapping[str, np.ndarray]) -> None:
    ours = quantized(name, golden["values"])
    assert ours.tobytes() == golden[name].tobytes()


@pytest.mark.parametrize("name", sorted(BLOCK_TYPES - {"Q2_0"}))
def test_quantizes_with_weights_to_the_bytes_of_ggml(name: str, golden: Mapping[str, np.ndarray]) -> None:
    ours = quantized(name, golden["values"], golden["weights"])
    assert ours.tobytes() == golden[f"{name}.weighted"].tobytes()


@pytest.mark.parametrize("name", TYPES)
def test_dequantizes_to_the_values_of_ggml(name: str, golden: Mapping[str, np.ndarray]) -> None:
    blocks = golden[name] if name == "Q2_0" else golden[f"{name}.weighted"]
    assert dequantized(name, blocks).tobytes() == golden[f"{name}.values"].tobytes()


@pytest.mark.parametrize("name", sorted(IGNORE_WEIGHTS))
def test_some_types_do_not_look_at_weights(name: str, golden: Mapping[str, np.ndarray]) -> None:
    ours = quantized(name, golden["values"], golden["weights"])
    assert ours.tobytes() == quantized(name, golden["values"]).tobytes()


@pytest.mark.parametrize("name", TYPES)
def test_a_row_at_a_time_gives_the_same_bytes(name: str, golden: Mapping[str, np.ndarray]) -> None:
    values, weights = golden["values"], golden["weights"]
    whole = quantized(name, values, weights)
    for row in range(len(values)):
        assert quantized(name, values[row : row + 1], weights).tobytes() == whole[row].tobytes()


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found(name: str, bad: float) -> None:
    values = np.ones((5, 512), np.float32)
    values[3, 77] = bad
    out = np.zeros(5 * 512 // DTYPES[name].block * DTYPES[name].block_bytes, np.uint8)
    assert kernels.quantize(name, values, out, 512, np.ones(512, np.float32)) == 3 * 512 + 77


@pytest.mark.parametrize("name", sorted(BLOCK_TYPES - {"MXFP4", "NVFP4"}))
def test_a_scale_that_float16_cannot_hold_is_found(name: str) -> None:
    """ggml stores infinity there, and the tensor reads as NaN."""
    values = np.full((3, 512), 0.01, np.float32)
    values[1, 256:] = np.linspace(-1e9, 1e9, 256)
    kind = DTYPES[name]
    out = np.zeros(3 * 512 // kind.block * kind.block_bytes, np.uint8)
    bad = -2 - kernels.quantize(name, values, out, 512, np.ones(512, np.float32))
    assert (512 + 256) // kind.block <= bad < 1024 // kind.block


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("weights", ["zero", "half", "huge", "tiny"])
def test_no_weights_make_a_scale_that_is_not_finite(name: str, weights: str) -> None:
    found = np.ones(512, np.float32)
    if weights == "half":
        found[:256] = 0
    else:
        found *= {"zero": 0.0, "huge": 1e30, "tiny": 1e-38}[weights]
    values = np.random.default_rng(3).standard_normal((4, 512)).astype(np.float32)
    back = dequantized(name, quantized(name, values, found))
    assert np.isfinite(back).all()
    assert np.abs(back).max() <= 40


def test_arguments_that_do_not_fit_are_refused() -> None:
    values, out = np.zeros(512, np.float32), np.zeros(288, np.uint8)
    for arguments in (
        ("Q4_K", values, out[:-1], 512),
        ("Q4_K", values, out, 384),
        ("Q4_K", values, out, 0),
        ("Q4_K", values, out, 512, values[:-1]),
        ("Q4_K", values, out, 512, -np.ones(512, np.float32)),
        ("Q4_K", values, out, 512, np.full(512, np.nan, np.float32)),
        ("Q9_K", values, out, 512),
    ):
        with pytest.raises(ValueError, match=r"fit|row_length|weights|no block type"):
            kernels.quantize(*arguments)
    for name in NEED_WEIGHTS:
        size = 2 * DTYPES[name].block_bytes
        with pytest.raises(ValueError, match="needs weights"):
            kernels.quantize(name, values, np.zeros(size, np.uint8), 512)
    with pytest.raises(ValueError, match="aligned"):
        kernels.quantize("Q8_0", np.zeros(129, np.uint8)[1:], np.zeros(34, np.uint8), 32)


def test_errors_are_sums_that_pieces_add_up_to() -> None:
    random = np.random.default_rng(4)
    a, b = random.standard_normal(1003).astype(np.float32), random.standard_normal(1003).astype(np.float32)
    whole = kernels.errors_f32(a, b)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    wanted = (((wide_a - wide_b) ** 2).sum(), (wide_a**2).sum(), (wide_b**2).sum(), (wide_a * wide_b).sum())
    assert np.allclose(whole[:4], wanted, rtol=1e-12)
    assert whole.largest == np.abs(wide_a - wide_b).max()
    pieces = kernels.errors_f32(a[:500], b[:500]).merged(kernels.errors_f32(a[500:], b[500:]))
    assert np.allclose(pieces, whole, rtol=1e-12)


def test_strings_are_skipped_within_the_bytes_that_are_there() -> None:
    data = b"xx" + b"".join(len(s).to_bytes(8, "little") + s for s in (b"one", b"", b"three"))
    assert kernels.skip_strings(data, 2, 3, 8) == len(data)
    assert kernels.skip_strings(data, 2, 2, 8) == 2 + 8 + 3 + 8
    assert kernels.skip_strings(data, 2, 4, 8) == -1
    assert kernels.skip_strings(data[:-1], 2, 3, 8) == -1
    assert kernels.skip_strings(data, len(data) + 1, 0, 8) == -1
    assert kernels.skip_strings((1 << 63).to_bytes(8, "little") * 3, 0, 3, 8) == -1
    assert kernels.skip_strings(b"\x02\0\0\0ab", 0, 1, 4) == 6
