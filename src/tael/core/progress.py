# SPDX-License-Identifier: Apache-2.0
"""Progress: how long work tells how far it is. The library never prints; whoever shows a bar implements this."""

from __future__ import annotations

import threading
from typing import Protocol


class Progress(Protocol):
    """One piece of work at a time: `start`, any number of `advance`, `finish` (also after an error).

    `advance` may come from worker threads, never from two at once.
    """

    def start(self, total_bytes: int, label: str) -> None:
        """`total_bytes` are going to be read (or written); `label` is a verb and a name, for people."""
        ...

    def advance(self, nbytes: int) -> None:
        """`nbytes` more are done."""
        ...

    def finish(self) -> None: ...


class _Silent:
    def start(self, total_bytes: int, label: str) -> None: ...

    def advance(self, nbytes: int) -> None: ...

    def finish(self) -> None: ...


SILENT: Progress = _Silent()


class Serialized:
    """Lets several threads advance one `Progress`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()

    def start(self, total_bytes: int, label: str) -> None:
        self._progress.start(total_bytes, label)

    def advance(self, nbytes: int) -> None:
        with self._lock:
            self._progress.advance(nbytes)

    def finish(self) -> None:
        self._progress.finish()
