# SPDX-License-Identifier: Apache-2.0
"""The verbs as functions of paths: what `tael.inspect(...)`, `tael.verify(...)` and so on call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tael.core.limits import DEFAULT, Limits
from tael.core.progress import SILENT, Progress
from tael.formats import open_checkpoint

if TYPE_CHECKING:
    from tael.inspection.summary import Summary
    from tael.verify.compare import Comparison
    from tael.verify.diff import Diff
    from tael.verify.fingerprint import Fingerprint

Path = str | os.PathLike[str]


def inspect(path: Path, *, limits: Limits = DEFAULT) -> Summary:
    """What is inside: format, parameters, dtypes, modules, metadata, problems. Reads headers only."""
    from tael.inspection.summary import summarize

    with open_checkpoint(path, limits=limits) as checkpoint:
        return summarize(checkpoint)


def verify(a: Path, b: Path, *, atol: float = 0.0, rtol: float = 0.0, progress: Progress = SILENT) -> Comparison:
    """Do `a` and `b` hold the same tensors, bit for bit (or within |a - b| <= atol + rtol * |b|)?"""
    from tael.verify.compare import verify as compare

    with open_checkpoint(a) as left, open_checkpoint(b) as right:
        return compare(left, right, atol=atol, rtol=rtol, progress=progress)


def diff(a: Path, b: Path, *, progress: Progress = SILENT) -> Diff:
    """What changed from `a` to `b`: added, removed, renamed, retyped, reshaped, other values."""
    from tael.verify.diff import diff as compare

    with open_checkpoint(a) as left, open_checkpoint(b) as right:
        return compare(left, right, progress=progress)


def hash(path: Path, *, progress: Progress = SILENT) -> Fingerprint:
    """Ids of every tensor and of the whole, the same in every container, order and sharding."""
    from tael.verify.fingerprint import hash_checkpoint

    with open_checkpoint(path) as checkpoint:
        return hash_checkpoint(checkpoint, progress)
