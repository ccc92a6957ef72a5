# SPDX-License-Identifier: Apache-2.0
"""The named functions an `Op` node may be: one builder (checks, shapes) and one evaluator each.

Elementwise ops (cast, byteswap, quantize) work on block ranges; those that move elements
(transpose, slice, concat) on boxes. `OPS` is the table that a plan's JSON refers to by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tael.core.block_ops import Dequantize, Importance, Quantize
from tael.core.dtypes import DType
from tael.core.evaluate import (
    Blocks,
    Counters,
    as_bytes,
    block_dtype,
    gather,
    gather_by_runs,
    read_blocks,
    read_by_boxes,
    working_bytes,
)
from tael.core.node import Box, Contiguous, Node, Op
from tael.core.repack import Repack
from tael.errors import TransformError, UnsupportedTensorError

# The block types that kernels quantize and dequantize; which of them cannot do without importance weights, and which
# do not look at them. Source: ggml_quantize_chunk in ggml.
BLOCK_TYPES = frozenset({
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS",
    "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0", "Q2_0",
})  # fmt: skip
NEED_WEIGHTS = frozenset(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS"))
IGNORE_WEIGHTS = frozenset(("Q8_0", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0", "Q2_0"))


class Evaluator(Protocol):
    def read_blocks(self, node: Op, start: int, out: Blocks, counters: Counters) -> None: ...

    def gather(self, node: Op, box: Box, out: Blocks, counters: Counters) -> None: ...

    def working_bytes(self, node: Op, blocks: int) -> int: ...


# --- elementwise: out blocks [start, n) need the same elements of the input -------------------------------------------


class _Elementwise:
    """Base of ops whose output element depends on the same element of their one input."""

    def compute(self, node: Op, given: Blocks, out: Blocks, counters: Counters) -> None:
        raise NotImplementedError

    def read_blocks(self, node: Op, start: int, out: Blocks, counters: Counters) -> None:
        (inner,) = node.inputs
        each, of = node.dtype.block, inner.dtype.block
        # A range that cuts a block of the input (a slice of a dequantized row) is computed with all of that block.
        unit = math.lcm(each, of) // each
        first = start // unit * unit
        count = -(-(start + out.size) // unit) * unit - first
        result = out if count == out.size else np.empty(count, out.dtype)
        given = np.empty(count * each // of, block_dtype(inner.dtype))
        read_blocks(inner, first * each // of, given, counters)
        self.compute(node, given, result, counters)
        if result is not out:
            out[...] = result[start - first :][: out.size]

    def gather(self, node: Op, box: Box, out: Blocks, counters: Counters) -> None:
        (inner,) = node.inputs
        if not (node.dtype.is_plain and inner.dtype.is_plain):
            return gather_by_runs(node, box, out, counters)
        given = np.empty(out.shape, block_dtype(inner.dtype))
        gather(inner, box, given, counters)
        result = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        self.compute(node, given.reshape(-1), result.reshape(-1), counters)
        if result is not out:
            out[...] = result
        return None

    def working_bytes(self, node: Op, blocks: int) -> int:
        (inner,) = node.inputs
        count = -(-blocks * node.dtype.block // inner.dtype.block)
        scratch = 2 * 4 * blocks * node.dtype.block  # casts go through F32
        return count * inner.dtype.block_bytes + scratch + working_bytes(inner, count)


class _Cast(_Elementwise):
    def compute(self, node: Op, given: Blocks, out: Blocks, counters: Counters) -> None:
        from tael.kernels import cast as kernel

        counts = kernel.cast(
            np.frombuffer(as_bytes(given), np.uint8),
            node.inputs[0].dtype.name,
            node.dtype.name,
            np.frombuffer(as_bytes(out), np.uint8),
            saturate=bool(node.params.get("saturate")),
        )
        counters.add(Counters(counts.overflow, counts.nan_lost))


class _ByteSwap(_Elementwise):
    def compute(self, node: Op, given: Blocks, out: Blocks, counters: Counters) -> None:
        item = node.params["item"]  # bytes of one number: half of the block for complex
        source = np.frombuffer(as_bytes(given), np.uint8).reshape(-1, item)
        np.frombuffer(as_bytes(out), np.uint8).reshape(-1, item)[...] = source[:, ::-1]


def cast(node: Node, to: DType, *, saturate: bool = False) -> Node:
    """Every float dtype to every float dtype, to nearest even. The same dtype gives `node` itself."""
    if node.dtype == to:
        return node
    if not (node.dtype.is_float and to.is_float):
        raise UnsupportedTensorError(f"{node.dtype} does not cast to {to}", hint="casts are between float dtypes")
    to.grid(node.shape)
    return Op(to, node.shape, "cast", (node,), {"saturate": True} if saturate else {})


def byteswap(node: Node) -> Node:
    """`node`, stored big-endian, as little-endian."""
    if not node.dtype.is_plain and node.dtype.block_bytes > 1:
        raise UnsupportedTensorError(f"a block of {node.dtype} has no byte order")
    item = node.dtype.block_bytes // (2 if node.dtype.kind == "complex" else 1)
    return node if item == 1 else Op(node.dtype, node.shape, "byteswap", (node,), {"item": item})


def quantize(node: Node, to: DType, weights: Node | None = None) -> Node:
    """F32 (or any float, through F32) to a block type of ggml.

    weights: F32 importances of shape (matrices, row length); the rows of `node` are as many equal parts.
    """
    from tael.core.dtypes import DTYPES

    if to.name not in BLOCK_TYPES:
        raise UnsupportedTensorError(f"no quantizer for {to}")
    to.grid(node.shape)
    inputs: tuple[Node, ...] = (cast(node, DTYPES["F32"]),)
    if weights is None and to.name in NEED_WEIGHTS:
        raise UnsupportedTensorError(f"{to} needs an importance matrix", hint="give one with --imatrix FILE")
    if weights is not None and to.name not in IGNORE_WEIGHTS:
        rows = math.prod(node.shape[:-1])
        if len(weights.shape) != 2 or weights.shape[1] != node.shape[-1] or rows % max(1, weights.shape[0]):
            raise TransformError(f"importance weights of {list(weights.shape)} do not fit {list(node.shape)}")
        inputs = (*inputs, weights)
    return Op(to, node.shape, "quantize", inputs)


def dequantize(node: Node) -> Node:
    """A block type of ggml to F32; any other float dtype through a cast."""
    from tael.core.dtypes import DTYPES

    if node.dtype.is_float:
        return cast(node, DTYPES["F32"])
    if node.dtype.name not in BLOCK_TYPES:
        raise UnsupportedTensorError(f"no dequantizer for {node.dtype}")
    return Op(DTYPES["F32"], node.shape, "dequantize", (node,))


def importance(sums: Node, counts: Node | None = None, *, calls: int = 0) -> Node:
    """Weights of shape (matrices, row length) from what an importance matrix holds; `sums` has that shape, in F32."""
    inputs = (sums,) if counts is None else (sums, counts)
    if counts is not None and counts.shape != sums.shape[:1]:
        raise TransformError(f"{list(counts.shape)} counts do not fit sums of {list(sums.shape)}")
    return Op(sums.dtype, sums.shape, "importance", inputs, {} if counts is not None else {"calls": calls})


# --- moving elements --------------------------------------------------------------------------------------------------


class _Moving:
    def gather(self, node: Op, box: Box, out: Blocks, counters: Counters) -> None:
        raise NotImplementedError

    def read_blocks(self, node: Op, start: int, out: Blocks, counters: Counters) -> None:
        read_by_boxes(node, start, out, counters)

    def working_bytes(self, node: Op, blocks: int) -> int:
        return max(working_bytes(inner, blocks) for inner in node.inputs)


class _Transpose(_Moving):
    def gather(self, node: Op, box: Box, out: Blocks, counters: Counters) -> None:
        perm = node.params["perm"]  # output axis k is input axis perm[k]
        inverse = [perm.index(axis) for axis in range(len(perm))]
        gather(node.inputs[0], tuple(box[k] for k in inverse), out.transpose(inverse), counters)


class _Slice(_Moving):
    def gather(self, node: Op, box: Box, out: Blocks, counters: Counters) -> None:
        starts = node.params["starts"]
        moved = tuple((a + s, b + s) for (a, b), s in zip(box, starts, strict=True))
        gather(node.inputs[0], moved, out, counters)


class _Concat(_Moving):
    def gather(self, node: Op, box: Box, out: Blocks, counters: Counters) -> None:
        axis, begin = node.params["axis"], 0
        first, last = box[axis]
        for inner in node.inputs:
            end = begin + inner.dtype.grid(inner.shape)[axis]
            a, b = max(first, begin), min(last, end)
            if a < b:
                target = (slice(None),) * axis + (slice(a - first, b - first),)
                inside = (*box[:axis], (a - begin, b - begin), *box[axis + 1 :])
                gather(inner, inside, out[target], counters)
            begin = end


class _Reshape:
    def read_blocks(self, node: Op, start: int, out: Blocks, counters: Counters) -> None:
        read_blocks(node.inputs[0], start, out, counters)

    def gather(self, node: Op, box: Box, out: Blocks, counters: Counters) -> None:
        gather_by_runs(node, box, out, counters)

    def working_bytes(self, node: Op, blocks: int) -> int:
        return working_bytes(node.inputs[0], blocks)


def transpose(node: Node, perm: Sequence[int]) -> Node:
    """Output axis k is input axis `perm[k]`. Blocks must stay whole: a sub-byte last axis keeps its place."""
    perm = list(perm)
    rank = len(node.shape)
    if sorted(perm) != list(range(rank)):
        raise TransformError(f"{perm} is no permutation of {rank} axes")
    if perm == list(range(rank)):
        return node
    if len(node.dtype.grid(node.shape)) != rank or (not node.dtype.is_plain and perm[-1] != rank - 1):
        raise UnsupportedTensorError(f"{node.dtype} cannot be transposed over its packed axis")
    return Op(node.dtype, tuple(node.shape[axis] for axis in perm), "transpose", (node,), {"perm": perm})


def slice_(node: Node, starts: Sequence[int], shape: Sequence[int]) -> Node:
    """The box of `shape` at `starts`. On a packed last axis both must be whole blocks."""
    starts, shape = list(starts), tuple(shape)
    if len(starts) != len(node.shape) or len(shape) != len(node.shape):
        raise TransformError(f"a slice of {len(node.shape)} axes needs as many starts and lengths")
    if any(s < 0 or n < 0 or s + n > full for s, n, full in zip(starts, shape, node.shape, strict=True)):
        raise TransformError(f"slice {starts} + {list(shape)} is outside of {list(node.shape)}")
    block = node.dtype.block
    if block > 1 and (len(node.dtype.grid(node.shape)) != len(shape) or starts[-1] % block or shape[-1] % block):
        raise UnsupportedTensorError(f"{node.dtype} can only be cut at multiples of {block} on its last axis")
    if block > 1:
        starts[-1] //= block
    return Op(node.dtype, shape, "slice", (node,), {"starts": starts})


def concat(nodes: Sequence[Node], axis: int) -> Node:
    """Join along an existing axis."""
    if not nodes:
        raise TransformError("nothing to join")
    first = nodes[0]
    if not 0 <= axis < len(first.shape):
        raise TransformError(f"no axis {axis} in a tensor of {len(first.shape)} axes")
    for node in nodes:
        rest = node.shape[:axis] + node.shape[axis + 1 :]
        if node.dtype != first.dtype or rest != first.shape[:axis] + first.shape[axis + 1 :]:
            raise TransformError(f"{node.dtype} {list(node.shape)} does not join {first.dtype} {list(first.shape)}")
        if len(node.dtype.grid(node.shape)) != len(node.shape):
            raise UnsupportedTensorError(f"{node.dtype} with rows of {node.shape[-1]} cannot be joined")
    shape = (*first.shape[:axis], sum(node.shape[axis] for node in nodes), *first.shape[axis + 1 :])
    return Op(first.dtype, shape, "concat", tuple(nodes), {"axis": axis})


def stack(nodes: Sequence[Node], axis: int = 0) -> Node:
    """Join along a new axis."""
    if not nodes:
        raise TransformError("nothing to stack")
    rank = len(nodes[0].shape)
    if not 0 <= axis <= rank:
        raise TransformError(f"no axis {axis} in a stack of tensors of {rank} axes")
    if not nodes[0].dtype.is_plain and axis == rank:
        raise UnsupportedTensorError(f"{nodes[0].dtype} cannot be stacked along its packed axis")
    wide = [reshape(node, (*node.shape[:axis], 1, *node.shape[axis:])) for node in nodes]
    return concat(wide, axis)


def reshape(node: Node, shape: Sequence[int]) -> Node:
    """The same elements in the same row-major order under another shape."""
    shape = tuple(shape)
    if shape == node.shape:
        return node
    if min(shape, default=0) < 0 or math.prod(shape) != math.prod(node.shape):
        raise TransformError(f"{list(node.shape)} does not reshape to {list(shape)}")
    node.dtype.grid(shape)
    if isinstance(node, Contiguous):
        return Contiguous(node.dtype, shape, node.span)
    return Op(node.dtype, shape, "reshape", (node,))


class _WeightNorm(_Moving):
    """w = g * v / ||v||, the norm over all axes but `dim` (torch.nn.utils.weight_norm), in double precision."""

    def gather(self, node: Op, box: Box, out: Blocks, counters: Counters) -> None:
        g, v = node.inputs
        dim = node.params["dim"]
        whole = tuple(axis if k == dim else (0, n) for k, (axis, n) in enumerate(zip(box, v.shape, strict=True)))
        values = np.empty([b - a for a, b in whole], np.uint32)
        gather(v, whole, values, counters)
        scale = np.empty([b - a if k == dim else 1 for k, (a, b) in enumerate(whole)], np.uint32)
        gather(g, tuple(axis if k == dim else (0, 1) for k, axis in enumerate(whole)), scale, counters)
        wide = values.view(np.float32).astype(np.float64)
        others = tuple(k for k in range(wide.ndim) if k != dim)
        with np.errstate(all="ignore"):  # a zero row gives NaN, as it does in torch
            norm = np.sqrt(np.sum(wide * wide, axis=others, keepdims=True))
            result = (wide * (scale.view(np.float32) / norm)).astype(np.float32)
        inside = tuple(slice(a - s, b - s) for (a, b), (s, _) in zip(box, whole, strict=True))
        out[...] = result[inside].view(np.uint32)

    def working_bytes(self, node: Op, blocks: int) -> int:
        v = node.inputs[1]
        dim, total = node.params["dim"], math.prod(v.shape)
        # A range of the output needs the rows it touches whole; when they do not lie in a row, that is everything.
        needed = max(total // max(1, v.shape[0]), blocks) if dim == 0 else total
        return needed * 24 + super().working_bytes(node, needed)


def weight_norm(g: Node, v: Node, dim: int = 0) -> Node:
    """The plain F32 weight of a weight-normed pair; `g` has `v`'s length on axis `dim` and 1 elsewhere."""
    from tael.core.dtypes import DTYPES

    want = tuple(n if k == dim else 1 for k, n in enumerate(v.shape))
    if g.shape != want:
        raise TransformError(f"weight norm: g is {list(g.shape)}, {list(want)} expected for v {list(v.shape)}")
    f32 = DTYPES["F32"]
    return Op(f32, v.shape, "weight_norm", (cast(g, f32), cast(v, f32)), {"dim": dim})


OPS: dict[str, Evaluator] = {
    "cast": _Cast(),
    "byteswap": _ByteSwap(),
    "quantize": Quantize(),
    "dequantize": Dequantize(),
    "importance": Importance(),
    "transpose": _Transpose(),
    "slice": _Slice(),
    "concat": _Concat(),
    "repack": Repack(),
    "reshape": _Reshape(),
    "weight_norm": _WeightNorm(),
}
