# SPDX-License-Identifier: Apache-2.0
"""What changed from one checkpoint to another: tensors added, removed, renamed, retyped, reshaped, moved; metadata."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tael.core.checkpoint import Checkpoint, owners
from tael.core.progress import SILENT, Progress, Serialized
from tael.core.tensor import Tensor, TensorInfo
from tael.errors import CorruptFileError, UnsupportedTensorError
from tael.verify.compare import Difference, Pass, compare_tensors
from tael.verify.fingerprint import hash_tensor
from tael.verify.reading import in_order, threads_for


@dataclass(frozen=True, slots=True)
class Retyped:
    """Another dtype under the same name and shape. For floats, how far the values moved; None for the rest."""

    name: str
    before: str
    after: str
    max_abs: float | None = None
    max_rel: float | None = None
    rms: float | None = None


@dataclass(frozen=True, slots=True)
class Reshaped:
    """Another shape, and perhaps dtype, under the same name."""

    before: TensorInfo
    after: TensorInfo

    @property
    def name(self) -> str:
        return self.before.name


@dataclass(frozen=True, slots=True)
class Renamed:
    """The same dtype, shape and bytes under another name."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class MetadataChanges:
    """`changed`: key -> (before, after)."""

    added: Mapping[str, Any]
    removed: Mapping[str, Any]
    changed: Mapping[str, tuple[Any, Any]]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True)
class Diff:
    """From A to B. `changed` and `unreadable` hold what `verify` says; `same` counts the tensors without change."""

    added: tuple[TensorInfo, ...]
    removed: tuple[TensorInfo, ...]
    renamed: tuple[Renamed, ...]
    retyped: tuple[Retyped, ...]
    reshaped: tuple[Reshaped, ...]
    changed: tuple[Difference, ...]
    unreadable: tuple[Difference, ...]
    metadata: MetadataChanges
    same: int

    @property
    def equal(self) -> bool:
        """No change in tensors or metadata."""
        lists = (self.added, self.removed, self.renamed, self.retyped, self.reshaped, self.changed, self.unreadable)
        return not any(lists) and not self.metadata


def diff(a: Checkpoint, b: Checkpoint, progress: Progress = SILENT) -> Diff:
    """What changed from `a` to `b`. Both are read once, save what is on one side and cannot be a renamed tensor."""
    common = [name for name in a.tensors if name in b.tensors]
    removed = [tensor for name, tensor in a.tensors.items() if name not in b.tensors]
    added = [tensor for name, tensor in b.tensors.items() if name not in a.tensors]
    retyped: list[Retyped] = []
    reshaped: list[Reshaped] = []
    values: list[Difference] = []
    for found in _compared(a, b, common, progress):
        match found:
            case Retyped():
                retyped.append(found)
            case Reshaped():
                reshaped.append(found)
            case Difference():
                values.append(found)
    renamed = _renamed(removed, added, progress)
    gone, come = {r.before for r in renamed}, {r.after for r in renamed}
    return Diff(
        added=tuple(tensor.info for tensor in added if tensor.name not in come),
        removed=tuple(tensor.info for tensor in removed if tensor.name not in gone),
        renamed=tuple(renamed),
        retyped=tuple(retyped),
        reshaped=tuple(reshaped),
        changed=tuple(found for found in values if found.kind == "values"),
        unreadable=tuple(found for found in values if found.kind == "unreadable"),
        metadata=_metadata(a.metadata, b.metadata),
        same=len(common) - len(retyped) - len(reshaped) - len(values),
    )


Change = Retyped | Reshaped | Difference


def _compared(a: Checkpoint, b: Checkpoint, names: Iterable[str], progress: Progress) -> list[Change]:
    """Changes of the tensors in both, by name; names tied on both sides are read once."""
    left, right = owners(a.tensors), owners(b.tensors)
    pairs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in names:
        pairs[left[name], right[name]].append(name)
    work = [(a.tensors[same[0]], b.tensors[same[0]]) for same in pairs.values()]
    shared = Serialized(progress)
    sizes = [x.nbytes for x, _ in work]
    threads = threads_for(t for both in work for t in both)
    progress.start(sum(sizes), f"compare {a.path} with {b.path}")
    try:
        results = in_order(lambda both: _change(*both, shared), work, sizes, threads)
        verdict = {name: found for same, found in zip(pairs.values(), results, strict=True) for name in same}
    finally:
        progress.finish()
    return [_as(found, name, a, b) for name in names if (found := verdict[name])]


def _change(a: Tensor, b: Tensor, progress: Progress) -> Change | None:
    if a.shape != b.shape:
        progress.advance(a.nbytes)
        return Reshaped(a.info, b.info)
    if a.dtype == b.dtype:
        return compare_tensors(a, b, progress=progress)
    changed = Retyped(a.name, a.dtype.name, b.dtype.name)
    if not (a.dtype.is_float and b.dtype.is_float):
        progress.advance(a.nbytes)
        return changed
    measured = Pass(a, b)
    try:
        measured.run(progress)
    except (CorruptFileError, UnsupportedTensorError) as error:
        return Difference("unreadable", a.name, str(error))
    return replace(changed, max_abs=measured.max_abs, max_rel=measured.max_rel, rms=measured.rms)


def _as(found: Change, name: str, a: Checkpoint, b: Checkpoint) -> Change:
    """`found` under `name`, which may be an alias of the one that was compared."""
    if isinstance(found, Reshaped):
        return Reshaped(a.tensors[name].info, b.tensors[name].info)
    return replace(found, name=name)


def _renamed(removed: list[Tensor], added: list[Tensor], progress: Progress) -> list[Renamed]:
    """Pairs of equal ids, in order, one to one. Read are only those with a counterpart of their dtype and shape."""
    kinds = {_kind(tensor) for tensor in removed} & {_kind(tensor) for tensor in added}
    old = [tensor for tensor in removed if _kind(tensor) in kinds]
    new = [tensor for tensor in added if _kind(tensor) in kinds]
    shared = Serialized(progress)
    sizes = [tensor.nbytes for tensor in old + new]
    progress.start(sum(sizes), "look for renamed tensors")
    try:
        ids = list(in_order(lambda tensor: _id(tensor, shared), old + new, sizes, threads_for(old + new)))
    finally:
        progress.finish()
    waiting: dict[str, list[str]] = defaultdict(list)
    for tensor, id in reversed(list(zip(new, ids[len(old) :], strict=True))):
        waiting[id].append(tensor.name)
    return [
        Renamed(tensor.name, waiting[id].pop())
        for tensor, id in zip(old, ids[: len(old)], strict=True)
        if id and waiting.get(id)
    ]


def _kind(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype.name, tensor.shape


def _id(tensor: Tensor, progress: Progress) -> str:
    """The id; "" for what cannot be read, which is like nothing else."""
    try:
        return hash_tensor(tensor, progress)
    except (CorruptFileError, UnsupportedTensorError):
        return ""


def _metadata(a: Mapping[str, Any], b: Mapping[str, Any]) -> MetadataChanges:
    return MetadataChanges(
        added={key: value for key, value in b.items() if key not in a},
        removed={key: value for key, value in a.items() if key not in b},
        changed={key: (a[key], b[key]) for key in a if key in b and not _equal(a[key], b[key])},
    )


def _equal(a: Any, b: Any) -> bool:
    """Equal value and type: 1, 1.0 and True are three things, NaN is one."""
    return type(a) is type(b) and repr(a) == repr(b)
