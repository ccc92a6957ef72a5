# SPDX-License-Identifier: Apache-2.0
"""The journal of an unfinished output: which units are on disk, with their CRC-32s.

JSON lines. First the plan's hash, then one line per finished unit, appended only after the unit's data
was synced. A torn last line is what a crash leaves, and is ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tael.errors import ResumeError


@dataclass(frozen=True, slots=True)
class Finished:
    """A unit that is on disk: the CRC-32 of each of its slices, and what its casts counted, by tensor."""

    crcs: tuple[int, ...]
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # tensor -> overflow, nan_lost


class Journal:
    """Append-only, over the open file `fd`."""

    def __init__(self, fd: int, plan_hash: str) -> None:
        self.fd = fd
        self.plan_hash = plan_hash
        self.end = 0

    def start(self) -> None:
        """Begin anew."""
        os.ftruncate(self.fd, 0)
        self.end = 0
        self._append([{"tael.journal": 1, "plan": self.plan_hash}])

    def load(self, path: str) -> dict[tuple[int, int], Finished]:
        """The finished units, by (file, unit). Raises `ResumeError` when the journal is of another plan."""
        raw = os.pread(self.fd, os.fstat(self.fd).st_size, 0)
        whole = raw[: raw.rfind(b"\n") + 1]
        lines = [json.loads(line) for line in whole.splitlines()]
        if not lines or lines[0].get("plan") != self.plan_hash:
            raise ResumeError(
                "what was begun here is not this job: input, options or version differ",
                path=path,
                hint="run without --resume to start over",
            )
        self.end = len(whole)
        return {
            (line["u"][0], line["u"][1]): Finished(
                tuple(line["c"]), {name: (a, b) for name, (a, b) in line.get("n", {}).items()}
            )
            for line in lines[1:]
        }

    def add(self, finished: Mapping[tuple[int, int], Finished]) -> None:
        """Record units whose data is on disk."""
        lines: list[dict[str, Any]] = []
        for unit, done in finished.items():
            line: dict[str, Any] = {"u": list(unit), "c": list(done.crcs)}
            if done.counts:
                line["n"] = {name: list(counts) for name, counts in done.counts.items()}
            lines.append(line)
        self._append(lines)

    def _append(self, lines: list[dict[str, Any]]) -> None:
        data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        while data:
            written = os.pwrite(self.fd, data, self.end)
            self.end += written
            data = data[written:]
        os.fsync(self.fd)
