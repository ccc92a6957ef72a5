# SPDX-License-Identifier: Apache-2.0
"""Metadata of a checkpoint as GGUF's typed values, and back.

A checkpoint holds plain values. Which type a key had in the file is noted under `gguf.types` ({key: type}), but only
where the value alone would give another one; the writer uses it up. What GGUF has no type for (None, objects, lists of
mixed values), ties and true shapes ride as JSON under `tael.metadata`, which is the last key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tael.core import portable
from tael.core.problem import Problem
from tael.errors import CorruptFileError
from tael.formats import strict_json
from tael.formats.gguf.values import Array, Value, fits, infer, is_kind, raw_text

TYPES = "gguf.types"
RESERVED = "tael.reserved"  # slack for editing in place: spaces
SHAPES = "shapes"  # section of tael.metadata: tensor -> shape that GGUF cannot hold
SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS = SPLIT = ("split.no", "split.count", "split.tensors.count")

_LONGEST_KEY = 65535


def to_metadata(values: Mapping[str, Value], path: str) -> tuple[dict[str, Any], dict[str, Any], list[Problem]]:
    """Metadata, the sections of `tael.metadata` ("aliases", "shapes"), and notes."""
    metadata: dict[str, Any] = {}
    types: dict[str, str] = {}
    sections: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, (kind, value) in values.items():
        if key == portable.KEY and kind == "str":
            more, sections, problems = portable.unpack({key: value}, path)
            if strict_json.is_deep(more):
                raise CorruptFileError(f"{portable.KEY} is nested far too deeply", path=path)
            metadata.update(more)
        elif key not in (RESERVED, TYPES):
            metadata[key] = value
            if infer(key, value) != kind:
                types[key] = kind
    if types:
        metadata[TYPES] = types
    return metadata, sections, problems


def to_values(
    metadata: Mapping[str, Any], aliases: Mapping[str, str], shapes: Mapping[str, Sequence[int]]
) -> dict[str, Value]:
    """The inverse."""
    noted = metadata.get(TYPES)
    types: Mapping[Any, Any] = noted if isinstance(noted, Mapping) else {}
    values: dict[str, Value] = {}
    rest: dict[str, Any] = {}
    for key, value in metadata.items():
        if key in (TYPES, RESERVED):
            continue
        kind = _kind(key, value, types.get(key)) if key != portable.KEY and _is_key(key) else None
        if kind is None:
            rest[key] = value
        else:
            values[key] = Value(kind, value)
    record = portable.record(rest, aliases, **{SHAPES: dict(shapes)})
    if record:
        values[portable.KEY] = Value("str", record)
    return values


def _kind(key: str, value: Any, noted: object) -> str | None:
    if isinstance(noted, str) and is_kind(noted) and fits(noted, value):
        return noted
    return value.kind if isinstance(value, Array) else infer(key, value)


def _is_key(key: str) -> bool:
    return bool(key) and fits("str", key) and len(raw_text(key)) <= _LONGEST_KEY
