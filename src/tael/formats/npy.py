# SPDX-License-Identifier: Apache-2.0
"""NPY: b"\\x93NUMPY" | version (2 bytes) | N (u16 LE; u32 from version 2.0 on) | header of N bytes | one array.

The header is a Python dict display with exactly the keys descr, fortran_order and shape, in Latin-1 (UTF-8 from version
3.0 on), filled up with spaces and a newline so that the array starts at a multiple of 64. It is read by a small parser
of its own (npy_header.py), never evaluated. `descr` is a byte order (`<`, `>`, `|`), a kind and its bytes, or a list of
fields (a structured array). An object array holds a pickle instead of numbers: listed here, never run.

numpy does not know bfloat16 and the 8-bit floats: of ml_dtypes' arrays it writes the bits under `<V2` and `<V1`.
`<V2` is therefore read as BF16; for one byte the file does not say which type, so that is read as U8.
Source: NEP 1 and numpy/lib/_format_impl.py of numpy 2.4.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from tael.convert.plan import FileBuilder, Plan, Target
from tael.core import ops
from tael.core.checkpoint import Checkpoint
from tael.core.dtypes import DTYPES, DType
from tael.core.limits import Limits
from tael.core.location import Location
from tael.core.node import Contiguous, Node, Span, contiguous_strides, strided
from tael.core.problem import Loss, Problem
from tael.core.source import read
from tael.core.tensor import Tensor, TensorInfo
from tael.errors import CorruptFileError, TaelError, TransformError, UnsupportedTensorError, clip
from tael.formats.detect import Probe
from tael.formats.npy_header import MAGIC, NpyHeader, header_bytes, parse_header
from tael.formats.registry import Confidence, Format

# kind and bytes as read -> dtype. f1 is what ml_dtypes' float8_e5m2 calls itself, M8 and m8 count time units.
_KINDS = {
    "f8": "F64", "f4": "F32", "f2": "F16", "f1": "F8_E5M2",
    "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8",
    "u8": "U64", "u4": "U32", "u2": "U16", "u1": "U8",
    "b1": "BOOL", "c8": "C64", "c16": "C128", "M8": "I64", "m8": "I64",
    "V1": "U8", "V2": "U16",
}  # fmt: skip

# dtype -> descr as written
DESCRS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
    "BOOL": "|b1", "C64": "<c8", "C128": "<c16",
    # bits without a type, for numpy has none; F8_E5M2's own <f1 is one that numpy.load refuses
    "BF16": "<V2",
    "F8_E4M3": "<V1", "F8_E5M2": "<V1", "F8_E4M3FNUZ": "<V1", "F8_E5M2FNUZ": "<V1", "F8_E8M0": "<V1",
}  # fmt: skip

_EXTENDED = "extended precision, which differs from machine to machine"
_REFUSED = {
    "f12": _EXTENDED, "f16": _EXTENDED, "c24": _EXTENDED, "c32": _EXTENDED,
    "W4": "a complex type of ml_dtypes, of which two have this name",
}  # fmt: skip

_DESCR = re.compile(r"([<>|=]?)([a-zA-Z])(\d{0,9})(\[[\w/]{1,20}\])?", re.ASCII)


def match(probe: Probe) -> Confidence:
    return Confidence.CERTAIN if probe.head.startswith(MAGIC) else Confidence.NONE


def open(location: Location, limits: Limits) -> Checkpoint:
    """One tensor, named like the file. One that cannot be read (objects, fields, cut short) is listed as damaged."""
    source = location.source()
    name = location.name.removesuffix(".npy") or "array"
    array = read_array(name, Span(source, 0, source.size), lambda at, n: read(source, at, n), source.name, limits)
    tensors = {name: array.tensor}
    return Checkpoint("npy", location.path, tensors, problems=array.problems, sources=[source])


def layout(checkpoint: Checkpoint, target: Target) -> Plan:
    """The checkpoint's only tensor. Its name and the metadata have no place in the file.

    Raises `TransformError` for more than one, `UnsupportedTensorError` for a dtype that numpy cannot hold.
    """
    descrs = [descr_of(tensor) for tensor in checkpoint.owners]  # what fails here would fail under every other name
    if len(descrs) != 1:
        raise TransformError(
            f"a .npy file holds one tensor, here are {len(descrs):,}",
            path=target.path,
            hint="name one with --select, or write .npz",
        )
    (tensor,) = checkpoint.owners
    builder = FileBuilder(os.path.basename(target.path))
    builder.literal(header_bytes(descrs[0], tensor.shape))
    builder.tensor(tensor)
    losses = []
    if tensor.name != os.path.basename(target.path).removesuffix(".npy"):
        losses.append(Loss("name", f"{clip(tensor.name)!r}: a .npy file holds no name but its own"))
    if descrs[0][1] == "V":
        losses.append(Loss("dtype", f"{tensor.dtype} as opaque bytes: numpy has no such type"))
    return Plan("npy", target.path, False, (builder.finish(),), tuple(losses))


def descr_of(tensor: Tensor) -> str:
    """What stands for the tensor's dtype in a header. Raises `UnsupportedTensorError`."""
    found = DESCRS.get(tensor.dtype.name)
    if found is None:
        raise UnsupportedTensorError(
            f"numpy arrays cannot hold {tensor.dtype}", tensor=tensor.name, hint="cast it first, or write safetensors"
        )
    return found


