# SPDX-License-Identifier: Apache-2.0
"""Verify: no flipped bit escapes, tolerances mean what numpy's do, and what is told is where and what it is."""

from __future__ import annotations

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from building import checkpoint, tensor, view
from tael.convert import transforms
from tael.core import ops
from tael.core.dtypes import DTYPES
from tael.core.source import BytesSource
from tael.core.tensor import Tensor, TensorInfo
from tael.errors import SourceReadError, TransformError
from tael.verify import compare as module
from tael.verify.compare import Difference, Tolerance, compare_tensors, verify


def one(a: object, b: object, **options: object) -> Difference:
    """The only difference between two checkpoints of one tensor."""
    (found,) = verify(checkpoint({"w": a}), checkpoint({"w": b}), **options).differences  # type: ignore[arg-type, dict-item]
    return found


def equal(a: object, b: object, **options: object) -> bool:
    return verify(checkpoint({"w": a}), checkpoint({"w": b}), **options).equal  # type: ignore[arg-type, dict-item]


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_equal_checkpoints_in_other_orders_and_layouts() -> None:
    arrays = {"a": f32(1, 2, math.nan), "b": np.arange(6).reshape(2, 3), "c": np.zeros((0, 4)), "d": np.array(True)}
    result = verify(checkpoint(arrays), checkpoint(dict(reversed(arrays.items())), flat=True))
    assert result.equal
    assert result.differences == ()
    assert (result.tensors, result.nbytes) == (4, 12 + 48 + 0 + 1)


def test_names_on_one_side() -> None:
    a, b = checkpoint({"x": f32(1), "y": f32(2)}), checkpoint({"y": f32(2), "z": f32(3), "zz": f32(4)})
    result = verify(a, b)
    assert [(d.kind, d.name) for d in result.differences] == [("missing", "x"), ("extra", "z"), ("extra", "zz")]
    assert "F32 [1]" in result.differences[0].detail
    assert [d.name for d in verify(a, b, ignore_missing=True).differences] == ["z", "zz"]
    assert [d.name for d in verify(a, b, ignore_extra=True).differences] == ["x"]
    assert verify(a, b, only=["y"]).equal
    assert not verify(a, b, only=["zz"]).equal
    with pytest.raises(TransformError, match="no tensor matches 'q'"):
        verify(a, b, only=["q"])


def test_nothing_compared_is_no_proof() -> None:
    a, b, none = checkpoint({"x": f32(1)}), checkpoint({"y": f32(1)}), checkpoint({})
    with pytest.raises(TransformError, match="nothing to compare: no name is in both"):
        verify(a, b, ignore_missing=True, ignore_extra=True)
    with pytest.raises(TransformError, match="nothing to compare: neither holds a tensor"):
        verify(none, none)
    with pytest.raises(TransformError, match="nothing to compare"):
        verify(none, b, ignore_extra=True)
    assert not verify(none, b).equal


def test_shape_and_dtype() -> None:
    assert one(f32(1, 2), f32(1, 2).reshape(2, 1)).detail == "shape [2] in A, [2, 1] in B"
    assert one(f32(1), f32(1).view(np.int32)).detail == "F32 in A, I32 in B"
    assert one(f32(1), f32(1).astype(np.float64)).kind == "dtype"


def test_the_first_difference_is_told_with_its_values() -> None:
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    b = a.copy()
    b[1, 0, 2] = 15
    b[1, 2, 3] = 23.5
    found = one(a, b)
    assert (found.kind, found.first_index, found.left, found.right, found.count) == ("values", (1, 0, 2), 14.0, 15.0, 2)
    assert found.max_abs == 1.0
    assert found.max_rel == pytest.approx(1 / 15)
    assert found.rms == pytest.approx(math.sqrt((1 + 0.25) / 24))
    assert found.detail == "2 of 24 elements differ, first at [1, 0, 2]: 14 in A, 15 in B; largest change 1"


def test_a_scalar_has_an_empty_index() -> None:
    assert one(np.array(1.0), np.array(2.0)).first_index == ()


def test_what_only_bits_tell_apart_is_shown_by_bits() -> None:
    quiet, payload = np.array([0x7FC00000], np.uint32), np.array([0x7FC00001], np.uint32)
    found = one(quiet.view(np.float32), payload.view(np.float32))
    assert (found.left, found.right) == ("nan (0x7fc00000)", "nan (0x7fc00001)")
    assert (found.count, found.max_abs, found.max_rel, found.rms) == (1, 0, 0, 0)
    assert equal(quiet.view(np.float32), payload.view(np.float32), atol=1e-30)
    zero = one(f32(0.0), f32(-0.0))
    assert (zero.left, zero.right, zero.max_abs) == (0.0, -0.0, 0)


