# SPDX-License-Identifier: Apache-2.0
"""Evaluators of `quantize` and `dequantize`: float32 to and from ggml's block types.

A quantize node has one input, the F32 values, or two: those and importance weights of shape (matrices, row length), of
which each weighs the rows of one matrix (an expert). Values pass through in pieces that stay in a core's cache.
Inside `sharing()` a thread computes the values, and each result, of a range only once for several nodes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tael.core.evaluate import Blocks, Counters, as_bytes, block_dtype, gather_by_runs, read_blocks, working_bytes
from tael.core.node import Box, Node, Op
from tael.errors import UnsupportedTensorError

PIECE = 128 << 10  # elements

_local = threading.local()


@contextmanager
def sharing() -> Iterator[None]:
    """While it lasts, quantize nodes evaluated by this thread share what they read and what they compute."""
    _local.shared = {}
    try:
        yield
    finally:
        del _local.shared


class Quantize:
    def read_blocks(self, node: Op, start: int, out: Blocks, counters: Counters) -> None:
        unit = row_unit(node)
        first = start // unit * unit
        count = -(-(start + out.size) // unit) * unit - first
        if count != out.size:
            whole = np.empty(count, out.dtype)
            self.read_blocks(node, first, whole, counters)
            out[...] = whole[start - first :][: out.size]
            return
        shared: dict[Any, Any] | None = getattr(_local, "shared", None)
        if shared is None:
            self._pieces(node, None, start, out, counters)
            return
        block = node.dtype.block
        values, weights = node.inputs[0], node.inputs[1:]
        key = (id(values), start * block, out.size * block)
        if key not in shared:
            shared.clear()
            shared[key] = np.empty(out.size * block, np.uint32)
            read_blocks(values, start * block, shared[key], counters)
        result = (*key, node.dtype.name, *map(id, weights))
        if result not in shared:
            self._pieces(node, shared[key], start, out, counters)
            shared[result] = out, counters.errors
        else:
            out[...], counters.errors = shared[result]

    def _pieces(self, node: Op, values: Blocks | None, start: int, out: Blocks, counters: Counters) -> None:
        """Piece by piece: whole rows where they fit, never across the end of a matrix of the weights."""
        block, length = node.dtype.block, node.shape[-1]
        row = length // block
        weights = None
        matrix, per_matrix = -1, 0
        if len(node.inputs) > 1:
            per_matrix = math.prod(node.shape) // block // node.inputs[1].shape[0]
            weights = np.empty(length, np.uint32)
        step = max(1, PIECE // block)
        step = max(step // row * row, row) if weights is not None or step >= row else step
        done = 0
        scratch = np.empty(0, np.uint32)
        while done < out.size:
            at = start + done
            count = min(step, out.size - done)
            if weights is not None:
                count = min(count, per_matrix - at % per_matrix)
                if at // per_matrix != matrix:
                    matrix = at // per_matrix
                    read_blocks(node.inputs[1], matrix * length, weights, counters)
            elif at % row:
                count = min(count, row - at % row)
            if values is None:
                if scratch.size < count * block:
                    scratch = np.empty(count * block, np.uint32)
                piece = scratch[: count * block]
                read_blocks(node.inputs[0], at * block, piece, counters)
            else:
                piece = values[done * block : (done + count) * block]
            _quantize(node, at, piece, weights, out[done : done + count], counters)
            done += count

    def gather(self, node: Op, box: Box, out: Blocks, counters: Counters) -> None:
        gather_by_runs(node, box, out, counters)

    def working_bytes(self, node: Op, blocks: int) -> int:
        elements = blocks * node.dtype.block
        return 4 * elements + working_bytes(node.inputs[0], elements)


class Dequantize:
    def read_blocks(self, node: Op, start: int, out: Blocks, counters: Counters) -> None:
        from tael import kernels

        (inner,) = node.inputs
        block = inner.dtype.block
        if start % block or out.size % block:  # part of a block at either end
            first = start // block * block
            whole = np.empty(-(-(start + out.size) // block) * block - first, out.dtype)
            self.read_blocks(node, first, whole, counters)
            out[...] = whole[start - first :][: out.size]
            return
        given = np.empty(out.size // block, block_dtype(inner.dtype))
        read_blocks(inner, start // block, given, counters)
        kernels.dequantize(inner.dtype.name, as_bytes(given), as_bytes(out))

    def gather(self, node: Op, box: Box, out: Blocks, counters: Counters) -> None:
        gather_by_runs(node, box, out, counters)

    def working_bytes(self, node: Op, blocks: int) -> int:
        (inner,) = node.inputs
        count = -(-blocks // inner.dtype.block)
        return count * inner.dtype.block_bytes + working_bytes(inner, count)


class Importance:
    """Weights (matrices, row length) of sums (as many) and counts (matrices,): sum / count, and 1 where nothing was
    counted; or, with `calls` and no counts, value / calls. In float32, as llama-quantize divides.
    """

    def read_blocks(self, node: Op, start: int, out: Blocks, counters: Counters) -> None:
        sums = np.empty(out.size, np.uint32)
        read_blocks(node.inputs[0], start, sums, counters)
        values = sums.view(np.float32)
        if len(node.inputs) == 1:
            calls = node.params["calls"]
            out[...] = (values / np.float32(calls) if calls > 0 else values).view(np.uint32)
            return
        rows = np.arange(start, start + out.size) // node.shape[1]
        raw = np.empty(int(rows[-1] - rows[0]) + 1, np.uint32)
        read_blocks(node.inputs[1], int(rows[0]), raw, counters)
        whole = np.floor(raw.view(np.float32).astype(np.float64) + 0.5)  # halves go up
        counts = whole.astype(np.float32)[rows - rows[0]]
        result = np.ones(out.size, np.float32)
        np.divide(values, counts, out=result, where=counts > 0)
        out[...] = result.view(np.uint32)

    def gather(self, node: Op, box: Box, out: Blocks, counters: Counters) -> None:
        gather_by_runs(node, box, out, counters)

    def working_bytes(self, node: Op, blocks: int) -> int:
        return 24 * blocks + sum(working_bytes(inner, blocks) for inner in node.inputs)


def is_quantize(node: Node) -> bool:
    return isinstance(node, Op) and node.name == "quantize"


def row_unit(node: Node) -> int:
    """Blocks that a range of a node is best a multiple of: a row where weights say what a row's columns count, else 1.

    ggml, too, looks at the whole row then, at least for Q4_0 to Q5_1.
    """
    if isinstance(node, Op) and is_quantize(node) and len(node.inputs) > 1:
        return max(1, node.shape[-1] // node.dtype.block)
    return 1


def _quantize(node: Op, at: int, values: Blocks, weights: Blocks | None, out: Blocks, counters: Counters) -> None:
    """Blocks from `at`; `values` are whole rows, or lie in one row."""
    from tael import kernels

    length, kind = node.shape[-1], node.dtype
    row_length = length if values.size % length == 0 else values.size
    weight_bytes = None if weights is None else as_bytes(weights)
    bad = kernels.quantize(kind.name, as_bytes(values), as_bytes(out), row_length, weight_bytes)
    if bad >= 0:
        row, column = divmod(at * kind.block + bad, length)
        value = values.view(np.float32)[bad]
        raise UnsupportedTensorError(
            f"holds {value} at row {row:,}, column {column:,}: what is not finite cannot be quantized",
            hint="leave the tensor as it is with --keep NAME, or repair the source",
        )
    if bad < -1:
        row, column = divmod((at - 2 - bad) * kind.block, length)
        raise UnsupportedTensorError(
            f"has values at row {row:,}, columns {column:,} to {column + kind.block - 1:,} that are too large for the "
            f"scale of {kind.name}",
            hint="leave the tensor as it is with --keep NAME",
        )
    if counters.measure:
        decoded = np.empty(values.size, np.uint32)
        kernels.dequantize(kind.name, as_bytes(out), as_bytes(decoded))
        found = kernels.errors_f32(as_bytes(values), as_bytes(decoded))
        counters.errors = found if counters.errors is None else counters.errors.merged(found)
