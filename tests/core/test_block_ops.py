# SPDX-License-Identifier: Apache-2.0
"""Quantize, dequantize and importance nodes: any range gives the bytes of the whole, whatever way it is read."""

from __future__ import annotations

import numpy as np
import pytest

from tael import kernels
from tael.core import block_ops, ops
from tael.core.dtypes import DTYPES
from tael.core.evaluate import Counters, as_bytes, block_dtype, read_blocks
from tael.core.node import Contiguous, Node, SourceTable, Span, from_json, nbytes, to_json
from tael.core.source import BytesSource
from tael.core.tensor import chunk_alignment
from tael.errors import TransformError, UnsupportedTensorError

RANDOM = np.random.default_rng(8)


def leaf(array: np.ndarray) -> Node:
    array = np.ascontiguousarray(array, np.float32)
    return Contiguous(DTYPES["F32"], array.shape, Span(BytesSource(array.tobytes()), 0, array.nbytes))


def read(node: Node, start: int = 0, count: int | None = None, counters: Counters | None = None) -> bytes:
    total = nbytes(node) // node.dtype.block_bytes
    out = np.empty(total - start if count is None else count, block_dtype(node.dtype))
    read_blocks(node, start, out, counters or Counters())
    return bytes(as_bytes(out))


def quantized(name: str, values: np.ndarray, weights: np.ndarray | None = None) -> bytes:
    values = np.ascontiguousarray(values, np.float32)
    kind = DTYPES[name]
    out = np.empty(values.size // kind.block * kind.block_bytes, np.uint8)
    assert kernels.quantize(name, values, out, values.shape[-1], weights) == -1
    return out.tobytes()


@pytest.mark.parametrize("piece", [1 << 30, 512, 100])
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("weighted", [False, True])
def test_any_range_is_part_of_the_whole(name: str, piece: int, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_ops, "PIECE", piece)
    values = RANDOM.standard_normal((3, 4, 768)).astype(np.float32)
    weights = (RANDOM.standard_normal((3, 768)) ** 2).astype(np.float32)
    node = ops.quantize(leaf(values), DTYPES[name], leaf(weights) if weighted else None)
    size = DTYPES[name].block_bytes
    whole = b"".join(quantized(name, values[k], weights[k] if weighted else None) for k in range(3))
    assert read(node) == whole
    total = len(whole) // size
    for start, count in [(0, 1), (1, 1), (total - 1, 1), (5, total - 7), (total // 3 - 1, 3)]:
        assert read(node, start, count) == whole[start * size : (start + count) * size], (start, count)


def test_shared_reads_give_the_same_bytes_and_read_once() -> None:
    reads = 0

    class Counted(BytesSource):
        def read_into(self, offset: int, buffer: memoryview) -> None:
            nonlocal reads
            reads += 1
            super().read_into(offset, buffer)

    values = RANDOM.standard_normal((4, 512)).astype(np.float32)
    inner = Contiguous(DTYPES["F32"], values.shape, Span(Counted(values.tobytes()), 0, values.nbytes))
    nodes = [ops.quantize(inner, DTYPES[name]) for name in ("Q4_K", "Q8_0", "Q4_K")]
    with block_ops.sharing():
        found = [read(node) for node in nodes]
    assert reads == 1
    assert found == [quantized(name, values) for name in ("Q4_K", "Q8_0", "Q4_K")]
    assert read(nodes[0]) == found[0]
    assert reads == 2


def test_errors_are_measured_when_asked_for() -> None:
    values = RANDOM.standard_normal((4, 512)).astype(np.float32)
    node = ops.quantize(leaf(values), DTYPES["Q4_K"])
    counters = Counters(measure=True)
    raw = np.frombuffer(read(node, counters=counters), np.uint8)
    back = np.empty(values.size, np.float32)
    kernels.dequantize("Q4_K", raw, back)
    assert counters.errors is not None
    error = (values.reshape(-1).astype(np.float64) - back) ** 2
    assert counters.errors.squared_error == pytest.approx(error.sum(), rel=1e-12)
    plain = Counters()
    read(node, counters=plain)
    assert plain.errors is None


@pytest.mark.parametrize(("start", "count"), [(0, 1024), (0, 1), (255, 2), (300, 400), (1023, 1)])
def test_dequantized_ranges_may_cut_blocks(start: int, count: int) -> None:
    values = RANDOM.standard_normal((2, 512)).astype(np.float32)
    raw = quantized("Q5_K", values)
    node = ops.dequantize(Contiguous(DTYPES["Q5_K"], (2, 512), Span(BytesSource(raw), 0, len(raw))))
    whole = np.empty(1024, np.float32)
    kernels.dequantize("Q5_K", raw, whole)
    assert read(node, start, count) == whole[start : start + count].tobytes()


def test_what_is_not_finite_is_named_by_row_and_column() -> None:
    values = np.ones((2, 3, 256), np.float32)
    values[1, 2, 17] = np.nan
    with pytest.raises(UnsupportedTensorError, match="nan at row 5, column 17"):
        read(ops.quantize(leaf(values), DTYPES["Q4_K"]))
    values[1, 2, 17] = 1e30
    with pytest.raises(UnsupportedTensorError, match="row 5, columns 0 to 255 that are too large"):
        read(ops.quantize(leaf(values), DTYPES["Q4_K"]))


def test_importance_divides_as_float32_and_counts_of_zero_are_ones() -> None:
    sums = (RANDOM.random((3, 32)) * 1000).astype(np.float32)
    counts = np.array([7, 0, 3], np.float32)
    node = ops.importance(leaf(sums), leaf(counts))
    wanted = np.stack([sums[0] / np.float32(7), np.ones(32, np.float32), sums[2] / np.float32(3)])
    assert read(node) == wanted.tobytes()
    assert read(node, 31, 3) == wanted.reshape(-1)[31:34].tobytes()
    assert read(ops.importance(leaf(sums), calls=9)) == (sums / np.float32(9)).tobytes()
    assert read(ops.importance(leaf(sums), calls=0)) == sums.tobytes()


def test_weights_that_do_not_fit_are_refused() -> None:
    values = leaf(np.ones((4, 256)))
    for shape in [(1, 255), (3, 256), (256,)]:
        with pytest.raises(TransformError, match="importance weights"):
            ops.quantize(values, DTYPES["Q4_K"], leaf(np.ones(shape)))


def test_weights_that_a_type_ignores_are_not_read() -> None:
    node = ops.quantize(leaf(np.ones((4, 256))), DTYPES["Q8_0"], leaf(np.ones((1, 256))))
    assert len(node.inputs) == 1  # type: ignore[union-attr]


def test_weights_ask_for_whole_rows() -> None:
    values, weights = leaf(np.ones((4, 256))), leaf(np.ones((1, 256)))
    assert chunk_alignment(ops.quantize(values, DTYPES["Q4_0"], weights)) == 8
    assert chunk_alignment(ops.quantize(values, DTYPES["Q4_0"])) == 1


def test_a_plan_can_carry_them_as_json() -> None:
    values, weights = RANDOM.standard_normal((4, 256)), RANDOM.random((2, 256))
    node = ops.quantize(leaf(values), DTYPES["Q4_K"], ops.importance(leaf(weights), leaf(np.array([1, 2]))))
    table = SourceTable()
    data = to_json(node, table)
    assert read(from_json(data, SourceTable(table.refs))) == read(node)
