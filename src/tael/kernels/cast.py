# SPDX-License-Identifier: Apache-2.0
"""Casts between every two float dtypes, on canonical bytes.

A cast goes to float32, which holds every narrower kind exactly, and from there to the target, rounded once to nearest
even. From F64 the step to float32 rounds to odd, so that the result is what one rounding would have given. NaN stays
NaN with its sign, quieted; infinity stays infinity; where the target has none, it is an overflow like any. The rare
kinds go through ml_dtypes, which is the reference for all: E8M0 (a power of two: no zero, no sign) gives NaN for values
up to zero, and rounds ties and everything between 2^-127 and 2^-126 up; F6 and F4, which have neither NaN nor infinity,
always clamp.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tael.kernels import _native
from tael.kernels.subbyte import Bytes, pack, unpack

__all__ = ["FLOATS", "CastCounts", "cast", "n_elements"]

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

FLOATS = {  # name: (bits, ml_dtypes name where the native core has no kernel)
    "F64": (64, ""),
    "F32": (32, ""),
    "F16": (16, ""),
    "BF16": (16, ""),
    "F8_E4M3": (8, ""),
    "F8_E5M2": (8, ""),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"),
    "F8_E8M0": (8, "float8_e8m0fnu"),
    "F6_E2M3": (6, "float6_e2m3fn"),
    "F6_E3M2": (6, "float6_e3m2fn"),
    "F4_E2M1": (4, "float4_e2m1fn"),
}

_TO_F32: dict[str, Callable[[Bytes, Floats], int]] = {
    "F64": _native.f64_to_f32_odd,
    "F16": _native.f16_to_f32,
    "BF16": _native.bf16_to_f32,
    "F8_E4M3": _native.f8_e4m3_to_f32,
    "F8_E5M2": _native.f8_e5m2_to_f32,
}

_FROM_F32: dict[str, Callable[[Floats, Bytes, bool], int]] = {
    "F16": _native.f32_to_f16,
    "BF16": _native.f32_to_bf16,
    "F8_E4M3": _native.f32_to_f8_e4m3,
    "F8_E5M2": _native.f32_to_f8_e5m2,
}

_E4M3_NAN, _E4M3_LARGEST = 0x7F, 0x7E  # without the sign

_PIECE = 65536  # elements between two steps: 256 KiB of float32 stay in the cache


class CastCounts(NamedTuple):
    """What a cast could not keep, in elements; rounding is not counted."""

    overflow: int = 0  # finite values that became infinity or NaN, infinities that became NaN, and what was clamped
    nan_lost: int = 0  # NaN and infinities that became finite, in a target with neither

    def plus(self, other: CastCounts) -> CastCounts:
        return CastCounts(self.overflow + other.overflow, self.nan_lost + other.nan_lost)


def n_elements(data: Bytes, name: str) -> int:
    """Elements of dtype `name` in canonical bytes; ValueError when they are not whole blocks."""
    n, rest = divmod(8 * data.nbytes, FLOATS[name][0])
    if rest:
        raise ValueError(f"{data.nbytes} bytes are not whole blocks of {name}")
    return n


def cast(source: Bytes, source_name: str, target_name: str, out: Bytes, *, saturate: bool = False) -> CastCounts:
    """Casts contiguous uint8 `source` (n elements of `source_name`) into uint8 `out` (n of `target_name`).

    The names are keys of FLOATS, the bytes canonical: little-endian, elements below a byte from the low bits up.
    `saturate` clamps what overflows to the largest of its sign (E8M0: to the nearest) instead of letting it become
    infinity or NaN; it is counted either way. Infinity overflows only where the target has none. KeyError for other
    dtypes, ValueError for sizes that do not fit.
    """
    source, out = source.reshape(-1).view(np.uint8), out.reshape(-1).view(np.uint8)
    n = n_elements(source, source_name)
    if n != n_elements(out, target_name):
        raise ValueError(f"{n} elements of {source_name} do not fit {out.nbytes} bytes of {target_name}")
    if source_name == target_name:
        np.copyto(out, source)
        return CastCounts()
    if source_name == "F64" and target_name == "F32":
        return CastCounts(_native.f64_to_f32(source, out, saturate))
    counts = CastCounts()
    source_bits, target_bits = FLOATS[source_name][0], FLOATS[target_name][0]
    scratch = np.empty(min(n, _PIECE), np.float32)
    for start in range(0, n, _PIECE):
        stop = min(start + _PIECE, n)
        piece = source[start * source_bits // 8 : stop * source_bits // 8]
        target = out[start * target_bits // 8 : stop * target_bits // 8]
        if source_name == "F32":
            values = piece.view(np.float32)
        else:
            values = target.view(np.float32) if target_name == "F32" else scratch[: stop - start]
            _to_f32(piece, source_name, values)
        if target_name != "F32":
            counts = counts.plus(_from_f32(values, target_name, target, saturate))
    return counts


def _to_f32(source: Bytes, name: str, out: Floats) -> None:
    native = _TO_F32.get(name)
    if native is not None:
        native(source, out)
        return
    bits = FLOATS[name][0]
    np.take(_values(name), source if bits == 8 else unpack(source, bits), out=out, mode="clip")


def _from_f32(values: Floats, name: str, out: Bytes, saturate: bool) -> CastCounts:
    native = _FROM_F32.get(name)
    if native is not None:
        count = native(values, out, saturate)
        if name == "F8_E4M3":
            count += _infinities(values, out, saturate)
        return CastCounts(count)
    if name == "F64":
        with np.errstate(all="ignore"):  # a signalling NaN is quieted
            np.copyto(out.view(np.float64), values)
        return CastCounts()
    with np.errstate(all="ignore"):
        codes = values.astype(_ml_dtype(name)).view(np.uint8)
    finite = np.isfinite(values)
    bits = FLOATS[name][0]
    if bits < 8:
        overflow = finite & (np.abs(values) >= _clamps_from(name))
        pack(codes, bits, out)
        return CastCounts(int(np.count_nonzero(overflow)), int(values.size - np.count_nonzero(finite)))
    overflow = ~np.isnan(values) & ~np.isfinite(_values(name)[codes])
    if saturate:
        codes = np.where(overflow, _nearest(name, values), codes)
    np.copyto(out, codes)
    return CastCounts(int(np.count_nonzero(overflow)))


def _infinities(values: Floats, out: Bytes, saturate: bool) -> int:
    """How many infinities became NaN in the F8_E4M3 `out`, which the kernel counts as little as NaN; clamps them."""
    if not np.any((out & 0x7F) == _E4M3_NAN):  # far cheaper than to look at `values`
        return 0
    infinite = np.isinf(values)
    if saturate:
        np.copyto(out, np.where(values > 0, _E4M3_LARGEST, _E4M3_LARGEST | 0x80).astype(np.uint8), where=infinite)
    return int(np.count_nonzero(infinite))


def _ml_dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, FLOATS[name][1]))
    return dtype


@cache
def _values(name: str) -> Floats:
    """The float32 value of every code of a dtype of at most 8 bits."""
    codes = np.arange(2 ** FLOATS[name][0], dtype=np.uint8)
    with np.errstate(all="ignore"):
        values: Floats = codes.view(_ml_dtype(name)).astype(np.float32)
    values.flags.writeable = False
    return values


@cache
def _clamps_from(name: str) -> float:
    """The magnitude from which an F6 or F4 rounds beyond its largest value: half a step further, ties included,
    because the largest code is odd."""
    values = np.sort(_values(name))
    return float(values[-1] + (values[-1] - values[-2]) / 2)


def _nearest(name: str, values: Floats) -> Bytes:
    """The codes to which values beyond the range clamp."""
    table = _values(name)
    high, low = np.uint8(np.nanargmax(table)), np.uint8(np.nanargmin(table))
    return np.where(values > 0, high, low)
