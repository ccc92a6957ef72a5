# SPDX-License-Identifier: Apache-2.0
"""The native casts against ml_dtypes and numpy: every 16-bit input, every float32 boundary, ten million random ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tael.kernels import _native

KINDS = {  # name: (numpy type, code type)
    "bf16": (ml_dtypes.bfloat16, np.uint16),
    "f16": (np.float16, np.uint16),
    "f8_e4m3": (ml_dtypes.float8_e4m3fn, np.uint8),
    "f8_e5m2": (ml_dtypes.float8_e5m2, np.uint8),
}
RANDOM = 10_000_000
PIECE = 1 << 20


def boundaries() -> np.ndarray[Any, Any]:
    """Bits of float32 around every value and every tie of every narrower kind: all upper halves, and for each the
    lower halves next to 0, to a tie of any kept mantissa of 2 to 10 bits, and to the end."""
    upper = np.arange(1 << 16, dtype=np.int64) << 16
    near = np.concatenate([np.array([0, 0x1000, 0x2000, 0x3000, 0x8000, 0xFFFF]) + step for step in (-2, -1, 0, 1, 2)])
    return ((upper[:, None] + near[None, :]) & 0xFFFFFFFF).astype(np.uint32).reshape(-1)


def random_bits() -> Iterator[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(20240229)
    for start in range(0, RANDOM, PIECE):
        yield generator.integers(0, 1 << 32, min(PIECE, RANDOM - start), dtype=np.uint32)


def expected_codes(bits: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    kind, code = KINDS[name]
    with np.errstate(all="ignore"):
        codes = bits.view(np.float32).astype(kind).view(code)
    if name == "f16":  # numpy keeps a signalling NaN as it is; ours are quieted, as by the processors' instruction
        codes = np.where((codes & 0x7FFF) > 0x7C00, codes | 0x200, codes)
        signalling = (bits & 0x7FFFFFFF > 0x7F800000) & (bits & 0x7FFFFF < 0x2000)  # no payload left: numpy sets a bit
        codes = np.where(signalling, (bits >> 16 & 0x8000 | 0x7E00).astype(np.uint16), codes)
    return codes


def narrow(bits: np.ndarray[Any, Any], name: str, saturate: bool = False) -> tuple[np.ndarray[Any, Any], int]:
    out = np.empty(bits.size, KINDS[name][1])
    return out, getattr(_native, f"f32_to_{name}")(bits, out, saturate)


@pytest.mark.parametrize("name", KINDS)
def test_narrowing_of_boundaries(name: str) -> None:
    bits = boundaries()
    codes, overflows = narrow(bits, name)
    expected = expected_codes(bits, name)
    np.testing.assert_array_equal(codes, expected)
    with np.errstate(all="ignore"):
        became = ~np.isfinite(expected.view(KINDS[name][0]).astype(np.float32))
    assert overflows == np.count_nonzero(became & np.isfinite(bits.view(np.float32)))


@pytest.mark.parametrize("name", KINDS)
def test_narrowing_of_random_bits(name: str) -> None:
    for bits in random_bits():
        np.testing.assert_array_equal(narrow(bits, name)[0], expected_codes(bits, name))


@pytest.mark.parametrize("name", KINDS)
def test_saturation_clamps_finite_values_only(name: str) -> None:
    bits = boundaries()
    plain, overflows = narrow(bits, name)
    clamped, again = narrow(bits, name, saturate=True)
    assert again == overflows > 0
    kind = KINDS[name][0]
    values = bits.view(np.float32)
    with np.errstate(all="ignore"):
        over = np.isfinite(values) & ~np.isfinite(plain.view(kind).astype(np.float32))
    largest = np.float32(ml_dtypes.finfo(kind).max)
    np.testing.assert_array_equal(clamped.view(kind)[over].astype(np.float32), np.copysign(largest, values[over]))
    np.testing.assert_array_equal(clamped[~over], plain[~over])


@pytest.mark.parametrize("name", KINDS)
def test_widening_of_every_code(name: str) -> None:
    kind, code = KINDS[name]
    codes = np.arange(np.iinfo(code).max + 1, dtype=code)
    out = np.empty(codes.size, np.uint32)
    assert getattr(_native, f"{name}_to_f32")(codes, out) == 0
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, codes.view(kind).astype(np.float32).view(np.uint32))


def doubles() -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(7)
    any_bits = generator.integers(0, 1 << 64, 200_000, dtype=np.uint64).view(np.float64)
    everyday = generator.standard_normal(200_000) * 10.0 ** generator.integers(-50, 42, 200_000)
    with np.errstate(all="ignore"):
        floats = boundaries()[::7].view(np.float32).astype(np.float64)
        middles = (floats[:-1] + floats[1:]) / 2
        near = np.concatenate([floats, middles, np.nextafter(floats, np.inf), np.nextafter(middles, -np.inf)])
    return np.concatenate([any_bits, everyday, near, np.array([0.0, -0.0, np.inf, -np.inf, 5e-324, -5e-324, 1e300])])


def test_f64_to_f32_is_numpys() -> None:
    values = doubles()
    out = np.empty(values.size, np.float32)
    overflows = _native.f64_to_f32(values, out)
    with np.errstate(all="ignore"):
        expected = values.astype(np.float32)
    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))
    over = np.isinf(expected) & np.isfinite(values)
    assert overflows == np.count_nonzero(over) > 0
    assert _native.f64_to_f32(values, out, True) == overflows
    largest = np.finfo(np.float32).max
    np.testing.assert_array_equal(out[over], np.copysign(largest, values[over]).astype(np.float32))


def test_f64_to_f32_odd_keeps_what_a_second_rounding_needs() -> None:
    values = doubles()
    out = np.empty(values.size, np.float32)
    _native.f64_to_f32_odd(values, out)
    back = out.astype(np.float64)
    exact = back == values
    special = ~np.isfinite(values)
    np.testing.assert_array_equal(np.isfinite(out), ~special)
    inexact = ~exact & ~special
    assert np.all(out.view(np.uint32)[inexact] & 1)
    with np.errstate(all="ignore"):  # one of the two neighbours, never further
        low = np.nextafter(out[inexact], np.float32(-np.inf)).astype(np.float64)
        high = np.nextafter(out[inexact], np.float32(np.inf)).astype(np.float64)
    assert np.all((low < values[inexact]) & (values[inexact] < high))


def test_bytes_of_any_alignment() -> None:
    bits = boundaries()[:1000]
    raw = np.zeros(bits.nbytes + 1, np.uint8)
    raw[1:] = bits.view(np.uint8)
    out = np.zeros(2 * bits.size + 1, np.uint8)
    _native.f32_to_bf16(raw[1:], out[1:])
    np.testing.assert_array_equal(np.frombuffer(out[1:].tobytes(), np.uint16), expected_codes(bits, "bf16"))


@pytest.mark.parametrize("function", [_native.f32_to_bf16, _native.bf16_to_f32, _native.f64_to_f32_odd])
def test_sizes_that_do_not_fit_are_refused(function: Callable[..., int]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        function(bytes(16), bytearray(17))
    with pytest.raises(ValueError, match="do not fit"):
        function(bytes(15), bytearray(8))
    with pytest.raises((BufferError, TypeError)):
        function(bytes(16), bytes(16))  # read-only output
    shared = bytearray(24)
    with pytest.raises(ValueError, match="overlap"):
        _native.f32_to_bf16(memoryview(shared)[:16], memoryview(shared)[8:16])
