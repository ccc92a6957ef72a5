# SPDX-License-Identifier: Apache-2.0
"""Nodes as data: JSON and back, the ranges they touch, views that turn out to be contiguous."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from random_nodes import Pair, pairs
from tael.core import ops
from tael.core.dtypes import DTYPES
from tael.core.evaluate import Counters, block_dtype, read_blocks
from tael.core.node import (
    Contiguous,
    Node,
    SourceTable,
    Span,
    Strided,
    contiguous_strides,
    from_json,
    last_element,
    nbytes,
    span_from_json,
    span_to_json,
    spans,
    strided,
    to_json,
)
from tael.core.source import BytesSource, FileSource, InflateSource
from tael.errors import ResumeError

F32, U8 = DTYPES["F32"], DTYPES["U8"]


def whole(node: Node) -> np.ndarray[Any, Any]:
    out = np.empty(math.prod(node.dtype.grid(node.shape)), block_dtype(node.dtype))
    read_blocks(node, 0, out, Counters())
    return out


@given(pairs())
def test_json_round_trip(pair: Pair) -> None:
    table = SourceTable()
    text = json.dumps(to_json(pair.node, table))
    refs = json.loads(json.dumps(table.refs))
    again = from_json(json.loads(text), SourceTable(refs))
    assert (again.dtype, again.shape) == (pair.node.dtype, pair.node.shape)
    assert whole(again).tobytes() == pair.array.tobytes()
    assert json.dumps(to_json(again, SourceTable())) == text


def test_json_of_values_and_quantized_nodes() -> None:
    data = np.linspace(-3, 3, 64, dtype=np.float32)
    leaf = Contiguous(F32, (2, 32), Span(BytesSource(data.tobytes()), 0, 256))
    nodes = [
        ops.cast(leaf, DTYPES["F8_E4M3"], saturate=True),
        ops.cast(leaf, DTYPES["F4_E2M1"]),
        ops.quantize(leaf, DTYPES["Q8_0"]),
        ops.dequantize(ops.quantize(leaf, DTYPES["Q8_0"])),
        ops.weight_norm(ops.slice_(leaf, (0, 0), (2, 1)), leaf),
    ]
    for node in nodes:
        table = SourceTable()
        again = from_json(json.loads(json.dumps(to_json(node, table))), SourceTable(table.refs))
        assert whole(again).tobytes() == whole(node).tobytes()


def test_json_keeps_every_kind_of_source(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abcdefgh")
    file = FileSource(tmp_path / "f")
    sources = [file, BytesSource(b"12345678"), InflateSource(file, 2, 4, 100, "m")]
    table = SourceTable()
    numbers = [table.number(source) for source in [*sources, *sources]]
    assert numbers == [0, 1, 2, 0, 1, 2]
    assert table.sources() == sources
    again = SourceTable(json.loads(json.dumps(table.refs)))
    for number, source in enumerate(sources):
        assert json.dumps(again.source(number).identity) == json.dumps(source.identity)
        assert again.source(number) is again.source(number)
    span = span_from_json(span_to_json(Span(file, 3, 4), table), again)
    assert (span.offset, span.nbytes, span.end) == (3, 4, 7)
    assert span.source is again.source(0)


def test_json_of_another_kind_of_node() -> None:
    with pytest.raises(ResumeError, match="unknown kind of node"):
        from_json({"dtype": "F32", "shape": [1], "magic": 1}, SourceTable())


@given(st.lists(st.integers(0, 5), max_size=5).map(tuple))
def test_contiguous_strides_are_numpys(shape: tuple[int, ...]) -> None:
    if math.prod(shape):
        assert contiguous_strides(shape) == tuple(step for step in np.empty(shape, np.uint8).strides)


@given(
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    st.integers(0, 5),
    st.lists(st.integers(0, 9), min_size=4, max_size=4),
)
def test_last_element_is_the_largest_index(shape: tuple[int, ...], start: int, steps: list[int]) -> None:
    strides = tuple(steps[: len(shape)])
    indices = [start + sum(i * s for i, s in zip(at, strides, strict=True)) for at in np.ndindex(*shape)]
    assert last_element(shape, start, strides) == max(indices, default=-1)


def test_a_view_in_canonical_order_is_contiguous() -> None:
    span = Span(BytesSource(bytes(400)), 100, 200)
    # Strides over axes of length 1 mean nothing, and are arbitrary in what torch writes.
    for shape, strides in [((2, 3), (3, 1)), ((2, 1, 3), (3, 77, 1)), ((1, 6), (0, 1)), ((), ())]:
        node = strided(F32, shape, span, 5, strides)
        assert isinstance(node, Contiguous), (shape, strides)
        assert (node.span.offset, node.span.nbytes) == (120, 4 * math.prod(shape))
        assert nbytes(node) == node.span.nbytes
    for shape, strides in [((2, 3), (1, 2)), ((2, 3), (4, 1)), ((2, 3), (0, 1)), ((6,), (2,))]:
        assert isinstance(strided(F32, shape, span, 0, strides), Strided)


def test_an_empty_view_needs_nothing() -> None:
    span = Span(BytesSource(b""), 0, 0)
    node = strided(F32, (3, 0), span, 10**9, (5, 7))
    assert isinstance(node, Contiguous)
    assert node.span.nbytes == 0
    assert whole(node).size == 0


@given(pairs())
def test_spans_name_the_sources_that_json_names(pair: Pair) -> None:
    table = SourceTable()
    to_json(pair.node, table)
    assert {id(span.source) for span in spans(pair.node)} == {id(source) for source in table.sources()}
