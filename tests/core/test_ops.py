# SPDX-License-Identifier: Apache-2.0
"""Ops: values under moves, blocks that must stay whole, builders that refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_nodes import boxes
from tael.core import ops
from tael.core.dtypes import DTYPES, DType
from tael.core.evaluate import Blocks, Counters, block_dtype, gather, read_blocks, working_bytes
from tael.core.node import Contiguous, Node, Op, Span, strided
from tael.core.source import BytesSource
from tael.core.tensor import chunk_alignment
from tael.errors import TransformError, UnsupportedTensorError

F32, F16, BF16, F4, F6, Q8, U4 = (DTYPES[name] for name in ("F32", "F16", "BF16", "F4_E2M1", "F6_E2M3", "Q8_0", "U4"))


def leaf(array: np.ndarray[Any, Any], kind: DType, shape: tuple[int, ...] | None = None) -> Contiguous:
    data = np.ascontiguousarray(array).tobytes()
    return Contiguous(kind, array.shape if shape is None else shape, Span(BytesSource(data), 0, len(data)))


def whole(node: Node, counters: Counters | None = None) -> Blocks:
    out = np.empty(math.prod(node.dtype.grid(node.shape)), block_dtype(node.dtype))
    read_blocks(node, 0, out, counters or Counters())
    return out


def in_pieces(node: Node, step: int) -> bytes:
    out = np.empty(math.prod(node.dtype.grid(node.shape)), block_dtype(node.dtype))
    for start in range(0, out.size, step):
        read_blocks(node, start, out[start : start + step], Counters())
    return out.tobytes()


def nibbles(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Codes of four bits, packed low nibble first."""
    flat = codes.reshape(-1).astype(np.uint8)
    return flat[::2] | flat[1::2] << 4


NUMBERS = np.random.default_rng(1).normal(0, 3, (6, 8)).astype(np.float32)


# --- casts under moves ------------------------------------------------------------------------------------------------

MOVES: list[tuple[Callable[[Node], Node], Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]]] = [
    (lambda n: n, lambda a: a),
    (lambda n: ops.transpose(n, (1, 0)), lambda a: a.T),
    (lambda n: ops.slice_(n, (1, 2), (4, 5)), lambda a: a[1:5, 2:7]),
    (lambda n: ops.concat([n, n], 1), lambda a: np.concatenate([a, a], 1)),
    (lambda n: ops.stack([n, n], 2), lambda a: np.stack([a, a], 2)),
    (lambda n: ops.reshape(ops.transpose(n, (1, 0)), (6, 8)), lambda a: a.T.reshape(6, 8)),
    (lambda n: ops.transpose(ops.slice_(n, (0, 1), (6, 3)), (1, 0)), lambda a: a[:, 1:4].T),
]


@pytest.mark.parametrize("move", range(len(MOVES)))
@pytest.mark.parametrize(("source", "target"), [("F32", "BF16"), ("F32", "F8_E4M3"), ("BF16", "F32"), ("F64", "F16")])
def test_cast_commutes_with_moves(move: int, source: str, target: str) -> None:
    move_node, move_array = MOVES[move]
    before, after = DTYPES[source].numpy(), DTYPES[target].numpy()
    array = NUMBERS.astype(before)
    want = move_array(array.astype(after)).tobytes()
    for node in (
        move_node(ops.cast(leaf(array, DTYPES[source]), DTYPES[target])),
        ops.cast(move_node(leaf(array, DTYPES[source])), DTYPES[target]),
    ):
        assert whole(node).tobytes() == want
        assert in_pieces(node, 5) == want


@pytest.mark.parametrize("move", range(len(MOVES)))
def test_sub_byte_elements_come_apart_under_moves(move: int) -> None:
    """A cast from packed elements can be cut and turned anywhere, also in the middle of a byte."""
    move_node, move_array = MOVES[move]
    codes = np.random.default_rng(2).integers(0, 16, (6, 8), np.uint8)
    node = move_node(ops.cast(leaf(nibbles(codes), F4, (6, 8)), F32))
    want = move_array(codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)).tobytes()
    assert whole(node).tobytes() == want
    for step in (1, 3, 7):
        assert in_pieces(node, step) == want


