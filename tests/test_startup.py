# SPDX-License-Identifier: Apache-2.0
"""How fast it starts, and what it does not load. Times are medians of separate processes, with one more try."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import pytest

FRAMEWORKS = (
    "torch",
    "tensorflow",
    "jax",
    "flax",
    "onnx",
    "h5py",
    "transformers",
    "safetensors",
    "paddle",
    "coremltools",
)


def loaded_by(code: str) -> set[str]:
    """Top-level names of every module that a process has loaded after `code`."""
    report = "import sys; print(' '.join({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def seconds(arguments: list[str]) -> float:
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def assert_below(limit: float, arguments: list[str]) -> None:
    """Within `limit` seconds, or, on a slow machine, within `limit` as a share of what importing numpy takes there.

    numpy takes about 0.2 s where the limits were set.
    """
    for _ in range(2):
        taken = seconds(arguments)
        if taken < limit:
            return
        allowed = limit / 0.2 * seconds(["-c", "import numpy"])
        if taken < allowed:
            return
    pytest.fail(f"{arguments} took {taken:.3f} s, {limit:.3f} s are allowed (here: {allowed:.3f} s)")


RUN = "import sys; from tael.cli.app import main; sys.exit(main(sys.argv[1:]))"


def test_import_is_quick() -> None:
    assert_below(0.150, ["-c", "import tael"])


def test_help_is_quick() -> None:
    assert_below(0.250, ["-c", RUN, "--help"])


def test_version_is_quick() -> None:
    assert_below(0.150, ["-c", RUN, "--version"])


def test_import_loads_neither_numpy_nor_a_framework() -> None:
    assert loaded_by("import tael").isdisjoint({"numpy", "typer", "rich", "fsspec", *FRAMEWORKS})


def test_help_loads_no_verb() -> None:
    loaded = loaded_by("from tael.cli.app import main; main(['--help'])")
    assert "typer" in loaded
    assert loaded.isdisjoint({"numpy", "rich", "pydantic", "fsspec", *FRAMEWORKS})


def test_a_verb_loads_no_framework_and_no_second_parser() -> None:
    loaded = loaded_by("from tael.cli.app import main; main(['formats'])")
    assert "numpy" in loaded
    assert loaded.isdisjoint({"pydantic", "rich", *FRAMEWORKS})
