# SPDX-License-Identifier: Apache-2.0
"""CRC-32 against zlib, CRC-32C against published values and a bitwise reference, and their combination."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tael.kernels import crc32, crc32_combine, crc32c, crc32c_combine


def bitwise(polynomial: int, data: bytes, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (polynomial if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("length", [*range(300), 511, 512, 513, 1023, 1024, 1025, 65537, 1_000_003])
def test_crc32_is_zlibs(length: int) -> None:
    data = random.Random(length).randbytes(length + 3)
    view = memoryview(data)[3:]  # unaligned
    assert crc32(view) == zlib.crc32(view)
    assert crc32(view, 0xDEADBEEF) == zlib.crc32(view, 0xDEADBEEF)


def test_crc32c_published_values() -> None:
    """The test vectors of RFC 3720, appendix B.4, and the check value of the CRC catalogue."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(bytes(range(31, -1, -1))) == 0x113FDB5C


@given(st.binary(max_size=900), st.integers(0, 0xFFFFFFFF))
def test_crc32c_is_the_bitwise_one(data: bytes, init: int) -> None:
    assert crc32c(data, init) == bitwise(0x82F63B78, data, init)


@given(st.binary(max_size=600), st.binary(max_size=600))
def test_combining_is_concatenating(a: bytes, b: bytes) -> None:
    assert crc32_combine(zlib.crc32(a), zlib.crc32(b), len(b)) == zlib.crc32(a + b)
    assert crc32c_combine(crc32c(a), crc32c(b), len(b)) == crc32c(a + b)


def test_combining_over_terabytes() -> None:
    """2^43 zero bytes, by doubling: each half combined with itself."""
    crc, length = zlib.crc32(bytes(1 << 10)), 1 << 10
    while length < 1 << 43:
        crc, length = crc32_combine(crc, crc, length), 2 * length
    three = crc32_combine(crc32_combine(zlib.crc32(b"x"), crc, length), zlib.crc32(b"y"), 1)
    tail = crc32_combine(crc, zlib.crc32(b"y"), 1)
    assert three == crc32_combine(zlib.crc32(b"x"), tail, length + 1)


def test_only_contiguous_buffers() -> None:
    with pytest.raises(BufferError):
        crc32(memoryview(bytes(16))[::2])
    with pytest.raises(TypeError):
        crc32("text")  # type: ignore[arg-type]
