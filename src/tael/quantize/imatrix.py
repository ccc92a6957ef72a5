# SPDX-License-Identifier: Apache-2.0
"""Importance matrices: how much each input of a matrix matters, as llama-imatrix measured it.

    GGUF     tensors NAME.in_sum2 [experts, row length] and NAME.counts [experts, 1]; keys imatrix.datasets,
             imatrix.chunk_count, imatrix.chunk_size. An input's weight is its sum divided by its expert's count, or 1
             where the expert was never used.
    .dat     entries (i32); each: length of the name (i32), name, calls (i32), values (i32), values (f32). Then the
             chunks (i32), the length of the dataset's name (i32) and the name. A weight is the value divided by calls.

All arithmetic is in float32, as llama-quantize does it. Opening reads every value once, to refuse what is not finite or
is negative; the weights themselves are read again where they are used.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tael.core import ops
from tael.core.checkpoint import Checkpoint
from tael.core.dtypes import DTYPES
from tael.core.limits import DEFAULT, Limits
from tael.core.location import locate
from tael.core.node import Contiguous, Node, Span
from tael.core.source import ByteSource
from tael.core.source import read as read_bytes
from tael.core.tensor import TensorInfo
from tael.errors import CorruptFileError, TransformError, UnsupportedFormatError

SUMS, COUNTS = ".in_sum2", ".counts"
_MOST_ENTRIES = 1_000_000
_EXPERT = re.compile(r"(.*ffn_(?:gate|up|down))\.(\d+)(\.weight)")  # blk.0.ffn_gate.3.weight
_STACKED = re.compile(r"(.*ffn_(?:gate|up|down))_exps(\.weight)")  # blk.0.ffn_gate_exps.weight


@dataclass(frozen=True, slots=True)
class Imatrix:
    """`entries`: tensor -> its weights, F32 of shape (experts, row length)."""

    path: str
    entries: Mapping[str, Node]
    datasets: Sequence[str] = ()
    chunks: int = 0
    sources: Sequence[ByteSource] = ()


@dataclass(frozen=True, slots=True)
class Match:
    """What fits together. `nodes`: tensor -> its weights; and what has no partner on either side."""

    nodes: Mapping[str, Node]
    without_entry: Sequence[str]
    without_tensor: Sequence[str]
    notes: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)  # what llama-quantize says of it in the file


def read(path: str | os.PathLike[str], limits: Limits = DEFAULT) -> Imatrix:
    """Raises `CorruptFileError` for a damaged matrix, `UnsupportedFormatError` for what is none."""
    where = os.fspath(path)
    source = locate(where).source()
    if read_bytes(source, 0, min(4, source.size)) in (b"GGUF", b"FUGG"):
        source.close()
        return _read_gguf(where, limits)
    return _read_legacy(where, source)


def _read_gguf(path: str, limits: Limits) -> Imatrix:
    from tael.formats import open_checkpoint

    checkpoint = open_checkpoint(path, "gguf", limits)
    try:
        checkpoint.require_intact()
        names = [name.removesuffix(SUMS) for name in checkpoint.tensors if name.endswith(SUMS)]
        if not names:
            raise UnsupportedFormatError(
                f"holds no importance matrix: no tensor ends in {SUMS}", path=path, hint="llama-imatrix makes one"
            )
        entries = {name: _gguf_entry(checkpoint, name) for name in names}
    except BaseException:
        checkpoint.close()
        raise
    datasets = checkpoint.metadata.get("imatrix.datasets", ())
    chunks = checkpoint.metadata.get("imatrix.chunk_count", 0)
    texts = [datasets] if isinstance(datasets, str) else [text for text in datasets if isinstance(text, str)]
    return Imatrix(path, entries, texts, chunks if isinstance(chunks, int) else 0, list(checkpoint.sources))


def _gguf_entry(checkpoint: Checkpoint, name: str) -> Node:
    path = checkpoint.path
    sums, counts = checkpoint.tensors[name + SUMS], checkpoint.tensors.get(name + COUNTS)
    if counts is None:
        raise CorruptFileError(f"has sums but no {COUNTS}", path=path, tensor=name)
    if not (sums.dtype.name == counts.dtype.name == "F32"):
        raise CorruptFileError("sums and counts are not F32", path=path, tensor=name)
    matrices = math.prod(counts.shape)
    total = math.prod(sums.shape)
    if not matrices or total % matrices:
        raise CorruptFileError(f"has {total:,} sums, which {matrices:,} counts do not divide", path=path, tensor=name)
    for tensor in (sums, counts):
        at = 0
        for chunk in tensor.chunks():
            _check(np.frombuffer(chunk, np.float32), at, tensor.name, path)
            at += len(chunk) // 4
    shape = (matrices, total // matrices)
    return ops.importance(ops.reshape(sums.data, shape), ops.reshape(counts.data, (matrices,)))


def _read_legacy(path: str, source: ByteSource) -> Imatrix:
    at = 0

    def take(count: int, what: str) -> bytes:
        nonlocal at
        if count < 0 or count > source.size - at:
            raise CorruptFileError(
                f"this is no importance matrix, or a damaged one: {what} would go beyond the file's end",
                path=path,
                offset=at,
                hint="a matrix is a GGUF file or the .dat file of an older llama-imatrix",
            )
        at += count
        return read_bytes(source, at - count, count)

    def number(what: str) -> int:
        return int(struct.unpack("<i", take(4, what))[0])

    count = number("the number of entries")
    if not 0 < count <= min(_MOST_ENTRIES, source.size // 12):
        raise CorruptFileError(
            f"this is no importance matrix: {count:,} entries in {source.size:,} bytes",
            path=path,
            hint="a matrix is a GGUF file or the .dat file of an older llama-imatrix",
        )
    entries: dict[str, Node] = {}
    for _ in range(count):
        name = take(number("the length of a name"), "a name").decode("utf-8", "surrogateescape")
        if name in entries:
            raise CorruptFileError("stands twice in the matrix", path=path, tensor=name)
        calls = number("a number of calls")
        values = number("a number of values")
        if values <= 0:
            raise CorruptFileError(f"has {values:,} values", path=path, tensor=name)
        where = at
        _check(np.frombuffer(take(4 * values, "the values"), "<f4"), 0, name, path)
        stored = Contiguous(DTYPES["F32"], (1, values), Span(source, where, 4 * values))
        entries[name] = ops.importance(stored, calls=calls)
    datasets: list[str] = []
    chunks = 0
    if source.size - at >= 4:
        chunks = number("the number of chunks")
    if source.size - at >= 4:
        text = take(number("the length of the dataset's name"), "the dataset's name")
        datasets = [text.decode("utf-8", "surrogateescape")] if text else []
    return Imatrix(path, entries, datasets, chunks, [source])


def _check(values: np.ndarray[Any, Any], start: int, name: str, path: str) -> None:
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        where = int(np.argmax(bad))
        raise CorruptFileError(
            f"value {start + where:,} is {values[where]}: importance is finite and not negative",
            path=path,
            tensor=name,
            hint="make the matrix again; a NaN comes from a model that overflowed while it was measured",
        )


# --- matching ---------------------------------------------------------------------------------------------------------


def match(matrix: Imatrix, tensors: Iterable[TensorInfo], names: Mapping[str, str] | None = None) -> Match:
    """Which entry weighs which tensor. `names`: what a tensor is called now -> what it was called when it was measured.

    A stacked tensor (`ffn_gate_exps`) takes the entries of its split experts (`ffn_gate.0`, ...), and a split one its
    row of the stacked entry. An entry of another size raises `TransformError`, except for the token embedding, which
    llama.cpp passes over, too.
    """
    before = names or {}
    nodes: dict[str, Node] = {}
    lacking, notes, taken = [], [], set[str]()
    for now, info in _now(tensors, before):
        if len(info.shape) < 2 or not now.endswith("weight"):
            continue
        weights, used = _entry(matrix, before.get(now, now), info)
        if weights is None:
            lacking.append(now)
            continue
        taken |= used
        row = info.shape[-1]
        experts = info.shape[-3] if len(info.shape) >= 3 else 1
        size = math.prod(weights.shape)
        if size != row * experts:
            if now.endswith("token_embd.weight"):
                notes.append(f"{now}: the entry has {size:,} values, not {row:,}: it is not used")
                lacking.append(now)
                continue
            raise TransformError(
                f"the importance matrix has {size:,} values for it, {row * experts:,} are needed",
                path=matrix.path,
                tensor=now,
                hint="it was made from another model, or from one with split experts",
            )
        if len(used) > 1 or used != {before.get(now, now)}:
            notes.append(f"{now}: weighed by {min(used)}" + (f" and {len(used) - 1} more" if len(used) > 1 else ""))
        nodes[now] = ops.reshape(weights, (experts, row))
    metadata: dict[str, Any] = {"quantize.imatrix.file": _cut(matrix.path)}
    if matrix.datasets:
        metadata["quantize.imatrix.dataset"] = _cut(matrix.datasets[0])
    metadata["quantize.imatrix.entries_count"] = len(matrix.entries)
    if matrix.chunks > 0:
        metadata["quantize.imatrix.chunks_count"] = matrix.chunks
    return Match(nodes, lacking, [name for name in matrix.entries if name not in taken], _shortened(notes), metadata)


def _cut(text: str) -> str:
    """As much as llama.cpp has room for."""
    return text.encode("utf-8", "surrogateescape")[:127].decode("utf-8", "surrogateescape")


def _now(tensors: Iterable[TensorInfo], before: Mapping[str, str]) -> Iterable[tuple[str, TensorInfo]]:
    current = {old: new for new, old in before.items()}
    for info in tensors:
        name = current.get(info.name, info.name) if before else info.name
        if not before or info.name in current:
            yield name, info


def _entry(matrix: Imatrix, name: str, info: TensorInfo) -> tuple[Node | None, set[str]]:
    """The weights of a tensor, and the entries that they came from."""
    if name in matrix.entries:
        return matrix.entries[name], {name}
    if stacked := _STACKED.fullmatch(name):
        parts = [f"{stacked[1]}.{k}{stacked[2]}" for k in range(info.shape[-3] if len(info.shape) >= 3 else 0)]
        nodes = [matrix.entries[part] for part in parts if part in matrix.entries]
        if parts and len(nodes) == len(parts) and all(node.shape == (1, info.shape[-1]) for node in nodes):
            return ops.concat(nodes, 0), set(parts)
    if split := _EXPERT.fullmatch(name):
        key, number, row = f"{split[1]}_exps{split[3]}", int(split[2]), info.shape[-1]
        whole = matrix.entries.get(key)
        if whole is not None and math.prod(whole.shape) % row == 0 and number < math.prod(whole.shape) // row:
            table = ops.reshape(whole, (math.prod(whole.shape) // row, row))
            return ops.slice_(table, (number, 0), (1, row)), {key}
    return None, set()


def _shortened(notes: Sequence[str]) -> list[str]:
    return [*notes[:5], *([f"... and {len(notes) - 5:,} more tensors"] if len(notes) > 5 else [])]
