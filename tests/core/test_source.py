# SPDX-License-Identifier: Apache-2.0
"""FileSource, BytesSource, InflateSource: right bytes, clear errors, JSON and back."""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import threading
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tael.core.source import ByteSource, BytesSource, FileSource, InflateSource, open_ref, read
from tael.errors import CorruptFileError, SourceChangedError, SourceNotFoundError, SourceReadError

DATA = random.Random(3).randbytes(5000) * 400  # 2 MB that deflate well, in more than one step


def deflated(data: bytes) -> bytes:
    engine = zlib.compressobj(6, zlib.DEFLATED, -15)
    return engine.compress(data) + engine.flush()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "data.bin"
    file.write_bytes(DATA)
    return file


def sources(path: Path) -> list[ByteSource]:
    packed = deflated(DATA)
    inflate = InflateSource(BytesSource(b"head" + packed + b"tail"), 4, len(packed), len(DATA), "member")
    return [FileSource(path), BytesSource(DATA), inflate]


def test_any_range_is_the_data(path: Path) -> None:
    chance = random.Random(4)
    for source in sources(path):
        assert isinstance(source, ByteSource)
        assert source.size == len(DATA)
        for _ in range(30):
            offset = chance.randrange(len(DATA))
            count = min(chance.choice([0, 1, 100, 300_000]), len(DATA) - offset)
            assert read(source, offset, count) == DATA[offset : offset + count], source
        assert read(source, 0, len(DATA)) == DATA
        assert read(source, len(DATA), 0) == b""
        source.check_unchanged()
        source.close()


def test_buffers_of_any_item_size_are_filled(path: Path) -> None:
    for source in sources(path):
        wide = memoryview(bytearray(80)).cast("d")
        source.read_into(16, wide)
        assert wide.cast("B") == DATA[16:96]


@pytest.mark.parametrize(
    ("offset", "count"), [(0, len(DATA) + 1), (len(DATA), 1), (len(DATA) + 5, 0), (-1, 1), (5, -1)]
)
def test_ranges_outside_are_refused(path: Path, offset: int, count: int) -> None:
    for source in sources(path):
        with pytest.raises(CorruptFileError):
            read(source, offset, count)


@pytest.mark.parametrize(("offset", "count"), [(len(DATA) - 1, 2), (len(DATA) + 9, 1), (-1, 2)])
def test_read_into_outside_is_refused(path: Path, offset: int, count: int) -> None:
    for source in sources(path):
        with pytest.raises((CorruptFileError, SourceReadError)):
            source.read_into(offset, memoryview(bytearray(count)))


def test_huge_request_allocates_nothing() -> None:
    with pytest.raises(CorruptFileError, match="ends at 3"):
        read(BytesSource(b"abc"), 0, 1 << 60)


