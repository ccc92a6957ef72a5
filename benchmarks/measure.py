# SPDX-License-Identifier: Apache-2.0
"""Running commands side by side: wall time and peak memory of whole processes, in interleaved rounds.

This module imports nothing large: a child's peak memory starts from that of its parent.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Runs:
    """Every round's seconds and the highest peak RSS (bytes) of one command."""

    seconds: list[float] = field(default_factory=list)
    peak: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def run(commands: Sequence[Sequence[str]]) -> tuple[float, int]:
    """Run commands one after the other: seconds of all, peak RSS in bytes of the largest. A failure ends it all."""
    peak = 0
    started = time.monotonic()
    for command in commands:
        pid = os.posix_spawnp(command[0], list(command), os.environ)
        _, status, usage = os.wait4(pid, 0)
        if status:
            raise SystemExit(f"failed with status {status}: {' '.join(command)}")
        peak = max(peak, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
    return time.monotonic() - started, peak


def interleave(
    contenders: Mapping[str, Sequence[Sequence[str]]], rounds: int, before: Callable[[str], None]
) -> dict[str, Runs]:
    """Each contender once per round, in turn; `before` cleans up (and is not timed). Round 0 warms up, uncounted."""
    results = {name: Runs() for name in contenders}
    for number in range(rounds + 1):
        for name, commands in contenders.items():
            before(name)
            seconds, peak = run(commands)
            if number:
                results[name].seconds.append(seconds)
            results[name].peak = max(results[name].peak, peak)
    return results


def ratios(ours: Runs, theirs: Runs) -> tuple[float, float, float]:
    """Median, lowest and highest of ours / theirs, paired by round."""
    paired = sorted(a / b for a, b in zip(ours.seconds, theirs.seconds, strict=True))
    return statistics.median(paired), paired[0], paired[-1]
