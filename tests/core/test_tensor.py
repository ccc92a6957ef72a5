# SPDX-License-Identifier: Apache-2.0
"""Tensor: the one read, chunks of it, arrays, checksums and damage."""

from __future__ import annotations

import threading
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import building
from random_nodes import Pair, Recorder, pairs
from tael.core import ops
from tael.core.dtypes import DTYPES
from tael.core.node import Contiguous, Node, Span, Strided
from tael.core.source import BytesSource
from tael.core.tensor import Check, Tensor, TensorInfo, chunk_alignment
from tael.errors import ChecksumError, CorruptFileError, UnsupportedTensorError


def tensor(node: Node, **more: Any) -> Tensor:
    return Tensor(TensorInfo("t", node.dtype, node.shape), node, **more)


@given(pairs(depth=2), st.integers(1, 100))
def test_chunks_are_the_canonical_bytes(pair: Pair, budget: int) -> None:
    pieces = [bytes(piece) for piece in tensor(pair.node).chunks(budget)]
    assert b"".join(pieces) == pair.array.tobytes()
    assert all(0 < len(piece) <= max(budget, pair.node.dtype.block_bytes) for piece in pieces)


def test_chunks_do_not_cut_the_blocks_of_an_input() -> None:
    values = np.random.default_rng(1).normal(0, 1, (4, 64)).astype(np.float32)
    quantized = ops.quantize(
        Contiguous(DTYPES["F32"], (4, 64), Span(BytesSource(values.tobytes()), 0, 1024)), DTYPES["Q8_0"]
    )
    plain = ops.cast(ops.dequantize(quantized), DTYPES["F16"])
    assert chunk_alignment(quantized) == 1
    assert chunk_alignment(plain) == 32
    assert [len(piece) for piece in tensor(plain).chunks(200)] == [192, 192, 128]
    assert [len(piece) for piece in tensor(plain).chunks(1)] == [64] * 8


@pytest.mark.parametrize("name", [n for n, kind in DTYPES.items() if kind.numpy_name])
def test_numpy_is_the_array(name: str) -> None:
    kind = DTYPES[name]
    raw = np.random.default_rng(2).integers(0, 2 if name == "BOOL" else 256, kind.nbytes((3, 8)), np.uint8).tobytes()
    array = building.tensor("t", (name, (3, 8), raw)).numpy()
    assert (array.shape, array.dtype) == ((3, 8), kind.numpy())
    if kind.is_plain:
        assert array.tobytes() == raw
    else:
        bits = round(kind.bits)
        codes = array.reshape(-1).view(np.uint8).astype(np.uint64) & (1 << bits) - 1
        assert sum(int(code) << bits * k for k, code in enumerate(codes)) == int.from_bytes(raw, "little")


def test_numpy_of_four_bit_values() -> None:
    array = building.tensor("t", ("I4", (2, 2), bytes([0x7F, 0x80]))).numpy()
    assert array.dtype == ml_dtypes.int4
    assert array.astype(int).tolist() == [[-1, 7], [0, -8]]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,)])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    array = np.full(shape, 2.5, np.float32)
    got = building.tensor("t", array)
    assert got.numpy().tolist() == array.tolist()
    assert b"".join(bytes(piece) for piece in got.chunks()) == array.tobytes()
    got.read_into(0, 0, memoryview(b""))


@pytest.mark.parametrize(("start", "count"), [(0, 5), (4, 1), (-1, 1), (2, -1), (10**30, 1)])
def test_reads_beyond_the_tensor_are_refused(start: int, count: int) -> None:
    """What follows in the file belongs to another tensor."""
    node = Contiguous(DTYPES["U8"], (4,), Span(BytesSource(b"minetheirs"), 0, 4))
    with pytest.raises(UnsupportedTensorError, match="has 4 blocks"):
        tensor(node).read_into(start, count, memoryview(bytearray(100)))


def test_errors_name_the_tensor() -> None:
    node = Contiguous(DTYPES["U8"], (4,), Span(BytesSource(b"ab"), 0, 4))
    with pytest.raises(CorruptFileError) as caught:
        tensor(node).numpy()
    assert caught.value.tensor == "t"
    with pytest.raises(UnsupportedTensorError, match="cut off") as refused:
        tensor(node, damaged="its end is cut off").numpy()
    assert refused.value.tensor == "t"


def test_losses_of_a_cast_come_back_from_the_read() -> None:
    node = ops.cast(building.tensor("t", np.array([1e9, 1], np.float32)).data, DTYPES["F16"])
    assert tensor(node).read_into(0, 2, memoryview(bytearray(4))).overflow == 1


def test_renaming_and_new_data() -> None:
    first = building.tensor("a", np.zeros((2, 2), np.float32))
    tied = first.renamed("b", alias_of="a")
    assert (tied.name, tied.info.alias_of, tied.data) == ("b", "a", first.data)
    half = tied.with_data(ops.cast(first.data, DTYPES["F16"]), name="c")
    assert (half.name, half.dtype.name, half.nbytes, half.info.alias_of, half.span) == ("c", "F16", 8, None, None)
    assert first.span == first.data.span
    assert first.info.parameters == 4
    assert (
        isinstance(ops.transpose(first.data, (1, 0)), Strided) or tensor(ops.transpose(first.data, (1, 0))).span is None
    )


# --- stored checksums -------------------------------------------------------------------------------------------------


def test_a_check_reads_its_range_once() -> None:
    data = bytes(range(256)) * 10_000
    source = Recorder(b"xx" + data)
    check = Check(Span(source, 2, len(data)), zlib.crc32(data), "record")
    threads = [threading.Thread(target=check.verify) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(count for _, count in source.reads) == len(data)
    assert max(count for _, count in source.reads) <= 1 << 20


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1])
def test_a_damaged_byte_is_found(size: int) -> None:
    data = bytearray(size)
    crc = zlib.crc32(data)
    Check(Span(BytesSource(bytes(data)), 0, size), crc, "record").verify()
    wrong = Check(Span(BytesSource(bytes(data)), 0, size), crc ^ 1, "record")
    for _ in range(2):  # and found again: a failed check is not a done one
        with pytest.raises(ChecksumError, match="record: stored CRC-32"):
            wrong.verify()
    if size:
        data[-1] ^= 1
        with pytest.raises(ChecksumError):
            Check(Span(BytesSource(bytes(data)), 0, size), crc, "record").verify()


def test_numpy_compares_the_checksum_and_names_the_tensor() -> None:
    good = building.tensor("t", np.arange(4, dtype=np.float32), check=True)
    assert good.numpy().tolist() == [0, 1, 2, 3]
    bad = Tensor(good.info, good.data, checks=(Check(good.checks[0].span, 1, "record of t"),))
    with pytest.raises(ChecksumError) as caught:
        bad.numpy()
    assert caught.value.tensor == "t"


def test_a_checksum_taken_in_passing_counts() -> None:
    source = Recorder(b"abcd")
    check = Check(Span(source, 0, 4), zlib.crc32(b"abcd"), "record")
    check.compare(zlib.crc32(b"abcd"))
    check.verify()
    assert source.reads == []
