# SPDX-License-Identifier: Apache-2.0
"""Do two checkpoints hold the same tensors? Bit for bit, or within a tolerance. Containers do not matter.

Both sides are read once, in chunks that line up; stored checksums are compared in the same pass. What differs is told
by tensor: the first differing element, how many there are, and the largest change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tael import kernels
from tael.convert.names import matcher, nothing_matches
from tael.core.checkpoint import Checkpoint, owners
from tael.core.progress import SILENT, Progress, Serialized
from tael.core.tensor import Tensor, chunk_alignment
from tael.errors import CorruptFileError, TransformError, UnsupportedTensorError, clip_path
from tael.verify.reading import CHUNK, Reading, in_order, threads_for
from tael.verify.values import Array, as_float64, bits, elements, scalar

PIECE = 1 << 14  # elements that are compared as numbers at once

Kind = Literal["missing", "extra", "dtype", "shape", "values", "unreadable"]
Value = int | float | complex | bool | str


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor that is not the same on both sides.

    missing: not in B; extra: not in A; unreadable: damaged, on either side. For values: `count` elements differ, the
    first at `first_index`, where A has `left` and B has `right` (quantized tensors: blocks, and the index of the first
    element in it). `max_abs`, `max_rel` (of B's value) and `rms` measure the change over all elements: infinite where a
    number became NaN or infinite, None where elements are no numbers.
    """

    kind: Kind
    name: str
    detail: str
    first_index: tuple[int, ...] | None = None
    left: Value | None = None
    right: Value | None = None
    count: int = 0
    max_abs: float | None = None
    max_rel: float | None = None
    rms: float | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`equal`: nothing differs. `tensors` and `nbytes`: how many tensors were on both sides, and their bytes."""

    equal: bool
    differences: tuple[Difference, ...]
    tensors: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|a - b| <= atol + rtol * |b|; NaN equals NaN, infinities equal themselves. Zero both: bits."""

    atol: float = 0.0
    rtol: float = 0.0

    @property
    def exact(self) -> bool:
        return self.atol == 0 and self.rtol == 0


def verify(
    a: Checkpoint,
    b: Checkpoint,
    *,
    atol: float = 0.0,
    rtol: float = 0.0,
    only: Sequence[str] | None = None,
    ignore_missing: bool = False,
    ignore_extra: bool = False,
    progress: Progress = SILENT,
) -> Comparison:
    """Compare names, shapes, dtypes and values; `only` patterns of names when given.

    Without a tolerance every bit counts, NaN payloads included. With one, floats are compared as float64, whatever
    their dtypes; everything else stays exact. ignore_missing, ignore_extra: names in A, or B, alone are no difference.
    Raises `TransformError` when not one tensor was compared and nothing differs: that proves nothing.
    """
    if not (atol >= 0 and rtol >= 0):
        raise TransformError(f"a tolerance is not negative: atol {atol}, rtol {rtol}")
    tolerance = Tolerance(atol, rtol)
    wanted = matcher(only) if only is not None else lambda name: True
    names = [name for name in a.tensors if wanted(name)]
    extra = [name for name in b.tensors if wanted(name) and name not in a.tensors]
    if only is not None and not names and not extra:
        raise nothing_matches(only, a.tensors, a.path)
    common = [name for name in names if name in b.tensors]
    found: dict[str, Difference] = {}
    if not ignore_missing:
        found = {n: Difference("missing", n, _missing(a.tensors[n])) for n in names if n not in b.tensors}
    found.update(_values(a, b, common, tolerance, progress))
    listed = [found[name] for name in names if name in found]
    if not ignore_extra:
        listed += [Difference("extra", n, f"only in B: {_described(b.tensors[n])}") for n in extra]
    if not common and not listed:
        why = "no name is in both" if names or extra else "neither holds a tensor"
        raise TransformError(f"nothing to compare: {why}", path=f"{clip_path(a.path)} and {clip_path(b.path)}")
    return Comparison(not listed, tuple(listed), len(common), sum(a.tensors[name].nbytes for name in common))


