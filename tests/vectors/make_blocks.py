# SPDX-License-Identifier: Apache-2.0
"""Golden blocks: rows of every kind, quantized and dequantized by ggml's reference code (libgguf; Q2_0: libggml).

python tests/vectors/make_blocks.py        (needs libgguf, libggml-python)
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import json
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent / "blocks"
LENGTH = 512
TYPES = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS",
    "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0", "Q2_0",
)  # fmt: skip
Q2_0 = 42  # ggml's number; libgguf has no such type


def rows() -> np.ndarray:
    """One row of each kind."""
    random = np.random.default_rng(20)
    normal = random.standard_normal((14, LENGTH))
    kinds = [
        normal[0],
        normal[1] * 0.02,
        random.standard_t(1.5, LENGTH),
        random.laplace(0, 0.05, LENGTH),
        np.full(LENGTH, -0.7),
        np.zeros(LENGTH),
        -np.zeros(LENGTH),
        normal[2] * 1e-41,
        normal[3] * 1e-30,
        normal[4] * 3e3,
        np.round(normal[5] * 3),
        normal[6] * (random.random(LENGTH) < 0.05),
        normal[7] * 0.02 + (random.random(LENGTH) < 0.01) * 5,
        np.where(np.arange(LENGTH) < LENGTH // 2, 0, normal[8]),
        normal[9] * np.exp2(random.integers(-30, 12, LENGTH // 16)).repeat(16),
        np.abs(normal[10]),
    ]
    return np.ascontiguousarray(kinds, np.float32)


def weights() -> np.ndarray:
    found = np.random.default_rng(21).standard_normal(LENGTH) ** 2
    found[100:140] = 0
    return found.astype(np.float32)


class Libggml:
    """Q2_0 of the ggml library that `libggml-python` brings."""

    def __init__(self) -> None:
        folder = Path(importlib.metadata.distribution("libggml-python").locate_file(""))
        (path,) = [p for p in folder.rglob("libggml-base*.so*") if p.is_file()][:1]
        self.library = ctypes.CDLL(str(path))
        self.library.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.library.ggml_get_type_traits.restype = ctypes.c_void_p

    def quantize(self, values: np.ndarray) -> np.ndarray:
        out = np.zeros((len(values), LENGTH // 64 * 18), np.uint8)
        arguments = [Q2_0, values.ctypes.data, out.ctypes.data, 0, len(values), LENGTH, None]
        kinds = (ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p)
        self.library.ggml_quantize_chunk(*(kind(value) for kind, value in zip(kinds, arguments, strict=True)))
        return out

    def dequantize(self, blocks: np.ndarray) -> np.ndarray:
        out = np.zeros((len(blocks), LENGTH), np.float32)
        rows_of = self.library.dequantize_row_q2_0
        rows_of.restype = None
        rows_of(ctypes.c_void_p(blocks.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(out.size))
        return out


def main() -> None:
    import libgguf

    HERE.mkdir(exist_ok=True)
    values, importance = rows(), weights()
    arrays: dict[str, np.ndarray] = {"values": values, "weights": importance}
    ggml = Libggml()
    for name in TYPES:
        if name == "Q2_0":
            arrays[name], arrays[f"{name}.values"] = (blocks := ggml.quantize(values)), ggml.dequantize(blocks)
            continue
        kind = getattr(libgguf.GGMLQuantizationType, name)
        if not libgguf.quantize_requires_imatrix(kind):
            arrays[name] = np.asarray(libgguf.quantize_rows(values, kind)).view(np.uint8)
        arrays[f"{name}.weighted"] = np.asarray(libgguf.quantize_rows(values, kind, importance)).view(np.uint8)
        blocks = arrays[f"{name}.weighted"]
        arrays[f"{name}.values"] = np.asarray(libgguf.dequantize_rows(blocks, kind, LENGTH), np.float32)
    np.savez_compressed(HERE / "blocks.npz", **arrays)
    data = (HERE / "blocks.npz").read_bytes()
    by = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("libgguf", "libggml-python"))
    provenance = {
        "made with": "make_blocks.py",
        "files": {"blocks.npz": {"by": by, "sha256": hashlib.sha256(data).hexdigest()}},
    }
    (HERE / "PROVENANCE.json").write_text(json.dumps(provenance, indent=1) + "\n")


if __name__ == "__main__":
    main()
