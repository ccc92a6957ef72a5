# SPDX-License-Identifier: Apache-2.0
"""A set of weight files that make one checkpoint: BASE-00001-of-00003.safetensors (or .bin), ..., and an index.

Index (BASE.safetensors.index.json, pytorch_model.bin.index.json, with a variant as in *.index.fp16.json):
{"metadata": {"total_size": bytes of all tensors}, "weight_map": {tensor name: file name}}. File names are
relative to the index. Shards are whole SafeTensors or PyTorch files.

The index is authoritative: it says which files belong to the set, and which of two tensors of one name
counts. What it and the shards' own headers disagree about is reported, in both directions. `total_size` is
optional, and recomputed. Without an index the shards' names say how many there must be.

Source: huggingface_hub and transformers, which write such sets.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from tael.core.checkpoint import Checkpoint
from tael.core.limits import Limits
from tael.core.location import Location, safe_parts
from tael.core.problem import Problem
from tael.core.source import read
from tael.core.tensor import Tensor
from tael.errors import CorruptFileError, NotAWeightFileError, SourceError, UnsupportedFormatError, clip
from tael.formats import registry, safetensors, strict_json
from tael.formats.detect import Probe, stranger
from tael.formats.registry import Confidence, Format

INDEX_NAME = re.compile(r"(?P<base>.+)\.(safetensors|bin|pt|pth)\.index(?P<variant>\.[\w-]+)?\.json")
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
_COMPUTED = ("total_size", "total_parameters")  # what an index says of its tensors: written anew


def match(probe: Probe) -> Confidence:
    name = probe.location.name
    if probe.is_dir:
        return Confidence.NONE
    if name.endswith(".json"):
        is_object = probe.head.lstrip(b" \t\r\n")[:1] == b"{"
        if is_object and b'"weight_map"' in probe.head:
            return Confidence.SET
        return Confidence.LIKELY if is_object and INDEX_NAME.fullmatch(name) else Confidence.NONE
    part = shard_name(name)
    if part is None or int(part["count"]) < 2:
        return Confidence.NONE
    return Confidence.SET if _others(probe.location, part) or index_of(probe.location) else Confidence.NONE


def open(location: Location, limits: Limits) -> Checkpoint:
    """The whole set, from its index or from any one of its shards. Opens every shard's header."""
    if location.name.endswith(".json"):
        return _indexed(location, limits)
    index = index_of(location, limits)
    if index is None:
        return _unindexed(location, limits)
    return replace(_indexed(index, limits), path=location.path)


def shard_name(name: str) -> re.Match[str] | None:
    """The parts of a shard's name (base, number, count, rest), if it is one."""
    return safetensors.SHARD_NAME.fullmatch(name) if name.endswith(_SUFFIXES) else None


def index_of(location: Location, limits: Limits | None = None) -> Location | None:
    """The index beside a shard. With `limits` it is read, and must list the shard."""
    part = shard_name(location.name)
    if part is None:
        return None
    inner, dot, suffix = part["rest"].rpartition(".")
    suffix = dot + suffix
    candidates = [f"{part['base']}{suffix}.index.json"]
    # model.fp16-00001-of-00002.safetensors, and an older model-00001-of-00002.fp16.safetensors
    stem, variant = (part["base"], inner) if inner else os.path.splitext(part["base"])
    if variant:
        candidates.append(f"{stem}{suffix}.index{variant}.json")
    for name in candidates:
        index = location.sibling(name)
        if index.exists() and (limits is None or location.name in read_index(index, limits).files):
            return index
    return None


@dataclass(frozen=True, slots=True)
class Index:
    """`files`: shard -> names of its tensors, in the order of the index. `metadata` may be anything."""

    files: Mapping[str, list[str]]
    metadata: Any


def read_index(location: Location, limits: Limits) -> Index:
    """Raises `CorruptFileError`; the names of files are not checked yet."""
    source = location.source()
    limits.check("the index", source.size, limits.index_bytes, path=location.path)
    content = strict_json.parse(read(source, 0, source.size), "the index", location.path)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptFileError("the index has no 'weight_map' of tensor names and files", path=location.path)
    for table in (content, weight_map):
        if isinstance(table, strict_json.Repeated):
            raise CorruptFileError(f"{clip(table.key)!r} stands twice in the index", path=location.path)
    files: dict[str, list[str]] = {}
    for tensor, file in weight_map.items():
        if not isinstance(file, str):
            raise CorruptFileError("the index names no file for it", path=location.path, tensor=tensor)
        files.setdefault(file, []).append(tensor)
    limits.check("the number of tensors", len(weight_map), limits.tensors, path=location.path)
    limits.check("the number of shards", len(files), limits.shards, path=location.path)
    return Index(files, content.get("metadata"))


