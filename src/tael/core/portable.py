# SPDX-License-Identifier: Apache-2.0
"""Metadata and ties as str -> str, for containers that hold no more than that.

Strings keep their own keys. All else (typed values, aliases, the true dtype of opaque bytes) rides in
one JSON value under `tael.metadata`, and comes back from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tael.core.problem import Problem
from tael.core.tensor import Tensor

KEY = "tael.metadata"


def pack(metadata: Mapping[str, Any], aliases: Mapping[str, str], **more: Any) -> dict[str, str]:
    """`metadata` and `aliases` (removed name -> kept name) as strings; `more`: further JSON sections, if not empty."""
    plain = {key: value for key, value in metadata.items() if key != KEY and _is_text(key) and _is_text(value)}
    rest = record({key: value for key, value in metadata.items() if key not in plain}, aliases, **more)
    return {**plain, KEY: rest} if rest else plain


def record(values: Mapping[str, Any], aliases: Mapping[str, str], **more: Any) -> str:
    """What a container has no place for, as JSON to stand under `KEY`; empty if there is nothing."""
    sections: dict[str, Any] = {"values": dict(values), "aliases": dict(aliases), **more}
    sections = {section: content for section, content in sections.items() if content}
    # As ASCII: lone surrogates survive as escapes.
    return json.dumps(sections, separators=(",", ":"), default=_as_list) if sections else ""


def _as_list(value: Any) -> list[Any]:
    """Arrays that readers leave undecoded are sequences of their own kind."""
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"metadata of type {type(value).__name__} is not portable")


def _is_text(value: object) -> bool:
    """Is this a string that UTF-8 can hold? Pickles have others."""
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value))


def unpack(stored: Mapping[str, str], path: str) -> tuple[dict[str, Any], dict[str, Any], list[Problem]]:
    """The inverse: metadata, the JSON sections ("aliases", ...), and a note when the JSON is not ours."""
    metadata: dict[str, Any] = {key: value for key, value in stored.items() if key != KEY}
    if KEY not in stored:
        return metadata, {}, []
    try:
        sections = json.loads(stored[KEY])
        values, aliases = sections.get("values", {}), sections.get("aliases", {})
        if not isinstance(values, dict) or not all(isinstance(owner, str) for owner in aliases.values()):
            raise ValueError("values or aliases are not what they should be")
    except (ValueError, AttributeError, TypeError, RecursionError):
        return metadata | {KEY: stored[KEY]}, {}, [Problem("note", f"{KEY!r} is not what tael writes: kept", path)]
    return metadata | values, sections, []


def restore_aliases(tensors: Iterable[Tensor], aliases: Mapping[str, str]) -> list[Tensor]:
    """`tensors` and, behind them, one alias for every entry whose owner is there and whose name is free."""
    table = {tensor.name: tensor for tensor in tensors}
    for alias, owner in aliases.items():
        if alias not in table and owner in table:
            table[alias] = table[owner].renamed(alias, alias_of=table[owner].info.alias_of or owner)
    return list(table.values())
