# SPDX-License-Identifier: Apache-2.0
"""Ten seconds of fuzzing per format, and everything that was ever found, again."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.targets import seeds
from tael.formats.registry import BUILTIN

HERE = Path(__file__).parent


@pytest.mark.parametrize("format_id", BUILTIN)
def test_what_was_found_stays_mended(format_id: str) -> None:
    files = seeds(format_id)
    assert files, "no seeds: this would test nothing"

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    command = [sys.executable, str(HERE / "targets.py"), format_id, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * len(files), preexec_fn=bound)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.peer
@pytest.mark.parametrize("format_id", BUILTIN)
def test_ten_seconds_of_fuzzing_find_nothing(format_id: str) -> None:
    command = [sys.executable, str(HERE / "run.py"), "--seconds", "10", format_id]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "stat::number_of_executed_units" in done.stderr, "the fuzzer did not run"
