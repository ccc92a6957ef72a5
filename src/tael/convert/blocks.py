# SPDX-License-Identifier: Apache-2.0
"""Block-quantized tensors on their way into a container that has no such types, and back.

Either they become floats, or their bytes are kept under a plain type: U8 of shape (..., bytes of a row), with the true
dtype in the metadata under `tael.blocks`, from where `restore` brings them back bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tael.core import ops
from tael.core.checkpoint import Checkpoint, owners
from tael.core.dtypes import DTYPES, DType
from tael.core.node import Contiguous, Node
from tael.core.problem import Problem
from tael.core.tensor import Tensor
from tael.errors import TaelError, UnsupportedTensorError

KEY = "tael.blocks"  # name -> dtype


def is_quantized(tensor: Tensor) -> bool:
    return tensor.dtype.kind == "quantized"


def fitted(checkpoint: Checkpoint, dtypes: frozenset[str], *, to_float: bool, keep_blocks: bool) -> Checkpoint:
    """`checkpoint` for a target that holds `dtypes`: blocks that it lacks become floats, or are kept as bytes.

    to_float: a float dtype was asked for, so blocks become floats whatever the target holds.
    """
    if keep_blocks:
        return _mapped(checkpoint, lambda t: is_quantized(t) and t.dtype.name not in dtypes, _opaque, note=True)
    return _mapped(checkpoint, lambda t: is_quantized(t) and (to_float or t.dtype.name not in dtypes), ops.dequantize)


def restore(checkpoint: Checkpoint) -> Checkpoint:
    """Gives kept blocks their dtype back. Entries that do not fit what is there are left, with a note."""
    table = checkpoint.metadata.get(KEY)
    if not isinstance(table, Mapping):
        return checkpoint
    problems, good = list(checkpoint.problems), dict[str, DType]()
    for name, kind in table.items():
        tensor = checkpoint.tensors.get(name)
        dtype = DTYPES.get(kind) if isinstance(kind, str) else None
        if tensor is None:
            continue  # renamed or left out
        bytes_of_row = tensor.shape[-1] if tensor.shape else 0
        if dtype is None or dtype.kind != "quantized" or tensor.dtype.name != "U8" or bytes_of_row % dtype.block_bytes:
            problems.append(Problem("note", f"{KEY!r} calls it {kind!r}, which its bytes are not", name, tensor=name))
        else:
            good[name] = dtype
    rest = {key: value for key, value in checkpoint.metadata.items() if key != KEY}

    tensors = []
    for name, tensor in checkpoint.tensors.items():
        if name in good:
            dtype = good[name]
            shape = (*tensor.shape[:-1], tensor.shape[-1] // dtype.block_bytes * dtype.block)
            tensors.append(_as(tensor, dtype, shape))
        else:
            tensors.append(tensor)
    return replace(checkpoint.with_tensors(tensors, problems=problems), metadata=rest)


def _mapped(
    checkpoint: Checkpoint, chosen: Callable[[Tensor], bool], change: Callable[[Node], Node], *, note: bool = False
) -> Checkpoint:
    group = owners(checkpoint.tensors)
    done: dict[str, Node] = {}
    tensors, kept = [], dict[str, Any]()
    for name, tensor in checkpoint.tensors.items():
        if not chosen(tensor):
            tensors.append(tensor)
            continue
        owner = group[name]
        if owner not in done:
            try:
                done[owner] = change(tensor.data)
            except TaelError as error:
                error.tensor = error.tensor or name
                raise
        data = done[owner]
        kept[name] = tensor.dtype.name
        tensors.append(replace(tensor, info=replace(tensor.info, dtype=data.dtype, shape=data.shape), data=data))
    metadata = {**checkpoint.metadata, KEY: kept} if note and kept else checkpoint.metadata
    return replace(checkpoint.with_tensors(tensors), metadata=metadata)


def _opaque(node: Node) -> Node:
    if not isinstance(node, Contiguous):
        raise UnsupportedTensorError(f"blocks of {node.dtype} that are computed cannot be kept as bytes")
    row = node.shape[-1] // node.dtype.block * node.dtype.block_bytes
    return Contiguous(DTYPES["U8"], (*node.shape[:-1], row), node.span)


def _as(tensor: Tensor, dtype: DType, shape: tuple[int, ...]) -> Tensor:
    data = tensor.data
    if not isinstance(data, Contiguous):
        raise UnsupportedTensorError(f"bytes that are computed cannot be taken for {dtype}", tensor=tensor.name)
    info = replace(tensor.info, dtype=dtype, shape=shape)
    return replace(tensor, info=info, data=Contiguous(dtype, shape, data.span))
