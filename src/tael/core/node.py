# SPDX-License-Identifier: Apache-2.0
"""Where a tensor's bytes come from: a small closed algebra of pure data.

    Contiguous   a range of a source that holds the canonical bytes
    Strided      elements of a storage, `strides` apart (views, transposes, Fortran order)
    Tiled        boxes that cover the tensor exactly, each a node of its own (shards of one tensor, chunks)
    Op           a named function of other nodes: cast, transpose, slice, byteswap, quantize, ... (see ops.py)

Canonical bytes: row-major, little-endian, sub-byte elements low bits first. Positions and boxes are
counted in blocks of the dtype (`DType.grid`); for plain types that is elements. Evaluation: evaluate.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tael.core.dtypes import DType, dtype
from tael.core.source import ByteSource, open_ref
from tael.errors import ResumeError

Box = tuple[tuple[int, int], ...]  # (start, stop) per axis of the grid


@dataclass(frozen=True, slots=True)
class Span:
    """`nbytes` at `offset` of `source`."""

    source: ByteSource
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Contiguous:
    dtype: DType
    shape: tuple[int, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Strided:
    """Element (i, j, ...) lies `start + i * strides[0] + j * strides[1] + ...` elements into `storage`.

    Strides are not negative.
    """

    dtype: DType
    shape: tuple[int, ...]
    storage: Span
    start: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tiled:
    dtype: DType
    shape: tuple[int, ...]
    tiles: tuple[tuple[Box, Node], ...]


@dataclass(frozen=True, slots=True)
class Op:
    dtype: DType
    shape: tuple[int, ...]
    name: str
    inputs: tuple[Node, ...]
    params: Mapping[str, Any] = field(default_factory=dict)


Node = Contiguous | Strided | Tiled | Op


def nbytes(node: Node) -> int:
    return node.dtype.nbytes(node.shape)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of `shape`, in elements."""
    strides: list[int] = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def strided(dtype: DType, shape: tuple[int, ...], storage: Span, start: int, strides: tuple[int, ...]) -> Node:
    """A view into `storage` (offsets in elements): `Contiguous` when its bytes lie there in canonical order.

    The caller has checked that the last element lies inside the storage (`last_element`).
    """
    if math.prod(shape) == 0:
        return Contiguous(dtype, shape, Span(storage.source, storage.offset, 0))
    packed = contiguous_strides(shape)
    if all(length == 1 or have == want for length, have, want in zip(shape, strides, packed, strict=True)):
        offset = storage.offset + start * dtype.block_bytes
        return Contiguous(dtype, shape, Span(storage.source, offset, dtype.nbytes(shape)))
    return Strided(dtype, shape, storage, start, strides)


def last_element(shape: tuple[int, ...], start: int, strides: tuple[int, ...]) -> int:
    """Index into the storage of a view's last element; -1 for an empty view."""
    if math.prod(shape) == 0:
        return -1
    return start + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def spans(node: Node) -> list[Span]:
    """Every range of a source that evaluating `node` may touch."""
    match node:
        case Contiguous(span=span):
            return [span]
        case Strided(storage=storage):
            return [storage]
        case Tiled(tiles=tiles):
            return [span for _, inner in tiles for span in spans(inner)]
        case Op(inputs=inputs):
            return [span for inner in inputs for span in spans(inner)]


class SourceTable:
    """Numbers sources for JSON, and opens them again from it."""

    def __init__(self, refs: list[Mapping[str, Any]] | None = None) -> None:
        self.refs: list[Mapping[str, Any]] = list(refs or [])
        self._numbers: dict[int, int] = {}
        self._sources: dict[int, ByteSource] = {}

    def number(self, source: ByteSource) -> int:
        key = id(source)
        if key not in self._numbers:
            self._numbers[key] = len(self.refs)
            self._sources[len(self.refs)] = source
            self.refs.append(source.ref)
        return self._numbers[key]

    def source(self, number: int) -> ByteSource:
        if number not in self._sources:
            self._sources[number] = open_ref(self.refs[number])
        return self._sources[number]

    def sources(self) -> list[ByteSource]:
        return list(self._sources.values())


def span_to_json(span: Span, table: SourceTable) -> list[int]:
    return [table.number(span.source), span.offset, span.nbytes]


def span_from_json(data: list[int], table: SourceTable) -> Span:
    return Span(table.source(data[0]), data[1], data[2])


def to_json(node: Node, table: SourceTable) -> dict[str, Any]:
    """`node` as JSON; its sources become numbers in `table`."""
    head: dict[str, Any] = {"dtype": node.dtype.name, "shape": list(node.shape)}
    match node:
        case Contiguous(span=span):
            return {**head, "contiguous": span_to_json(span, table)}
        case Strided(storage=storage, start=start, strides=strides):
            return {**head, "strided": span_to_json(storage, table), "start": start, "strides": list(strides)}
        case Tiled(tiles=tiles):
            return {**head, "tiled": [[[list(axis) for axis in box], to_json(inner, table)] for box, inner in tiles]}
        case Op(name=name, inputs=inputs, params=params):
            return {**head, "op": name, "inputs": [to_json(inner, table) for inner in inputs], "params": dict(params)}


def from_json(data: Mapping[str, Any], table: SourceTable) -> Node:
    """The inverse of `to_json`."""
    kind, shape = dtype(data["dtype"]), tuple(data["shape"])
    if "contiguous" in data:
        return Contiguous(kind, shape, span_from_json(data["contiguous"], table))
    if "strided" in data:
        return Strided(kind, shape, span_from_json(data["strided"], table), data["start"], tuple(data["strides"]))
    if "tiled" in data:
        tiles = tuple((tuple((a, b) for a, b in box), from_json(inner, table)) for box, inner in data["tiled"])
        return Tiled(kind, shape, tiles)
    if "op" in data:
        inputs = tuple(from_json(inner, table) for inner in data["inputs"])
        return Op(kind, shape, data["op"], inputs, data["params"])
    raise ResumeError(f"unknown kind of node: {sorted(data)}")
