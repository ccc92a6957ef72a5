# SPDX-License-Identifier: Apache-2.0
"""Outputs that are either complete or not there: `.part` beside the final name, fsync, rename.

An input is never opened for writing, whatever it is called. A set that replaces a set loses its old
index first and gets the new one last, so that at no moment an index speaks of files that are not there.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence

from tael.convert.plan import Plan
from tael.core.source import ByteSource, FileSource, InflateSource
from tael.errors import OutOfSpaceError, TargetError, TargetExistsError, TargetIsInputError

try:
    import fcntl
except ImportError:  # no file locks on Windows: two writers of one target are not noticed there
    fcntl = None  # type: ignore[assignment]

RESUME_HINT = "what was written is kept; run the same command with --resume to go on"


class Output:
    """The files of one plan on their way to their final names."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        # A symlink as target: what it points to is replaced, the link stays.
        self.path = os.path.realpath(plan.path)
        self.folder = os.path.dirname(self.path)
        if plan.folder:
            self.finals = [os.path.join(self.path, file.name) for file in plan.files]
            self.parts = [os.path.join(self.path + ".part", file.name) for file in plan.files]
        else:
            self.finals = [os.path.join(self.folder, file.name) for file in plan.files]
            self.parts = [final + ".part" for final in self.finals]
        self.journal = self.path + ".part.journal"
        self.fds: list[int] = []
        self._lock = -1

    # --- before anything is written

    def check(self, *, force: bool, inputs: Sequence[ByteSource], input_folder: str | None) -> None:
        """Refuse targets that are inputs, that exist (without `force`), or cannot be written."""
        self._refuse_inputs(inputs, input_folder)
        if not os.path.isdir(self.folder):
            raise TargetError("the folder to write into does not exist", path=self._as_typed(), hint="create it first")
        if not os.access(self.folder, os.W_OK):
            raise TargetError("this folder cannot be written", path=self._as_typed(), hint="write elsewhere")
        if self.plan.folder and os.path.exists(self.path) and not os.path.isdir(self.path):
            raise TargetExistsError("is a file; this target is a folder", path=self.plan.path)
        taken = [final for final in self.finals if os.path.lexists(final)]
        if self.plan.folder and os.path.isdir(self.path) and os.listdir(self.path):
            taken = taken or [self.path]
        directory = next((final for final in taken if os.path.isdir(final) and final != self.path), None)
        if directory:
            raise TargetExistsError("is a folder; this target is a file", path=directory)
        if taken and not force:
            raise TargetExistsError("exists already", path=taken[0], hint="--force replaces it")

    def _as_typed(self) -> str:
        """The folder written into, as the user spelled it."""
        return os.path.dirname(self.plan.path) or "."

    def _refuse_inputs(self, inputs: Sequence[ByteSource], input_folder: str | None) -> None:
        if input_folder is not None:
            root = os.path.realpath(input_folder)
            if os.path.commonpath([root, self.path]) == root:
                raise TargetIsInputError(
                    "the output would lie inside the input folder",
                    path=self.plan.path,
                    hint="write it beside the folder",
                )
        known: dict[tuple[int, int], str] = {}
        for path in _files_behind(inputs):
            with contextlib.suppress(OSError):
                status = os.stat(path)
                known[status.st_dev, status.st_ino] = path
        for candidate in (*self.finals, *self.parts, self.journal):
            with contextlib.suppress(OSError):
                status = os.stat(candidate)
                same = known.get((status.st_dev, status.st_ino))
                if same:
                    how = "is the input itself" if os.path.realpath(same) == candidate else f"is the input {same}"
                    raise TargetIsInputError(
                        f"{how}: an input is never overwritten", path=candidate, hint="choose another name"
                    )

    def check_space(self, needed: int) -> None:
        """Raise `OutOfSpaceError` when the disk cannot take `needed` more bytes."""
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise OutOfSpaceError(
                f"needs {needed:,} bytes, {free:,} are free",
                path=self._as_typed(),
                hint="free some space, or write elsewhere",
            )

    def has_journal(self) -> bool:
        """Was an earlier run interrupted that recorded something?"""
        return os.path.isfile(self.journal) and os.path.getsize(self.journal) > 0

    # --- writing

    def open(self, *, resume: bool) -> None:
        """Create (or for `resume` reopen) the .part files at their full size, and lock them."""
        with self._explained():
            if self.plan.folder:
                os.makedirs(self.path + ".part", exist_ok=True)
            self._take_lock()
            for path, file in zip(self.parts, self.plan.files, strict=True):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
                fd = os.open(path, flags | (0 if resume else os.O_TRUNC), 0o666)
                self.fds.append(fd)
                if os.fstat(fd).st_size != file.size:
                    os.ftruncate(fd, file.size)

    def _take_lock(self) -> None:
        self._lock = os.open(self.journal, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        if fcntl is not None:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise TargetError("another process is writing this target", path=self.plan.path) from None

    def sync(self) -> None:
        """Put everything written so far on disk."""
        for fd in self.fds:
            os.fsync(fd)

    def commit(self) -> None:
        """Sync, give every file its final name (the last of the plan last), and forget the journal."""
        with self._explained():
            self.sync()
            self._keep_modes()
            stale = self._old_set()
            if self.plan.folder and not os.path.exists(self.path):
                os.rename(self.path + ".part", self.path)
            else:
                for old in stale[:1]:  # the old index: from here on no index names a missing file
                    os.unlink(old)
                for part, final in zip(self.parts, self.finals, strict=True):
                    os.makedirs(os.path.dirname(final), exist_ok=True)
                    os.replace(part, final)
                for old in stale[1:]:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(old)
                if self.plan.folder:
                    shutil.rmtree(self.path + ".part", ignore_errors=True)
            os.unlink(self.journal)
            for folder in {os.path.dirname(final) for final in self.finals} | {self.folder}:
                _sync_folder(folder)

    def _keep_modes(self) -> None:
        for fd, final in zip(self.fds, self.finals, strict=True):
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(fd, stat.S_IMODE(os.stat(final).st_mode))

    def _old_set(self) -> list[str]:
        """The old index that this plan's index replaces, then the old shards that no longer belong to the set."""
        index = self.finals[-1]
        if not index.endswith(".index.json") or not os.path.isfile(index):
            return []
        found = [index]
        with contextlib.suppress(OSError, ValueError, AttributeError):
            with open(index, encoding="utf-8") as file:
                shards = set(json.load(file)["weight_map"].values())
            here = os.path.dirname(index)
            for name in sorted(shards):
                path = os.path.join(here, name)
                if os.path.basename(name) == name and path not in self.finals and os.path.isfile(path):
                    found.append(path)
        return found

    def discard(self) -> None:
        """Remove everything that was written."""
        for path in (*self.parts, self.journal):
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self.plan.folder:
            shutil.rmtree(self.path + ".part", ignore_errors=True)

    def close(self) -> None:
        for fd in (*self.fds, self._lock):
            if fd >= 0:
                os.close(fd)
        self.fds, self._lock = [], -1

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise target_error(error, self.plan.path) from None


def target_error(error: OSError, path: str) -> TargetError:
    """What went wrong while writing, in our words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        full = "a file may not become this large here" if error.errno == errno.EFBIG else "the disk is full"
        return OutOfSpaceError(full, path=path, hint=f"free some space; {RESUME_HINT}")
    if error.errno == errno.ELOOP:
        return TargetError(f"{error.filename} is a symbolic link: not followed", path=path)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return TargetError(f"cannot be written: {error.strerror}", path=path, hint="write where you have the right to")
    return TargetError(f"writing failed: {error.strerror}", path=path)


def resume_hint(path: str) -> str | None:
    """How to go on after an interrupt, or None when nothing worth going on from is kept for this target."""
    journal = os.path.realpath(path) + ".part.journal"
    return RESUME_HINT if os.path.exists(journal) and os.path.getsize(journal) > 0 else None


def _files_behind(sources: Iterable[ByteSource]) -> Iterator[str]:
    for source in sources:
        if isinstance(source, InflateSource):
            source = source.inner
        if isinstance(source, FileSource):
            yield source.path


def _sync_folder(folder: str) -> None:
    if not hasattr(os, "O_DIRECTORY"):
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
