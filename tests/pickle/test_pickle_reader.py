# SPDX-License-Identifier: Apache-2.0
"""Where a pickle's bytes come from: what is read, what is stepped over, and what a LazyBytes decodes to."""

from __future__ import annotations

import codecs
import itertools
import pickle
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from malicious import whole

from tael.errors import CorruptFileError, LimitExceededError
from tael.pickle import LazyBytes, Reader, decode, decode_chunks, load


class Source:
    """Bytes that remember what was read of them; beyond `data` come `hollow` zero bytes that take no memory."""

    def __init__(self, data: bytes, hollow: int = 0, tail: bytes = b"") -> None:
        self.data, self.hollow, self.tail = data, hollow, tail
        self.size = len(data) + hollow + len(tail)
        self.reads: list[tuple[int, int]] = []

    def read_at(self, offset: int, size: int) -> bytes:
        assert 0 <= offset <= offset + size <= self.size
        self.reads.append((offset, size))
        out = self.data[offset : offset + size]
        middle = min(offset + size, len(self.data) + self.hollow) - max(offset, len(self.data))
        out += bytes(max(middle, 0))
        after = len(self.data) + self.hollow
        return out + self.tail[max(offset - after, 0) : max(offset + size - after, 0)]

    def reader(self, **options: Any) -> Reader:
        return Reader.over(self.read_at, self.size, **options)


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_long_bytes_are_stepped_over(protocol: int) -> None:
    payload = bytes(range(256)) * 4000
    data = pickle.dumps({"before": 1, "payload": payload, "after": [2]}, protocol)
    source = Source(data)
    reader = source.reader()
    found = load(reader).value
    assert found["after"] == [2]
    assert found["payload"] == LazyBytes(data.index(payload), len(payload))
    assert sum(size for _, size in source.reads) < 50_000
    assert reader.value(found["payload"]) == payload


def test_a_terabyte_of_payload_costs_nothing() -> None:
    size = 1 << 40
    source = Source(b"\x80\x05\x8e" + size.to_bytes(8, "little"), size, b"\x94\x96" + (70_000).to_bytes(8, "little"))
    source.tail += bytes(70_000) + b"h\x00\x87."
    source.size += 70_004
    tracemalloc.start()
    first, second, again = load(source.reader()).value
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (first.offset, first.nbytes) == (11, size)
    assert (second.offset, second.nbytes) == (11 + size + 10, 70_000)
    assert again is first
    assert peak < 1 << 20


@given(st.integers(1, 300_000), st.integers(0, 70_000), st.integers(0, 2**32))
def test_payloads_across_window_edges(long: int, short: int, seed: int) -> None:
    small = seed.to_bytes(5, "little") * (short // 5)
    value = [small, "é" * (long // 2), small, b"z" * long, "tail"]
    source = Source(b"junk" + pickle.dumps(value, 4))
    reader = source.reader(start=4)
    found = [reader.value(item) if type(item) is LazyBytes else item for item in load(reader).value]
    assert found == value
    assert reader.left == 0


def test_bytes_of_protocol_2_are_lazy_and_decode_in_pieces() -> None:
    payload = bytes(range(256)) * 400
    data = pickle.dumps(payload, 2)
    reader = Source(data).reader()
    lazy = load(reader).value
    assert (lazy.encoding, lazy.text, lazy.length) == ("utf-8", False, None)
    assert reader.value(lazy) == payload
    stored = reader.read(lazy.offset, lazy.nbytes)
    pieces = list(decode_chunks(lazy, [stored[at : at + 1000] for at in range(0, len(stored), 1000)]))
    assert b"".join(pieces) == payload
    assert max(map(len, pieces)) <= 1000


@pytest.mark.parametrize("line", [b"S'" + b"\\x8c\\n" * 30_000 + b"'\n", b"V" + b"\\u00e9x" * 30_000 + b"\n"])
def test_long_lines_are_lazy(line: bytes) -> None:
    for reader in (Reader(b"(" + line + b"I5\nt."), Source(b"(" + line + b"I5\nt.").reader()):
        lazy, number = load(reader).value
        assert number == 5
        assert lazy.text
        assert reader.value(lazy) == ("\x8c\n" if line[:1] == b"S" else "\xe9x") * 30_000


def test_a_line_without_end_is_not_searched_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(b"V", 1 << 40)
    monkeypatch.setattr("tael.pickle.literals.LONGEST_LINE", 1 << 22)
    with pytest.raises(LimitExceededError):
        load(source.reader())
    assert sum(size for _, size in source.reads) < 1 << 23


escaped = st.lists(st.sampled_from([*(bytes([byte]) for byte in b"\\\\\\x0123789abnrt'\"zf\xff"), b"\\\n"])).map(
    b"".join
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # codecs.escape_decode about "\z"
@given(escaped, st.lists(st.integers(0, 60), max_size=5))
def test_string_escapes_equal_those_of_codecs(stored: bytes, cuts: list[int]) -> None:
    lazy = LazyBytes(0, len(stored), "string-escape")
    edges = sorted({0, len(stored), *(cut for cut in cuts if cut < len(stored))})
    chunks = [stored[start:end] for start, end in itertools.pairwise(edges)]
    try:
        wanted = codecs.escape_decode(stored)[0]
    except ValueError:
        with pytest.raises(CorruptFileError):
            decode(lazy, stored)
        return
    assert decode(lazy, stored) == wanted
    assert b"".join(decode_chunks(lazy, chunks)) == wanted


def test_raw_text_is_latin1() -> None:
    assert decode(LazyBytes(0, 2, "raw", True), b"\x8ca") == "\x8ca"
    assert decode(LazyBytes(0, 2), b"\x8ca") == b"\x8ca"


@pytest.mark.parametrize(
    ("lazy", "stored"),
    [
        (LazyBytes(0, 3, "utf-8"), "层".encode()),
        (LazyBytes(0, 2, "utf-8"), b"\xff\xff"),
        (LazyBytes(0, 6, "raw-unicode-escape"), b"\\uzzzz"),
        (LazyBytes(0, 6, "raw-unicode-escape"), b"\\u5c42"),
        (LazyBytes(0, 2, "string-escape"), b"\\x"),
        (LazyBytes(0, 1, "string-escape"), b"\\"),
    ],
)
def test_stored_forms_that_do_not_decode(lazy: LazyBytes, stored: bytes) -> None:
    with pytest.raises(CorruptFileError):
        decode(lazy, stored)
    with pytest.raises(CorruptFileError):
        list(decode_chunks(lazy, [stored[:1], stored[1:]]))


def test_a_short_read_is_an_error() -> None:
    with pytest.raises(CorruptFileError):
        load(Reader.over(lambda offset, size: b"\x80\x04", 100))


def test_lengths_are_compared_before_anything_is_read() -> None:
    source = Source(whole(b"\x8e" + (1 << 62).to_bytes(8, "little")))
    with pytest.raises(CorruptFileError) as caught:
        load(source.reader())
    assert "4,611,686,018,427,387,904 more bytes, but 1 are left" in str(caught.value)
    assert sum(size for _, size in source.reads) <= source.size


def test_reading_outside_of_the_source_is_refused() -> None:
    reader = Reader(b"abcdef", base=10)
    assert reader.read(12, 2) == b"cd"
    for one in (reader, Source(b"abcdef").reader()):
        with pytest.raises(CorruptFileError):
            one.fill(one.size - 1, 2)
    for offset, size in [(9, 2), (15, 2), (-1, 1), (10, -1)]:
        with pytest.raises(CorruptFileError):
            reader.read(offset, size)