def _missing(tensor: Tensor) -> str:
    return f"only in A: {_described(tensor)}"


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _values(
    a: Checkpoint, b: Checkpoint, names: Sequence[str], tolerance: Tolerance, progress: Progress
) -> dict[str, Difference]:
    """Differences by name. Names tied on both sides are compared once."""
    left, right = owners(a.tensors), owners(b.tensors)
    pair = {name: (left[name], right[name]) for name in names}
    first: dict[tuple[str, str], str] = {}
    for name in names:
        first.setdefault(pair[name], name)
    work = [(a.tensors[name], b.tensors[name]) for name in first.values()]
    shared = Serialized(progress)
    sizes = [x.nbytes for x, _ in work]
    threads = threads_for(t for both in work for t in both)
    progress.start(sum(sizes), f"compare {a.path} with {b.path}")
    try:
        results = in_order(lambda both: compare_tensors(*both, tolerance, shared), work, sizes, threads)
        verdict = dict(zip(first, results, strict=True))
    finally:
        progress.finish()
    return {name: replace(found, name=name) for name, key in pair.items() if (found := verdict[key]) is not None}


def compare_tensors(
    a: Tensor, b: Tensor, tolerance: Tolerance = Tolerance(), progress: Progress = SILENT, *, budget: int = CHUNK
) -> Difference | None:
    """How `b` differs from `a`, under `a`'s name; None when it does not."""
    if a.shape != b.shape:
        progress.advance(a.nbytes)
        return Difference("shape", a.name, f"shape {list(a.shape)} in A, {list(b.shape)} in B")
    if a.dtype != b.dtype and (tolerance.exact or not (a.dtype.is_float and b.dtype.is_float)):
        progress.advance(a.nbytes)
        return Difference("dtype", a.name, f"{a.dtype} in A, {b.dtype} in B")
    try:
        return Pass(a, b, tolerance).run(progress, budget)
    except (CorruptFileError, UnsupportedTensorError) as error:
        return Difference("unreadable", a.name, f"{error.path}: {error.cause}" if error.path else error.cause)


