# SPDX-License-Identifier: Apache-2.0
"""Canonical packing of elements of 2, 4 and 6 bits: the first element in the lowest bits.

2 bits   byte 0 = e0 | e1 << 2 | e2 << 4 | e3 << 6
4 bits   byte 0 = e0 | e1 << 4
6 bits   bytes 0-2 = (e0 | e1 << 6 | e2 << 12 | e3 << 18), little-endian
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

BLOCK = {2: 4, 4: 2, 6: 4}  # elements that share whole bytes
_PAIRS = np.array([0, 2, 4, 6], np.uint8)


def unpack(packed: Bytes, bits: int) -> Bytes:
    """One byte per element from packed bytes: 8 / `bits` times as many."""
    if bits == 2:
        spread: Bytes = np.right_shift(packed[:, None], _PAIRS)
        return np.bitwise_and(spread, 3, out=spread).reshape(-1)
    if bits == 4:
        codes = np.empty((packed.size, 2), np.uint8)
        np.bitwise_and(packed, 15, out=codes[:, 0])
        np.right_shift(packed, 4, out=codes[:, 1])
        return codes.reshape(-1)
    a, b, c = (packed[i::3] for i in range(3))
    codes = np.empty((a.size, 4), np.uint8)
    codes[:, 0] = a & 63
    codes[:, 1] = a >> 6 | (b & 15) << 2
    codes[:, 2] = b >> 4 | (c & 3) << 4
    codes[:, 3] = c >> 2
    return codes.reshape(-1)


def pack(codes: Bytes, bits: int, out: Bytes) -> None:
    """Packs one-byte elements, a multiple of BLOCK[bits], into `out`. Bits above `bits` must be zero."""
    if bits == 2:
        np.bitwise_or.reduce(codes.reshape(-1, 4) << _PAIRS, axis=1, out=out)
        return
    if bits == 4:
        np.bitwise_or(codes[0::2], codes[1::2] << 4, out=out)
        return
    e0, e1, e2, e3 = (codes[i::4] for i in range(4))
    out[0::3] = e0 | e1 << 6
    out[1::3] = e1 >> 2 | e2 << 4
    out[2::3] = e2 >> 4 | e3 << 2
