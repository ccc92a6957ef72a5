# SPDX-License-Identifier: Apache-2.0
"""first_difference, count_differences, gather_strided and stats_f32 against plain Python and numpy."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tael.kernels import Stats, _native, count_differences, first_difference, gather_strided, stats_f32


@pytest.mark.parametrize("length", [1, 7, 255, 256, 257, 1000, 5000])
def test_first_difference_at_every_place(length: int) -> None:
    a = bytes(length)
    assert first_difference(a, bytearray(length)) == -1
    for at in {0, length // 2, length - 1, max(0, length - 9)}:
        b = bytearray(length)
        b[at] = 1
        b[-1] |= 2
        assert first_difference(a, b) == at


def test_comparison_refuses_unequal_sizes() -> None:
    assert first_difference(b"", b"") == -1
    with pytest.raises(ValueError, match="differ in size"):
        first_difference(b"a", b"ab")
    with pytest.raises(ValueError, match="whole items"):
        count_differences(bytes(6), bytes(6), 4)
    with pytest.raises(ValueError, match="whole items"):
        count_differences(bytes(6), bytes(6), 0)


@pytest.mark.parametrize("itemsize", [1, 2, 3, 4, 8, 16, 34])
def test_count_differences_counts_items_not_bytes(itemsize: int) -> None:
    generator = np.random.default_rng(itemsize)
    a = generator.integers(0, 256, itemsize * 70_001, dtype=np.uint8)
    b = a.copy()
    items = generator.choice(70_001, 500, replace=False)
    for item in items:
        b[item * itemsize + generator.integers(itemsize)] ^= 0xFF
    b[items[0] * itemsize : (items[0] + 1) * itemsize] = ~a[items[0] * itemsize : (items[0] + 1) * itemsize]
    assert count_differences(a, b, itemsize) == 500
    assert count_differences(a, a, itemsize) == 0


VIEWS = {
    "transposed": lambda a: a.reshape(96, -1).T,
    "transposed, odd": lambda a: a.reshape(96, -1)[5:, 3:].T,
    "channels last": lambda a: a.reshape(2, 64, 6, -1).transpose(0, 2, 3, 1),
    "permuted": lambda a: a.reshape(8, 12, 4, -1).transpose(3, 1, 0, 2),
    "steps": lambda a: a.reshape(96, -1)[::2, ::3],
    "backwards": lambda a: a.reshape(96, -1)[::-1, ::-1],
    "backwards, transposed": lambda a: a.reshape(96, -1)[::-1, ::-1].T,
    "expanded": lambda a: np.broadcast_to(a[:48], (7, 48)),
    "expanded, transposed": lambda a: np.broadcast_to(a[:48, None], (48, 300)),
    "expanded inside": lambda a: np.broadcast_to(a[:48].reshape(4, 1, 12), (4, 5, 12)).transpose(2, 1, 0),
    "one row": lambda a: a.reshape(1, -1)[:, :5],
    "zero-dim": lambda a: a[:1].reshape(()),
    "empty": lambda a: a[:0].reshape(0, 3).T,
    "contiguous": lambda a: a.reshape(96, -1),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64, np.complex128])
def test_gathering_is_numpys_copy(dtype: Any, view: str) -> None:
    base = np.random.default_rng(0).integers(0, 256, 96 * 144 * 16, dtype=np.uint8).view(dtype)
    strided = VIEWS[view](base)
    for gather in (gather_strided, _native.gather_strided):
        out = np.full(strided.nbytes + 1, 0xEE, np.uint8)
        gather(strided, out[:-1])
        assert out[:-1].tobytes() == strided.tobytes()
        assert out[-1] == 0xEE


@pytest.mark.parametrize("offset", [0, 4, 16, 60])
@pytest.mark.parametrize("shape", [(1024, 512), (1024, 500), (3000, 16), (16, 3000), (3, 30000)])
def test_gathering_large_transposes_on_any_line(shape: tuple[int, int], offset: int) -> None:
    """Large outputs are written past the caches by whole lines, whatever the address they start at."""
    source = np.arange(math.prod(shape), dtype=np.float32).reshape(shape).T
    room = np.empty(source.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    room[:] = 0xEE
    _native.gather_strided(source, room[start : start + source.nbytes])
    assert room[start : start + source.nbytes].tobytes() == source.tobytes()
    assert (room[:start] == 0xEE).all()
    assert (room[start + source.nbytes :] == 0xEE).all()


def test_gathering_refuses_what_it_cannot() -> None:
    with pytest.raises(ValueError, match="1, 2, 4, 8 or 16 bytes"):
        _native.gather_strided(np.zeros(4, "S3"), np.zeros(12, np.uint8))
    with pytest.raises(ValueError, match="differ in size"):
        _native.gather_strided(np.zeros((4, 4), np.uint8).T, np.zeros(15, np.uint8))


@given(st.lists(st.floats(width=32), max_size=40))
def test_stats_of_any_values(values: list[float]) -> None:
    array = np.array(values, np.float32)
    stats = stats_f32(array)
    finite = [float(value) for value in array if math.isfinite(value)]
    assert stats.n == len(values)
    assert stats.n_nan == sum(math.isnan(value) for value in values)
    assert stats.n_inf == sum(math.isinf(value) for value in values)
    assert stats.n_zero == sum(value == 0 for value in finite)
    assert stats.n_finite == len(finite)
    assert stats.minimum == min(finite, default=math.inf)
    assert stats.maximum == max(finite, default=-math.inf)
    size = float(sum(abs(Fraction(value)) for value in finite))
    assert math.isclose(stats.total, float(sum(map(Fraction, finite))), rel_tol=0, abs_tol=1e-13 * size)
    squares = sum(Fraction(value) ** 2 for value in finite)
    assert math.isclose(stats.total_squares, float(squares), rel_tol=1e-13)


def test_stats_of_a_normal_distribution() -> None:
    array = np.random.default_rng(0).standard_normal(1_000_003, dtype=np.float32)
    stats = stats_f32(array)
    assert math.isclose(stats.mean, array.mean(dtype=np.float64), rel_tol=1e-9)
    assert math.isclose(stats.std, array.std(dtype=np.float64), rel_tol=1e-9)
    assert (stats.minimum, stats.maximum) == (array.min(), array.max())


def test_stats_merge() -> None:
    a, b = np.array([1, np.nan, 0], np.float32), np.array([-5, np.inf], np.float32)
    merged = stats_f32(a).merged(stats_f32(b))
    assert merged == Stats(5, 1, 1, 1, -5.0, 1.0, -4.0, 26.0)
    assert Stats().merged(merged) == merged
    assert math.isnan(Stats().mean)
    assert math.isnan(Stats().std)
    with pytest.raises(ValueError, match="whole number"):
        stats_f32(bytes(7))
