# SPDX-License-Identifier: Apache-2.0
"""What happens on disk: D4 D5 D6 D7."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cases.files import safetensors, shard_set, values
from tael.convert import convert
from tael.errors import TargetIsInputError

A = np.arange(600, dtype=np.float32)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".npz", ".npy"])
def test_d4_saving_over_the_file_just_opened_is_refused_and_the_file_stays(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "a.safetensors").write_bytes(safetensors({"a": A}))
    path = tmp_path / f"x{suffix}"
    convert(tmp_path / "a.safetensors", path)
    before = path.read_bytes()
    with pytest.raises(TargetIsInputError):
        convert(path, path, force=True)
    assert path.read_bytes() == before


def test_d5_the_target_is_replaced_never_opened_for_writing(tmp_path: Path) -> None:
    (tmp_path / "in.safetensors").write_bytes(safetensors({"a": A}))
    target = tmp_path / "out.safetensors"
    target.write_bytes(b"the old file" * 100)
    with target.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        convert(tmp_path / "in.safetensors", target, force=True)
        assert mapped[:12] == b"the old file", "the mapped file was written to"
        assert os.fstat(file.fileno()).st_ino != target.stat().st_ino
    assert (values(target)["a"] == A).all()


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_d6_new_files_get_the_umask_and_replaced_ones_keep_their_mode(tmp_path: Path, umask: int) -> None:
    (tmp_path / "in.safetensors").write_bytes(safetensors({"a": A}))
    old = os.umask(umask)
    try:
        (tmp_path / "sibling").write_bytes(b"")
        convert(tmp_path / "in.safetensors", tmp_path / "out.pt")
        convert(tmp_path / "in.safetensors", tmp_path / "folder", to="hf")
        (tmp_path / "sibling_folder").mkdir()
    finally:
        os.umask(old)
    mode = (tmp_path / "sibling").stat().st_mode
    assert (tmp_path / "out.pt").stat().st_mode == mode
    assert (tmp_path / "folder" / "model.safetensors").stat().st_mode == mode
    assert (tmp_path / "folder").stat().st_mode == (tmp_path / "sibling_folder").stat().st_mode
    (tmp_path / "out.pt").chmod(0o640)
    convert(tmp_path / "in.safetensors", tmp_path / "out.pt", force=True)
    assert (tmp_path / "out.pt").stat().st_mode & 0o777 == 0o640


def test_d7_many_shards_are_streamed_not_held(tmp_path: Path) -> None:
    shard = np.arange(4 << 20, dtype=np.float32)  # 16 MiB
    index = shard_set(tmp_path / "m", [{f"layer.{k}.weight": shard + k} for k in range(64)])
    code = f"""
import tael
tael.convert({str(index)!r}, {str(tmp_path / "out.safetensors")!r}, dtype="BF16")
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(peak)
"""  # not ru_maxrss: a child inherits its parent's

    def half_of_the_model() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (512 << 20, 512 << 20))

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=half_of_the_model, check=False
    )
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout) * 1024
    print(f"1 GiB of shards, cast: peak RSS {peak / 1e6:.0f} MB")
    assert peak < 150e6
    assert (tmp_path / "out.safetensors").stat().st_size > 64 * shard.nbytes // 2
