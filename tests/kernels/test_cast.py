# SPDX-License-Identifier: Apache-2.0
"""tael.kernels.cast: every float dtype to every other, on packed canonical bytes."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tael.kernels.cast import FLOATS, CastCounts, cast
from tael.kernels.subbyte import pack, unpack

Array = np.ndarray[Any, Any]

NUMPY: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F6_E2M3": ml_dtypes.float6_e2m3fn,
    "F6_E3M2": ml_dtypes.float6_e3m2fn,
    "F4_E2M1": ml_dtypes.float4_e2m1fn,
}
WITHOUT_NAN = {"F6_E2M3", "F6_E3M2", "F4_E2M1"}


def canonical(values: Array, name: str) -> Array:
    """Packed bytes of an array of NUMPY[name], written independently of tael: as bits of one large number."""
    bits = FLOATS[name][0]
    if bits >= 8:
        return np.frombuffer(values.tobytes(), np.uint8)
    number = sum(int(code) << (bits * i) for i, code in enumerate(values.view(np.uint8)))
    return np.frombuffer(number.to_bytes(values.size * bits // 8, "little"), np.uint8)


def sample(name: str) -> Array:
    """Every code of a narrow dtype, a spread of a wide one; a multiple of 4 elements."""
    bits = FLOATS[name][0]
    if bits <= 8:
        return np.arange(1 << bits, dtype=np.uint8).view(NUMPY[name])
    generator = np.random.default_rng(bits)
    if bits == 16:
        return np.arange(0, 1 << 16, 5, dtype=np.uint16)[:13104].view(NUMPY[name])
    codes = generator.integers(0, 1 << 32, 2000, dtype=np.uint32).view(np.float32)
    everyday = (generator.standard_normal(2000) * 2.0 ** generator.integers(-20, 20, 2000)).astype(np.float32)
    edges = np.array([0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 7, 7.75, 30, 57344, 61440, 65520], np.float32)
    values = np.concatenate([codes, everyday, edges, -edges])
    with np.errstate(all="ignore"):
        return values if bits == 32 else values.astype(np.float64)


def run(values: Array, source: str, target: str, saturate: bool = False) -> tuple[Array, CastCounts]:
    out = np.full(values.size * FLOATS[target][0] // 8, 0xAA, np.uint8)
    counts = cast(canonical(values, source), source, target, out, saturate=saturate)
    return out, counts


def quieted(values: Array) -> Array:
    """F16 and F32 NaNs with their quiet bit set: numpy passes signalling ones on, processors do not."""
    if values.dtype == np.float16:
        codes = values.view(np.uint16)
        return np.where(np.isnan(values), codes | 0x200, codes).view(np.float16)
    return values


@pytest.mark.parametrize(("source", "target"), list(product(FLOATS, FLOATS)))
def test_every_pair_is_what_ml_dtypes_gives(source: str, target: str) -> None:
    values = sample(source)
    if source == target:
        expected = values
    else:
        with np.errstate(all="ignore"):
            expected = quieted(values.astype(np.float32).astype(NUMPY[target]))
    out, counts = run(values, source, target)
    np.testing.assert_array_equal(out, canonical(expected, target))
    with np.errstate(all="ignore"):
        before = np.isfinite(values.astype(np.float64))
        after = np.isfinite(expected.astype(np.float64))
    assert counts.nan_lost == (np.count_nonzero(~before & after))
    if target not in WITHOUT_NAN:
        with np.errstate(all="ignore"):  # infinity without a code
            lost = np.isnan(expected.astype(np.float64)) & ~np.isnan(values.astype(np.float64))
        assert counts.overflow == np.count_nonzero((before & ~after) | lost)


@pytest.mark.parametrize("target", sorted(WITHOUT_NAN))
def test_clamping_into_types_without_infinity_is_counted(target: str) -> None:
    tie = {"F6_E2M3": 7.75, "F6_E3M2": 30.0, "F4_E2M1": 7.0}[target]  # between the largest and the step after it
    below = np.nextafter(np.float32(tie), np.float32(0))
    values = np.array([below, -below, tie, -tie, 1e30, np.inf, -np.inf, np.nan], np.float32)
    _, counts = run(values, "F32", target)
    assert counts == CastCounts(overflow=3, nan_lost=3)


@pytest.mark.parametrize("target", [name for name in FLOATS if name not in ("F64", "F32")])
def test_from_f64_rounds_once(target: str) -> None:
    """Values just beside the tie of two neighbours: a rounding to float32 in between would fall onto the tie."""
    kind = NUMPY[target]
    codes = np.arange(1 << min(FLOATS[target][0], 16), dtype=np.uint16 if FLOATS[target][0] == 16 else np.uint8)
    with np.errstate(all="ignore"):
        values = codes.view(kind).astype(np.float64)
    values = np.unique(values[np.isfinite(values) & (values > 0)])
    if target == "F8_E8M0":
        values = values[1:]  # ml_dtypes rounds all of (2^-127, 2^-126) up
    low, high = values[:-1], values[1:]
    middle = (low + high) / 2
    inputs = np.concatenate([np.nextafter(middle, 0), np.nextafter(middle, np.inf)])
    expected = np.concatenate([low, high])
    inputs, expected = inputs[: inputs.size // 4 * 4], expected[: inputs.size // 4 * 4]
    out, counts = run(inputs, "F64", target)
    np.testing.assert_array_equal(out, canonical(expected.astype(kind), target))
    assert counts == CastCounts()


def test_saturate_clamps_to_the_nearest() -> None:
    values = np.array([1e30, -1e30, np.inf, np.nan], np.float32)
    for target, largest in (("F16", 65504.0), ("BF16", 1e30), ("F8_E4M3", 448.0), ("F8_E4M3FNUZ", 240.0)):
        out, counts = run(values, "F32", target, saturate=True)
        got = np.frombuffer(out.tobytes(), NUMPY[target]).astype(np.float32)
        np.testing.assert_allclose(got[:2], [largest, -largest], rtol=0.01)
        assert got[2] == (largest if target.startswith("F8") else np.inf)
        assert np.isnan(got[3])
        assert counts.overflow == {"BF16": 0, "F16": 2}.get(target, 3)
    tiny, huge = 2.0**-127, 2.0**127
    out, counts = run(np.array([0, -3, 3e38, 1], np.float32), "F32", "F8_E8M0", saturate=True)
    assert np.frombuffer(out.tobytes(), NUMPY["F8_E8M0"]).astype(np.float64).tolist() == [tiny, tiny, huge, 1]
    assert counts.overflow == 3


def test_pieces_join_without_a_seam() -> None:
    generator = np.random.default_rng(3)
    values = generator.standard_normal(3 * 65536 + 4).astype(np.float32)
    values[[0, 65535, 65536, -1]] = 1e30
    for target in ("F16", "F6_E3M2", "F4_E2M1"):
        with np.errstate(all="ignore"):
            expected = values.astype(NUMPY[target])
        out, counts = run(values, "F32", target)
        assert counts.overflow == 4
        back = np.empty(values.nbytes, np.uint8)
        cast(out, target, "F32", back)
        np.testing.assert_array_equal(back.view(np.float32), expected.astype(np.float32))


def test_empty_and_unfitting_sizes() -> None:
    nothing = np.empty(0, np.uint8)
    assert cast(nothing, "F64", "F4_E2M1", nothing) == CastCounts()
    with pytest.raises(ValueError, match="whole blocks of F6_E2M3"):
        cast(np.empty(16, np.uint8), "F32", "F6_E2M3", np.empty(4, np.uint8))
    with pytest.raises(ValueError, match="do not fit"):
        cast(np.empty(16, np.uint8), "F32", "F16", np.empty(4, np.uint8))
    with pytest.raises(KeyError):
        cast(nothing, "F32", "I8", nothing)


@pytest.mark.parametrize("bits", [4, 6])
def test_packing_is_little_endian_from_the_low_bits(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, 240, dtype=np.uint8)
    packed = np.empty(240 * bits // 8, np.uint8)
    pack(codes, bits, packed)
    number = int.from_bytes(packed.tobytes(), "little")
    assert [number >> (bits * i) & ((1 << bits) - 1) for i in range(240)] == codes.tolist()
    np.testing.assert_array_equal(unpack(packed, bits), codes)


@pytest.mark.parametrize("target", ["F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"])
@pytest.mark.parametrize("source", ["F64", "F32", "BF16"])
def test_infinity_overflows_where_the_target_has_none(source: str, target: str) -> None:
    values = np.array([math.inf, 1, math.nan, -math.inf], NUMPY[source])
    table = np.arange(256, dtype=np.uint8).view(NUMPY[target]).astype(np.float32)
    out, counts = run(values, source, target)
    assert np.isnan(out.view(NUMPY[target]).astype(np.float32)).tolist() == [True, False, True, True]
    assert counts == CastCounts(overflow=2)
    out, counts = run(values, source, target, saturate=True)
    shown = out.view(NUMPY[target]).astype(np.float32)
    assert (shown[0], shown[1], shown[3]) == (np.nanmax(table), 1, np.nanmin(table))
    assert np.isnan(shown[2])
    assert counts == CastCounts(overflow=2)