def test_a_number_that_became_nan_or_infinite_is_an_infinite_change() -> None:
    for other in (math.nan, math.inf):
        found = one(f32(1, 2), f32(1, other))
        assert (found.max_abs, found.max_rel) == (math.inf, math.inf)
        assert not equal(f32(1, 2), f32(1, other), rtol=1.0)
        assert not equal(f32(1, other), f32(1, 2), rtol=1.0)
    assert not equal(f32(math.inf), f32(-math.inf), rtol=1.0)
    assert equal(f32(math.inf, math.nan), f32(math.inf, math.nan), atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "shape", "raw", "byte", "expected"),
    [
        ("I64", (3,), np.arange(3).tobytes(), 17, ((2,), 2, 2 | 1 << 8)),
        ("BOOL", (3,), b"\1\0\1", 1, ((1,), False, True)),
        ("C64", (2,), np.array([1j, 2], np.complex64).tobytes(), 8, ((1,), 2 + 0j, complex(np.float32(2.0000002)))),
        ("I4", (2, 2), b"\xf1\x23", 1, ((1, 0), 3, 2)),
        ("U2", (4,), b"\xe4", 0, ((0,), 0, 1)),
        ("F4_E2M1", (2, 2), b"\x21\x43", 1, ((1, 0), 1.5, 1.0)),
        ("F6_E2M3", (4,), b"\x00\x00\x00", 0, ((0,), 0.0, 0.125)),
        ("BF16", (2,), b"\x80\x3f\x80\x3f", 2, ((1,), 1.0, 1.0078125)),
        ("F8_E4M3", (2,), b"\x38\x38", 1, ((1,), 1.0, 1.125)),
    ],
)
def test_values_of_every_kind(
    kind: str, shape: tuple[int, ...], raw: bytes, byte: int, expected: tuple[object, object, object]
) -> None:
    flipped = bytearray(raw)
    flipped[byte] ^= 1
    found = one((kind, shape, raw), (kind, shape, bytes(flipped)))
    assert (found.first_index, found.left, found.right) == expected
    assert found.count == 1
    assert found.max_abs is not None
    assert found.max_abs > 0


def test_quantized_tensors_are_compared_by_block() -> None:
    raw = bytes(34 * 6)
    changed = bytearray(raw)
    changed[34 * 4 + 3] = 1
    changed[34 * 5] = changed[34 * 5 + 1] = 1
    found = one(("Q8_0", (3, 64), raw), ("Q8_0", (3, 64), bytes(changed)), atol=10)
    assert (found.first_index, found.count, found.max_abs) == ((2, 0), 2, None)
    assert found.detail.startswith("2 of 6 blocks differ, first at [2, 0]: 0x0000000000")
    a, b = (tensor("w", ("Q8_0", (3, 64), content)) for content in (raw, bytes(changed)))
    in_pieces = compare_tensors(a, b, budget=34)
    assert in_pieces is not None
    assert (in_pieces.first_index, in_pieces.count) == ((2, 0), 2)
    assert one(("Q8_0", (1, 64), raw[:68]), ("Q8_0", (1, 64), raw[:34] + b"\1" * 34)).first_index == (0, 32)


# --- tolerance


def test_tolerance_compares_floats_across_dtypes_and_leaves_the_rest_exact() -> None:
    a = np.linspace(-3, 3, 1001, dtype=np.float32)
    half = a.astype(ml_dtypes.bfloat16)
    assert equal(a, half, rtol=2**-8)
    found = one(a, half, rtol=2**-10)
    assert found.kind == "values"
    assert found.count == int(np.sum(~np.isclose(a.astype(float), half.astype(float), rtol=2**-10, atol=0)))
    assert one(np.array([1]), np.array([2]), atol=5).count == 1
    assert one(np.array([1]), np.array([1], np.int32), atol=5).kind == "dtype"
    assert equal(np.array([1 + 1j]), np.array([1 + 1.001j]), atol=1e-2)
    assert not equal(np.array([1 + 1j]), np.array([1 + 1.001j]), atol=1e-4)


@pytest.mark.parametrize("tolerance", [{"atol": -1.0}, {"rtol": math.nan}])
def test_a_tolerance_is_not_negative(tolerance: dict[str, float]) -> None:
    with pytest.raises(TransformError, match="not negative"):
        equal(f32(1), f32(1), **tolerance)


VALUES = st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=30)