@pytest.mark.parametrize("move", range(len(MOVES)))
def test_dequantized_blocks_come_apart_under_moves(move: int) -> None:
    move_node, move_array = MOVES[move]
    values = np.random.default_rng(3).normal(0, 1, (6, 32)).astype(np.float32)
    plain = ops.dequantize(ops.quantize(leaf(values, F32), Q8))
    array = whole(plain).view(np.float32).reshape(6, 32)
    assert np.abs(array - values).max() < 0.02
    cut, narrow = ops.slice_(plain, (0, 3), (6, 8)), array[:, 3:11]
    want = np.ascontiguousarray(move_array(narrow)).tobytes()
    assert whole(move_node(cut)).tobytes() == want
    assert in_pieces(move_node(cut), 7) == want


def test_cast_into_packed_elements() -> None:
    array = NUMBERS.T
    want = nibbles(array.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)).tobytes()
    for node in (
        ops.cast(ops.transpose(leaf(NUMBERS, F32), (1, 0)), F4),
        ops.cast(strided(F32, (8, 6), leaf(NUMBERS, F32).span, 0, (1, 8)), F4),
    ):
        assert whole(node).tobytes() == want
        assert in_pieces(node, 1) == want


def test_cast_between_packed_kinds_of_different_blocks() -> None:
    """F6 holds 4 elements in 3 bytes, F4 2 in 1: units of 4 elements, read at any multiple of 2."""
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -2, -6], np.float32)
    node = ops.cast(ops.cast(leaf(values, F32), F6), F4)
    want = nibbles(values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)).tobytes()
    assert chunk_alignment(node) == 2
    assert whole(node).tobytes() == want
    assert in_pieces(node, 1) == want


def test_counts_of_what_a_cast_loses() -> None:
    array = np.array([1e30, -1e30, 1.0, np.nan, np.inf, 70000.0], np.float32)
    counters = Counters()
    whole(ops.cast(leaf(array, F32), F16), counters)
    assert (counters.overflow, counters.nan_lost) == (3, 0)
    counters = Counters()
    got = whole(ops.cast(leaf(array, F32), F16, saturate=True), counters).view(np.float16)
    assert counters.overflow == 3
    assert got.tolist()[:3] == [65504, -65504, 1]
    counters = Counters()
    whole(ops.cast(leaf(array, F32), F4), counters)
    assert (counters.overflow, counters.nan_lost) == (3, 2)


def test_a_cast_to_itself_is_the_node() -> None:
    node = leaf(NUMBERS, F32)
    assert ops.cast(node, F32) is node
    assert ops.transpose(node, (0, 1)) is node
    assert ops.reshape(node, (6, 8)) is node
    assert ops.byteswap(leaf(np.zeros(3, np.uint8), DTYPES["U8"])).__class__ is Contiguous


@pytest.mark.parametrize(("source", "target"), [("I32", "F32"), ("F32", "I32"), ("BOOL", "F16"), ("Q8_0", "F32")])
def test_casts_are_between_floats(source: str, target: str) -> None:
    node = Contiguous(DTYPES[source], (32,), Span(BytesSource(bytes(200)), 0, DTYPES[source].nbytes((32,))))
    with pytest.raises(UnsupportedTensorError, match="does not cast"):
        ops.cast(node, DTYPES[target])


def test_casts_to_packed_kinds_need_whole_bytes() -> None:
    with pytest.raises(UnsupportedTensorError, match="whole bytes"):
        ops.cast(leaf(np.zeros(3, np.float32), F32), F4)
    with pytest.raises(UnsupportedTensorError, match="multiple of Q8_0's block"):
        ops.quantize(leaf(np.zeros((2, 31), np.float32), F32), Q8)


# --- byte order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, kind in DTYPES.items() if kind.numpy_name and kind.is_plain])
def test_byteswap_is_numpys(name: str) -> None:
    kind = DTYPES[name]
    array = np.arange(48 * kind.block_bytes, dtype=np.uint8).view(kind.numpy()).reshape(6, 8)
    big = array.byteswap()
    assert whole(ops.byteswap(leaf(big, kind))).tobytes() == array.tobytes()
    assert whole(ops.transpose(ops.byteswap(leaf(big, kind)), (1, 0))).tobytes() == array.T.tobytes()


def test_byteswap_of_complex32_swaps_each_half() -> None:
    node = ops.byteswap(leaf(np.frombuffer(b"abcdefgh", np.uint32), DTYPES["C32"]))
    assert whole(node).tobytes() == b"badcfehg"


@pytest.mark.parametrize("name", ["Q8_0", "F6_E2M3", "Q4_K"])
def test_byteswap_of_blocks_is_refused(name: str) -> None:
    kind = DTYPES[name]
    node = Contiguous(kind, (kind.block,), Span(BytesSource(bytes(kind.block_bytes)), 0, kind.block_bytes))
    with pytest.raises(UnsupportedTensorError, match="byte order"):
        ops.byteswap(node)


