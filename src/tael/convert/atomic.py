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
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence

from tael.convert.journal import Header, Journal
from tael.convert.plan import Plan
from tael.core.source import ByteSource, FileSource, InflateSource
from tael.errors import OutOfSpaceError, ResumeError, TargetError, TargetExistsError, TargetIsInputError

RESUME_HINT = "what was written is kept; run the same command with --resume to go on"


class Output:
    """The files of one plan on their way to their final names.

    Beside the target: NAME.part (or one for every file) and NAME.part.journal, which says that they are ours. What
    lies there without such a journal belongs to somebody else, and is never touched.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        # A symlink as target: what it points to is replaced, the link stays.
        self.path = os.path.realpath(plan.path)
        self.folder = os.path.dirname(self.path)
        self.finals = [os.path.join(self.path if plan.folder else self.folder, file.name) for file in plan.files]
        self.parts = [self._part(file.name, plan.folder) for file in plan.files]
        self.fds: list[int] = []
        self.journal = Journal(self.path + ".part.journal")
        self._inputs: dict[tuple[int, int], str] = {}  # device and inode -> path

    def _part(self, name: str, folder: bool) -> str:
        """Where the file `name` of a plan (for a folder, or not) is written."""
        if folder:
            return os.path.join(self.path + ".part", name)
        return os.path.join(self.folder, name) + ".part"

    # --- before anything is written

    def check(self, *, force: bool, inputs: Sequence[ByteSource], input_folder: str | None) -> None:
        """Refuse targets that are inputs, that exist (without `force`), or cannot be written."""
        self._refuse_inputs(inputs, input_folder)
        if not os.path.isdir(self.folder):
            raise TargetError("the folder to write into does not exist", path=self._as_typed(), hint="create it first")
        if not os.access(self.folder, os.W_OK):
            raise TargetError("this folder cannot be written", path=self._as_typed(), hint="write elsewhere")
        if self.plan.folder and os.path.exists(self.path) and not os.path.isdir(self.path):
            raise TargetExistsError("is no folder; this target is one", path=self.plan.path)
        taken = [final for final in self.finals if os.path.lexists(final)]
        for final in taken:
            kind = os.lstat(final).st_mode
            if not stat.S_ISREG(kind) and not (stat.S_ISLNK(kind) and self.plan.folder):
                what = "a folder" if stat.S_ISDIR(kind) else "a link, a device or a pipe"
                raise TargetExistsError(f"is {what}: not replaced by a file", path=final, hint="choose another name")
        if self.plan.folder and os.path.isdir(self.path) and os.listdir(self.path):
            taken = taken or [self.path]
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
        for path in _files_behind(inputs):
            with contextlib.suppress(OSError):
                self._inputs[_identity(path)] = path
        for candidate in (*self.finals, *self.parts, self.journal.path):
            same = self._input_behind(candidate)
            if same:
                how = "is the input itself" if os.path.realpath(same) == candidate else f"is the input {same}"
                raise TargetIsInputError(
                    f"{how}: an input is never overwritten", path=candidate, hint="choose another name"
                )

    def _input_behind(self, path: str) -> str | None:
        with contextlib.suppress(OSError):
            return self._inputs.get(_identity(path))
        return None

    def check_space(self) -> None:
        """Raise `OutOfSpaceError` when the disk cannot take what is still to be written."""
        there = sum(os.stat(part).st_blocks * 512 for part in self.parts if os.path.exists(part))
        needed = self.plan.nbytes - there
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise OutOfSpaceError(
                f"needs {needed:,} bytes, {free:,} are free",
                path=self._as_typed(),
                hint="free some space, or write elsewhere",
            )

    # --- writing

    def open(self, plan_hash: str, *, resume: bool) -> bool:
        """Lock the target and create the .part files at full size. With `resume` those of an interrupted run of the
        same plan are reopened: then the answer is True."""
        with self._explained():
            before = self.journal.claim(self.plan.path)
            try:
                begun = self._take_over(before, plan_hash, resume)
                if not begun:
                    self.journal.start(plan_hash, [file.name for file in self.plan.files], self.plan.folder)
            except BaseException:
                if before is None:
                    self.journal.remove()
                raise
            try:
                self._create(begun)
            except BaseException:
                if not begun:
                    self.discard()
                raise
            return begun

    def _take_over(self, before: Header | None, plan_hash: str, resume: bool) -> bool:
        """Is an earlier run gone on with? Else its leftovers are removed; what is not ours is refused."""
        if before is not None and resume and before.plan:
            if before.plan != plan_hash:
                raise ResumeError(
                    "what was begun here is not this job: input, options or version differ",
                    path=self.plan.path,
                    hint="run without --resume to start over",
                )
            return True
        if before is not None:
            for name in before.files:
                _unlink(self._part(name, before.folder))
            self._remove_part_folder()
        for part in [self.path + ".part"] if self.plan.folder else self.parts:
            if os.path.lexists(part):
                raise TargetExistsError(
                    "is in the way, and is none of ours",
                    path=part,
                    hint="rename or remove it, or choose another target",
                )
        return False

    def _create(self, begun: bool) -> None:
        if self.plan.folder:
            os.makedirs(self.path + ".part", exist_ok=begun)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        for path, file in zip(self.parts, self.plan.files, strict=True):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            fd = os.open(path, flags if begun else flags | os.O_EXCL, 0o666)
            self.fds.append(fd)
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise TargetExistsError("has another name, or is no file: none of ours", path=path)
            if status.st_size != file.size:
                os.ftruncate(fd, file.size)

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
            if self.plan.folder and not os.path.exists(self.path) and self._holds_nothing_else():
                os.rename(self.path + ".part", self.path)
            else:
                for old in stale[:1]:  # the old index: from here on no index names a missing file
                    os.unlink(old)
                for part, final in zip(self.parts, self.finals, strict=True):
                    os.makedirs(os.path.dirname(final), exist_ok=True)
                    os.replace(part, final)
                for old in stale[1:]:
                    _unlink(old)
                self._remove_part_folder()
            self.journal.remove()
            for folder in {os.path.dirname(final) for final in self.finals} | {self.folder}:
                _sync_folder(folder)

    def _holds_nothing_else(self) -> bool:
        root = self.path + ".part"
        there = {os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names}
        return there == set(self.parts)

    def _keep_modes(self) -> None:
        for fd, final in zip(self.fds, self.finals, strict=True):
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(fd, stat.S_IMODE(os.stat(final).st_mode))

    def _old_set(self) -> list[str]:
        """The old index that this plan's index replaces, then the shards of that set that are not in the new one.

        An index may come from a stranger: only names of the form BASE-0000k-of-0000n of this very set count.
        """
        index = self.finals[-1]
        base, suffix = os.path.splitext(os.path.basename(index).removesuffix(".index.json"))
        if not index.endswith(".index.json") or not os.path.isfile(index):
            return []
        found = [index]
        shard = re.compile(rf"{re.escape(base)}-\d+-of-\d+{re.escape(suffix)}")
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            with open(index, encoding="utf-8") as file:
                names = {str(name) for name in json.load(file)["weight_map"].values()}
            paths = (os.path.join(os.path.dirname(index), name) for name in sorted(names) if shard.fullmatch(name))
            found += [p for p in paths if p not in self.finals and os.path.isfile(p) and not self._input_behind(p)]
        return found

    def discard(self) -> None:
        """Remove everything that was written."""
        for path in self.parts:
            _unlink(path)
        self._remove_part_folder()
        self.journal.remove()

    def _remove_part_folder(self) -> None:
        """The folder of .part files, if nothing is left in it."""
        if not os.path.islink(self.path + ".part"):
            for folder, _, _ in os.walk(self.path + ".part", topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        self.journal.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise target_error(error, self.plan.path) from None


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _unlink(path: str) -> None:
    """Remove a file of ours, if it is there."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)


def target_error(error: OSError, path: str) -> TargetError:
    """What went wrong while writing, in our words."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        full = "a file may not become this large here" if error.errno == errno.EFBIG else "the disk is full"
        return OutOfSpaceError(full, path=path, hint="; ".join(filter(None, ["free some space", resume_hint(path)])))
    if error.errno == errno.ELOOP:
        return TargetError(f"{error.filename} is a symbolic link: not followed", path=path)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return TargetError(f"cannot be written: {error.strerror}", path=path, hint="write where you have the right to")
    return TargetError(f"writing failed: {error.strerror}", path=path)


def resume_hint(path: str) -> str | None:
    """How to go on after an interrupt, or None when nothing worth going on from is kept for this target."""
    with contextlib.suppress(OSError), open(os.path.realpath(path) + ".part.journal", "rb") as file:
        if file.read(1 << 20).count(b"\n") > 1:
            return RESUME_HINT
    return None


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
