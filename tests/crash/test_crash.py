# SPDX-License-Identifier: Apache-2.0
"""Killed, interrupted, out of disk, not allowed: no half-written final name, inputs untouched, --resume finishes."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cases.files import safetensors, shard_set

TAEL = [sys.executable, "-m", "tael"]
# The journal for outputs of any size, small units, and time to be killed in between.
SLOW = """
import sys, time
from tael.convert import execute, plan
execute.JOURNAL_FROM, execute.JOURNAL_EVERY = 1 << 20, 2 << 20
execute.UNIT_BYTES = plan.UNIT_BYTES = 1 << 20
inner = execute._Run._execute
def slow(self, unit):
    time.sleep(0.05)
    return inner(self, unit)
execute._Run._execute = slow
from tael.cli.app import main
sys.argv = ["tael", *sys.argv[1:]]
sys.exit(main())
"""
FULL = """
import sys
from tael.convert import execute
from tael.convert.atomic import Output
Output.check_space = lambda self: None
execute.JOURNAL_FROM, execute.JOURNAL_EVERY = 1 << 20, 1 << 20
from tael.cli.app import main
sys.argv = ["tael", *sys.argv[1:]]
sys.exit(main())
"""


def run(*arguments: object, code: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [*TAEL] if code is None else [sys.executable, "-c", code]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A 48 MiB set of shards in a folder of its own."""
    rng = np.random.default_rng(3)
    parts = [{f"layers.{k}.weight": rng.random((1024, 3072), np.float32)} for k in range(4)]
    return shard_set(tmp_path / "in", parts).parent


def wait_for_a_part(folder: Path, child: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    while child.poll() is None and not list(folder.glob("*.part")):
        time.sleep(0.01)


def digest(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


TARGETS = {
    "copy": ("out.safetensors", []),
    "cast": ("out.safetensors", ["--dtype", "BF16"]),
    "torch": ("out.pt", []),
    "folder": ("out", ["--shard-size", "20MB"]),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_kill_9_at_random_points_then_resume(model: Path, tmp_path: Path, kind: str) -> None:
    name, options = TARGETS[kind]
    before = digest(model)
    straight, target = tmp_path / "straight" / name, tmp_path / "killed" / name
    straight.parent.mkdir()
    target.parent.mkdir()
    done = run("convert", model, straight, *options)
    assert done.returncode == 0, done.stderr
    rng = random.Random(kind)
    kills = 0
    while kills < 4:
        command = [sys.executable, "-c", SLOW, "convert", str(model), str(target), *options, "--resume", "--quiet"]
        with subprocess.Popen(command) as child:
            wait_for_a_part(target.parent, child)
            time.sleep(rng.random() * 0.7)
            child.kill()
        if child.returncode != -signal.SIGKILL:
            break
        kills += 1
        assert digest(model) == before
        if target.exists():  # killed behind the rename: then it is complete, which is compared below
            (tmp_path / "killed" / f"{name}.part.journal").unlink(missing_ok=True)
            break
    assert kills, "never killed in time: this tested nothing"
    if not target.exists():
        done = run("convert", model, target, *options, "--resume", code=SLOW)
        assert done.returncode == 0, done.stderr
    assert digest(model) == before
    if straight.is_dir():
        assert digest(target) == digest(straight)
    else:
        assert target.read_bytes() == straight.read_bytes()
    assert [p.name for p in target.parent.iterdir()] == [name], "something was left behind"


def test_ctrl_c_says_how_to_go_on(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.safetensors"
    command = [sys.executable, "-c", SLOW, "convert", str(model), str(target)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        wait_for_a_part(tmp_path, child)
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None
        said = child.stderr.read()
    assert child.returncode == 130
    assert "--resume" in said
    assert "Traceback" not in said
    assert not target.exists()
    done = run("convert", model, target, "--resume", code=SLOW)
    assert done.returncode == 0, done.stderr
    assert run("verify", model, target).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    if sys.platform != "linux":
        pytest.skip("needs a tmpfs")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_too_small_is_noticed_before_writing(model: Path, small_disk: Path) -> None:
    done = run("convert", model, small_disk / "out.safetensors")
    assert done.returncode == 2
    assert "bytes" in done.stderr
    assert "free" in done.stderr
    assert os.listdir(small_disk) == []


def test_a_disk_that_fills_up_keeps_the_part_and_resume_goes_on(model: Path, small_disk: Path) -> None:
    before = digest(model)
    done = run("convert", model, small_disk / "out.safetensors", code=FULL)
    assert done.returncode == 2
    assert "full" in done.stderr
    assert "--resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (small_disk / "out.safetensors").exists()
    subprocess.run(["mount", "-o", "remount,size=100m", str(small_disk)], check=True)
    done = run("convert", model, small_disk / "out.safetensors", "--resume", code=FULL)
    assert done.returncode == 0, done.stderr
    assert run("verify", model, small_disk / "out.safetensors").returncode == 0
    assert digest(model) == before
    assert os.listdir(small_disk) == ["out.safetensors"]


def test_a_target_that_cannot_be_written(model: Path, tmp_path: Path) -> None:
    done = run("convert", model, "/proc/out.safetensors")
    assert done.returncode == 2
    assert "/proc" in done.stderr
    assert "Traceback" not in done.stderr
    done = run("convert", model, tmp_path / "no" / "such" / "folder" / "out.pt")
    assert done.returncode == 2
    assert "does not exist" in done.stderr


def test_a_read_only_disk(model: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = run("convert", model, small_disk / "out.safetensors")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert done.stderr.count("\n") <= 3


def test_the_output_may_not_be_or_lie_in_the_input(model: Path) -> None:
    before = digest(model)
    for target in (model, model / "out.safetensors", model / "sub", model / "model-00001-of-00004.safetensors"):
        done = run("convert", model, target, "--force", "--to", "hf" if target.suffix == "" else "safetensors")
        assert done.returncode == 2, target
        assert "input" in done.stderr
    assert digest(model) == before


def test_two_writers_of_one_target(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.safetensors"
    command = [sys.executable, "-c", SLOW, "convert", str(model), str(target), "--quiet"]
    with subprocess.Popen(command) as child:
        wait_for_a_part(tmp_path, child)
        child.send_signal(signal.SIGSTOP)  # it must not finish before the second has looked
        try:
            second = run("convert", model, target)
        finally:
            child.send_signal(signal.SIGCONT)
        assert second.returncode == 2
        assert "another process" in second.stderr
    assert child.returncode == 0
    assert run("verify", model, target).returncode == 0


def test_bad_input_leaves_nothing_behind(tmp_path: Path) -> None:
    source = tmp_path / "x.safetensors"
    source.write_bytes(safetensors({"a": np.zeros(1000, np.float32)}))
    done = run("convert", source, tmp_path / "y.pt")
    assert done.returncode == 0, done.stderr
    data = bytearray((tmp_path / "y.pt").read_bytes())
    data[data.rindex(bytes(64)) + 5] ^= 1  # a bit of the tensor: its stored CRC-32 no longer holds
    (tmp_path / "y.pt").write_bytes(data)
    done = run("convert", tmp_path / "y.pt", tmp_path / "z.safetensors")
    assert done.returncode == 2
    assert "'a'" in done.stderr
    assert "CRC" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.safetensors", "y.pt"]