# --- packed and block types stay whole --------------------------------------------------------------------------------


@given(st.data())
def test_blocks_move_whole(data: st.DataObject) -> None:
    """U4 and Q8_0 tensors, moved in every way that keeps blocks whole, against arrays of blocks."""
    kind = data.draw(st.sampled_from([U4, F6, Q8, DTYPES["Q4_K"]]))
    rows, blocks = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    shape = (rows, 2, blocks * kind.block)
    array = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 256, rows * 2 * blocks * kind.block_bytes)
    array = array.astype(np.uint8).view(block_dtype(kind)).reshape(rows, 2, blocks)
    node: Node = leaf(array, kind, shape)
    for _ in range(data.draw(st.integers(0, 3))):
        match data.draw(st.sampled_from(["transpose", "slice", "concat", "stack", "reshape"])):
            case "transpose":
                perm = [*data.draw(st.permutations(range(array.ndim - 1))), array.ndim - 1]
                node, array = ops.transpose(node, perm), array.transpose(perm)
            case "slice":
                box = data.draw(boxes(array.shape))
                starts = [a for a, _ in box[:-1]] + [box[-1][0] * kind.block]
                lengths = [b - a for a, b in box[:-1]] + [(box[-1][1] - box[-1][0]) * kind.block]
                node, array = ops.slice_(node, starts, lengths), array[tuple(slice(*edge) for edge in box)]
            case "concat":
                axis = data.draw(st.integers(0, array.ndim - 1))
                node, array = ops.concat([node, node], axis), np.concatenate([array, array], axis)
            case "stack" if array.ndim < 5:
                axis = data.draw(st.integers(0, array.ndim - 1))
                node, array = ops.stack([node, node], axis), np.stack([array, array], axis)
            case "reshape":
                lead = math.prod(array.shape[:-1])
                node = ops.reshape(node, (lead, 1, array.shape[-1] * kind.block))
                array = array.reshape(lead, 1, array.shape[-1])
        if array.size == 0:
            break
    assert node.shape == (*array.shape[:-1], array.shape[-1] * kind.block)
    assert whole(node).tobytes() == array.tobytes()
    box = data.draw(boxes(array.shape))
    out = np.zeros([b - a for a, b in box], array.dtype)
    gather(node, box, out, Counters())
    assert out.tobytes() == array[tuple(slice(*edge) for edge in box)].tobytes()


def test_quantized_rows_are_transposed_over_the_leading_axes() -> None:
    values = np.random.default_rng(4).normal(0, 1, (3, 2, 64)).astype(np.float32)
    quantized = ops.quantize(leaf(values, F32), Q8)
    blocks = whole(quantized).reshape(3, 2, 2)
    assert whole(ops.transpose(quantized, (1, 0, 2))).tobytes() == blocks.transpose(1, 0, 2).tobytes()
    late = ops.quantize(ops.transpose(leaf(values, F32), (1, 0, 2)), Q8)
    assert whole(late).tobytes() == blocks.transpose(1, 0, 2).tobytes()


def test_quantizing_what_is_not_finite_is_refused() -> None:
    values = np.zeros((2, 32), np.float32)
    values[1, 3] = np.inf
    with pytest.raises(UnsupportedTensorError, match="not finite"):
        whole(ops.quantize(leaf(values, F32), Q8))


PACKED = Contiguous(U4, (3, 4), Span(BytesSource(bytes(6)), 0, 6))
FLAT = Contiguous(U4, (2, 3), Span(BytesSource(bytes(3)), 0, 3))  # rows end in the middle of a byte
PLAIN = leaf(NUMBERS, F32)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ops.transpose(PACKED, (1, 0)),
        lambda: ops.transpose(FLAT, (1, 0)),
        lambda: ops.slice_(PACKED, (0, 1), (3, 2)),
        lambda: ops.slice_(PACKED, (0, 0), (3, 3)),
        lambda: ops.slice_(FLAT, (0, 0), (1, 2)),
        lambda: ops.concat([FLAT, FLAT], 0),
        lambda: ops.stack([PACKED, PACKED], 2),
        lambda: ops.reshape(Contiguous(Q8, (2, 32), Span(BytesSource(bytes(68)), 0, 68)), (4, 16)),
        lambda: ops.quantize(PLAIN, DTYPES["Q4_K"]),
        lambda: ops.quantize(
            Contiguous(DTYPES["F32"], (4, 256), Span(BytesSource(bytes(4096)), 0, 4096)), DTYPES["IQ1_S"]
        ),
        lambda: ops.quantize(
            Contiguous(DTYPES["F32"], (4, 256), Span(BytesSource(bytes(4096)), 0, 4096)), DTYPES["Q8_1"]
        ),
        lambda: ops.dequantize(Contiguous(DTYPES["Q8_K"], (256,), Span(BytesSource(bytes(292)), 0, 292))),
    ],
)
def test_what_would_break_blocks_is_refused(build: Callable[[], Node]) -> None:
    with pytest.raises(UnsupportedTensorError):
        build()


