# SPDX-License-Identifier: Apache-2.0
"""Every error that tael raises on purpose.

    TaelError
    ├── NotAWeightFileError       an LFS pointer, an HTML page, an empty file, ...
    ├── UnsupportedFormatError    a weight file that no reader (or writer) here takes
    ├── AmbiguousFormatError      two formats claim the same bytes with equal confidence
    ├── CorruptFileError          the container's own rules are broken
    │   └── ChecksumError         stored checksum and bytes disagree
    ├── UnsupportedTensorError    sparse, meta, object or otherwise not plain numbers
    ├── LimitExceededError        a size in the file is beyond what `Limits` allows
    ├── UnsafeContentError        content that only executing it could resolve, or a path outside
    ├── LossRefusedError          `strict`: the target cannot hold something
    ├── TransformError            a rename collides, a selection is empty, a shape does not fit
    ├── TargetError
    │   ├── TargetExistsError     the output is there already and `force` was not given
    │   ├── TargetIsInputError    the output is, or lies inside, an input
    │   └── OutOfSpaceError       not enough disk for the planned output
    ├── SourceError
    │   ├── SourceNotFoundError   no such file, folder or URL
    │   ├── SourceChangedError    the input was replaced while it was read
    │   └── SourceReadError       the disk or the network failed, after retries
    ├── MemoryLimitError          the plan needs more than `max_memory`
    ├── ResumeError               the journal does not belong to this plan
    └── MissingExtraError         an optional dependency is not installed

An error says where (file, tensor, offset), what, and the way out, in one to three lines.
"""

from __future__ import annotations

__all__ = [
    "AmbiguousFormatError",
    "ChecksumError",
    "CorruptFileError",
    "LimitExceededError",
    "LossRefusedError",
    "MemoryLimitError",
    "MissingExtraError",
    "NotAWeightFileError",
    "OutOfSpaceError",
    "ResumeError",
    "SourceChangedError",
    "SourceError",
    "SourceNotFoundError",
    "SourceReadError",
    "TaelError",
    "TargetError",
    "TargetExistsError",
    "TargetIsInputError",
    "TransformError",
    "UnsafeContentError",
    "UnsupportedFormatError",
    "UnsupportedTensorError",
]

_LONGEST_NAME = 120
_LONGEST_PATH = 400


class TaelError(Exception):
    """Base of all: `cause` with, where known, `path`, `tensor`, `offset` and a `hint` (the way out)."""

    def __init__(
        self,
        cause: str,
        *,
        path: object = None,
        tensor: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(cause)
        self.cause = cause
        self.path = None if path is None else str(path)
        self.tensor = tensor
        self.offset = offset
        self.hint = hint

    def __str__(self) -> str:
        where = []
        if self.path is not None:
            where.append(clip_path(self.path))
        if self.tensor is not None:
            where.append(f"tensor {clip(self.tensor)!r}")
        if self.offset is not None:
            where.append(f"byte {self.offset}")
        text = ": ".join([", ".join(where), self.cause]) if where else self.cause
        return f"{text}\n  {self.hint}" if self.hint else text


def clip(text: str) -> str:
    """`text` short enough for a message: names from hostile files can be megabytes long."""
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 20]}...({len(text)} chars)"


def clip_path(path: object) -> str:
    """`path` short enough for a message. Its end, where the file is, is kept."""
    text = str(path)
    return text if len(text) <= _LONGEST_PATH else f"{text[:100]}...({len(text)} chars)...{text[-200:]}"


class NotAWeightFileError(TaelError): ...


class UnsupportedFormatError(TaelError): ...


class AmbiguousFormatError(TaelError): ...


class CorruptFileError(TaelError): ...


class ChecksumError(CorruptFileError): ...


class UnsupportedTensorError(TaelError): ...


class LimitExceededError(TaelError): ...


class UnsafeContentError(TaelError): ...


class LossRefusedError(TaelError): ...


class TransformError(TaelError): ...


class TargetError(TaelError): ...


class TargetExistsError(TargetError): ...


class TargetIsInputError(TargetError): ...


class OutOfSpaceError(TargetError): ...


class SourceError(TaelError): ...


class SourceNotFoundError(SourceError): ...


class SourceChangedError(SourceError): ...


class SourceReadError(SourceError): ...


class MemoryLimitError(TaelError): ...


class ResumeError(TaelError): ...


class MissingExtraError(TaelError): ...