class Pass:
    """One pass over two tensors of one shape; floats of two dtypes are compared as numbers."""

    def __init__(self, a: Tensor, b: Tensor, tolerance: Tolerance = Tolerance()) -> None:
        self.a, self.b, self.tolerance = a, b, tolerance
        real = a.dtype.is_float or a.dtype.kind == "complex"
        self.by_bits = not real or (tolerance.exact and a.dtype == b.dtype)
        self.first: int | None = None  # element (quantized: block)
        self.left: Value = 0
        self.right: Value = 0
        self.count = 0
        self.max_abs = self.max_rel = self.squares = 0.0

    def run(self, progress: Progress = SILENT, budget: int = CHUNK) -> Difference | None:
        a, b = self.a, self.b
        sides = [(side, Reading(side)) for side in (a, b)]
        # Elements: whole blocks of both, and of whatever both are computed from.
        unit = math.lcm(*(side.dtype.block * chunk_alignment(side.data) for side in (a, b)))
        total = a.info.parameters
        per_element = max(side.dtype.block_bytes / side.dtype.block for side in (a, b))
        step = min(max(unit, int(budget / per_element) // unit * unit), max(total, 1))
        buffers = [memoryview(bytearray(_size(side, step))) for side in (a, b)]
        for start in range(0, total, step):
            count = min(step, total - start)
            pieces = []
            for (side, reading), buffer in zip(sides, buffers, strict=True):
                piece = buffer[: _size(side, count)]
                side.read_into(start // side.dtype.block, count // side.dtype.block, piece)
                reading.take(piece)
                pieces.append(piece)
            if self.by_bits:
                self._bits(start, *pieces)
            else:
                self._within(start, *pieces)
            progress.advance(pieces[0].nbytes)
        for _, reading in sides:
            reading.finish()
        return self._difference()

    def _bits(self, start: int, left: memoryview, right: memoryview) -> None:
        if kernels.first_difference(left, right) < 0:
            return
        kind = self.a.dtype
        if kind.is_plain or kind.kind == "quantized":
            size = kind.block_bytes
            self.count += kernels.count_differences(left, right, size)
            at = kernels.first_difference(left, right) // size
            start //= kind.block if kind.kind == "quantized" else 1
        else:
            different = elements(left, kind) != elements(right, kind)
            self.count += int(np.count_nonzero(different))
            at = int(np.argmax(different))
        self._note(start + at, at, left, right)
        if _is_numeric(self.a):
            for _, some, others in self._pieces(left, right):
                self._change(as_float64(some, kind), as_float64(others, kind))

    def _within(self, start: int, left: memoryview, right: memoryview) -> None:
        for at, some, others in self._pieces(left, right):
            x, y = as_float64(some, self.a.dtype), as_float64(others, self.b.dtype)
            change = self._change(x, y)
            if change is None:
                continue
            with np.errstate(invalid="ignore"):
                wrong = change > self.tolerance.atol + self.tolerance.rtol * np.abs(y)
            wrong |= np.isinf(change)  # which an infinite value in B would allow
            count = int(np.count_nonzero(wrong))
            if count:
                self.count += count
                first = int(np.argmax(wrong))
                self._note(start + at + first, first, some, others)

    def _pieces(self, left: memoryview, right: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
        """Number of the first element, and the same elements of both: so few that their float64s fit the cache."""
        steps = [_size(side, PIECE) for side in (self.a, self.b)]
        for number in range(-(-len(left) // steps[0])):
            some, others = (
                side[number * step : (number + 1) * step] for side, step in zip((left, right), steps, strict=True)
            )
            yield number * PIECE, some, others

    def _change(self, x: Array, y: Array) -> Array | None:
        """|x - y|, taken into account: 0 for two NaN, infinite for one. None when it is 0 everywhere."""
        with np.errstate(all="ignore"):
            change: Array = np.abs(x - y)
            most = float(change.max(initial=0))
            if not math.isfinite(most):
                change[(x == y) | (np.isnan(x) & np.isnan(y))] = 0
                change[np.isnan(change)] = math.inf
                most = float(change.max())
            if most == 0:
                return None
            relative = float(np.fmax.reduce(change / np.abs(y))) if math.isfinite(most) else math.inf
            self.squares += float(np.square(change).sum())
        self.max_abs, self.max_rel = max(self.max_abs, most), max(self.max_rel, relative)
        return change

    def _note(self, element: int, at: int, left: memoryview, right: memoryview) -> None:
        if self.first is not None:
            return
        self.first = element
        self.left, self.right = scalar(left, self.a.dtype, at), scalar(right, self.b.dtype, at)
        if _looks_equal(self.left, self.right):
            self.left, self.right = (
                f"{value!r} ({bits(raw, side.dtype, at)})"
                for value, raw, side in ((self.left, left, self.a), (self.right, right, self.b))
            )

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / max(1, self.a.info.parameters))

    def _difference(self) -> Difference | None:
        if self.first is None:
            return None
        a = self.a
        quantized = a.dtype.kind == "quantized"
        grid = a.dtype.grid(a.shape) if quantized else a.shape
        index = tuple(int(i) for i in np.unravel_index(self.first, grid)) if grid else ()
        if quantized:
            index = (*index[:-1], index[-1] * a.dtype.block)
        detail = (
            f"{self.count:,} of {math.prod(grid):,} {'blocks' if quantized else 'elements'} differ, "
            f"first at {list(index)}: {_shown(self.left)} in A, {_shown(self.right)} in B"
        )
        found = Difference("values", a.name, detail, index, self.left, self.right, self.count)
        if not _is_numeric(a):
            return found
        detail += f"; largest change {self.max_abs:.3g}"
        return replace(found, detail=detail, max_abs=self.max_abs, max_rel=self.max_rel, rms=self.rms)


def _size(side: Tensor, count: int) -> int:
    return count // side.dtype.block * side.dtype.block_bytes


def _is_numeric(tensor: Tensor) -> bool:
    return tensor.dtype.kind in ("float", "int", "uint", "bool", "complex")


def _looks_equal(left: Value, right: Value) -> bool:
    return repr(left) == repr(right)


def _shown(value: Value) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
