# SPDX-License-Identifier: Apache-2.0
"""SafeTensors: N (u64, little-endian) | JSON header of N bytes | payload.

Header: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {str: str}}.
It begins with "{" and may end in spaces. Offsets count from the payload's first byte, which is byte
8 + N exactly, aligned or not. The ranges tile the payload: no hole, no overlap, nothing behind, in any
order. Elements are row-major and little-endian; F4 and F6 pack them, low bits first, into whole bytes.

Ties have no place in it. `save_model` of the safetensors library notes {removed: kept} in the metadata; tael
notes them under `tael.metadata`. Both come back as aliases.

Source: the safetensors README and reference implementation, 0.8.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tael.convert.plan import Plan, Target
from tael.core import portable
from tael.core.checkpoint import Checkpoint
from tael.core.dtypes import DTYPES as TYPES
from tael.core.dtypes import DType
from tael.core.limits import Limits
from tael.core.location import Location
from tael.core.node import Contiguous, Span
from tael.core.problem import Problem
from tael.core.source import ByteSource, read
from tael.core.tensor import Tensor, TensorInfo
from tael.errors import (
    CorruptFileError,
    LimitExceededError,
    TaelError,
    UnsupportedTensorError,
    clip,
)
from tael.formats import strict_json
from tael.formats.detect import Probe
from tael.formats.registry import Confidence, Format

# The names of the specification, in its order of alignment; a writer lays out the last ones first.
DTYPES: dict[str, DType] = {
    name: TYPES[{"F4": "F4_E2M1"}.get(name, name)]
    for name in (
        "BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8",
        "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
        "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64",
    )
}  # fmt: skip

METADATA = "__metadata__"
SHARD_NAME = re.compile(r"(?P<base>.+)-(?P<number>\d{5,})-of-(?P<count>\d{5,})(?P<rest>(\.[\w-]+)*\.\w+)")
_ENDLESS = 1 << 63  # bytes that cannot be addressed


def match(probe: Probe) -> Confidence:
    head = probe.head
    # Text whose ninth character happens to be a brace is no header; nor is an object without names.
    if probe.size < 10 or head[8:9] != b"{" or head[9:].lstrip(b" \t\r\n")[:1] not in (b'"', b"}"):
        return Confidence.NONE
    length = int.from_bytes(head[:8], "little")
    if length <= probe.size - 8:
        return Confidence.CERTAIN
    return Confidence.NONE if head[:8].isascii() and head[:8].decode().isprintable() else Confidence.LIKELY


def open(location: Location, limits: Limits) -> Checkpoint:
    """Headers only. A file cut short is opened: the tensors that lie beyond its end are damaged."""
    checkpoint = read_file(location, limits)
    part = SHARD_NAME.fullmatch(location.name)
    if not part or int(part["count"]) < 2:
        return checkpoint
    what = f"by its name this is part {int(part['number'])} of {int(part['count'])}, and it is read alone"
    return replace(checkpoint, problems=[*checkpoint.problems, Problem("warning", what, location.path)])


def layout(checkpoint: Checkpoint, target: Target) -> Plan:
    """One file, or with `target.shard_size` a set: NAME-00001-of-00002.safetensors, ... and its index."""
    from tael.formats.safetensors_files import FROM_TORCH, weight_files

    base = "model" if target.folder else os.path.basename(target.path).removesuffix(".safetensors")
    files = weight_files(checkpoint, base, target.shard_size, pytorch=checkpoint.format in FROM_TORCH)
    if len(files) == 1 and not target.folder:  # under the name that was asked for, whatever its suffix
        files = [replace(files[0], name=os.path.basename(target.path))]
    return Plan("safetensors" if len(files) == 1 else "shards", target.path, target.folder, tuple(files))


def read_file(location: Location, limits: Limits) -> Checkpoint:
    """What `open` returns, whether or not the file is one of a set."""
    source = location.source()
    start, header = _header(source, limits)
    metadata, ties, problems = _metadata(header.pop(METADATA, {}), source.name)
    found = _tensors(source, start, header, limits, problems)
    tensors, metadata = tie(found, ties, metadata)
    return Checkpoint("safetensors", location.path, tensors, metadata, problems=problems, sources=[source])


def _header(source: ByteSource, limits: Limits) -> tuple[int, dict[str, Any]]:
    """Where the payload starts, and the header as parsed."""
    path = source.name
    if source.size < 8:
        raise CorruptFileError(f"has {source.size} bytes, too few for the length of a header", path=path)
    length = int.from_bytes(read(source, 0, 8), "little")
    if length > source.size - 8:
        raise CorruptFileError(
            f"the header should have {length:,} bytes, but the file ends after {source.size - 8:,}",
            path=path,
            offset=8,
            hint="the file is cut short, or is no SafeTensors file; fetch it again",
        )
    limits.check("the header's length", length, limits.header_bytes, path=path)
    raw = read(source, 8, length)
    if not raw.startswith(b"{"):
        raise CorruptFileError(f"the header starts with {raw[:1]!r}, not with '{{'", path=path, offset=8)
    # Every entry has one brace (its name may have some): this bounds what the parser builds, before it does.
    limits.check("the number of tensors", raw.count(b"{") // 2, limits.tensors, path=path)
    header = strict_json.parse(raw, "the header", path, 8)
    if isinstance(header, strict_json.Repeated):
        raise CorruptFileError(
            "this name stands twice in the header",
            path=path,
            tensor=header.key,
            hint="readers differ in which of the two they take: write the file again with one of them",
        )
    limits.check("the number of tensors", len(header), limits.tensors, path=path)
    return 8 + length, header


def _metadata(stored: Any, path: str) -> tuple[dict[str, Any], Mapping[str, str], list[Problem]]:
    """Metadata, ties (alias -> owner) and what is odd: other readers refuse such a file, people want to see it."""
    odd: list[str] = []
    if strict_json.is_deep(stored):
        raise CorruptFileError(f"{METADATA} is nested far too deeply", path=path)
    if stored is None:
        odd.append("is null instead of absent")
    elif not isinstance(stored, dict):
        odd.append(f"should be an object of strings, is {_brief(stored)}, and is left out")
    if not isinstance(stored, dict):
        stored = {}
    if isinstance(stored, strict_json.Repeated):
        odd.append(f"names {clip(stored.key)!r} twice; the last one is taken")
    wrong = [key for key, value in stored.items() if not isinstance(value, str)]
    if wrong:
        odd.append(f"has values that are no strings: {clip(', '.join(wrong))}")
    problems = [Problem("warning", f"{METADATA} {what}; converting repairs it", path) for what in odd]
    metadata, sections, notes = portable.unpack(stored, path)
    if strict_json.is_deep(metadata):
        raise CorruptFileError(f"{METADATA} is nested far too deeply", path=path)
    return metadata, sections.get("aliases", {}), problems + notes


def _tensors(
    source: ByteSource, start: int, header: Mapping[str, Any], limits: Limits, problems: list[Problem]
) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    known: dict[tuple[str, tuple[int, ...]], tuple[DType, tuple[int, ...], int]] = {}
    only_integers = {int}.issuperset
    available = source.size - start
    position, in_order, unknown_fields = 0, True, 0
    cut: list[Tensor] = []
    for name, entry in header.items():
        try:
            shape, (begin, end) = entry["shape"], entry["data_offsets"]
            key = (entry["dtype"], tuple(shape))
            layout = known.get(key)
            if layout is None:
                layout = known[key] = _layout(*key, limits)
            dtype, dims, size = layout
        except (KeyError, TypeError, ValueError, TaelError):
            raise _bad_entry(name, entry, limits, source.name) from None
        if (
            not (only_integers(map(type, shape)) and type(begin) is type(end) is int)
            or end - begin != size
            or begin < 0
            or len(name) > limits.name_bytes
            or type(entry) is not dict
        ):
            raise _bad_entry(name, entry, limits, source.name)
        in_order &= begin == position
        position = end
        unknown_fields += len(entry) != 3
        tensor = tensors[name] = _stored(name, dtype, dims, source, start + begin, size)
        if end > available:
            cut.append(tensor)
    payload = position
    if not in_order:
        payload = _tiled(header, source.name, start)
    if payload < available:
        raise CorruptFileError(
            f"{available - payload:,} bytes follow the last tensor",
            path=source.name,
            offset=start + payload,
            hint="nothing in the header speaks of them: the file was appended to, or hides something",
        )
    if unknown_fields:
        what = f"{unknown_fields} entries hold fields that no reader knows"
        problems.append(Problem("warning", what, source.name))
    if cut:
        _cut_short(tensors, cut, start + payload, source, problems)
    return tensors


def _layout(name: str, shape: tuple[int, ...], limits: Limits) -> tuple[DType, tuple[int, ...], int]:
    """The dtype, shape and size of an entry; raises whatever shows that it has none."""
    if len(shape) > limits.rank:
        raise LimitExceededError(f"has {len(shape)} axes, the limit is {limits.rank}")
    if not all(type(length) is int and length >= 0 for length in shape):
        raise CorruptFileError(f"shape {_brief(list(shape))} is not a list of lengths")
    dtype = DTYPES.get(name)
    if dtype is None:
        raise UnsupportedTensorError(
            f"dtype {clip(name)!r} is not one of SafeTensors 0.8", hint=f"known: {', '.join(DTYPES)}"
        )
    # Zeros left out: arrays of (0, 2^40, 2^40) cannot be made either, though they hold nothing.
    if math.prod(length for length in shape if length) * dtype.block_bytes >= _ENDLESS:
        raise CorruptFileError(f"shape {list(shape)} is larger than any file")
    return dtype, shape, dtype.nbytes(shape)


def _bad_entry(name: str, entry: Any, limits: Limits, path: str) -> TaelError:
    """The error that says what is wrong with an entry."""
    error: TaelError
    if len(name) > limits.name_bytes:
        return LimitExceededError(f"a name of {len(name):,} characters, the limit is {limits.name_bytes:,}", path=path)
    if not isinstance(entry, dict):
        error = CorruptFileError(f"its entry is {_brief(entry)}, not an object")
    elif isinstance(entry, strict_json.Repeated):
        error = CorruptFileError(f"{entry.key!r} stands twice in its entry")
    elif missing := [field for field in ("dtype", "shape", "data_offsets") if field not in entry]:
        error = CorruptFileError(f"its entry has no {missing[0]!r}")
    elif not isinstance(entry["dtype"], str):
        error = CorruptFileError(f"dtype {_brief(entry['dtype'])} is not a name")
    elif not isinstance(entry["shape"], list):
        error = CorruptFileError(f"shape {_brief(entry['shape'])} is not a list of lengths")
    else:
        offsets = entry["data_offsets"]
        is_range = isinstance(offsets, list) and [type(offset) for offset in offsets] == [int, int]
        try:
            _, shape, size = _layout(entry["dtype"], tuple(entry["shape"]), limits)
            if not is_range or not 0 <= offsets[0] <= offsets[1]:
                error = CorruptFileError(f"data_offsets {_brief(offsets)} is not [begin, end]")
            else:
                error = CorruptFileError(
                    f"{entry['dtype']} {list(shape)} takes {size:,} bytes, its data_offsets {offsets} "
                    f"hold {offsets[1] - offsets[0]:,}"
                )
        except TaelError as wrong:
            error = wrong
    error.path, error.tensor = path, name
    return error


def _brief(value: Any) -> str:
    """A value out of the header, as short text; what is nested is only called by its kind."""
    if isinstance(value, list) and len(value) <= 8 and not any(isinstance(item, (list, dict)) for item in value):
        return f"[{', '.join(map(_brief, value))}]"
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else clip(json.dumps(value))


def _tiled(header: Mapping[str, Any], path: str, start: int) -> int:
    """Bytes of the payload. Raises `CorruptFileError` where its ranges leave a hole or overlap."""
    ranges = sorted((*entry["data_offsets"], name) for name, entry in header.items())
    position, before = 0, ""
    for begin, end, name in ranges:
        if begin > position:
            what, hint = f"bytes {position} to {begin} of the payload belong to no tensor", None
        elif begin < position:
            same = header[before]["data_offsets"] == [begin, end]
            what = f"lies at the same bytes as tensor {clip(before)!r}" if same else f"overlaps tensor {clip(before)!r}"
            hint = "the format forbids ranges in common, so tied tensors are stored once and noted in the metadata"
        else:
            position, before = end, name
            continue
        raise CorruptFileError(what, path=path, tensor=name, offset=start + begin, hint=hint)
    return position


def _cut_short(
    tensors: dict[str, Tensor], cut: list[Tensor], expected: int, source: ByteSource, problems: list[Problem]
) -> None:
    """Mark `cut` in `tensors` as damaged and say so in `problems`."""
    problems.append(
        Problem(
            "fatal",
            f"should have {expected:,} bytes and has {source.size:,}; "
            f"{len(tensors) - len(cut)} of {len(tensors)} tensors are intact",
            source.name,
        )
    )
    for tensor in cut:
        span = tensor.span
        end = span.end if span else expected
        why = f"needs the file up to byte {end:,}, which ends at {source.size:,}"
        tensors[tensor.name] = Tensor(tensor.info, tensor.data, damaged=why)
        problems.append(Problem("fatal", why, source.name, tensor.name))


_new: Any = object.__new__


def _setters(kind: type) -> list[Any]:
    return [getattr(kind, field).__set__ for field in kind.__slots__]  # type: ignore[attr-defined]


_name, _dtype, _shape, _alias_of = _setters(TensorInfo)
_source, _offset, _nbytes = _setters(Span)
_data_dtype, _data_shape, _span = _setters(Contiguous)
_info, _data, _access, _checks, _damaged = _setters(Tensor)


def _stored(name: str, dtype: DType, shape: tuple[int, ...], source: ByteSource, offset: int, size: int) -> Tensor:
    """Tensor(TensorInfo(name, dtype, shape), Contiguous(dtype, shape, Span(source, offset, size))), in half the time.

    Frozen dataclasses fill their slots by name: most of what opening a set of 100 000 tensors would take.
    """
    info, span, data = _new(TensorInfo), _new(Span), _new(Contiguous)
    tensor: Tensor = _new(Tensor)
    _name(info, name), _dtype(info, dtype), _shape(info, shape), _alias_of(info, None)
    _source(span, source), _offset(span, offset), _nbytes(span, size)
    _data_dtype(data, dtype), _data_shape(data, shape), _span(data, span)
    _info(tensor, info), _data(tensor, data), _access(tensor, "random"), _checks(tensor, ()), _damaged(tensor, None)
    return tensor


def tie(
    tensors: dict[str, Tensor], ties: Mapping[str, str], metadata: dict[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """`tensors` with the aliases that `ties` and, by the convention of `save_model`, `metadata` speak of.

    The entries of the metadata that were ties are left out of it: as aliases they follow renames.
    """
    noted = {
        key: value
        for key, value in metadata.items()
        if key != "format" and isinstance(value, str) and value in tensors
        if key not in tensors or tensors[key].info.alias_of
    }
    if not ties and not noted:
        return tensors, metadata
    restored = portable.restore_aliases(tensors.values(), {**noted, **ties})
    return {t.name: t for t in restored}, {key: value for key, value in metadata.items() if key not in noted}


FORMAT = Format(
    id="safetensors",
    title="SafeTensors",
    suffixes=(".safetensors",),
    dtypes=frozenset(dtype.name for dtype in DTYPES.values()),
    capabilities=frozenset({"read", "write", "metadata", "aliases", "shards"}),
    match=match,
    open=open,
    layout=layout,
)
