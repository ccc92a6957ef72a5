# SPDX-License-Identifier: Apache-2.0
"""Split sets: BASE-00001-of-00003.gguf, ..., each a whole GGUF file, read as one checkpoint.

`split.no` (u16, from 0), `split.count` (u16) and `split.tensors.count` (i32, of the whole set) stand in every file; the
rest of the metadata in the first. Any file of the set opens it. What the files say must agree with their names and with
each other. Merging tools leave `split.count` at 0: such a file is whole.

Source: gguf-split of llama.cpp, and its loader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tael.core.limits import Limits
from tael.core.location import Location
from tael.core.problem import Problem
from tael.core.source import ByteSource
from tael.core.tensor import Tensor
from tael.errors import CorruptFileError, SourceError, clip
from tael.formats.gguf.header import ALIGNMENT_KEY, parse
from tael.formats.gguf.metadata import SPLIT, SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS
from tael.formats.gguf.tensors import read_tensors
from tael.formats.gguf.values import Value

NAME = re.compile(r"(?P<base>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(slots=True)
class Part:
    """A file, or a whole set: what its headers say."""

    values: dict[str, Value]
    tensors: dict[str, Tensor]
    problems: list[Problem]
    sources: list[ByteSource]


def name_of(base: str, number: int, count: int) -> str:
    """The name of a set's file; `number` from 1."""
    return f"{base}-{number:05d}-of-{count:05d}.gguf"


def base_of(name: str) -> str | None:
    """What the names of a set's files begin with, if this is such a name."""
    part = NAME.fullmatch(name)
    return part["base"] if part else None


def read_part(location: Location, limits: Limits) -> Part:
    source = location.source()
    header = parse(source, limits)
    tensors, problems = read_tensors(source, header)
    return Part(header.values, tensors, problems, [source])


def read_set(location: Location, limits: Limits) -> Part:
    """The file at `location` or, if it is one of a set, all of them."""
    part = read_part(location, limits)
    count = _integer(part, SPLIT_COUNT, location)
    name = NAME.fullmatch(location.name)
    if count is None or count < 2:
        if name and int(name["count"]) > 1:
            what = f"by its name this is part {int(name['number'])} of {int(name['count'])}, and it is read alone"
            part.problems.append(Problem("warning", what, location.path))
        return part
    number = _integer(part, SPLIT_NUMBER, location)
    if number is None or not 0 <= number < count:
        raise CorruptFileError(f"{SPLIT_NUMBER} is {number}, but {SPLIT_COUNT} {count}", path=location.path)
    if name is None:
        what = f"is part {number + 1} of {count}; the others are looked for only beside names like "
        part.problems.append(Problem("fatal", what + name_of("NAME", number + 1, count), location.path))
        return part
    if (int(name["number"]), int(name["count"])) != (number + 1, count):
        what = f"says it is part {number + 1} of {count}, which is not what its name says"
        raise CorruptFileError(what, path=location.path, hint="give it back the name it was written under")
    limits.check("the number of shards", count, limits.shards, path=location.path)
    parts = [
        part if k == number else _member(location.sibling(name_of(name["base"], k + 1, count)), k, part, limits)
        for k in range(count)
    ]
    return _joined(parts, location, limits)


def _member(location: Location, number: int, first: Part, limits: Limits) -> Part:
    """Another file of the set; without tensors, and with a fatal problem, if it is missing or damaged."""
    try:
        if not location.exists():
            return Part({}, {}, [Problem("fatal", "this file of the set is missing", location.path)], [])
        part = read_part(location, limits)
    except (SourceError, CorruptFileError) as error:
        return Part({}, {}, [Problem("fatal", error.cause, location.path, error.tensor)], [])
    if _integer(part, SPLIT_NUMBER, location) != number:
        found = _integer(part, SPLIT_NUMBER, location)
        raise CorruptFileError(f"{SPLIT_NUMBER} is {found}, by its name {number}", path=location.path)
    for key in (SPLIT_COUNT, SPLIT_TENSORS):
        here, there = _integer(part, key, location), _integer(first, key, location)
        if here != there:
            raise CorruptFileError(
                f"{key} is {here}, and {there} in another file of the set",
                path=location.path,
                hint="the files are of different sets: fetch all of them again",
            )
    return part


def _joined(parts: list[Part], location: Location, limits: Limits) -> Part:
    whole = Part({}, {}, [], [])
    homes: dict[str, str] = {}
    for part in parts:
        where = part.sources[0].name if part.sources else ""
        for name, tensor in part.tensors.items():
            if name in homes:
                raise CorruptFileError(f"is in {clip(homes[name])} and in {clip(where)}", path=where, tensor=name)
            whole.tensors[name], homes[name] = tensor, where
        for key, value in part.values.items():
            if key in SPLIT or (key == ALIGNMENT_KEY and part is not parts[0]):
                continue
            if whole.values.setdefault(key, value) != value:
                what = f"metadata {clip(key)!r} differs from that of an earlier file, which is taken"
                whole.problems.append(Problem("warning", what, where))
        whole.problems += part.problems
        whole.sources += part.sources
    limits.check("the number of tensors", len(whole.tensors), limits.tensors, path=location.path)
    counts = {count for part in parts if (count := _integer(part, SPLIT_TENSORS, location)) is not None}
    if len(whole.sources) == len(parts) and counts and counts != {len(whole.tensors)}:
        raise CorruptFileError(
            f"the files hold {len(whole.tensors):,} tensors, but {SPLIT_TENSORS} is {counts.pop():,}",
            path=location.path,
        )
    return whole


def _integer(part: Part, key: str, location: Location) -> int | None:
    """An integer of any type: writers differ."""
    value: Any = part.values[key].value if key in part.values else None
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise CorruptFileError(f"{key} is no integer", path=location.path)
    return value


def split_values(number: int, count: int, tensors: int) -> Mapping[str, Value]:
    """What every file of a set says, in the order of gguf-split; `number` from 0."""
    return {
        SPLIT_NUMBER: Value("u16", number),
        SPLIT_TENSORS: Value("i32", tensors),
        SPLIT_COUNT: Value("u16", count),
    }
