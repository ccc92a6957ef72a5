# SPDX-License-Identifier: Apache-2.0
"""The Python face of the native core: checksums, copies, comparison, casts and the block types of ggml.

Buffers are anything with the buffer protocol (numpy arrays, memoryviews, bytes, mmaps), contiguous and taken as plain
little-endian bytes of any alignment; `out` must be writable and apart from `source`. Sizes that do not fit raise
ValueError. Every function releases the GIL and keeps no state, so threads may share them.

`SIMD` names the instruction set in use: the fastest that this processor has and that gives the same bytes as the
baseline on a self-check. The environment variable TAEL_SIMD forces one of `levels()`. The output bytes are the same on
all of them. `VERSION` changes when any kernel's output does; a resumed conversion compares it.

Importing this package loads numpy, so modules that `import tael` loads at once must import it where they use it.
"""

from __future__ import annotations

import math
import os
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if sys.byteorder != "little":
    raise ImportError("tael runs on little-endian machines only: weight files are little-endian and copied as they are")

from tael.errors import TaelError
from tael.kernels import _native

if TYPE_CHECKING:
    from mmap import mmap

    import numpy as np

    Buffer: TypeAlias = bytes | bytearray | memoryview | mmap | np.ndarray[Any, Any]

__all__ = [
    "SIMD",
    "VERSION",
    "Errors",
    "Stats",
    "copy_range",
    "count_differences",
    "crc32",
    "crc32_combine",
    "crc32_range",
    "crc32c",
    "crc32c_combine",
    "dequantize",
    "errors_f32",
    "first_difference",
    "gather_strided",
    "levels",
    "quantize",
    "skip_strings",
    "stats_f32",
]

VERSION: Final = 2

_LONG_ROW = 1024  # bytes of an output row from which tiles are faster than numpy (measured)


def _select() -> str:
    try:
        return _native.select_level(os.environ.get("TAEL_SIMD", ""))
    except (ValueError, RuntimeError) as error:
        raise TaelError(f"TAEL_SIMD: {error}", hint="unset TAEL_SIMD to let tael choose") from None


SIMD: Final = _select()


def levels() -> list[str]:
    """The instruction sets that TAEL_SIMD may name here, slowest first; "baseline" is always one."""
    return _native.runnable_levels()


def crc32(data: Buffer, init: int = 0) -> int:
    """CRC-32 as zip and zlib have it, continued from `init`."""
    return _native.crc32(data, init)


def crc32c(data: Buffer, init: int = 0) -> int:
    """CRC-32C (Castagnoli) as TensorBundle and TFRecord have it (unmasked), continued from `init`."""
    return _native.crc32c(data, init)


def crc32_combine(crc_a: int, crc_b: int, n_bytes_b: int) -> int:
    """CRC-32 of A followed by B, from the CRC-32 of each and the length of B in bytes."""
    return _native.crc32_combine(crc_a, crc_b, n_bytes_b)


def crc32c_combine(crc_a: int, crc_b: int, n_bytes_b: int) -> int:
    """CRC-32C of A followed by B, from the CRC-32C of each and the length of B in bytes."""
    return _native.crc32c_combine(crc_a, crc_b, n_bytes_b)


def crc32_range(fd: int, offset: int, n: int) -> int:
    """CRC-32 of `n` bytes of an open file from `offset`. EOFError when the file ends before; OSError as pread's."""
    return _native.crc32_range(fd, offset, n)


def copy_range(in_fd: int, in_offset: int, out_fd: int, out_offset: int, n: int, want_crc: bool = False) -> int:
    """Copies `n` bytes between open files and returns their CRC-32, or 0 unless `want_crc`.

    Without the CRC the kernel copies (copy_file_range, where there is one and it agrees), else the bytes pass once
    through a 256 KiB buffer. File positions are not used. EOFError when the input ends before `n` bytes; OSError
    with its errno when reading or writing fails (ENOSPC: the disk is full); part of the range may then be written.
    """
    return _native.copy_range(in_fd, in_offset, out_fd, out_offset, n, want_crc)


def first_difference(a: Buffer, b: Buffer) -> int:
    """The first byte at which two buffers of equal size differ, or -1."""
    return _native.first_difference(a, b)


