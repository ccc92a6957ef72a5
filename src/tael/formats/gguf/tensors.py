# SPDX-License-Identifier: Apache-2.0
"""Tensor infos of a GGUF header as tensors: types by number, what offsets and lengths must obey, damage.

A type that this table does not have is listed as GGML_<number> and copied as it is, up to where the next tensor
starts: its blocks are not known, so neither is its size.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from functools import cache

from tael.core import ops
from tael.core.dtypes import DTYPES, DType
from tael.core.limits import DEFAULT
from tael.core.node import Contiguous, Node, Span
from tael.core.problem import Problem
from tael.core.source import ByteSource
from tael.core.tensor import Tensor, TensorInfo
from tael.errors import CorruptFileError, TaelError, clip
from tael.formats.gguf.header import MOST_AXES, Header, Info
from tael.formats.gguf.values import raw_text

# ggml's numbers. 4, 5, 31 to 33 and 36 to 38 belonged to types that are gone.
TYPES: dict[int, DType] = {
    number: DTYPES[name]
    for number, name in {
        0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
        12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
        20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
        29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
    }.items()
}  # fmt: skip
NUMBERS = {dtype.name: number for number, dtype in TYPES.items()}
OPAQUE = "GGML_"
LONGEST_NAME = 63  # bytes that llama.cpp takes

_ENDLESS = 1 << 63  # bytes that cannot be addressed


def read_tensors(source: ByteSource, header: Header) -> tuple[dict[str, Tensor], list[Problem]]:
    """Every tensor in the order of the file, and what is wrong with them. Raises `CorruptFileError`."""
    sizes = [_size(info, source.name) for info in header.infos]
    available = source.size - header.data_start
    extents = _extents(header, sizes, available, source.name)
    tensors: dict[str, Tensor] = {}
    problems: list[Problem] = []
    for info, extent in zip(header.infos, extents, strict=True):
        if info.name in tensors:
            raise CorruptFileError(
                "two tensors have this name",
                path=source.name,
                tensor=info.name,
                hint="readers differ in which of the two they take: write the file again with one of them",
            )
        tensors[info.name] = _tensor(info, extent, header, source)
    damaged = [tensor for tensor in tensors.values() if tensor.damaged]
    last = max((info.offset + extent for info, extent in zip(header.infos, extents, strict=True) if extent), default=0)
    if last > max(available, 0):
        end = header.data_start + last
        what = f"should have {end:,} bytes and has {source.size:,}; {len(tensors) - len(damaged)} of {len(tensors)}"
        problems.append(Problem("fatal", f"{what} tensors are intact", source.name))
    problems += [Problem("fatal", tensor.damaged or "", source.name, tensor.name) for tensor in damaged]
    problems += _oddities(header, extents, last, available, source.name)
    return tensors, problems


def number_of(dtype: DType) -> int | None:
    """ggml's number of a dtype, or None where ggml has no such type."""
    if dtype.kind == "void" and dtype.name.startswith(OPAQUE):
        return int(dtype.name.removeprefix(OPAQUE))
    return NUMBERS.get(dtype.name)


def _size(info: Info, path: str) -> int | None:
    """Bytes of a tensor; None where the type is not known."""
    dtype = TYPES.get(info.type)
    # Zeros left out: arrays of (0, 2^40, 2^40) cannot be made either, though they hold nothing.
    elements = math.prod(length for length in info.shape if length)
    if elements * (dtype.block_bytes if dtype else 1) >= _ENDLESS or info.offset >= _ENDLESS:
        what = f"shape {list(info.shape)}" if info.offset < _ENDLESS else f"the end at offset {info.offset:,}"
        raise CorruptFileError(f"{what} is larger than any file", path=path, tensor=info.name)
    if dtype is None:
        return 0 if 0 in info.shape else None
    try:
        return dtype.nbytes(info.shape)
    except TaelError as error:
        raise CorruptFileError(error.cause, path=path, tensor=info.name) from None


