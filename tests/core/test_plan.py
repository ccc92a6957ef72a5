# SPDX-License-Identifier: Apache-2.0
"""Plans: offsets and sizes of parts, units within their memory, JSON that says it all."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import building
from random_nodes import Pair, pairs
from tael.convert.plan import (
    BASE_MEMORY,
    UNIT_BYTES,
    Compute,
    Copy,
    FileBuilder,
    OutputFile,
    Plan,
    plan_hash,
    spans_of,
    to_dict,
    unit_blocks,
    unit_memory,
)
from tael.core import ops
from tael.core.dtypes import DTYPES
from tael.core.evaluate import READ_BUDGET, working_bytes
from tael.core.node import Contiguous, Node, SourceTable, Span, Tiled, from_json, nbytes, span_from_json, strided
from tael.core.problem import Loss
from tael.core.source import ByteSource, BytesSource
from tael.core.tensor import chunk_alignment

F32, F16, F64, F4, Q8 = (DTYPES[name] for name in ("F32", "F16", "F64", "F4_E2M1", "Q8_0"))


class Huge(BytesSource):
    """A source of any size that is never read."""

    def __init__(self, size: int) -> None:
        super().__init__(b"")
        self.size = size


def plain(shape: tuple[int, ...], kind: str = "F32") -> Contiguous:
    size = DTYPES[kind].nbytes(shape)
    return Contiguous(DTYPES[kind], shape, Span(Huge(size), 0, size))


def turned(shape: tuple[int, int]) -> Node:
    storage = plain(shape[::-1]).span
    return strided(F32, shape, storage, 0, (1, shape[0]))


# --- files ------------------------------------------------------------------------------------------------------------


def test_parts_follow_each_other() -> None:
    build = FileBuilder("out.bin")
    source = BytesSource(b"0123456789")
    stored = building.tensor("a", np.arange(3, dtype=np.float32))
    computed = building.tensor("b", ops.cast(stored.data, F16))
    assert build.literal(b"head") == 0
    build.pad(64)
    assert build.tensor(stored, digest=True) == 1
    assert build.tensor(computed) == 2
    build.pad(8)
    build.pad(8)
    assert build.copy(Span(source, 2, 5), "side.json") == 3
    assert build.deferred(30, "zip.directory", {"parts": [1]}) == 4
    file = build.finish()
    assert [(part.offset, part.nbytes) for part in file.parts] == [(0, 4), (64, 12), (76, 6), (88, 5), (93, 30)]
    assert (file.name, file.size) == ("out.bin", 123)
    assert isinstance(file.parts[1], Copy)
    assert file.parts[1].digest
    assert isinstance(file.parts[2], Compute)
    assert [span.nbytes for span in spans_of(file.parts)] == [12, 12, 5]


@given(st.lists(st.one_of(st.binary(max_size=20), st.integers(1, 64)), max_size=12))
def test_offsets_never_overlap(steps: list[bytes | int]) -> None:
    build = FileBuilder("x")
    image = bytearray()
    for step in steps:
        if isinstance(step, bytes):
            build.literal(step)
            image += step
        else:
            build.pad(step)
            image += bytes(-len(image) % step)
    file = build.finish()
    assert file.size == len(image)
    written = bytearray(file.size)
    for part in file.parts:
        written[part.offset : part.offset + part.nbytes] = part.data  # type: ignore[union-attr]
    assert written == image


# --- units ------------------------------------------------------------------------------------------------------------

BIG: list[Callable[[], Node]] = [
    lambda: plain((50_000, 5_000)),
    lambda: plain((1, 10**9)),
    lambda: plain((10**9, 1)),
    lambda: turned((40_000, 30_000)),
    lambda: ops.cast(plain((50_000, 5_000)), F16),
    lambda: ops.cast(plain((7, 10**8), "F64"), DTYPES["BF16"]),
    lambda: ops.cast(turned((40_000, 30_000)), F16),
    lambda: ops.cast(ops.cast(plain((4_000, 40_000), "F64"), F32), F4),
    lambda: ops.cast(plain((4_000, 40_000), "F4_E2M1"), F64),
    lambda: ops.quantize(plain((4_000, 40_000)), Q8),
    lambda: ops.dequantize(plain((4_000, 40_000), "Q8_0")),
    lambda: ops.cast(ops.dequantize(plain((4_000, 40_000), "Q8_0")), F16),
    # Row lengths that share no factor with the block: a unit of whole rows would have 32 of them.
    lambda: ops.reshape(ops.dequantize(plain((32, 100_003 * 32), "Q8_0")), (1024, 100_003)),
    lambda: ops.reshape(ops.dequantize(plain((32, 1_003 * 32), "Q8_0")), (1024, 1_003)),
    lambda: ops.reshape(ops.dequantize(plain((32, 1_000_003 * 32), "Q8_0")), (1024, 1_000_003)),
    lambda: ops.concat([plain((50_000, 5_000)), turned((50_000, 5_000))], 1),
    lambda: ops.stack([turned((40_000, 3_000))] * 3, 1),
    lambda: Tiled(F32, (60_000, 30_000), ((((0, 60_000), (0, 30_000)), turned((60_000, 30_000))),)),
    lambda: ops.weight_norm(plain((4096, 1, 1)), plain((4096, 1024, 64))),
]


@pytest.mark.parametrize("which", range(len(BIG)))
def test_a_unit_of_a_big_tensor_stays_within_its_memory(which: int) -> None:
    node = BIG[which]()
    blocks = unit_blocks(node)
    assert blocks * node.dtype.block_bytes <= UNIT_BYTES
    assert unit_memory(node) <= 2 * UNIT_BYTES + 2 * READ_BUDGET
    assert unit_memory(node) >= UNIT_BYTES // 8  # and is not needlessly small
    assert blocks % chunk_alignment(node) == 0


@pytest.mark.parametrize("which", range(len(BIG)))
def test_units_are_whole_rows_where_rows_fit(which: int) -> None:
    node = BIG[which]()
    row = node.dtype.grid(node.shape)[-1]
    if math.lcm(row, chunk_alignment(node)) * (node.dtype.block_bytes + 24) <= UNIT_BYTES:
        assert unit_blocks(node) % row == 0


def test_weight_norm_over_another_axis_declares_all_it_needs() -> None:
    """Each row of the output needs every row of v: planning must know, to refuse beyond --max-memory."""
    v = plain((4096, 1024, 64))
    node = ops.weight_norm(plain((1, 1024, 1)), v, 1)
    assert unit_memory(node) >= 24 * math.prod(v.shape)


@given(pairs(depth=3))
def test_units_of_any_node(pair: Pair) -> None:
    node = pair.node
    blocks = unit_blocks(node)
    assert blocks >= 1
    assert blocks % chunk_alignment(node) == 0
    assert unit_memory(node) >= min(nbytes(node), blocks * node.dtype.block_bytes)
    assert working_bytes(node, blocks) >= 0


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (1, 1, 1)])
def test_units_of_small_shapes(shape: tuple[int, ...]) -> None:
    assert unit_blocks(ops.cast(plain(shape), F16)) >= 1


def test_peak_memory_is_threads_times_the_largest_unit() -> None:
    large, small = ops.cast(plain((50_000, 5_000)), F16), ops.cast(plain((10,)), F16)
    parts = (Compute(0, small, "s"), Compute(20, large, "l"), Copy(500_000_020, plain((9,)).span, "c"))
    plan = Plan("safetensors", "out", False, (OutputFile("out", 500_000_056, parts),))
    assert plan.peak_memory(1) == BASE_MEMORY + unit_memory(large)
    assert plan.peak_memory(4) == BASE_MEMORY + 4 * unit_memory(large)
    assert plan.nbytes == 500_000_056


# --- JSON -------------------------------------------------------------------------------------------------------------


def example(kind: str = "F16") -> Plan:
    build = FileBuilder("out.bin")
    stored = building.tensor("a", np.arange(32, dtype=np.float32))
    build.literal(b"\x00head")
    build.tensor(stored, digest=True)
    build.tensor(building.tensor("b", ops.cast(stored.data, DTYPES[kind])))
    build.deferred(7, "zip.directory", {"names": ["a"]})
    return Plan("torch", "out.bin", False, (build.finish(),), (Loss("metadata", "one key"),))


def test_json_says_everything_a_worker_needs() -> None:
    plan = example()
    data = json.loads(json.dumps(to_dict(plan)))
    assert data["schema"] == "tael.plan/1"
    assert [(file["name"], file["size"]) for file in data["files"]] == [("out.bin", 5 + 128 + 64 + 7)]
    literal, copy, compute, deferred = data["files"][0]["parts"]
    table = SourceTable(data["sources"])
    assert base64.b64decode(literal["literal"]) == b"\x00head"
    span = span_from_json(copy["copy"], table)
    assert (copy["at"], copy["digest"], copy["tensor"], span.nbytes) == (5, True, "a", 128)
    node = from_json(compute["compute"], table)
    assert (node.dtype, node.shape) == (F16, (32,))
    assert building.raw_bytes(building.tensor("b", node)) == np.arange(32, dtype=np.float16).tobytes()
    assert (deferred["nbytes"], deferred["finisher"], deferred["params"]) == (7, "zip.directory", {"names": ["a"]})
    assert data["losses"] == [{"kind": "metadata", "detail": "one key", "count": 1}]
    source: ByteSource = table.source(0)
    assert data["sources"][0]["identity"] == list(source.identity)


def test_the_hash_changes_with_plan_and_input() -> None:
    assert plan_hash(example()) == plan_hash(example())
    other = example()
    changed = Plan("torch", "out.bin", False, other.files, ())
    assert len({plan_hash(plan) for plan in (example(), example("BF16"), changed)}) == 3
    before = plan_hash(other)
    part = other.files[0].parts[1]
    assert isinstance(part, Copy)
    source = part.span.source
    assert isinstance(source, BytesSource)
    source.data = memoryview(bytes(source.size))
    assert plan_hash(other) != before
