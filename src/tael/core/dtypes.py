# SPDX-License-Identifier: Apache-2.0
"""The one table of element types. Block-quantized types are dtypes like any other.

A dtype stores `block` consecutive elements in `block_bytes` bytes. Plain types have block 1.
Sub-byte plain types (U4, F6_E2M3, ...) pack their elements low bits first over the flattened
tensor; quantized types (Q4_K, ...) run their blocks along the last axis.

Sources: safetensors 0.8 (plain names), OCP MX and ml_dtypes (F8, F6, F4), ggml (blocks).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tael.errors import UnsupportedFormatError, UnsupportedTensorError, clip

Kind = Literal["float", "int", "uint", "bool", "complex", "quantized", "string", "void"]


@dataclass(frozen=True, slots=True, eq=False)  # one object per type: compared and hashed as such
class DType:
    """One element type: `block` elements in `block_bytes` bytes; `numpy_name` in numpy or ml_dtypes, if any."""

    name: str
    kind: Kind
    block: int
    block_bytes: int
    numpy_name: str | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def bits(self) -> float:
        """Bits per element, scales included (Q4_K: 4.5)."""
        return self.block_bytes * 8 / self.block

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_plain(self) -> bool:
        """One element, one or more whole bytes: can be strided, transposed, viewed as an array."""
        return self.block == 1

    def grid(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape counted in blocks. Raises `UnsupportedTensorError` when blocks do not divide it."""
        shape = tuple(shape)
        if self.block == 1:
            return shape
        if shape and shape[-1] % self.block == 0:
            return (*shape[:-1], shape[-1] // self.block)
        count = math.prod(shape)
        if count == 0:
            return shape
        if self.kind == "quantized":
            raise UnsupportedTensorError(
                f"a row of {shape[-1] if shape else 1} elements is no multiple of {self.name}'s block of {self.block}"
            )
        if count % self.block:
            raise UnsupportedTensorError(f"{count} elements of {self.name} do not fill whole bytes")
        return (count // self.block,)

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of the canonical form of a tensor of this dtype and `shape`."""
        if self.block == 1:
            return math.prod(shape) * self.block_bytes
        return math.prod(self.grid(shape)) * self.block_bytes

    def numpy(self) -> Any:
        """The numpy dtype (from ml_dtypes where numpy has none): raises `UnsupportedTensorError` if there is none."""
        import numpy as np

        if self.numpy_name is None:
            raise UnsupportedTensorError(f"{self.name} has no numpy dtype", hint="read its bytes, or cast it first")
        if hasattr(np, self.numpy_name):
            return np.dtype(self.numpy_name)
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, self.numpy_name))


# name, kind, elements per block, bytes per block, numpy / ml_dtypes name
_ROWS: tuple[tuple[str, Kind, int, int, str | None], ...] = (
    ("F64", "float", 1, 8, "float64"),
    ("F32", "float", 1, 4, "float32"),
    ("F16", "float", 1, 2, "float16"),
    ("BF16", "float", 1, 2, "bfloat16"),
    ("F8_E4M3", "float", 1, 1, "float8_e4m3fn"),
    ("F8_E5M2", "float", 1, 1, "float8_e5m2"),
    ("F8_E4M3FNUZ", "float", 1, 1, "float8_e4m3fnuz"),
    ("F8_E5M2FNUZ", "float", 1, 1, "float8_e5m2fnuz"),
    ("F8_E8M0", "float", 1, 1, "float8_e8m0fnu"),
    ("F6_E2M3", "float", 4, 3, "float6_e2m3fn"),
    ("F6_E3M2", "float", 4, 3, "float6_e3m2fn"),
    ("F4_E2M1", "float", 2, 1, "float4_e2m1fn"),
    ("I64", "int", 1, 8, "int64"),
    ("I32", "int", 1, 4, "int32"),
    ("I16", "int", 1, 2, "int16"),
    ("I8", "int", 1, 1, "int8"),
    ("I4", "int", 2, 1, "int4"),
    ("I2", "int", 4, 1, "int2"),
    ("U64", "uint", 1, 8, "uint64"),
    ("U32", "uint", 1, 4, "uint32"),
    ("U16", "uint", 1, 2, "uint16"),
    ("U8", "uint", 1, 1, "uint8"),
    ("U4", "uint", 2, 1, "uint4"),
    ("U2", "uint", 4, 1, "uint2"),
    ("BOOL", "bool", 1, 1, "bool"),
    ("C32", "complex", 1, 4, None),  # two F16: torch's complex32
    ("C64", "complex", 1, 8, "complex64"),
    ("C128", "complex", 1, 16, "complex128"),
    ("Q4_0", "quantized", 32, 18, None),
    ("Q4_1", "quantized", 32, 20, None),
    ("Q5_0", "quantized", 32, 22, None),
    ("Q5_1", "quantized", 32, 24, None),
    ("Q8_0", "quantized", 32, 34, None),
    ("Q8_1", "quantized", 32, 36, None),
    ("Q2_K", "quantized", 256, 84, None),
    ("Q3_K", "quantized", 256, 110, None),
    ("Q4_K", "quantized", 256, 144, None),
    ("Q5_K", "quantized", 256, 176, None),
    ("Q6_K", "quantized", 256, 210, None),
    ("Q8_K", "quantized", 256, 292, None),
    ("IQ1_S", "quantized", 256, 50, None),
    ("IQ1_M", "quantized", 256, 56, None),
    ("IQ2_XXS", "quantized", 256, 66, None),
    ("IQ2_XS", "quantized", 256, 74, None),
    ("IQ2_S", "quantized", 256, 82, None),
    ("IQ3_XXS", "quantized", 256, 98, None),
    ("IQ3_S", "quantized", 256, 110, None),
    ("IQ4_NL", "quantized", 32, 18, None),
    ("IQ4_XS", "quantized", 256, 136, None),
    ("TQ1_0", "quantized", 256, 54, None),
    ("TQ2_0", "quantized", 256, 66, None),
    ("MXFP4", "quantized", 32, 17, None),
    ("NVFP4", "quantized", 64, 36, None),
    ("Q1_0", "quantized", 128, 18, None),
    ("Q2_0", "quantized", 64, 18, None),
    ("STRING", "string", 1, 1, None),  # listed with its stored bytes as elements
)

DTYPES: dict[str, DType] = {row[0]: DType(*row) for row in _ROWS}

# What people type for `--dtype`.
_SPELLINGS = {
    "DOUBLE": "F64", "FP64": "F64", "FLOAT": "F32", "FP32": "F32", "HALF": "F16", "FP16": "F16", "BF": "BF16",
    "FP8": "F8_E4M3", "F8": "F8_E4M3", "F8_E4M3FN": "F8_E4M3",
    "FP4": "F4_E2M1", "F4": "F4_E2M1", "FLOAT4_E2M1FN_X2": "F4_E2M1", "COMPLEX32": "C32",
    **{kind.numpy_name.upper(): kind.name for kind in DTYPES.values() if kind.numpy_name},
}  # fmt: skip


def dtype(name: str | DType) -> DType:
    """The dtype called `name` ("BF16", "bfloat16", "fp16", ...). Raises `UnsupportedFormatError` if unknown."""
    if isinstance(name, DType):
        return name
    key = name.upper().removeprefix("TORCH.")
    found = DTYPES.get(_SPELLINGS.get(key, key))
    if found is None:
        near = difflib.get_close_matches(key, [*DTYPES, *_SPELLINGS], n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "some are F32, F16, BF16, F8_E4M3, I8, Q8_0, Q4_K"
        raise UnsupportedFormatError(f"unknown dtype {clip(name)!r}", hint=hint)
    return found