@pytest.mark.parametrize(
    "build",
    [
        lambda: ops.transpose(PLAIN, (0, 0)),
        lambda: ops.transpose(PLAIN, (1,)),
        lambda: ops.transpose(PLAIN, (0, 2)),
        lambda: ops.slice_(PLAIN, (0,), (6,)),
        lambda: ops.slice_(PLAIN, (0, 0), (7, 8)),
        lambda: ops.slice_(PLAIN, (-1, 0), (2, 8)),
        lambda: ops.slice_(PLAIN, (0, 0), (-1, 8)),
        lambda: ops.concat([PLAIN, PLAIN], 2),
        lambda: ops.concat([PLAIN, PLAIN], -1),
        lambda: ops.concat([], 0),
        lambda: ops.concat([PLAIN, leaf(NUMBERS.T, F32)], 0),
        lambda: ops.concat([PLAIN, leaf(NUMBERS.view(np.uint32), DTYPES["U32"])], 0),
        lambda: ops.stack([], 0),
        lambda: ops.stack([PLAIN, PLAIN], 3),
        lambda: ops.stack([PLAIN, leaf(NUMBERS.T, F32)], 0),
        lambda: ops.stack([PLAIN, leaf(NUMBERS[:3], F32)], 0),
        lambda: ops.reshape(PLAIN, (7, 7)),
        lambda: ops.reshape(PLAIN, (-6, -8)),
        lambda: ops.weight_norm(leaf(np.ones((6,), np.float32), F32), PLAIN),
        lambda: ops.weight_norm(leaf(np.ones((8, 1), np.float32), F32), PLAIN),
    ],
)
def test_what_does_not_fit_is_refused(build: Callable[[], Node]) -> None:
    with pytest.raises(TransformError):
        build()


# --- weight norm ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_weight_norm(dim: int) -> None:
    chance = np.random.default_rng(5)
    v = chance.normal(0, 2, (8, 4, 3)).astype(np.float32)
    g = chance.normal(0, 2, [n if k == dim else 1 for k, n in enumerate(v.shape)]).astype(np.float32)
    others = tuple(k for k in range(3) if k != dim)
    want = (g * (v.astype(np.float64) / np.sqrt((v.astype(np.float64) ** 2).sum(others, keepdims=True)))).astype(
        np.float32
    )
    node = ops.weight_norm(leaf(g, F32), leaf(v, F32), dim)
    np.testing.assert_allclose(whole(node).view(np.float32).reshape(v.shape), want, rtol=3e-7)
    assert in_pieces(node, 7) == whole(node).tobytes()
    assert whole(ops.transpose(node, (2, 0, 1))).tobytes() == whole(node).reshape(v.shape).transpose(2, 0, 1).tobytes()


def test_weight_norm_of_half_precision_is_computed_wide() -> None:
    v = np.full((1, 4096), 100.0, np.float16)
    node = ops.weight_norm(leaf(np.ones((1, 1), np.float16), F16), leaf(v, F16))
    np.testing.assert_allclose(whole(node).view(np.float32), 1 / 64, rtol=1e-6)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_every_op_declares_its_working_bytes() -> None:
    for node in (
        ops.cast(PLAIN, BF16),
        ops.byteswap(PLAIN),
        ops.transpose(PLAIN, (1, 0)),
        ops.slice_(PLAIN, (0, 0), (1, 1)),
        ops.concat([PLAIN, PLAIN], 0),
        ops.reshape(ops.transpose(PLAIN, (1, 0)), (48,)),
        ops.weight_norm(ops.slice_(PLAIN, (0, 0), (6, 1)), PLAIN),
        ops.quantize(leaf(np.zeros((2, 32), np.float32), F32), Q8),
        ops.dequantize(ops.quantize(leaf(np.zeros((2, 32), np.float32), F32), Q8)),
    ):
        assert isinstance(node, Op)
        assert node.name in ops.OPS
        assert 0 <= working_bytes(node, 10) <= working_bytes(node, 1000) + (1 << 20)
