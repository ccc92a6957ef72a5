# SPDX-License-Identifier: Apache-2.0
"""The progress bar: on standard error, if that is a terminal, and only for what takes longer than a second."""

from __future__ import annotations

import time
from typing import Any

from tael.cli import screen
from tael.cli.text import clip, safe
from tael.core.progress import SILENT, Progress

_PATIENCE = 1.0  # seconds before a bar appears
_LABEL_WIDTH = 32


def bar(quiet: bool) -> Progress:
    """Where a verb reports to."""
    return SILENT if quiet or not screen.stderr().is_terminal else _Bar()


class _Bar:
    """A `Progress` by rich, which is imported when the bar appears. It leaves no trace when it is finished."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._task: Any = None

    def start(self, total_bytes: int, label: str) -> None:
        self.finish()
        self._total, self._done, self._label = total_bytes, 0, clip(safe(label, 200), _LABEL_WIDTH)
        self._since = time.monotonic()

    def advance(self, nbytes: int) -> None:
        self._done += nbytes
        if self._shown is not None:
            self._shown.update(self._task, completed=self._done)
        elif time.monotonic() - self._since >= _PATIENCE:
            self._show()

    def finish(self) -> None:
        if self._shown is not None:
            self._shown.stop()
            self._shown = None

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._shown = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None, complete_style="cyan", finished_style="cyan"),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
            expand=True,
        )
        self._task = self._shown.add_task(self._label, total=self._total, completed=self._done)
        self._shown.start()
