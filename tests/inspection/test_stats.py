# SPDX-License-Identifier: Apache-2.0
"""Figures of tensors, compared with numpy's over the whole."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from building import checkpoint, tensor
from tael.core.dtypes import DTYPES
from tael.core.node import Span, Strided
from tael.core.source import BytesSource
from tael.errors import UnsupportedTensorError
from tael.inspection import stats as module
from tael.inspection.stats import Stats, stats, stats_checkpoint
from tael.verify.reading import checked_chunks

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"]


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def expect(found: Stats, values: np.ndarray, *, rel: float = 1e-6) -> None:
    """`found` against numpy in double precision."""
    wide = values.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    assert found.error is None
    assert (found.count, found.nan, found.inf) == (wide.size, np.isnan(wide).sum(), np.isinf(wide).sum())
    assert found.zeros == np.sum(wide == 0)
    if finite.size:
        assert (found.min, found.max) == (finite.min(), finite.max())
        rounding = 1e-9 * (1 + np.abs(finite).max())
        assert found.mean == pytest.approx(finite.mean(), rel=rel, abs=rounding)
        assert found.std == pytest.approx(finite.std(), rel=rel, abs=rounding)
    else:
        assert (found.min, found.max, found.mean, found.std) == (None, None, None, None)


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str) -> None:
    values = (np.random.default_rng(1).normal(0.5, 2, 1000)).astype(dtype_of(name))
    values[3:5] = math.nan
    values[7] = 0
    if np.isinf(np.array(math.inf).astype(values.dtype).astype(float)):
        values[9:12] = math.inf
    expect(stats(tensor("w", values)), values)


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "bool"])
def test_integers(name: str) -> None:
    values = np.random.default_rng(2).integers(0, 100, 500).astype(name)
    expect(stats(tensor("w", values)), values)


def test_large_integers_keep_every_digit_of_their_bounds() -> None:
    values = np.array([-(2**63), 2**63 - 1, 5], np.int64)
    found = stats(tensor("w", values))
    assert (found.min, found.max) == (-(2**63), 2**63 - 1)
    assert stats(tensor("w", np.array([2**64 - 1], np.uint64))).max == 2**64 - 1


@pytest.mark.parametrize(
    ("kind", "shape", "raw", "values"),
    [
        ("I4", (4,), b"\xf1\x83", [1, -1, 3, -8]),
        ("U4", (4,), b"\xf1\x83", [1, 15, 3, 8]),
        ("I2", (4,), b"\xe4", [0, 1, -2, -1]),
        ("U2", (4,), b"\xe4", [0, 1, 2, 3]),
        ("F4_E2M1", (2,), b"\xf1", [0.5, -6]),
        ("F6_E3M2", (4,), b"\x01\x00\x00", [0.0625, 0, 0, 0]),
    ],
)
def test_elements_below_a_byte(kind: str, shape: tuple[int, ...], raw: bytes, values: list[float]) -> None:
    expect(stats(tensor("w", (kind, shape, raw))), np.array(values))


@settings(max_examples=50)
@given(st.lists(st.floats(width=32), max_size=40), st.integers(1, 9), st.sampled_from([0.0, 1e4]))
def test_chunks_make_no_difference(values: list[float], elements: int, offset: float) -> None:
    array = np.clip(np.array(values, np.float32), -1e15, 1e15) + np.float32(offset)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", 4 * elements)
        found = stats(tensor("w", array))
    expect(found, array, rel=1e-5)


def test_a_small_deviation_around_a_large_mean_is_not_lost() -> None:
    values = np.float64(1e9) + np.random.default_rng(3).normal(0, 1e-3, 10_000)
    expect(stats(tensor("w", values)), values)
    counts = np.arange(10**15, 10**15 + 999)
    assert stats(tensor("w", counts)).std == pytest.approx(counts.astype(float).std())


def test_nothing_and_nothing_finite() -> None:
    assert stats(tensor("w", np.zeros((0, 3), np.float32))) == Stats("w", 0)
    assert stats(tensor("w", np.array([math.nan, -math.inf]))) == Stats("w", 2, nan=1, inf=1)
    assert stats(tensor("w", np.zeros(0, np.int8))) == Stats("w", 0)


def test_what_has_no_figures_says_why() -> None:
    assert stats(tensor("w", ("Q8_0", (1, 32), bytes(34)))).error == "no statistics of Q8_0"
    assert stats(tensor("w", np.array([1j]))).error == "no statistics of C128"
    torn = stats(tensor("w", np.ones(3), damaged="torn"))
    assert torn.error is not None
    assert "torn" in torn.error
    bad = tensor("w", np.ones(3), check=True)
    bad.checks[0].crc32 ^= 1
    assert "CRC-32" in (stats(bad).error or "")


def test_a_checkpoint_in_file_order_with_ties_read_once() -> None:
    class Recorder:
        total = done = 0
        finished = False

        def start(self, total_bytes: int, label: str) -> None:
            self.total = total_bytes

        def advance(self, nbytes: int) -> None:
            self.done += nbytes

        def finish(self) -> None:
            self.finished = True

    arrays = {f"w{k}": np.full(k + 1, k, np.float32) for k in range(40)}
    source = checkpoint({**arrays, "q": ("Q8_0", (1, 32), bytes(34))}, aliases={"tied": "w3"})
    recorder = Recorder()
    found = list(stats_checkpoint(source, recorder))
    assert [one.name for one in found] == list(source.tensors)
    assert [one.mean for one in found[:40]] == list(range(40))
    assert found[-1].max == 3
    assert recorder.total == recorder.done == sum(range(1, 41)) * 4 + 34
    assert recorder.finished


def test_a_wrong_checksum_is_damage_and_other_errors_are_not() -> None:
    found = stats(tensor("w", np.ones(4, np.float32), check=True))
    assert (found.damaged, found.error) == (False, None)
    good = tensor("w", np.ones(4, np.float32), check=True)
    good.checks[0].crc32 ^= 1
    found = stats(good)
    assert found.damaged
    assert "stored CRC-32" in (found.error or "")
    assert not stats(tensor("c", np.ones(2, np.complex64))).damaged


@pytest.mark.parametrize("rows", [2**40, 2**24])
def test_a_small_storage_repeated_to_gigabytes_is_refused_unread(rows: int) -> None:
    view = Strided(DTYPES["F32"], (rows, 16), Span(BytesSource(bytes(64), "s"), 0, 64), 0, (0, 1))
    found = stats(tensor("w", view))
    assert (found.damaged, found.min) == (False, None)
    assert "repeats its storage" in (found.error or "")
    with pytest.raises(UnsupportedTensorError, match="repeats its storage"):
        next(checked_chunks(tensor("w", view)))
    small = Strided(DTYPES["F32"], (100, 16), view.storage, 0, (0, 1))
    assert stats(tensor("w", small)).zeros == 1600
