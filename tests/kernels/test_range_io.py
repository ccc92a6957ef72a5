# SPDX-License-Identifier: Apache-2.0
"""copy_range and crc32_range: what lands where, short inputs, full disks, many threads."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tael.kernels import copy_range, crc32_range

DATA = random.Random(1).randbytes(3_000_017)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("want_crc", [False, True])
@pytest.mark.parametrize("n", [0, 1, 255, 262_144, 262_145, 2_900_000])
def test_a_range_lands_where_it_should(source: int, target: int, n: int, want_crc: bool) -> None:
    os.pwrite(target, b"\xee" * 3_000_000, 0)
    crc = copy_range(source, 17, target, 33, n, want_crc)
    assert crc == (zlib.crc32(DATA[17 : 17 + n]) if want_crc else 0)
    whole = os.pread(target, 4_000_000, 0)
    assert whole == b"\xee" * 33 + DATA[17 : 17 + n] + b"\xee" * (3_000_000 - 33 - n)
    assert os.lseek(source, 0, os.SEEK_CUR) == os.lseek(target, 0, os.SEEK_CUR) == 0


def test_crc32_of_a_range(source: int) -> None:
    assert crc32_range(source, 5, 2_000_000) == zlib.crc32(DATA[5:2_000_005])
    assert crc32_range(source, len(DATA), 0) == 0


@pytest.mark.parametrize("want_crc", [False, True])
def test_an_input_that_ends_early(source: int, target: int, want_crc: bool) -> None:
    with pytest.raises(EOFError, match="ends at byte 3000017; 100 bytes were wanted from byte 3000000"):
        copy_range(source, 3_000_000, target, 0, 100, want_crc)
    with pytest.raises(EOFError):
        copy_range(source, 10**9, target, 0, 1, want_crc)
    with pytest.raises(EOFError):
        crc32_range(source, 0, len(DATA) + 1)


def test_errors_keep_their_number(source: int, target: int, tmp_path: Path) -> None:
    read_only = os.open(tmp_path / "source", os.O_RDONLY)
    write_only = os.open(tmp_path / "target", os.O_WRONLY)
    try:
        for want_crc in (False, True):
            with pytest.raises(OSError, match="Bad file descriptor") as caught:
                copy_range(source, 0, read_only, 0, 10, want_crc)
            assert caught.value.errno == errno.EBADF
            with pytest.raises(OSError, match="Bad file descriptor"):
                copy_range(write_only, 0, target, 0, 10, want_crc)
    finally:
        os.close(read_only)
        os.close(write_only)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Is a directory"):
            crc32_range(directory, 0, 1)
    finally:
        os.close(directory)
    with pytest.raises(TypeError):
        copy_range(source, -1, target, 0, 10)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
@pytest.mark.parametrize("want_crc", [False, True])
def test_a_device_that_is_always_full(source: int, want_crc: bool) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space") as caught:
            copy_range(source, 0, full, 0, 1000, want_crc)
        assert caught.value.errno == errno.ENOSPC
    finally:
        os.close(full)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting a small disk needs root")
@pytest.mark.parametrize("want_crc", [False, True])
def test_a_disk_that_fills_up(source: int, tmp_path: Path, want_crc: bool) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this system does not allow mounts")
    try:
        target = os.open(disk / "target", os.O_RDWR | os.O_CREAT)
        try:
            with pytest.raises(OSError, match="No space") as caught:
                copy_range(source, 0, target, 0, 2_000_000, want_crc)
            assert caught.value.errno == errno.ENOSPC
            assert os.pread(target, 4096, 0) == DATA[:4096]
        finally:
            os.close(target)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(sys.platform == "win32", reason="named pipes")
def test_a_pipe_is_refused_not_waited_for(target: int) -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(OSError, match="Illegal seek"):
            copy_range(reader, 0, target, 0, 10, True)
    finally:
        os.close(reader)
        os.close(writer)


def test_threads_share_descriptors(source: int, target: int) -> None:
    step = 100_000
    starts = range(0, len(DATA), step)

    def copy(start: int) -> int:
        return copy_range(source, start, target, start, min(step, len(DATA) - start), True)

    with ThreadPoolExecutor(4) as pool:
        crcs = list(pool.map(copy, starts))
    assert crcs == [zlib.crc32(DATA[start : start + step]) for start in starts]
    assert os.pread(target, 4_000_000, 0) == DATA


def test_the_lock_is_released_while_copying(source: int, target: int) -> None:
    """Another thread makes progress during one long call."""
    turns, stop = [0], threading.Event()

    def spin() -> None:
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0.0001)

    thread = threading.Thread(target=spin)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # seconds: nobody gets a turn unless the lock is given up
    try:
        thread.start()
        before = turns[0]
        for _ in range(2000):  # a busy machine may not wake the other thread in the first calls
            crc32_range(source, 0, len(DATA))
            if turns[0] > before:
                break
        assert turns[0] > before
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()
