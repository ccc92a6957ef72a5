# SPDX-License-Identifier: Apache-2.0
"""Old blocks and today's hold the same numbers: both are decoded here, one number at a time, and compared."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from tael.core.dtypes import DTYPES
from tael.core.evaluate import Counters
from tael.core.node import SourceTable, Span, from_json, to_json
from tael.core.ops import slice_
from tael.core.repack import OLD_BLOCKS, repack
from tael.core.source import BytesSource
from tael.core.tensor import Tensor, TensorInfo
from tael.errors import UnsupportedTensorError

Read = Callable[[bytes, int], float]  # number `i` of a block


def _codes(block: bytes, at: int, i: int, interleaved: bool) -> int:
    byte = block[at + (i // 2 if interleaved else i % 16)]
    upper = i % 2 if interleaved else i // 16
    return byte >> 4 if upper else byte & 15


def _fifth(block: bytes, at: int, i: int) -> int:
    return (int.from_bytes(block[at : at + 4], "little") >> i & 1) << 4


def reader(scale: str, kind: str, interleaved: bool) -> Read:
    """How the ggml of the time decoded `kind` with scales of struct type `scale`."""
    size = struct.calcsize(scale)

    def read(block: bytes, i: int) -> float:
        (d,) = struct.unpack_from(f"<{scale}", block)
        if kind == "Q8_0":
            return d * struct.unpack_from("<b", block, size + i)[0]
        m = struct.unpack_from(f"<{scale}", block, size)[0] if kind.endswith("1") else 0.0
        at = size * (2 if kind.endswith("1") else 1)
        code = _codes(block, at + (4 if kind.startswith("Q5") else 0), i, interleaved)
        if kind.startswith("Q5"):
            code |= _fifth(block, at, i)
        return d * code + m if kind.endswith("1") else d * (code - {"Q4_0": 8, "Q5_0": 16}[kind])

    return read


OLD: dict[str, Read] = {
    "Q4_0.1": reader("f", "Q4_0", True),
    "Q4_1.1": reader("f", "Q4_1", True),
    "Q5_0.1": reader("e", "Q5_0", True),
    "Q5_1.1": reader("e", "Q5_1", True),
    "Q8_0.1": reader("f", "Q8_0", False),
    "Q4_0.2": reader("f", "Q4_0", False),
    "Q4_1.2": reader("f", "Q4_1", False),
    "Q8_0.2": reader("f", "Q8_0", False),
}


def stored(layout: str, blocks: int, seed: int = 0) -> bytes:
    """Blocks of random codes under scales that F16 can hold."""
    old, random = OLD_BLOCKS[layout], np.random.default_rng(seed)
    scales = random.normal(0, 3, (blocks, old.scales)).astype(np.float16)
    rest = random.integers(0, 256, (blocks, old.high + old.codes), np.uint8)
    head = np.ascontiguousarray(scales.astype("<f4" if old.scale_bytes == 4 else "<f2")).view(np.uint8)
    return np.hstack([head, rest]).tobytes()


def tensor(layout: str, shape: tuple[int, ...], raw: bytes) -> Tensor:
    node = repack(layout, shape, Span(BytesSource(b"before" + raw), 6, len(raw)))
    return Tensor(TensorInfo("x", node.dtype, node.shape), node)


def test_every_old_layout_is_checked() -> None:
    assert OLD.keys() == OLD_BLOCKS.keys()


@pytest.mark.parametrize("layout", OLD)
def test_the_numbers_stay_the_same(layout: str) -> None:
    old, kind = OLD_BLOCKS[layout], DTYPES[OLD_BLOCKS[layout].becomes]
    raw = stored(layout, 12)
    assert len(raw) == 12 * old.nbytes
    packed = b"".join(bytes(piece) for piece in tensor(layout, (4, 96), raw).chunks(5 * kind.block_bytes))
    today = reader("e", kind.name, False)
    for block in range(12):
        before = raw[block * old.nbytes :][: old.nbytes]
        after = packed[block * kind.block_bytes :][: kind.block_bytes]
        assert [OLD[layout](before, i) for i in range(32)] == [today(after, i) for i in range(32)]


@pytest.mark.parametrize("layout", OLD)
def test_any_part_of_it_can_be_read_and_told_in_json(layout: str) -> None:
    raw = stored(layout, 12)
    whole = tensor(layout, (4, 96), raw)
    everything = b"".join(bytes(piece) for piece in whole.chunks())
    size = whole.dtype.block_bytes
    buffer = bytearray(3 * size)
    whole.read_into(4, 3, memoryview(buffer))
    assert bytes(buffer) == everything[4 * size : 7 * size]
    node = slice_(whole.data, (1, 32), (2, 64))
    table = SourceTable()
    again = from_json(to_json(node, table), SourceTable(table.refs))
    cut = Tensor(TensorInfo("cut", again.dtype, again.shape), again)
    rows = [everything[(row * 3 + 1) * size : (row * 3 + 3) * size] for row in (1, 2)]
    assert b"".join(bytes(piece) for piece in cut.chunks()) == b"".join(rows)


def test_a_scale_is_rounded_to_the_nearest_f16() -> None:
    raw = struct.pack("<f", 1 + 2**-11 + 2**-20) + bytes(16)
    (piece,) = tensor("Q4_0.2", (32,), raw).chunks()
    assert struct.unpack_from("<e", piece)[0] == 1 + 2**-10
    raw = struct.pack("<f", 1e-9) + bytes(16)  # below the smallest F16
    (piece,) = tensor("Q4_0.2", (32,), raw).chunks()
    assert struct.unpack_from("<e", piece)[0] == 0


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 65520.0, -1e30])
def test_what_is_no_scale_is_refused(scale: float) -> None:
    good = struct.pack("<f", 1.0) + bytes(16)
    bad = struct.pack("<f", scale) + bytes(16)
    whole = tensor("Q4_0.1", (4, 32), good + good + bad + good)
    with pytest.raises(UnsupportedTensorError, match="block 2 has a scale"):
        for _ in whole.chunks():
            pass
    assert whole.read_into(0, 2, memoryview(bytearray(36))) == Counters()