@given(VALUES, st.sampled_from([0.0, 1e-3, 1.0, 1e30]), st.sampled_from([0.0, 1e-6, 0.5, 2.0]))
def test_tolerance_is_what_numpy_says(pairs: list[tuple[float, float]], atol: float, rtol: float) -> None:
    a, b = (f32(*side) for side in zip(*pairs, strict=True))
    if atol == rtol == 0:
        expected = a.view(np.uint32) == b.view(np.uint32)
    else:
        with np.errstate(all="ignore"):
            expected = np.isclose(a.astype(float), b.astype(float), rtol=rtol, atol=atol, equal_nan=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", 4)
        found = verify(checkpoint({"w": a}), checkpoint({"w": b}), atol=atol, rtol=rtol)
    assert found.equal == bool(expected.all())
    if not found.equal:
        (difference,) = found.differences
        assert difference.count == int(np.sum(~expected))
        assert difference.first_index == (int(np.argmin(expected)),)


# --- every bit, every chunk


KINDS = [kind for kind in DTYPES.values() if kind.kind not in ("string", "quantized")]


@settings(max_examples=200)
@given(st.data())
def test_any_flipped_bit_is_found_where_it_is(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    shape = (data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4)) * kind.block)
    size = kind.nbytes(shape)
    raw = data.draw(st.binary(min_size=size, max_size=size))
    bit = data.draw(st.integers(0, 8 * size - 1))
    flipped = bytearray(raw)
    flipped[bit // 8] ^= 1 << bit % 8
    a, b = tensor("w", (kind.name, shape, raw)), tensor("w", (kind.name, shape, bytes(flipped)))
    assert compare_tensors(a, a) is None
    found = compare_tensors(a, b, budget=data.draw(st.integers(1, 64)))
    assert found is not None
    assert found.first_index == np.unravel_index(bit // round(kind.bits), shape)
    assert found.count == 1


@settings(max_examples=100)
@given(st.data())
def test_chunks_of_different_nodes_line_up(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 6)), 4 * data.draw(st.integers(1, 6))
    array = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns) % 7
    fp4 = array.astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(-1, 2)
    packed = tensor("w", ("F4_E2M1", array.shape, (fp4[:, 0] | fp4[:, 1] << 4).astype(np.uint8).tobytes()))
    wide = ops.cast(packed.data, DTYPES["F32"])
    turned = np.ascontiguousarray(array.T)
    strided = tensor("w", view(turned, BytesSource(turned.tobytes()), turned.T))
    budget = data.draw(st.integers(1, 300))
    computed = Tensor(TensorInfo("w", wide.dtype, wide.shape), wide)
    assert compare_tensors(computed, strided, Tolerance(atol=1), budget=budget) is None
    assert compare_tensors(packed, strided, Tolerance(atol=1), budget=budget) is None
    assert compare_tensors(strided, tensor("w", array), budget=budget) is None
    array[rows - 1, columns - 1] += 1
    found = compare_tensors(strided, tensor("w", array), budget=budget)
    assert found is not None
    assert found.first_index == (rows - 1, columns - 1)


# --- ties, damage


def test_ties_do_not_matter_and_are_read_once() -> None:
    class Counting(BytesSource):
        reads = 0

        def read_into(self, offset: int, buffer: memoryview) -> None:
            self.reads += 1
            super().read_into(offset, buffer)

    counting = Counting(f32(1, 2).tobytes())
    w = tensor("w", f32(1, 2))
    w = replace(w, data=replace(w.data, span=replace(w.data.span, source=counting)))
    tied = checkpoint({"w": w}, aliases={"x": "w", "y": "w"})
    assert verify(tied, tied).equal
    assert counting.reads == 2
    changed = checkpoint({"w": f32(1, 3)}, aliases={"x": "w", "y": "w"})
    assert [d.name for d in verify(tied, changed).differences] == ["w", "x", "y"]
    assert verify(tied, transforms.untie()(tied)).equal
    loose = checkpoint({"w": f32(1, 2), "x": f32(1, 2), "y": f32(0, 2)})
    assert [d.name for d in verify(tied, loose).differences] == ["y"]


def test_damage_on_either_side_is_a_difference_and_the_rest_goes_on() -> None:
    bad = tensor("a", f32(1, 2), check=True)
    bad.checks[0].crc32 ^= 1
    torn = checkpoint({"a": bad, "b": tensor("b", f32(3), damaged="torn"), "c": f32(4)})
    whole = checkpoint({"a": f32(1, 2), "b": f32(3), "c": f32(5)})
    for pair in ((torn, whole), (whole, torn)):
        result = verify(*pair)
        assert [(d.kind, d.name) for d in result.differences] == [
            ("unreadable", "a"),
            ("unreadable", "b"),
            ("values", "c"),
        ]
    assert "stored CRC-32" in result.differences[0].detail
    assert "torn" in result.differences[1].detail


def test_a_failing_disk_is_an_error_not_a_difference() -> None:
    class Broken(BytesSource):
        def read_into(self, offset: int, buffer: memoryview) -> None:
            raise SourceReadError("read failed", path=self.name)

    w = tensor("w", f32(1))
    w = replace(w, data=replace(w.data, span=replace(w.data.span, source=Broken(bytes(4)))))
    with pytest.raises(SourceReadError):
        verify(checkpoint({"w": w}), checkpoint({"w": f32(1)}))