def test_refs_open_the_same_bytes_again(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for source in [*sources(path), FileSource("data.bin")]:
        ref = json.loads(json.dumps(source.ref))
        monkeypatch.chdir("/")
        again = open_ref(ref)
        monkeypatch.chdir(tmp_path)
        assert json.dumps(again.identity) == json.dumps(source.identity)
        assert read(again, 1000, 50) == DATA[1000:1050]
    with pytest.raises(SourceReadError, match="unknown kind of source"):
        open_ref({"tape": 1})


def test_identity_tells_contents_apart(path: Path) -> None:
    before = [source.identity for source in sources(path)]
    assert BytesSource(DATA[:-1] + b"?").identity != before[1]
    os.utime(path, ns=(0, 1))
    assert FileSource(path).identity != before[0]


def test_threads_share_one_source(path: Path) -> None:
    for source in sources(path):
        wrong: list[int] = []

        def work(seed: int, source: ByteSource = source, wrong: list[int] = wrong) -> None:
            chance = random.Random(seed)
            for _ in range(15):
                offset = chance.randrange(len(DATA) - 1000)
                if read(source, offset, 1000) != DATA[offset : offset + 1000]:
                    wrong.append(offset)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


# --- files ------------------------------------------------------------------------------------------------------------


def test_file_without_preadv(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "preadv")
    assert read(FileSource(path), 5, 100_000) == DATA[5:100_005]


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="no such file"):
        FileSource(tmp_path / "none")
    with pytest.raises(SourceReadError, match="not a regular file"):
        FileSource(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    begin = time.monotonic()
    with pytest.raises(SourceReadError, match="not a regular file"):
        FileSource(tmp_path / "pipe")
    assert time.monotonic() - begin < 1
    with pytest.raises(SourceReadError, match="not a regular file"):
        FileSource("/dev/null")
    with pytest.raises(SourceNotFoundError):
        FileSource(tmp_path / "a\0b")
    with pytest.raises(SourceReadError, match="cannot be opened"):
        FileSource(tmp_path / ("x" * 300))


def test_refused_files_leave_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(SourceReadError):
            FileSource(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_refused_file_closes_its_descriptor_once(tmp_path: Path) -> None:
    """Closed twice, the second time would hit whoever got the number meanwhile."""
    (tmp_path / "x").write_bytes(b"abc")
    with pytest.raises(SourceReadError) as caught:
        FileSource(tmp_path)
    source = FileSource(tmp_path / "x")
    del caught  # and with it the refused one
    gc.collect()
    assert read(source, 0, 3) == b"abc"


def test_file_cut_while_open(path: Path) -> None:
    source = FileSource(path)
    os.truncate(path, 1000)
    with pytest.raises(CorruptFileError, match="ends at byte 1,000, 500 bytes early"):
        source.read_into(500, memoryview(bytearray(1000)))
    with pytest.raises(SourceChangedError):
        source.check_unchanged()


def test_replaced_touched_and_removed_files_are_changed_files(path: Path) -> None:
    source = FileSource(path)
    source.check_unchanged()
    os.utime(path, ns=(0, source.identity[1] + 1))
    with pytest.raises(SourceChangedError, match="changed"):
        source.check_unchanged()
    source = FileSource(path)
    other = path.with_suffix(".new")
    other.write_bytes(DATA)
    os.utime(other, ns=(0, source.identity[1]))
    os.replace(other, path)
    with pytest.raises(SourceChangedError, match="changed"):
        source.check_unchanged()
    source = FileSource(path)
    path.unlink()
    with pytest.raises(SourceChangedError, match="removed"):
        source.check_unchanged()


def test_reading_a_closed_file_is_an_error_of_ours(path: Path) -> None:
    source = FileSource(path)
    source.close()
    source.close()
    with pytest.raises(SourceReadError):
        source.read_into(0, memoryview(bytearray(1)))


def test_more_files_than_the_soft_limit(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    if hard < used + 100:
        pytest.skip("the hard limit leaves no room")
    (tmp_path / "x").write_bytes(b"abc")
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
    try:
        opened = [FileSource(tmp_path / "x") for _ in range(60)]
        assert read(opened[-1], 0, 3) == b"abc"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- deflated ---------------------------------------------------------------------------------------------------------


def test_inflate_reads_forward_once() -> None:
    packed = deflated(DATA)
    taken: list[int] = []

    class Counting(BytesSource):
        def read_into(self, offset: int, buffer: memoryview) -> None:
            taken.append(len(buffer))
            super().read_into(offset, buffer)

    source = InflateSource(Counting(packed), 0, len(packed), len(DATA), "m")
    for offset in range(0, len(DATA), 50_000):
        read(source, offset, min(50_000, len(DATA) - offset))
    assert sum(taken) == len(packed)
    read(source, 0, 1)
    assert sum(taken) > len(packed)


@given(st.binary(max_size=3000), st.data())
def test_inflate_any_data(data: bytes, draw: st.DataObject) -> None:
    packed = deflated(data)
    source = InflateSource(BytesSource(packed), 0, len(packed), len(data), "m")
    for _ in range(3):
        offset = draw.draw(st.integers(0, len(data)))
        count = draw.draw(st.integers(0, len(data) - offset))
        assert read(source, offset, count) == data[offset : offset + count]


def test_inflate_of_less_than_promised() -> None:
    packed = deflated(b"abc" * 100)
    source = InflateSource(BytesSource(packed), 0, len(packed), 301, "m")
    assert read(source, 0, 300) == b"abc" * 100
    with pytest.raises(CorruptFileError, match="inflates to 300 bytes, 301 promised"):
        read(source, 0, 301)


@pytest.mark.parametrize("cut", [0, 1, 5, 50])
def test_inflate_of_a_cut_stream(cut: int) -> None:
    data = random.Random(5).randbytes(200)
    source = InflateSource(BytesSource(deflated(data)[:cut]), 0, cut, 200, "m")
    with pytest.raises(CorruptFileError):
        read(source, 0, 200)


def test_inflate_of_garbage_and_beyond_the_file() -> None:
    with pytest.raises(CorruptFileError, match="deflated data is broken"):
        read(InflateSource(BytesSource(b"\xff" * 50), 0, 50, 10, "m"), 0, 10)
    with pytest.raises(CorruptFileError):
        read(InflateSource(BytesSource(b"\xff" * 50), 40, 20, 10, "m"), 0, 10)


def test_inflate_after_an_error_starts_over() -> None:
    """An error must not leave the stream in the middle, where later reads would give other bytes."""
    data = random.Random(6).randbytes(1 << 20)  # does not deflate: several steps of input
    packed = deflated(data)
    flaky = _Flaky(packed)
    source = InflateSource(flaky, 0, len(packed), len(data), "m")
    assert read(source, 1000, 1000) == data[1000:2000]
    with pytest.raises(SourceReadError):
        read(source, 0, len(data))
    flaky.fails = False
    assert read(source, len(data) - 1000, 1000) == data[-1000:]
    assert read(source, 0, len(data)) == data


class _Flaky(BytesSource):
    fails = True

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if self.fails and offset:
            raise SourceReadError("the network failed")
        super().read_into(offset, buffer)


def test_inflate_bomb_stays_small(tmp_path: Path) -> None:
    """1 GB of zeros in 1 MB: reading a little of it holds a little of it."""
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = b"".join(engine.compress(bytes(1 << 20)) for _ in range(64)) + engine.flush()
    source = InflateSource(BytesSource(packed), 0, len(packed), 64 << 20, "m")
    assert read(source, (64 << 20) - 10, 10) == bytes(10)
