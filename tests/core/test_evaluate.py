# SPDX-License-Identifier: Apache-2.0
"""Any range and any box of any node is what numpy makes of the same bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_nodes import Pair, Recorder, boxes, pairs
from tael.core import evaluate
from tael.core.dtypes import DTYPES
from tael.core.evaluate import Counters, block_dtype, boxes_of_range, gather, read_blocks
from tael.core.node import Contiguous, Node, Span, Tiled, spans, strided
from tael.core.source import BytesSource, FileSource
from tael.errors import CorruptFileError, UnsupportedTensorError

F32 = DTYPES["F32"]


@contextmanager
def budgets(small: int, most: int) -> Iterator[None]:
    """Read budgets so tight that small arrays meet the paths of large ones."""
    before = evaluate.SMALL_READ, evaluate.READ_BUDGET
    evaluate.SMALL_READ, evaluate.READ_BUDGET = small, most
    try:
        yield
    finally:
        evaluate.SMALL_READ, evaluate.READ_BUDGET = before


BUDGETS = st.sampled_from([(16 << 10, 4 << 20), (64, 256), (16, 16)])  # 16: one element of the largest kind


def values(node: Node, start: int = 0, count: int | None = None) -> np.ndarray[Any, Any]:
    total = math.prod(node.dtype.grid(node.shape))
    out = np.empty(total - start if count is None else count, block_dtype(node.dtype))
    read_blocks(node, start, out, Counters())
    return out


@given(pairs(), BUDGETS)
def test_whole_node_is_numpys_array(pair: Pair, budget: tuple[int, int]) -> None:
    with budgets(*budget):
        assert values(pair.node).tobytes() == pair.array.tobytes()


@given(pairs(), BUDGETS, st.data())
def test_any_range_is_numpys(pair: Pair, budget: tuple[int, int], data: st.DataObject) -> None:
    total = pair.array.size
    start = data.draw(st.integers(0, total))
    count = data.draw(st.integers(0, total - start))
    flat = np.ascontiguousarray(pair.array).reshape(-1)
    with budgets(*budget):
        assert values(pair.node, start, count).tobytes() == flat[start : start + count].tobytes()


@given(pairs(), BUDGETS, st.data())
def test_any_box_into_any_layout_is_numpys(pair: Pair, budget: tuple[int, int], data: st.DataObject) -> None:
    box = data.draw(boxes(pair.array.shape))
    shape = [b - a for a, b in box]
    order = data.draw(st.permutations(range(len(shape))))
    gap = data.draw(st.integers(1, 2))
    room = np.zeros([shape[k] * gap for k in order], block_dtype(pair.node.dtype))
    out = room[(*(slice(None, None, gap) for _ in order), ...)]
    out = out.transpose([order.index(k) for k in range(len(shape))])
    with budgets(*budget):
        gather(pair.node, box, out, Counters())
    assert out.tobytes() == pair.array[(*(slice(*edge) for edge in box), ...)].tobytes()


@given(pairs(), BUDGETS)
def test_reads_stay_inside_the_spans_of_the_node(pair: Pair, budget: tuple[int, int]) -> None:
    with budgets(*budget):
        values(pair.node)
    for span in spans(pair.node):
        assert isinstance(span.source, Recorder)
        for offset, count in span.source.reads:
            assert span.offset <= offset
            assert offset + count <= span.end


def test_reads_that_take_gaps_along_are_bounded() -> None:
    """Every third element of a megabyte: in pieces, each at most the budget."""
    array = np.arange(250_000, dtype=np.uint32)
    source = Recorder(array.tobytes())
    node = strided(F32, (array.size // 3,), Span(source, 0, source.size), 0, (3,))
    with budgets(64, 1000):
        assert values(node).tolist() == array[: array.size // 3 * 3 : 3].tolist()
    assert max(count for _, count in source.reads) <= 1000
    assert len(source.reads) <= 2 * source.size // 1000 + 2


# --- boxes of a range -------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 5), max_size=4).map(tuple), st.data())
def test_boxes_of_range_cover_it_in_order(grid: tuple[int, ...], data: st.DataObject) -> None:
    total = math.prod(grid)
    start = data.draw(st.integers(0, total))
    count = data.draw(st.integers(0, total - start))
    index = np.arange(total).reshape(grid)
    found = list(boxes_of_range(grid, start, count))
    seen = [index[tuple(slice(*edge) for edge in box)].reshape(-1) for box in found]
    assert (np.concatenate(seen) if seen else np.empty(0)).tolist() == list(range(start, start + count))
    assert len(found) <= max(1, 2 * len(grid))


# --- particular cases -------------------------------------------------------------------------------------------------


def test_scalar_tile() -> None:
    inner = Contiguous(F32, (), Span(BytesSource(b"abcd"), 0, 4))
    assert values(Tiled(F32, (), (((), inner),))).tobytes() == b"abcd"


def test_tiles_that_leave_a_hole_are_an_error() -> None:
    """Else the hole would hold whatever the memory held before."""
    half = Contiguous(F32, (1, 2), Span(BytesSource(bytes(8)), 0, 8))
    node = Tiled(F32, (2, 2), ((((0, 1), (0, 2)), half),))
    assert values(node, 0, 2).tobytes() == bytes(8)
    with pytest.raises(UnsupportedTensorError, match="cover 2 blocks of 4"):
        values(Tiled(F32, (2, 2), ((((0, 2), (0, 1)), Contiguous(F32, (2, 1), half.span)),)))


def test_two_half_tensors_from_two_files(tmp_path: Path) -> None:
    """Rank 0 holds the left columns, rank 1 the right ones, in Fortran order."""
    whole = np.arange(7 * 6, dtype=np.float32).reshape(7, 6)
    (tmp_path / "0").write_bytes(b"pad" + whole[:, :2].tobytes())
    (tmp_path / "1").write_bytes(whole[:, 2:].tobytes("F"))
    left, right = FileSource(tmp_path / "0"), FileSource(tmp_path / "1")
    tiles: tuple[tuple[tuple[tuple[int, int], ...], Node], ...] = (
        (((0, 7), (0, 2)), Contiguous(F32, (7, 2), Span(left, 3, 56))),
        (((0, 7), (2, 6)), strided(F32, (7, 4), Span(right, 0, 112), 0, (1, 7))),
    )
    node = Tiled(F32, (7, 6), tiles)
    assert values(node).view(np.float32).reshape(7, 6).tolist() == whole.tolist()
    assert values(node, 5, 9).view(np.float32).tolist() == whole.reshape(-1)[5:14].tolist()


def test_expanded_view_reads_its_storage_only() -> None:
    source = Recorder(np.arange(3, dtype=np.float32).tobytes())
    node = strided(F32, (1000, 3), Span(source, 0, 12), 0, (0, 1))
    assert values(node).view(np.float32).reshape(1000, 3).tolist() == [[0, 1, 2]] * 1000
    assert source.reads == [(0, 12)]


def test_large_strided_reads_do_not_take_the_gaps() -> None:
    """Two columns of a wide matrix: 8 MB apart from each other in storage, 16 bytes wanted."""
    store = np.zeros(2_000_000, np.float32)
    store[[0, 1_999_999]] = 1, 2
    source = Recorder(store.tobytes())
    node = strided(F32, (2,), Span(source, 0, source.size), 0, (1_999_999,))
    assert values(node).view(np.float32).tolist() == [1, 2]
    assert sum(count for _, count in source.reads) == 8


def test_transposed_matrix_is_read_in_large_pieces() -> None:
    whole = np.arange(500 * 400, dtype=np.uint32).reshape(500, 400)
    source = Recorder(whole.tobytes())
    node = strided(F32, (400, 500), Span(source, 0, source.size), 0, (1, 400))
    assert values(node).tobytes() == whole.T.tobytes()
    assert sum(count for _, count in source.reads) == source.size


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3))
def test_reads_of_a_column_block_are_at_most_eight_times_its_bytes(rows: int, columns: int, first: int) -> None:
    source = Recorder(bytes(4 * rows * 64))
    node = (
        strided(F32, (rows, columns), Span(source, 0, source.size), first, (64, 1)) if columns + first <= 64 else None
    )
    if node is None or isinstance(node, Contiguous):
        return
    with budgets(16, 4 << 20):
        values(node)
    assert sum(count for _, count in source.reads) <= 8 * rows * columns * 4 + 16 * rows


def test_beyond_the_source_is_an_error() -> None:
    span = Span(BytesSource(bytes(8)), 0, 8)
    with pytest.raises(CorruptFileError):
        values(Contiguous(F32, (3,), span))
    with pytest.raises(CorruptFileError):
        values(strided(F32, (2, 2), span, 1, (1, 1)))
