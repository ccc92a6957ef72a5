# SPDX-License-Identifier: Apache-2.0
"""Minimum, maximum, mean, deviation, NaN, infinities and zeros of tensors: one pass each, in bounded memory.

Floats are measured as float32 (F64 as float64), sums are kept in float64, chunk by chunk, each around its own mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tael import kernels
from tael.core.checkpoint import Checkpoint, owners
from tael.core.dtypes import DType
from tael.core.progress import SILENT, Progress, Serialized
from tael.core.tensor import Tensor
from tael.errors import CorruptFileError, UnsupportedTensorError
from tael.kernels import cast
from tael.verify.reading import CHUNK, checked_chunks, in_order, threads_for
from tael.verify.values import Array, elements, is_measurable


@dataclass(frozen=True, slots=True)
class Stats:
    """Of one tensor. `min`, `max`, `mean` and `std` (of the population) are over finite values, None without any.

    `error` says why there are no figures: the tensor is `damaged`, or cannot be measured.
    """

    name: str
    count: int
    min: float | int | None = None
    max: float | int | None = None
    mean: float | None = None
    std: float | None = None
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    error: str | None = None
    damaged: bool = False


class _Part(NamedTuple):
    """Figures of some of the elements; `spread`: the sum of squared distances from the mean."""

    n: int = 0  # finite
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    min: float | int = math.inf
    max: float | int = -math.inf
    mean: float = 0.0
    spread: float = 0.0

    def joined(self, other: _Part) -> _Part:
        """Chan, Golub and LeVeque's update: no figure is a small difference of large sums."""
        n = self.n + other.n
        apart = other.mean - self.mean
        share = other.n / n if n else 0.0
        return _Part(
            n,
            self.nan + other.nan,
            self.inf + other.inf,
            self.zeros + other.zeros,
            min(self.min, other.min),
            max(self.max, other.max),
            self.mean + apart * share if self.n else other.mean,
            self.spread + other.spread + (apart * apart * self.n * share if self.n and other.n else 0.0),
        )


def stats(tensor: Tensor, progress: Progress = SILENT) -> Stats:
    """The figures of `tensor`; what cannot be read or measured becomes `error`, not an exception."""
    count = tensor.info.parameters
    if not is_measurable(tensor.dtype):
        progress.advance(tensor.nbytes)
        return Stats(tensor.name, count, error=f"no statistics of {tensor.dtype}")
    whole = _Part()
    try:
        # A piece has float32s, or float64s, of at most CHUNK bytes.
        for piece in checked_chunks(tensor, int(CHUNK * min(1.0, tensor.dtype.bits / 32))):
            whole = whole.joined(_measured(piece, tensor.dtype))
            progress.advance(piece.nbytes)
    except (CorruptFileError, UnsupportedTensorError) as error:
        return Stats(tensor.name, count, error=error.cause, damaged=isinstance(error, CorruptFileError))
    found = Stats(tensor.name, count, nan=whole.nan, inf=whole.inf, zeros=whole.zeros)
    if not whole.n:
        return found
    return replace(found, min=whole.min, max=whole.max, mean=whole.mean, std=math.sqrt(whole.spread / whole.n))


def stats_checkpoint(checkpoint: Checkpoint, progress: Progress = SILENT) -> Iterator[Stats]:
    """The figures of every tensor in file order, each as soon as it is known. Tied tensors are read once."""
    group = owners(checkpoint.tensors)
    first: dict[str, Tensor] = {}
    for name, tensor in checkpoint.tensors.items():
        first.setdefault(group[name], tensor)
    shared = Serialized(progress)
    work = list(first.values())
    sizes = [tensor.nbytes for tensor in work]
    progress.start(sum(sizes), f"measure {checkpoint.path}")
    try:
        results = in_order(lambda tensor: stats(tensor, shared), work, sizes, threads_for(work))
        known: dict[str, Stats] = {}
        for name, owner in group.items():
            if owner not in known:
                known[owner] = next(results)
            yield replace(known[owner], name=name)
    finally:
        progress.finish()


def _measured(raw: memoryview, kind: DType) -> _Part:
    if kind.name == "F64":
        return _doubles(np.frombuffer(raw, np.float64))
    if kind.is_float:
        return _floats(raw, kind)
    return _integers(elements(raw, kind))


def _floats(raw: memoryview, kind: DType) -> _Part:
    data = np.frombuffer(raw, np.uint8)
    if kind.name != "F32":
        data, given = np.empty(4 * cast.n_elements(data, kind.name), np.uint8), data
        cast.cast(given, kind.name, "F32", data)
    found = kernels.stats_f32(data)
    n = found.n_finite
    if not n:
        return _Part(0, found.n_nan, found.n_inf, found.n_zero)
    mean = found.total / n
    spread = max(0.0, found.total_squares - n * mean * mean)
    return _Part(n, found.n_nan, found.n_inf, found.n_zero, found.minimum, found.maximum, mean, spread)


def _doubles(values: Array) -> _Part:
    nan, inf = int(np.count_nonzero(np.isnan(values))), int(np.count_nonzero(np.isinf(values)))
    zeros = values.size - int(np.count_nonzero(values))
    if nan or inf:
        values = values[np.isfinite(values)]
    if not values.size:
        return _Part(0, nan, inf, zeros)
    with np.errstate(over="ignore"):
        mean = float(values.mean())
        apart = values - mean
        spread = float(np.square(apart).sum())
    return _Part(values.size, nan, inf, zeros, float(values.min()), float(values.max()), mean, spread)


def _integers(values: Array) -> _Part:
    if not values.size:
        return _Part()
    part = _doubles(values.astype(np.float64))
    return part._replace(min=int(values.min()), max=int(values.max()))