class Array(NamedTuple):
    """One array as a tensor. `data`: its bytes, all that follow the header."""

    tensor: Tensor
    problems: list[Problem]
    header: NpyHeader
    data: Span


def read_array(
    name: str,
    span: Span,
    fetch: Callable[[int, int], bytes],
    where: str,
    limits: Limits,
    access: Literal["random", "sequential"] = "random",
) -> Array:
    """The array whose file is `span`; `fetch(offset, n)` reads its beginning, `where` names it in problems.

    Raises `CorruptFileError` or `UnsupportedFormatError` when the header cannot be read.
    """
    try:
        header = parse_header(fetch, span.nbytes)
        kind = _kind(header, limits)
    except TaelError as error:
        error.path = error.path or where
        raise
    data = Span(span.source, span.offset + header.data_offset, span.nbytes - header.data_offset)
    problems = [Problem("note", kind.note, where, name)] if kind.note else []
    if kind.refused:
        problems.append(Problem("fatal", kind.refused, where, name))
        return Array(listed_only(name, data, kind.refused), problems, header, data)
    want = kind.dtype.nbytes(kind.shape)
    damaged = None
    if want > data.nbytes:
        damaged = f"cut short: the array has {want:,} bytes, {data.nbytes:,} are there"
        problems.append(Problem("fatal", damaged, where, name))
    elif want < data.nbytes:
        what = f"{data.nbytes - want:,} bytes follow the array"
        if access == "random" and fetch(header.data_offset + want, min(data.nbytes - want, len(MAGIC))) == MAGIC:
            what += ": further arrays, of which numpy.load reads one a call; only the first is read here"
        problems.append(Problem("warning", what, where, name))
    node = _node(kind, header, Span(data.source, data.offset, want))
    info = TensorInfo(name, kind.dtype, kind.shape)
    return Array(Tensor(info, node, access, damaged=damaged), problems, header, data)


def listed_only(name: str, data: Span, why: str) -> Tensor:
    """A tensor that is there, as so many bytes, and cannot be read."""
    shape = (data.nbytes,)
    return Tensor(TensorInfo(name, DTYPES["U8"], shape), Contiguous(DTYPES["U8"], shape, data), damaged=why)


class _Kind(NamedTuple):
    dtype: DType = DTYPES["U8"]
    shape: tuple[int, ...] = ()
    big_endian: bool = False
    note: str = ""
    refused: str = ""


def _kind(header: NpyHeader, limits: Limits) -> _Kind:
    """What the elements are, or why they cannot be read."""
    descr, shape = header.descr, header.shape
    limits.check("the rank of an array", len(shape), limits.rank)
    if any(length >= 1 << 63 for length in shape):
        raise CorruptFileError("an axis of the array is longer than any file")
    if isinstance(descr, list):
        fields = ", ".join(str(field[0]) for field in descr if isinstance(field, tuple) and field)
        return _Kind(refused=f"a structured array (fields {clip(fields)}), not one tensor")
    found = _DESCR.fullmatch(descr)
    order, kind, digits, unit = found.groups() if found else ("", "", "", None)
    if kind == "O":
        return _Kind(refused="an array of Python objects: its content is a pickle, which is not run")
    if kind in ("S", "a", "U") and digits:
        size = int(digits) * (4 if kind == "U" else 1)
        note = f"text of {digits} characters each ({clip(descr)!r}), listed as {size} stored bytes each"
        return _Kind(DTYPES["STRING"], (*shape, size), note=note)
    code = kind + digits
    if code in _REFUSED:
        return _Kind(refused=f"elements of type {descr!r}: {_REFUSED[code]}")
    if code not in _KINDS or (kind in "Mm") != (unit is not None):
        return _Kind(refused=f"elements of type {clip(descr)!r}, which no tensor has")
    dtype, note = DTYPES[_KINDS[code]], ""
    if kind == "V" and order == "<" and code == "V2":
        dtype, note = DTYPES["BF16"], "elements of type '<V2', which is how numpy writes bfloat16: read as BF16"
    elif kind == "V":
        note = f"elements of type {descr!r}, which only says how many bytes they have: read as {dtype}"
    elif kind in "Mm":
        note = f"points in time or durations ({descr!r}), read as their {dtype} count"
    return _Kind(dtype, shape, order == ">" and kind != "V", note)


def _node(kind: _Kind, header: NpyHeader, storage: Span) -> Node:
    """The elements in their order and byte order; a string's bytes are one more axis behind its own."""
    if header.fortran_order:
        inner = kind.shape[len(header.shape) :]
        step = math.prod(inner)
        strides = [stride * step for stride in reversed(contiguous_strides(header.shape[::-1]))]
        node = strided(kind.dtype, kind.shape, storage, 0, (*strides, *contiguous_strides(inner)))
    else:
        node = Contiguous(kind.dtype, kind.shape, storage)
    return ops.byteswap(node) if kind.big_endian else node


FORMAT = Format(
    id="npy",
    title="NumPy array",
    suffixes=(".npy",),
    dtypes=frozenset(DESCRS),
    capabilities=frozenset({"read", "write", "one-tensor"}),
    match=match,
    open=open,
    layout=layout,
)
