# SPDX-License-Identifier: Apache-2.0
"""Q8_0 against a scalar reading of the format, and (peer) against ggml itself through libgguf."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tael.kernels import q8_0_dequantize, q8_0_quantize


def values() -> np.ndarray[Any, Any]:
    """Blocks of every scale that float32 has, of ties, of zeros, of one large value."""
    generator = np.random.default_rng(8)
    blocks = [generator.standard_normal((4000, 32)) * 10.0 ** generator.integers(-44, 37, (4000, 1))]
    ties = np.arange(-16, 16) + 0.5
    blocks.append(np.where(np.arange(32) == 0, 127.0, ties)[None, :])
    blocks.append(np.zeros((1, 32)))
    blocks.append(np.full((1, 32), -0.0))
    blocks.append(np.eye(1, 32) * 3.4e38)
    blocks.append(np.full((1, 32), 1e-45))
    return np.concatenate(blocks).astype(np.float32)


def quantize(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.empty((array.shape[0], array.shape[1] // 32 * 34), np.uint8)
    assert q8_0_quantize(np.ascontiguousarray(array), out) == -1
    return out


def test_blocks_are_scale_and_rounded_quotients() -> None:
    array = values()
    blocks = quantize(array)
    scale = np.abs(array).max(axis=1) / np.float32(127)
    with np.errstate(all="ignore"):
        stored = scale.astype(np.float16)
        inverse = np.float32(1) / scale
    inverse = np.where(np.isfinite(inverse), inverse, np.float32(0))
    np.testing.assert_array_equal(blocks[:, :2].copy().view(np.float16)[:, 0], stored)
    quotients = array * inverse[:, None]
    away = np.trunc(quotients.astype(np.float64) + np.copysign(0.5, quotients))
    np.testing.assert_array_equal(blocks[:, 2:].view(np.int8), away)


def test_dequantizing_multiplies() -> None:
    blocks = np.random.default_rng(1).integers(0, 256, (1000, 34), dtype=np.uint8)
    out = np.empty((1000, 32), np.float32)
    q8_0_dequantize(blocks, out)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        expected = scale * blocks[:, 2:].view(np.int8).astype(np.float32)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(bad: float) -> None:
    array = np.ones(32 * 50, np.float32)
    array[[777, 1200]] = bad
    assert q8_0_quantize(array, np.empty(34 * 50, np.uint8)) == 777


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        q8_0_quantize(np.ones(33, np.float32), np.empty(34, np.uint8))
    with pytest.raises(ValueError, match="do not fit"):
        q8_0_dequantize(np.zeros(35, np.uint8), np.empty(32, np.float32))


@pytest.mark.peer
def test_blocks_are_ggmls() -> None:
    import libgguf

    kind = libgguf.GGMLQuantizationType.Q8_0
    array = values()
    theirs = np.frombuffer(libgguf.quantize_rows(array, kind).tobytes(), np.uint8).reshape(array.shape[0], 34)
    ours = quantize(array)
    np.testing.assert_array_equal(ours, theirs)
    back = np.empty_like(array)
    q8_0_dequantize(ours, back)
    np.testing.assert_array_equal(back, np.asarray(libgguf.dequantize_rows(theirs, kind)).reshape(array.shape))
