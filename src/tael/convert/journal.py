# SPDX-License-Identifier: Apache-2.0
"""The journal of an unfinished output: whose it is, and which units are on disk, with their CRC-32s.

JSON lines. First a header: the plan's hash (empty when nothing is recorded) and the files it writes. Then one line per
finished unit, appended only after the unit's data was synced. A torn last line is what a crash leaves, and is ignored.
The file is also the lock of the target.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tael.core.location import safe_parts
from tael.errors import ResumeError, TaelError, TargetError, TargetExistsError

try:
    import fcntl
except ImportError:  # no file locks on Windows: two writers of one target are not noticed there
    fcntl = None  # type: ignore[assignment]

_MARK = "tael.journal"


@dataclass(frozen=True, slots=True)
class Header:
    plan: str
    files: tuple[str, ...]
    folder: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """A unit that is on disk: the CRC-32 of each of its slices, and what its casts counted, by tensor."""

    crcs: tuple[int, ...]
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # tensor -> overflow, nan_lost


class Journal:
    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1
        self.end = 0

    def claim(self, target: str) -> Header | None:
        """Open and lock the journal. The header that an earlier run left, or None.

        Raises `TargetError` when another process has it, `TargetExistsError` when the file is none of ours.
        """
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        if fcntl is not None:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise TargetError("another process is writing this target", path=target) from None
        status = os.fstat(self.fd)
        lines = self._lines() if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else [b"?"]
        if not lines and status.st_size == 0:
            return None
        try:
            head = json.loads(lines[0])
            if head[_MARK] != 1:
                raise ValueError(_MARK)
            files = tuple(str(name) for name in head["files"])
            for name in files:
                safe_parts(name, self.path)
            return Header(str(head["plan"]), files, bool(head["folder"]))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError, TaelError):
            raise TargetExistsError(
                "is in the way, and is no journal of ours", path=self.path, hint="rename or remove it"
            ) from None

    def start(self, plan_hash: str, files: Sequence[str], folder: bool) -> None:
        """Begin anew."""
        os.ftruncate(self.fd, 0)
        self.end = 0
        self._append([{_MARK: 1, "plan": plan_hash, "files": list(files), "folder": folder}])

    def load(self, target: str) -> dict[tuple[int, int], Finished]:
        """The finished units, by (file, unit). Raises `ResumeError` when the journal is damaged."""
        lines = self._lines()
        self.end = sum(len(line) + 1 for line in lines)
        try:
            return dict(_finished(json.loads(line)) for line in lines[1:])
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            raise ResumeError(
                "the journal of what was begun here is damaged", path=target, hint="run without --resume to start over"
            ) from None

    def add(self, finished: Mapping[tuple[int, int], Finished]) -> None:
        """Record units whose data is on disk."""
        lines: list[dict[str, Any]] = []
        for unit, done in finished.items():
            line: dict[str, Any] = {"u": list(unit), "c": list(done.crcs)}
            if done.counts:
                line["n"] = {name: list(counts) for name, counts in done.counts.items()}
            lines.append(line)
        self._append(lines)

    def remove(self) -> None:
        """Delete the file. The lock is held until `close`."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def _lines(self) -> list[bytes]:
        """The whole lines of the file."""
        raw = os.pread(self.fd, os.fstat(self.fd).st_size, 0)
        return raw[: raw.rfind(b"\n") + 1].splitlines() or ([raw] if raw else [])

    def _append(self, lines: Iterable[dict[str, Any]]) -> None:
        data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        while data:
            written = os.pwrite(self.fd, data, self.end)
            self.end += written
            data = data[written:]
        os.fsync(self.fd)


def _finished(line: Any) -> tuple[tuple[int, int], Finished]:
    file, unit = line["u"]
    counts = {str(name): (int(a), int(b)) for name, (a, b) in line.get("n", {}).items()}
    return (int(file), int(unit)), Finished(tuple(int(crc) for crc in line["c"]), counts)
