# SPDX-License-Identifier: Apache-2.0
"""Numbers out of canonical bytes, to compare, show and measure them: a chunk at a time."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from tael.core.dtypes import DType
from tael.kernels import cast
from tael.kernels.subbyte import unpack

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def elements(raw: memoryview, kind: DType) -> Array:
    """One numpy element for each element of `raw`: numbers as they are, those below a byte in one byte each (I4: int8).

    Floats without a numpy type stay codes. Quantized blocks stay blocks: an array of `block_bytes` wide voids.
    """
    data = np.frombuffer(raw, np.uint8)
    if not kind.is_plain and kind.kind != "quantized":
        codes = _unpacked(data, round(kind.bits))
        if kind.kind != "int":
            return codes
        unused = 8 - round(kind.bits)
        return (codes << unused).view(np.int8) >> unused
    if kind.kind in ("int", "uint", "bool", "complex") and kind.numpy_name:
        return data.view(np.uint8 if kind.kind == "bool" else np.dtype(kind.numpy_name))
    return data.view(np.dtype(f"u{kind.block_bytes}" if kind.block_bytes in (1, 2, 4, 8) else f"V{kind.block_bytes}"))


def _unpacked(data: Array, bits: int) -> Array:
    if bits != 2:
        return unpack(data, bits)
    codes = np.empty((data.size, 4), np.uint8)
    for k in range(4):
        codes[:, k] = data >> 2 * k & 3
    return codes.reshape(-1)


def is_measurable(kind: DType) -> bool:
    """Are its elements single real numbers?"""
    return kind.kind in ("float", "int", "uint", "bool")


def as_float64(raw: memoryview, kind: DType) -> Array:
    """The elements as float64: exact for every float, rounded for integers beyond 2^53. Complex: complex128."""
    data = np.frombuffer(raw, np.uint8)
    if kind.is_float:
        if kind.name in ("F64", "F32", "F16"):
            return data.view(np.dtype(kind.numpy_name)).astype(np.float64, copy=False)
        out = np.empty(cast.n_elements(data, kind.name), np.float64)
        cast.cast(data, kind.name, "F64", out.view(np.uint8))
        return out
    if kind.kind == "complex":
        if kind.name == "C32":
            return data.view(np.float16).astype(np.float64).view(np.complex128)
        return data.view(np.dtype(kind.numpy_name)).astype(np.complex128)
    return elements(raw, kind).astype(np.float64)


def scalar(raw: memoryview, kind: DType, index: int) -> int | float | complex | bool | str:
    """Element `index` of `raw` as a Python number; a quantized block as hex digits."""
    if kind.kind == "quantized" or kind.kind in ("string", "void"):
        return "0x" + bytes(raw[index * kind.block_bytes : (index + 1) * kind.block_bytes]).hex()
    if kind.is_float or kind.kind == "complex":
        first = index // kind.block * kind.block_bytes
        value = as_float64(raw[first : first + kind.block_bytes], kind)[index % kind.block]
        return complex(value) if kind.kind == "complex" else float(value)
    value = elements(raw, kind)[index]
    return bool(value) if kind.kind == "bool" and value < 2 else int(value)


def bits(raw: memoryview, kind: DType, index: int) -> str:
    """The stored bits of element `index`, in hex."""
    if kind.is_plain:
        size = kind.block_bytes
        return "0x" + bytes(raw[index * size : (index + 1) * size])[::-1].hex()
    return hex(int(elements(raw, kind)[index]) & (1 << round(kind.bits)) - 1)