@dataclass(slots=True)
class _Union:
    """What the shards opened so far make together. `homes`: the shard each tensor was taken from."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)

    def add(self, shard: str, opened: Checkpoint) -> list[str]:
        """Take in a shard; returns the names that another shard had before. Real tensors stand above noted ties."""
        twice = []
        for name, tensor in opened.tensors.items():
            old = self.tensors.get(name)
            if old is not None and old.info.alias_of is None and tensor.info.alias_of is None:
                twice.append(name)
            elif old is None or old.info.alias_of is not None:
                self.tensors[name] = tensor
                self.homes[name] = shard
        for key, value in opened.metadata.items():
            if self.metadata.setdefault(key, value) != value:
                what = f"metadata {clip(key)!r} differs from that of an earlier shard, which is taken"
                self.problems.append(Problem("warning", what, opened.path))
        for key, value in opened.extras.items():
            self.extras.setdefault(key, value)
        self.problems += opened.problems
        self.sources += opened.sources
        return twice

    def checkpoint(self, path: str, limits: Limits) -> Checkpoint:
        limits.check("the number of tensors", len(self.tensors), limits.tensors, path=path)
        # Ties may be noted in another file than the one that holds the tensor.
        tensors, metadata = safetensors.tie(self.tensors, {}, self.metadata)
        return Checkpoint("shards", path, tensors, metadata, self.extras, self.problems, sources=self.sources)


def _indexed(location: Location, limits: Limits) -> Checkpoint:
    index = read_index(location, limits)
    members = _members(location, index)
    union = _Union(sources=[location.source()])
    listed = {tensor: name for name, names in index.files.items() for tensor in names}
    missing: dict[str, str] = {}
    for name, member in members.items():
        if member is None:
            missing[name] = "is missing"
            continue
        try:
            opened = open_member(member, limits)
        except (SourceError, NotAWeightFileError, UnsupportedFormatError, CorruptFileError) as error:
            missing[name] = error.cause
            continue
        _add_indexed(union, name, opened, listed)
    _report_missing(union, index, missing)
    _report_disagreement(union, index, missing, location.path)
    _report_count(union, index.files, location)
    _add_metadata(union, index.metadata, location.path, complete=not missing)
    return union.checkpoint(location.path, limits)


def _members(location: Location, index: Index) -> dict[str, Location | None]:
    """Where the shards are, or None for one that is missing. Refuses every name that leads outside of the folder."""
    beside = location.names()
    there = None if beside is None else set(beside)
    members: dict[str, Location | None] = {}
    for name in index.files:
        if there is not None and safe_parts(name, location.path)[0] not in there:
            members[name] = None
            continue
        member = location.sibling(name)
        members[name] = member if member.exists() else None
    return members


def _add_indexed(union: _Union, name: str, opened: Checkpoint, listed: Mapping[str, str]) -> None:
    """Add a shard; of two tensors of one name, the one where the index says."""
    for tensor in union.add(name, opened):
        before = union.homes[tensor]
        right = listed.get(tensor, before)
        if right == name:
            union.tensors[tensor] = opened.tensors[tensor]
            union.homes[tensor] = name
        what = f"is in {clip(before)} and in {clip(name)}; the index says {clip(right)}"
        if tensor not in listed:
            what = f"is in {clip(before)} and in {clip(name)}, and not in the index; the first is taken"
        union.problems.append(Problem("warning", what, opened.path, tensor))


def _report_missing(union: _Union, index: Index, missing: Mapping[str, str]) -> None:
    for name, why in missing.items():
        count = len(index.files[name])
        what = f"{why}; the index puts {count:,} tensor{'s' * (count != 1)} there"
        union.problems.append(Problem("fatal", what, name))
    for name in missing:
        union.problems += [
            Problem("fatal", "its shard cannot be read", name, tensor)
            for tensor in index.files[name]
            if tensor not in union.tensors
        ]


def _report_disagreement(union: _Union, index: Index, missing: Mapping[str, str], path: str) -> None:
    """What the index lists and no shard has, and the reverse."""
    if union.homes == {tensor: file for file, listed in index.files.items() for tensor in listed}:
        return
    names: set[str] = set()
    for file, listed in index.files.items():
        names.update(listed)
        for tensor in listed:
            home = union.homes.get(tensor)
            if home is None and file not in missing:
                union.problems.append(Problem("fatal", "is in the index, but not in its shard", file, tensor))
            elif home is not None and home != file and union.tensors[tensor].info.alias_of is None:
                what = f"is in {clip(home)}, not in {clip(file)} as the index says"
                union.problems.append(Problem("warning", what, path, tensor))
    for tensor, found in union.tensors.items():
        if tensor not in names and found.info.alias_of is None:
            what = "is not in the index; it is taken all the same"
            union.problems.append(Problem("warning", what, union.homes[tensor], tensor))


def _report_count(union: _Union, names: Iterable[str], location: Location) -> None:
    """The shards' names tell how many they are; an index that lists another number is not of this set."""
    parts = [part for name in names if (part := shard_name(name))]
    counts = {int(part["count"]) for part in parts}
    if counts and counts != {len(parts)}:
        said = " and ".join(map(str, sorted(counts)))
        what = f"lists {len(parts)} shards, whose names speak of {said}; the index is followed"
        union.problems.append(Problem("warning", what, location.path))


