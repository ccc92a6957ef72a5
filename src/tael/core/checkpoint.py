# SPDX-License-Identifier: Apache-2.0
"""Checkpoint: the one thing every container opens into and every writer takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from tael.core.problem import Loss, Problem
from tael.core.source import ByteSource
from tael.core.tensor import Tensor
from tael.errors import CorruptFileError, TransformError

# A metadata value: str, int, float, bool, None, or lists and str-keyed dicts of those.
MetaValue = Any


@dataclass(frozen=True, slots=True, repr=False)
class Checkpoint:
    """Headers only. Close it, or use it as a context manager, to release its files.

    `tensors` keep file order. `metadata` is what any container should carry on; `extras` is private to a
    format, keys start with its id ("torch.tree", "hf.side_files", ...). `problems` is what the reader noticed,
    `losses` what transforms have left behind so far.
    """

    format: str
    path: str
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, MetaValue] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)
    problems: Sequence[Problem] = ()
    losses: Sequence[Loss] = ()
    sources: Sequence[ByteSource] = ()

    def __repr__(self) -> str:
        return f"<Checkpoint {self.path!r}: {self.format}, {len(self.tensors):,} tensors, {self.nbytes:,} bytes>"

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for source in self.sources:
            source.close()

    def check_unchanged(self) -> None:
        """Raise `SourceChangedError` if an input was replaced since it was opened."""
        for source in self.sources:
            source.check_unchanged()

    def with_tensors(self, tensors: Iterable[Tensor], **changes: Any) -> Checkpoint:
        """This checkpoint over other tensors (and other fields, by name). Two of one name: `TransformError`."""
        table: dict[str, Tensor] = {}
        for tensor in tensors:
            if tensor.name in table:
                raise TransformError("two tensors would have this name", path=self.path, tensor=tensor.name)
            table[tensor.name] = tensor
        return replace(self, tensors=table, **changes)

    @property
    def owners(self) -> list[Tensor]:
        """The tensors that are not aliases, in order."""
        return [tensor for tensor in self.tensors.values() if tensor.info.alias_of is None]

    @property
    def aliases(self) -> dict[str, str]:
        """Alias -> name that owns the bytes."""
        return {t.name: t.info.alias_of for t in self.tensors.values() if t.info.alias_of is not None}

    @property
    def parameters(self) -> int:
        """Elements, tied ones counted once."""
        return sum(tensor.info.parameters for tensor in self.owners)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, tied ones counted once."""
        return sum(tensor.nbytes for tensor in self.owners)

    def fatal(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "fatal"]

    def require_intact(self) -> None:
        """Raise `CorruptFileError` with the first fatal problem, if there is one."""
        fatal = self.fatal()
        if fatal:
            first = replace(fatal[0], where=None) if fatal[0].where == self.path else fatal[0]
            raise CorruptFileError(
                str(first) + (f" (and {len(fatal) - 1:,} more: `tael inspect` lists them)" if len(fatal) > 1 else ""),
                path=self.path,
                hint="fetch it again, leave tensors out with --drop NAME, or all that is damaged with --skip-damaged",
            )


def owners(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Every name -> the name that owns its bytes, itself for most. Chains are followed as far as they lead."""
    return {name: _owner(name, tensors) for name in tensors}


def _owner(name: str, tensors: Mapping[str, Tensor]) -> str:
    seen = {name}
    while True:
        parent = tensors[name].info.alias_of
        if parent is None or parent not in tensors or parent in seen:
            return name
        seen.add(parent)
        name = parent


Transform = Callable[[Checkpoint], Checkpoint]