def _extents(header: Header, sizes: Sequence[int | None], available: int, path: str) -> list[int]:
    """The bytes of every tensor, those of unknown types up to the next one's start or the file's end.

    Raises `CorruptFileError` where tensors overlap or do not start at a multiple of the alignment.
    """
    extents = [size or 0 for size in sizes]
    stored = [k for k, size in enumerate(sizes) if size != 0]
    stored.sort(key=lambda k: header.infos[k].offset)
    position, before = 0, ""
    for place, k in enumerate(stored):
        info = header.infos[k]
        if info.offset % header.alignment:
            what = f"starts at {info.offset:,} of the data, which is no multiple of {header.alignment:,}"
            raise CorruptFileError(what, path=path, tensor=info.name)
        if info.offset < position:
            what = f"overlaps tensor {clip(before)!r}"
            raise CorruptFileError(what, path=path, tensor=info.name, offset=header.data_start + info.offset)
        if sizes[k] is None:
            following = header.infos[stored[place + 1]].offset if place + 1 < len(stored) else available
            extents[k] = max(following - info.offset, 1)
        position, before = info.offset + extents[k], info.name
    return extents


def _tensor(info: Info, extent: int, header: Header, source: ByteSource) -> Tensor:
    dtype = TYPES.get(info.type) or _opaque(info.type, math.prod(info.shape), extent)
    span = Span(source, header.data_start + info.offset, extent)
    node: Node = Contiguous(dtype, info.shape, span)
    damaged = None
    if extent and span.end > source.size:
        damaged = f"needs the file up to byte {span.end:,}, which ends at {source.size:,}"
    elif header.big_endian and dtype.is_plain and dtype.kind != "void":
        node = ops.byteswap(node)
    elif header.big_endian and extent:
        damaged = f"big-endian blocks of {dtype} are not supported"
    return Tensor(TensorInfo(info.name, dtype, info.shape), node, damaged=damaged)


@cache
def _opaque_type(number: int, block: int, block_bytes: int) -> DType:
    return DType(f"{OPAQUE}{number}", "void", block, block_bytes)


def _opaque(number: int, elements: int, extent: int) -> DType:
    """A type of unknown blocks, by what is known: so many elements in so many bytes."""
    common = math.gcd(elements, extent) if elements and extent else 1
    return _opaque_type(number, max(elements, 1) // common, max(extent, 1) // common)


def _oddities(header: Header, extents: Sequence[int], last: int, available: int, path: str) -> list[Problem]:
    """`last`: where the last tensor ends; `available`: bytes there are."""
    found = []
    unknown = sorted({info.type for info in header.infos} - TYPES.keys())
    if unknown:
        some = ", ".join(f"{OPAQUE}{number}" for number in unknown[:5])
        found.append(Problem("warning", f"types that tael does not know, copied as they are: {clip(some)}", path))
    used = sum(_padded(extent, header.alignment) for extent in extents)
    end = _padded(last, header.alignment)
    if available > end:
        found.append(Problem("warning", f"{available - end:,} bytes follow the last tensor", path))
    elif end > used:
        found.append(Problem("warning", f"{end - used:,} bytes between the tensors belong to none", path))
    long = [info.name for info in header.infos if len(raw_text(info.name)) > LONGEST_NAME]
    if long:
        whose = "1 name is" if len(long) == 1 else f"{len(long):,} names are"
        what = f"{whose} longer than the {LONGEST_NAME} bytes that llama.cpp takes"
        found.append(Problem("note", what, path, long[0]))
    return found


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def folded(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape that is stored for `shape`: a scalar as one element, more than four axes with the first ones as one."""
    if not shape:
        return (1,)
    return tuple(shape) if len(shape) <= MOST_AXES else (math.prod(shape[: 1 - MOST_AXES]), *shape[1 - MOST_AXES :])


def unfolded(tensors: dict[str, Tensor], shapes: object) -> dict[str, Tensor]:
    """`tensors` with their true `shapes` (name -> lengths), as far as these are what was folded."""
    if not isinstance(shapes, Mapping):
        return tensors
    found = dict(tensors)
    for name, shape in shapes.items():
        tensor = found.get(name)
        is_shape = isinstance(shape, list) and all(type(length) is int and length >= 0 for length in shape)
        if tensor is None or not is_shape or len(shape) > DEFAULT.rank or folded(shape) != tensor.shape:
            continue
        with contextlib.suppress(TaelError):  # blocks that the shape does not divide
            found[name] = tensor.with_data(ops.reshape(tensor.data, shape))
    return found
