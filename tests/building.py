# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in memory, for tests.

    checkpoint({"w": np.zeros((2, 3), np.float32), "q": ("Q8_0", (1, 32), bytes(34))}, aliases={"tied": "w"})

Every tensor gets a source of its own, unless `flat` lays them into one buffer, one after the other.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tael.core.checkpoint import Checkpoint
from tael.core.dtypes import DTYPES, DType, dtype
from tael.core.node import Contiguous, Node, Span, strided
from tael.core.source import BytesSource
from tael.core.tensor import Check, Tensor, TensorInfo

Content = np.ndarray | tuple[str, Sequence[int], bytes] | Node | Tensor

_BY_NUMPY_NAME = {kind.numpy_name: kind for kind in DTYPES.values() if kind.numpy_name and kind.block == 1}


def checkpoint(
    contents: Mapping[str, Content],
    *,
    aliases: Mapping[str, str] | None = None,
    flat: bool = False,
    path: str = "memory",
    **fields: Any,
) -> Checkpoint:
    """A checkpoint of `contents` and, behind them, `aliases` (alias -> owner); `fields` go to Checkpoint."""
    if flat:
        contents = flattened(contents)
    tensors = {name: tensor(name, content) for name, content in contents.items()}
    for alias, owner in (aliases or {}).items():
        tensors[alias] = tensors[owner].renamed(alias, alias_of=owner)
    return Checkpoint(**{"format": "memory", "path": path, "tensors": tensors, **fields})


def tensor(name: str, content: Content, *, check: bool = False, damaged: str | None = None) -> Tensor:
    """One tensor: from an array, from (dtype name, shape, canonical bytes), or of a node.

    check: with the right stored CRC-32 over its bytes.
    """
    if isinstance(content, Tensor):
        return content.renamed(name, alias_of=content.info.alias_of)
    if isinstance(content, np.ndarray):
        content = (of_numpy(content.dtype).name, content.shape, content.tobytes())
    if isinstance(content, tuple):
        kind, shape, raw = dtype(content[0]), tuple(content[1]), content[2]
        if len(raw) != kind.nbytes(shape):
            raise ValueError(f"{name}: {len(raw)} bytes, {kind.nbytes(shape)} make {kind} {list(shape)}")
        content = Contiguous(kind, shape, Span(BytesSource(raw, name), 0, len(raw)))
    checks: tuple[Check, ...] = ()
    if check:
        span = content.span
        checks = (Check(span, zlib.crc32(bytes(span.source.data)[span.offset : span.end]), f"record of {name}"),)
    return Tensor(TensorInfo(name, content.dtype, content.shape), content, checks=checks, damaged=damaged)


def view(storage: np.ndarray, source: BytesSource, array: np.ndarray) -> Node:
    """The node of `array`, a numpy view into `storage`, whose bytes `source` holds."""
    start = array.__array_interface__["data"][0] - storage.__array_interface__["data"][0]
    steps = tuple(step // array.itemsize for step in array.strides)
    return strided(of_numpy(array.dtype), array.shape, Span(source, 0, source.size), start // array.itemsize, steps)


def flattened(contents: Mapping[str, Content]) -> dict[str, Content]:
    """The same tensors as slices of one buffer."""
    parts: list[tuple[str, DType, tuple[int, ...], bytes]] = []
    for name, content in contents.items():
        if isinstance(content, np.ndarray):
            content = (of_numpy(content.dtype).name, content.shape, content.tobytes())
        parts.append((name, dtype(content[0]), tuple(content[1]), content[2]))
    source = BytesSource(b"".join(raw for *_, raw in parts), "flat")
    out: dict[str, Content] = {}
    at = 0
    for name, kind, shape, raw in parts:
        out[name] = Contiguous(kind, shape, Span(source, at, len(raw)))
        at += len(raw)
    return out


def of_numpy(kind: np.dtype[Any]) -> DType:
    """The plain dtype of a numpy (or ml_dtypes) one."""
    return _BY_NUMPY_NAME[kind.name]


def raw_bytes(source: Tensor) -> bytes:
    """A tensor's canonical bytes."""
    return b"".join(bytes(piece) for piece in source.chunks())