def count_differences(a: Buffer, b: Buffer, itemsize: int) -> int:
    """The number of `itemsize`-byte items that differ between two buffers of equal size."""
    return _native.count_differences(a, b, itemsize)


def gather_strided(source: np.ndarray[Any, Any], out: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """Copies a strided array of any shape, with 1, 2, 4, 8 or 16-byte items, into contiguous row-major bytes.

    Large transposed matrices go by tiles (2 to 10 times numpy's speed), the rest through numpy.
    """
    steps = [abs(step) for step, length in zip(source.strides, source.shape, strict=True) if length > 1]
    long_rows = source.ndim > 1 and source.shape[-1] * source.itemsize >= _LONG_ROW
    if long_rows and steps and min(steps) < abs(source.strides[-1]):
        _native.gather_strided(source, out)
    else:
        out.reshape(-1).view(source.dtype).reshape(source.shape)[...] = source


class Stats(NamedTuple):
    """What one pass over float values finds; `minimum` and the rest are over finite values only."""

    n: int = 0
    n_nan: int = 0
    n_inf: int = 0
    n_zero: int = 0
    minimum: float = math.inf  # inf, and -inf below, while there is no finite value
    maximum: float = -math.inf
    total: float = 0.0
    total_squares: float = 0.0

    @property
    def n_finite(self) -> int:
        return self.n - self.n_nan - self.n_inf

    @property
    def mean(self) -> float:
        """NaN when there is no finite value."""
        return self.total / self.n_finite if self.n_finite else math.nan

    @property
    def std(self) -> float:
        """Population standard deviation; NaN when there is no finite value."""
        if not self.n_finite:
            return math.nan
        return math.sqrt(max(0.0, self.total_squares / self.n_finite - self.mean**2))

    def merged(self, other: Stats) -> Stats:
        """The statistics of this piece followed by `other`. Pieces merged in order give the same sums every time."""
        return Stats(
            self.n + other.n,
            self.n_nan + other.n_nan,
            self.n_inf + other.n_inf,
            self.n_zero + other.n_zero,
            min(self.minimum, other.minimum),
            max(self.maximum, other.maximum),
            self.total + other.total,
            self.total_squares + other.total_squares,
        )


def stats_f32(source: Buffer) -> Stats:
    """Statistics of float32 values, summed in float64 in one order on every machine."""
    return Stats(*_native.stats_f32(source))


class Errors(NamedTuple):
    """How far values are from a reference: sums that pieces add up to."""

    squared_error: float = 0.0
    squares_reference: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    largest: float = 0.0  # absolute error

    def merged(self, other: Errors) -> Errors:
        """The errors of this piece followed by `other`."""
        return Errors(
            self.squared_error + other.squared_error,
            self.squares_reference + other.squares_reference,
            self.squares + other.squares,
            self.products + other.products,
            max(self.largest, other.largest),
        )


def errors_f32(reference: Buffer, values: Buffer) -> Errors:
    """Errors of finite float32 `values` against `reference`, summed in float64 in one order on every machine."""
    return Errors(*_native.errors_f32(reference, values))


def quantize(type_name: str, source: Buffer, out: Buffer, row_length: int, weights: Buffer | None = None) -> int:
    """Rows of float32 into ggml's blocks of `type_name` ("Q4_K"), byte for byte as ggml's reference does.

    weights: `row_length` float32 importances, finite and not negative, the same for every row; IQ1_S, IQ1_M, IQ2_XXS
    and IQ2_XS need them. Weights that leave a row without finite scales count as none for that row. Float buffers are
    aligned to 4 bytes. Returns -1; or i >= 0, the first value that is not finite; or -2 - b, where b is the first block
    whose scale no float16 holds. `out` is then unfinished.
    """
    return _native.quantize(type_name, source, out, row_length, weights)


def dequantize(type_name: str, source: Buffer, out: Buffer) -> None:
    """ggml's blocks of `type_name` into float32 values."""
    _native.dequantize(type_name, source, out)


def skip_strings(data: Buffer, start: int, count: int, width: int) -> int:
    """Where `count` strings from `start` end, each behind its length of `width` bytes; -1 if that is beyond `data`."""
    return _native.skip_strings(data, start, count, width)