def _add_metadata(union: _Union, metadata: Any, path: str, complete: bool) -> None:
    """Check `total_size`, and take over what else the index says: ties, by the convention of huggingface_hub, too."""
    entries = metadata if isinstance(metadata, dict) else {}
    total = entries.get("total_size")
    infos = (tensor.info for tensor in union.tensors.values())
    kinds = Counter((info.dtype, info.shape) for info in infos if info.alias_of is None)
    actual = sum(count * dtype.nbytes(shape) for (dtype, shape), count in kinds.items())
    if metadata is not None and not isinstance(metadata, dict):
        union.problems.append(Problem("warning", "the index's metadata is no object; left out", path))
    if total is None:
        what = f"the index does not say total_size; the tensors have {actual:,} bytes"
        union.problems.append(Problem("note", what, path))
    elif complete and total != actual:  # old versions of transformers wrote a float
        shown = f"{total:,}" if isinstance(total, int | float) and not isinstance(total, bool) else "no number"
        what = f"the index's total_size is {shown}; the tensors have {actual:,} bytes"
        union.problems.append(Problem("warning", what, path))
    more = {key: value for key, value in entries.items() if key not in _COMPUTED}
    if strict_json.is_deep(more):
        raise CorruptFileError("the index's metadata is nested far too deeply", path=path)
    union.metadata = {**more, **union.metadata}


def _unindexed(location: Location, limits: Limits) -> Checkpoint:
    part = shard_name(location.name)
    if part is None:
        raise UnsupportedFormatError("is neither an index nor named as a shard", path=location.path)
    limits.check("the number of shards", int(part["count"]), limits.shards, path=location.path)
    members = [location.sibling(name) for name in _names_of_set(part)]
    there = [member for member in members if member.exists()]
    union = open_union(there, location.path, limits)
    problems = [Problem("note", "no index beside the shards: their names are followed", location.path)]
    for member in members:
        if member not in there:
            problems.append(Problem("fatal", f"this shard of {len(members)} is missing", member.path))
    return replace(union, problems=[*problems, *union.problems])


def open_union(members: list[Location], path: str, limits: Limits) -> Checkpoint:
    """Several files as one checkpoint, without an index: two tensors of one name are refused."""
    union = _Union()
    for member in members:
        twice = union.add(member.name, open_member(member, limits))
        if twice:
            raise CorruptFileError(
                f"is in {clip(union.homes[twice[0]])} and in {clip(member.name)}, and no index says which counts",
                path=path,
                tensor=twice[0],
                hint="fetch the set's index, or name one of the files",
            )
    return union.checkpoint(path, limits)


def _names_of_set(part: re.Match[str]) -> Iterator[str]:
    digits = len(part["number"])
    for number in range(1, int(part["count"]) + 1):
        yield f"{part['base']}-{number:0{digits}d}-of-{part['count']}{part['rest']}"


def _others(location: Location, part: re.Match[str]) -> bool:
    """Whether another shard of the set is there."""
    names = location.names()
    if names is None:
        first, second = islice(_names_of_set(part), 2)
        return location.sibling(second if location.name == first else first).exists()
    same = part.group("base", "count", "rest")
    others = (other for name in names if name != location.name and (other := shard_name(name)))
    return any(other.group("base", "count", "rest") == same for other in others)


def open_member(location: Location, limits: Limits) -> Checkpoint:
    probe = Probe(location, limits)
    if safetensors.match(probe):
        return safetensors.read_file(location, limits)
    torch = registry.get("torch")
    if torch.open is not None and torch.match(probe):
        return torch.open(location, limits)
    raise stranger(probe)


FORMAT = Format(
    id="shards",
    title="Sharded set with index",
    suffixes=(".index.json", *_SUFFIXES),
    dtypes=safetensors.FORMAT.dtypes,
    capabilities=frozenset({"read", "metadata", "aliases", "shards"}),
    match=match,
    open=open,
)
