# SPDX-License-Identifier: Apache-2.0
"""The hostile corpus, loaded once in a watched child: nothing runs, nothing is touched, time and memory are bounded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from malicious import CORPUS

PRISON = Path(__file__).with_name("prison.py")
SECONDS = 10.0  # of processor time for one item
PEAK_KIB = 900 * 1024


def run(canaries: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TAEL_CANARY": str(canaries)}
    return subprocess.run(
        [sys.executable, str(PRISON), *args],
        env=environment, capture_output=True, text=True, timeout=600, cwd=canaries, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    canaries = tmp_path_factory.mktemp("canaries")
    done = run(canaries)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        "": {**lines.pop(), "canaries": sorted(os.listdir(canaries)), "stderr": done.stderr},
        **{line["name"]: line for line in lines},
    }


def test_the_corpus_is_large_and_its_names_unique() -> None:
    assert len(CORPUS) >= 150
    assert len({item.name for item in CORPUS}) == len(CORPUS)
    assert sum(item.live for item in CORPUS) >= 15


def test_canaries_sing_when_the_real_unpickler_loads_the_corpus(tmp_path: Path) -> None:
    live = [item.name for item in CORPUS if item.live]
    run(tmp_path, "control", *live)
    expected = sorted("inner" if name == "nested_c_loads" else name for name in live)
    assert sorted(os.listdir(tmp_path)) == expected


def test_nothing_is_executed(reports: dict[str, dict[str, Any]]) -> None:
    assert reports[""]["canaries"] == []
    assert {name: report["events"] for name, report in reports.items() if name and report["events"]} == {}


def test_results_are_inert(reports: dict[str, dict[str, Any]]) -> None:
    assert {name: report["foreign"] for name, report in reports.items() if name and report["foreign"]} == {}


def test_every_item_ends_as_foreseen(reports: dict[str, dict[str, Any]]) -> None:
    outcomes = {item.name: reports[item.name]["outcome"] for item in CORPUS}
    assert outcomes == {item.name: item.outcome for item in CORPUS}


def test_time_and_memory_are_bounded(reports: dict[str, dict[str, Any]]) -> None:
    assert {name: report["seconds"] for name, report in reports.items() if name and report["seconds"] > SECONDS} == {}
    assert reports[""]["peak_kib"] < PEAK_KIB


def test_numpy_is_not_needed(reports: dict[str, dict[str, Any]]) -> None:
    assert reports[""]["numpy"] is False
