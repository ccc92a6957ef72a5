# SPDX-License-Identifier: Apache-2.0
"""Every instruction set that runs here gives the same bytes, each in a process that TAEL_SIMD forced to it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tael import kernels

DIGEST = """
import hashlib
import numpy as np
from tael import kernels
from tael.core.dtypes import DTYPES
from tael.core.ops import BLOCK_TYPES, NEED_WEIGHTS
from tael.kernels import _native

generator = np.random.default_rng(5)
n = 300_011
bits = generator.integers(0, 1 << 32, n, dtype=np.uint32)
everyday = generator.standard_normal(n, dtype=np.float32)
wide = generator.integers(0, 1 << 64, n, dtype=np.uint64)
digest = hashlib.sha256()
def add(*parts):
    for part in parts:
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
for source in (bits, everyday):
    for name, size in (("bf16", 2), ("f16", 2), ("f8_e4m3", 1), ("f8_e5m2", 1)):
        for saturate in (False, True):
            out = np.zeros(n * size, np.uint8)
            add(getattr(_native, "f32_to_" + name)(source, out, saturate), out)
        back = np.zeros(n, np.float32)
        getattr(_native, name + "_to_f32")(out, back)
        add(back)
    add(kernels.stats_f32(source), kernels.crc32(source), kernels.crc32c(source))
    add([kernels.crc32(source.view(np.uint8)[k : 5 * k]) for k in range(400)])
out = np.zeros(n, np.float32)
for name in ("f64_to_f32", "f64_to_f32_odd"):
    add(getattr(_native, name)(wide, out), out)
for name in sorted(BLOCK_TYPES):
    kind = DTYPES[name]
    blocks = np.zeros(20 * 1280 // kind.block * kind.block_bytes, np.uint8)
    source, weights = everyday[: 20 * 1280], everyday[-1280:] ** 2
    add(name, kernels.quantize(name, source, blocks, 1280, weights), blocks)
    if name not in NEED_WEIGHTS:
        add(kernels.quantize(name, source, blocks, 1280), blocks)
    kernels.dequantize(name, blocks, out[: 20 * 1280])
    add(out)
other = bits.copy()
other[[70_000, 200_000]] ^= 1
add([kernels.count_differences(bits, other, size) for size in (1, 2, 4)], kernels.first_difference(bits, other))
print(kernels.SIMD, digest.hexdigest())
"""


def run(level: str, code: str = DIGEST) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TAEL_SIMD": level}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def baseline() -> str:
    result = run("baseline")
    assert result.returncode == 0, result.stderr
    level, digest = result.stdout.split()
    assert level == "baseline"
    return digest


@pytest.mark.parametrize("level", [*kernels.levels()[1:], ""])
def test_every_level_gives_the_baselines_bytes(level: str, baseline: str) -> None:
    result = run(level)
    assert result.returncode == 0, result.stderr
    used, digest = result.stdout.split()
    assert used == (level or used)
    assert used in kernels.levels()
    assert digest == baseline


def test_the_baseline_is_always_there() -> None:
    assert kernels.levels()[0] == "baseline"
    assert kernels.SIMD in kernels.levels()


def test_an_unknown_level_is_a_clear_error() -> None:
    result = run("mmx", "import tael.kernels")
    assert result.returncode != 0
    assert "TAEL_SIMD: no kernels named 'mmx' run here; there are: baseline" in result.stderr


def test_results_do_not_depend_on_the_callers_rounding() -> None:
    """A library built with -ffast-math may leave subnormals flushed to zero; the kernels restore what they need."""
    import ctypes
    import ctypes.util

    import numpy as np

    library = ctypes.CDLL(ctypes.util.find_library("m") or None)
    upward = {"x86_64": 0x800, "aarch64": 0x400000, "arm64": 0x400000}.get(os.uname().machine)
    if upward is None or not hasattr(library, "fesetround"):
        pytest.skip("no way to set the rounding mode here")
    values = np.array([1 + 2.0**-30, -1 - 2.0**-30, 2.0**-24 * 1.1], np.float64)
    small = np.array([2.0**-24 * 1.1, 2.0**-9 * 0.7], np.float32)
    out64, half, eighth = np.empty(3, np.float32), np.empty(2, np.float16), np.empty(2, np.uint8)
    assert library.fesetround(upward) == 0
    try:
        kernels._native.f64_to_f32(values, out64)
        kernels._native.f32_to_f16(small, half)
        kernels._native.f32_to_f8_e4m3(small, eighth)
    finally:
        library.fesetround(0)
    assert out64.tolist() == values.astype(np.float32).tolist()
    assert half.view(np.uint16).tolist() == [1, small[1:].astype(np.float16).view(np.uint16)[0]]
    assert eighth.tolist() == [0, 1]
