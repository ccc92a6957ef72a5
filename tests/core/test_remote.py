# SPDX-License-Identifier: Apache-2.0
"""HTTP and fsspec sources against servers and stores that behave, and that do not."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile
from hypothesis import given
from hypothesis import strategies as st

from http_server import RangeServer
from tael.core import readahead, remote, remote_client, remote_http
from tael.core.location import LocalLocation, locate
from tael.core.readahead import BLOCK, CACHE_BLOCKS, ReadAhead
from tael.core.remote import UrlLocation, open_url
from tael.core.remote_client import Policy
from tael.core.remote_http import HEAD, WHOLE, HttpSource
from tael.core.remote_pool import redact
from tael.core.source import ByteSource, FileSource, open_ref, read
from tael.errors import (
    CorruptFileError,
    MissingExtraError,
    SourceChangedError,
    SourceNotFoundError,
    SourceReadError,
    TaelError,
    UnsafeContentError,
)

DATA = random.Random(1).randbytes(1_500_000)
FILE = "/models/model.safetensors"
QUICK = Policy(attempts=4, backoff=0.01, longest_wait=1.0, connect=2.0, silence=1.0, opening=8.0, patience=8.0)


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with RangeServer({FILE: DATA}) as running:
        yield running


def http(server: RangeServer, path: str = FILE, **policy: float) -> HttpSource:
    return HttpSource(server.url(path), Policy(**{**_as_dict(QUICK), **policy}))  # type: ignore[arg-type]


def _as_dict(policy: Policy) -> dict[str, float]:
    return {name: getattr(policy, name) for name in Policy.__slots__}


# --- a server as it should be -----------------------------------------------------------------------------------------


def test_reads_are_the_file(server: RangeServer) -> None:
    source = http(server)
    assert source.size == len(DATA)
    assert isinstance(source, ByteSource)
    chance = random.Random(2)
    for _ in range(60):
        offset = chance.choice([0, 1, HEAD - 1, HEAD, len(DATA) - 1, chance.randrange(len(DATA))])
        count = min(chance.choice([0, 1, 17, BLOCK - 1, BLOCK, 200_000]), len(DATA) - offset)
        assert read(source, offset, count) == DATA[offset : offset + count]
    assert read(source, 0, len(DATA)) == DATA


@given(
    size=st.integers(0, 5 * BLOCK),
    head=st.sampled_from([0, 1, BLOCK]),
    reads=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3 * BLOCK)), max_size=12),
)
def test_read_ahead_is_what_fetch_gives(size: int, head: int, reads: list[tuple[float, int]]) -> None:
    data = DATA[:size]

    def fetch(offset: int, buffer: memoryview) -> None:
        assert 0 <= offset < offset + len(buffer) <= size
        buffer[:] = data[offset : offset + len(buffer)]

    ahead = ReadAhead(fetch, size, data[:head])
    for where, count in reads:
        offset = int(where * size)
        out = bytearray(min(count, size - offset))
        ahead.read_into(offset, memoryview(out))
        assert out == data[offset : offset + len(out)]
    ahead.close()


def test_opening_is_one_request_and_the_head_is_free(server: RangeServer) -> None:
    source = http(server)
    read(source, 0, HEAD)
    assert [request.range for request in server.requests] == [(0, HEAD - 1)]


def test_large_read_is_one_request_for_the_bytes_not_there_yet(server: RangeServer) -> None:
    source = http(server)
    read(source, 8, 1_000_000)
    assert [request.range for request in server.requests[1:]] == [(HEAD, 1_000_007)]


def test_small_reads_in_sequence_share_requests_that_grow(server: RangeServer) -> None:
    source = http(server)
    for offset in range(0, 12 * BLOCK, 1000):
        read(source, offset, 1000)
    ranges = [request.range for request in server.requests]
    assert [(b + 1 - a) // BLOCK for a, b in ranges] == [1, 2, 4, 4, 4]
    assert server.sent <= 12 * BLOCK + 4 * BLOCK


def test_scattered_small_reads_fetch_a_block_each(server: RangeServer) -> None:
    source = http(server)
    for block in (20, 10, 15):
        read(source, block * BLOCK + 5, 10)
        read(source, block * BLOCK + 500, 10)
    assert [request.sent for request in server.requests[1:]] == [BLOCK] * 3


def test_cache_is_bounded_over_all_sources_and_freed_on_close() -> None:
    readers = [ReadAhead(lambda offset, buffer: None, BLOCK * 400) for _ in range(3)]
    for reader in readers:
        for block in range(200):
            reader.read_into(block * BLOCK, memoryview(bytearray(10)))
    assert len(readahead.CACHE) == CACHE_BLOCKS
    for reader in readers:
        reader.close()
    assert len(readahead.CACHE) < CACHE_BLOCKS - 200


def test_threads_share_one_source(server: RangeServer) -> None:
    source = http(server)
    wrong: list[int] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(40):
            offset, count = chance.randrange(len(DATA) - 100_000), chance.choice([10, 5_000, 100_000])
            if read(source, offset, count) != DATA[offset : offset + count]:
                wrong.append(offset)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_ref_and_identity_survive_json(server: RangeServer) -> None:
    source = http(server)
    again = open_ref(json.loads(json.dumps(source.ref)))
    assert json.loads(json.dumps(again.identity)) == json.loads(json.dumps(source.identity))
    assert read(again, 700_000, 100) == DATA[700_000:700_100]


def test_empty_file(server: RangeServer) -> None:
    server.files["/empty"] = b""
    source = http(server, "/empty")
    assert source.size == 0
    assert read(source, 0, 0) == b""
    source.check_unchanged()


@pytest.mark.parametrize("size", [1, HEAD - 1, HEAD, HEAD + 1])
def test_sizes_around_the_head(server: RangeServer, size: int) -> None:
    server.files["/f"] = DATA[:size]
    assert read(http(server, "/f"), 0, size) == DATA[:size]


@pytest.mark.parametrize(("offset", "count"), [(0, len(DATA) + 1), (len(DATA), 1), (-1, 1)])
def test_reads_beyond_the_end_are_refused_without_a_request(server: RangeServer, offset: int, count: int) -> None:
    source = http(server)
    with pytest.raises(CorruptFileError):
        source.read_into(offset, memoryview(bytearray(count)))
    assert len(server.requests) == 1


def test_chunked_answers(server: RangeServer) -> None:
    server.behaviour.chunked = True
    assert read(http(server), 0, len(DATA)) == DATA


@pytest.mark.parametrize("chunked", [False, True])
def test_connections_are_used_again(server: RangeServer, monkeypatch: pytest.MonkeyPatch, chunked: bool) -> None:
    server.behaviour.chunked = chunked
    made: list[object] = []
    source = http(server)
    monkeypatch.setattr("socket.socket.connect", _counted(socket.socket.connect, made))
    for offset in range(100_000, 1_000_000, 200_000):
        read(source, offset, 100_000)
    assert made == []


def _counted(connect: Callable[..., None], made: list[object]) -> Callable[..., None]:
    def connecting(self: socket.socket, address: object) -> None:
        made.append(address)
        connect(self, address)

    return connecting


# --- trouble on the way -----------------------------------------------------------------------------------------------


def test_dropped_once_goes_on_where_it_broke(server: RangeServer) -> None:
    source = http(server)
    server.behaviour.drop_after, server.behaviour.drops = 300_000, 1
    assert read(source, HEAD, 1_000_000) == DATA[HEAD : HEAD + 1_000_000]
    assert [request.range for request in server.requests[1:]] == [
        (HEAD, HEAD + 999_999),
        (HEAD + 300_000, HEAD + 999_999),
    ]


def test_dropped_always_but_with_progress_arrives(server: RangeServer) -> None:
    source = http(server)
    server.behaviour.drop_after = 100_000
    assert read(source, HEAD, 1_000_000) == DATA[HEAD : HEAD + 1_000_000]
    assert len(server.requests) == 1 + 10


@pytest.mark.parametrize("after", [0, 10])
def test_dropped_always_gives_up(server: RangeServer, after: int) -> None:
    source = http(server)
    server.behaviour.drop_after = after
    with pytest.raises(SourceReadError, match=r"the connection broke \(after 4 tries\)"):
        read(source, HEAD, 1_000_000)
    assert len(server.requests) == 1 + QUICK.attempts


def test_dropped_while_opening(server: RangeServer) -> None:
    server.behaviour.drop_after, server.behaviour.drops = 10, 2
    assert read(http(server), 0, 100) == DATA[:100]
    assert len(server.requests) == 3


def test_less_than_announced_is_a_broken_connection(server: RangeServer) -> None:
    source = http(server)
    server.behaviour.truncate = 1
    # Each answer lacks its last byte, and a range of one byte all of it.
    with pytest.raises(SourceReadError, match="the connection broke"):
        read(source, HEAD, 100_000)


def test_a_server_may_answer_less_than_asked(server: RangeServer) -> None:
    source = http(server)
    server.behaviour.short_range = 200_000
    assert read(source, HEAD, 1_000_000) == DATA[HEAD : HEAD + 1_000_000]
    assert len(server.requests) == 1 + 5


@pytest.mark.parametrize("status", [429, 500, 503])
def test_busy_servers_are_asked_again(server: RangeServer, status: int) -> None:
    server.behaviour.statuses = [status, status]
    source = http(server)
    server.behaviour.statuses = [status]
    assert read(source, HEAD, 10) == DATA[HEAD : HEAD + 10]
    assert [request.status for request in server.requests] == [status, status, 206, status, 206]


def test_always_failing_server_gives_up(server: RangeServer) -> None:
    server.behaviour.status = 500
    with pytest.raises(SourceReadError, match=r"HTTP 500 \(after 4 tries\)"):
        http(server)
    assert len(server.requests) == 4


def test_retry_after_is_waited_for(server: RangeServer) -> None:
    server.behaviour.statuses, server.behaviour.retry_after = [429], "1"
    begin = time.monotonic()
    http(server)
    assert 1.0 <= time.monotonic() - begin < 3


def test_retry_after_that_is_too_long_is_an_error_at_once(server: RangeServer) -> None:
    server.behaviour.statuses, server.behaviour.retry_after = [429], "3600"
    with pytest.raises(SourceReadError, match=r"HTTP 429 and asks to wait 3,600 s"):
        http(server)
    assert len(server.requests) == 1


@pytest.mark.parametrize("value", ["Wed, 21 Oct 2015 07:28:00 GMT", "soon", "-5", "1e9", "²"])
def test_retry_after_in_other_words(server: RangeServer, value: str) -> None:
    server.behaviour.statuses, server.behaviour.retry_after = [503], value.encode("utf-8").decode("latin-1")
    assert http(server).size == len(DATA)


@pytest.mark.parametrize("status", [400, 405, 501, 204])
def test_other_answers_are_errors_at_once(server: RangeServer, status: int) -> None:
    server.behaviour.status = status
    with pytest.raises(SourceReadError, match=f"HTTP {status}"):
        http(server)
    assert len(server.requests) == 1


def test_not_found_and_denied(server: RangeServer) -> None:
    with pytest.raises(SourceNotFoundError, match="HTTP 404"):
        http(server, "/nothing")
    server.behaviour.status = 403
    with pytest.raises(SourceReadError, match="access denied") as caught:
        http(server)
    assert "login" in str(caught.value.hint)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_nobody_listens(scheme: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(SourceReadError, match=r"cannot connect to the server \(after 3 tries\)"):
            HttpSource(f"{scheme}://127.0.0.1:{port}/x", QUICK)


def test_trickle_ends(server: RangeServer) -> None:
    source = http(server, opening=0.5, slowest=1 << 30)
    server.behaviour.trickle = 0.05
    begin = time.monotonic()
    with pytest.raises(SourceReadError, match="too slow"):
        read(source, HEAD, 100_000)
    assert time.monotonic() - begin < 4


def test_trickle_of_a_header_ends(server: RangeServer) -> None:
    server.behaviour.trickle_header = 0.05
    begin = time.monotonic()
    with pytest.raises(SourceReadError, match="sends nothing more"):
        http(server, attempts=2, silence=0.4)
    assert time.monotonic() - begin < 4


@pytest.mark.parametrize(
    "how",
    [{"trickle_header": 0.05}, {"silent": 3.0}, {"trickle": 0.02}, {"trickle": 0.02, "chunked": True},
     {"ranges": False, "chunked": True, "no_end": True}, {"ranges": False, "drop_after": 70_000},
     {"status": 503, "retry_after": "1"}],
    ids=str,
)  # fmt: skip
def test_all_tries_of_opening_end_in_time(server: RangeServer, how: dict[str, Any]) -> None:
    for name, value in how.items():
        setattr(server.behaviour, name, value)
    begin = time.monotonic()
    with pytest.raises(SourceReadError) as caught:
        http(server, attempts=50, backoff=0.1, silence=0.5, opening=0.7)
    assert time.monotonic() - begin < 2
    assert caught.value.path == server.url(FILE)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("scheme", "first", "again"),
    [("https", b"", b""), ("http", b"", b"HTTP/1.1 100 Continue\r\n\r\n"), ("http", b"", b"HTTP/1.1 200 OK\r\nX: y"),
     ("http", b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-99/100\r\nTransfer-Encoding: chunked\r\n\r\n64;", b"x")],
)  # fmt: skip
def test_answers_without_end(scheme: str, first: bytes, again: bytes) -> None:
    """Each byte comes in time, and no loop of the HTTP library ends: only a limit on the whole helps."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(first)
            while not over.wait(0.03):
                connection.sendall(again)

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        begin = time.monotonic()
        policy = Policy(attempts=50, backoff=0.1, silence=0.5, opening=0.7)
        with pytest.raises(SourceReadError, match=r"too slow|sends nothing more|connection"):
            HttpSource(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/x", policy)
        assert time.monotonic() - begin < 2
        over.set()
        listener.shutdown(socket.SHUT_RDWR)


def test_slow_but_steady_is_waited_for(server: RangeServer) -> None:
    server.behaviour.trickle = 0.005
    server.files["/f"] = DATA[:150]
    begin = time.monotonic()
    assert read(http(server, "/f", opening=0.4, slowest=20), 0, 150) == DATA[:150]
    assert time.monotonic() - begin > 0.6


def test_opening_is_short_and_a_proven_source_is_waited_for_longer() -> None:
    policy = Policy()
    assert policy.deadline(1 << 30, 0).left() < 25
    assert policy.deadline(1, policy.proven).left() > 100
    assert policy.deadline(1, policy.proven).refusals == policy.attempts > policy.deadline(1, 0).refusals


def test_what_comes_again_puts_nothing_off() -> None:
    deadline = Policy(opening=10.0, slowest=100).deadline(1000, 0)
    time.sleep(0.3)
    deadline.reached(20)
    once = deadline.left()
    assert 9.8 < once < 10.0
    deadline.reached(10)
    deadline.reached(20)
    assert deadline.left() <= once
    deadline.reached(1_000_000)
    assert deadline.left() <= 10.0


def test_a_folder_that_answers_slowly_is_given_up(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_FOLDER_SECONDS", 0.3)
    server.behaviour.silent = 0.2
    with pytest.raises(SourceReadError, match="too slow"):
        UrlLocation(server.url("/nothing/")).names()
    assert len(server.requests) < 4


def test_a_folder_on_a_failing_server_is_asked_once(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_http, "POLICY", Policy(attempts=2, backoff=0.01))
    server.behaviour.status = 500
    with pytest.raises(SourceReadError, match="HTTP 500"):
        UrlLocation(server.url("/models/")).names()
    assert len(server.requests) == 2


def test_silence_ends(server: RangeServer) -> None:
    server.behaviour.silent = 1.5
    begin = time.monotonic()
    with pytest.raises(SourceReadError, match="sends nothing more"):
        http(server, attempts=2, silence=0.2)
    assert time.monotonic() - begin < 4


# --- servers without ranges -------------------------------------------------------------------------------------------


def test_small_file_is_taken_whole_without_ranges(server: RangeServer) -> None:
    server.behaviour.ranges = False
    source = http(server)
    assert read(source, 0, len(DATA)) == DATA
    assert len(server.requests) == 1
    source.check_unchanged()
    server.files[FILE] = DATA[:-1] + b"!"
    with pytest.raises(SourceChangedError):
        source.check_unchanged()


def test_a_file_taken_whole_starts_over_and_gives_up(server: RangeServer) -> None:
    server.behaviour.ranges, server.behaviour.drop_after, server.behaviour.drops = False, 500_000, 2
    assert http(server).size == len(DATA)
    server.behaviour.drops = -1
    with pytest.raises(SourceReadError, match="after 4 tries"):
        http(server)
    assert len(server.requests) == 3 + 4


def test_a_body_without_its_end_mark(server: RangeServer) -> None:
    """A connection that is not closed and an answer that does not end: all bytes are there all the same."""
    server.behaviour.chunked, server.behaviour.no_end = True, True
    source = http(server)
    begin = time.monotonic()
    for offset in range(HEAD, 1_400_000, 4 * BLOCK):
        assert read(source, offset, BLOCK) == DATA[offset : offset + BLOCK]
    assert time.monotonic() - begin < remote_http.END_MARK  # waited for once, while opening


def test_big_file_without_ranges_is_refused_with_a_way_out(server: RangeServer) -> None:
    server.files["/big.gguf"] = bytes(WHOLE + 1)
    server.behaviour.ranges = False
    with pytest.raises(SourceReadError, match="sends no ranges") as caught:
        http(server, "/big.gguf")
    assert caught.value.hint == f"download it first: curl -LO {server.url('/big.gguf')}"
    assert len(server.requests) == 1


@pytest.mark.parametrize("size", [WHOLE, WHOLE + 1])
def test_file_of_unknown_size_without_ranges(server: RangeServer, size: int) -> None:
    server.files["/f"] = bytes(size)
    server.behaviour.ranges, server.behaviour.chunked = False, True
    if size == WHOLE:
        assert http(server, "/f").size == size
    else:
        with pytest.raises(SourceReadError, match="sends no ranges"):
            http(server, "/f")


def test_ranges_that_stop_half_way(server: RangeServer) -> None:
    source = http(server)
    server.behaviour.ranges = False
    with pytest.raises(SourceReadError, match="no longer sends ranges"):
        read(source, HEAD, 10)


# --- answers that cannot be right -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stated",
    [
        "bytes 1-65535/1500000",  # not what was asked for
        "bytes 0-65536/1500000",  # more than was asked for
        "bytes 0-9/1500000",  # less than it has room for
        "bytes 0-65535/100",  # ends after the end
        "bytes 0-65535/*",
        "bytes 5-2/1500000",
        "bytes */1500000",
        "0-65535",
        "bytes 0-65535/99999999999999999999999",
        f"bytes 0-65535/{2**63}",
        "bytes 0-65535/1500000 (about)",
        "bytes ٠-65535/1500000",
    ],
)
def test_wrong_content_range_when_opening(server: RangeServer, stated: str) -> None:
    server.behaviour.content_range = stated.encode().decode("latin-1")
    with pytest.raises(SourceReadError, match="nonsense"):
        http(server)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("first", "last", "size", "error"),
    [
        (HEAD - 1, HEAD + 99_998, 1_500_000, SourceReadError),
        (HEAD + 1, HEAD + 99_999, 1_500_000, SourceReadError),
        (HEAD, HEAD + 100_000, 1_500_000, SourceReadError),
        (HEAD, HEAD + 99_999, 1_500_001, SourceChangedError),
    ],
)
def test_wrong_content_range_when_reading(
    server: RangeServer, first: int, last: int, size: int, error: type[TaelError]
) -> None:
    source = http(server)
    server.behaviour.content_range = f"bytes {first}-{last}/{size}"
    server.behaviour.content_length = str(last + 1 - first)
    with pytest.raises(error):
        read(source, HEAD, 100_000)
    assert len(server.requests) == 2


@pytest.mark.parametrize("length", ["5", "99999999999999999999", "many", "-1"])
def test_wrong_content_length(server: RangeServer, length: str) -> None:
    server.behaviour.content_length = length
    with pytest.raises(SourceReadError):
        http(server, attempts=2, silence=0.3)


def test_huge_content_length_without_ranges_allocates_nothing(server: RangeServer) -> None:
    server.behaviour.ranges, server.behaviour.content_length = False, str(10**15)
    with pytest.raises(SourceReadError, match="only the whole file of 1,000,000,000,000,000 bytes"):
        http(server)


@pytest.mark.parametrize("ranges", [True, False])
def test_compressed_answer_is_refused(server: RangeServer, ranges: bool) -> None:
    server.behaviour.ranges, server.behaviour.encoding = ranges, "gzip"
    with pytest.raises(SourceReadError, match=r"compresses the file \(gzip\)"):
        http(server)
    assert server.requests[0].headers["Accept-Encoding"] == "identity"


# --- files that change ------------------------------------------------------------------------------------------------


def test_unchanged(server: RangeServer) -> None:
    source = http(server)
    source.check_unchanged()
    assert server.requests[-1].sent == 1


@pytest.mark.parametrize("etag", ["auto", 'W/"one"', None])
def test_a_change_is_noticed_while_reading(server: RangeServer, etag: str | None) -> None:
    server.behaviour.etag, server.behaviour.modified = etag, "Wed, 21 Oct 2015 07:28:00 GMT"
    source = http(server)
    server.files[FILE] = DATA[::-1]
    server.behaviour.modified = "Wed, 21 Oct 2015 07:28:01 GMT"
    with pytest.raises(SourceChangedError):
        read(source, HEAD, 100)


def test_a_strong_etag_goes_along_as_if_range(server: RangeServer) -> None:
    read(http(server), HEAD, 100)
    assert server.requests[1].headers["If-Range"].startswith('"')
    server.behaviour.etag = 'W/"weak"'
    read(http(server), HEAD, 100)
    assert "If-Range" not in server.requests[-1].headers


def test_a_change_between_two_tries_is_noticed(server: RangeServer) -> None:
    source = http(server)
    server.behaviour.drop_after, server.behaviour.drops = 100_000, 1
    timer = threading.Timer(0.15, server.files.__setitem__, (FILE, DATA[::-1]))
    source._policy = source._client.policy = Policy(**{**_as_dict(QUICK), "backoff": 0.5})  # type: ignore[arg-type]
    timer.start()
    with pytest.raises(SourceChangedError):
        read(source, HEAD, 1_000_000)
    timer.join()


@pytest.mark.parametrize("etag", ["auto", None])
def test_a_change_is_noticed_at_the_end(server: RangeServer, etag: str | None) -> None:
    server.behaviour.etag = etag
    source = http(server)
    source.check_unchanged()
    server.files[FILE] = b"?" + DATA[1:]
    with pytest.raises(SourceChangedError):
        source.check_unchanged()


def test_a_shrunken_file_is_a_changed_file(server: RangeServer) -> None:
    server.behaviour.etag = None
    source = http(server)
    server.files[FILE] = DATA[:100_000]
    with pytest.raises(SourceChangedError):
        read(source, 200_000, 100)


# --- redirects and logins ---------------------------------------------------------------------------------------------


def test_redirects_are_followed_and_remembered(server: RangeServer) -> None:
    server.behaviour.redirects = {"/a": "/b", "/b": server.url(FILE) + "?signature=1"}
    source = http(server, "/a")
    assert read(source, HEAD, 100) == DATA[HEAD : HEAD + 100]
    assert [request.path for request in server.requests] == ["/a", "/b", FILE + "?signature=1", FILE + "?signature=1"]


def test_expired_redirect_is_looked_up_again(server: RangeServer) -> None:
    server.files["/signed2"] = DATA
    server.behaviour.redirects = {"/a": FILE}
    source = http(server, "/a")
    server.behaviour.redirects = {"/a": "/signed2"}
    server.behaviour.expired = {FILE}
    assert read(source, HEAD, 100) == DATA[HEAD : HEAD + 100]


def test_redirect_loop_ends(server: RangeServer) -> None:
    server.behaviour.redirects = {FILE: FILE}
    with pytest.raises(SourceReadError, match="more than 5 redirects"):
        http(server)
    assert len(server.requests) == 6


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "javascript:alert(1)", "data:,x"])
def test_redirects_lead_to_web_servers_only(server: RangeServer, target: str) -> None:
    server.behaviour.redirects = {FILE: target}
    with pytest.raises(SourceReadError, match="refused"):
        http(server)


@pytest.mark.parametrize("target", ["http://[::1", "http://", "//", "http://127.0.0.1:notaport/"])
def test_broken_redirects(server: RangeServer, target: str) -> None:
    server.behaviour.redirects = {FILE: target}
    with pytest.raises(TaelError):
        http(server, attempts=1)


def test_downgrade_from_https_is_refused() -> None:
    client = remote_client.Client("https://example.org/x", QUICK)
    assert client._redirected("https://example.org/x", "/y") == "https://example.org/y"
    with pytest.raises(SourceReadError, match=r"from https to http://example.org/x: refused"):
        client._redirected("https://example.org/x", "http://example.org/x?token=secret")


def test_login_in_the_url_is_sent_to_its_own_server_only(server: RangeServer) -> None:
    server.behaviour.login = "Basic " + base64.b64encode(b"me:p@ss").decode()
    source = HttpSource(server.url(FILE, login="me:p%40ss"), QUICK)
    assert read(source, HEAD, 10) == DATA[HEAD : HEAD + 10]
    with RangeServer({FILE: DATA}) as other:
        server.behaviour.redirects = {FILE: other.url(FILE)}
        HttpSource(server.url(FILE, login="me:p%40ss"), QUICK)
        assert "Authorization" not in other.requests[0].headers


def test_secrets_stay_out_of_messages(server: RangeServer) -> None:
    secret = server.url(FILE, login="me:hunter2") + "?X-Signature=hunter3#hunter4"
    source = HttpSource(secret, QUICK)
    assert source.name == server.url(FILE)
    assert source.ref == {"url": secret}
    shown: list[str] = []
    for change in (
        {"status": 500}, {"status": 403}, {"status": 404}, {"ranges": False}, {"content_range": "?"}, {"drop_after": 0},
        {"redirects": {FILE: secret}}, {"encoding": "br"}, {"etag": '"new"'},
    ):  # fmt: skip
        server.behaviour = type(server.behaviour)(**change)  # type: ignore[arg-type]
        with pytest.raises(TaelError) as caught:
            read(source, HEAD, 10)
        shown += [str(caught.value), repr(caught.value)]
    location = UrlLocation(secret)
    shown += [location.path, location.name, location.sibling("x").path]
    assert not [text for text in shown if "hunter" in text]


def test_redact() -> None:
    assert redact("https://u:p@host:1/a/b@c?q=1#f") == "https://host:1/a/b@c"
    assert redact("s3://key:secret@bucket/a") == "s3://bucket/a"
    assert redact("hf://org/model@main/x") == "hf://org/model@main/x"
    with pytest.raises(SourceNotFoundError) as caught:
        UrlLocation("https://me:hun/ter2@host/x")
    assert "ter2" not in str(caught.value)


def test_proxy_of_the_environment(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy gets the whole URL as its path, and a login of its own."""
    monkeypatch.setenv("http_proxy", server.url("", login="me:pw").rstrip("/"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    source = HttpSource(f"http://models.invalid{FILE}", QUICK)
    assert read(source, HEAD, 5) == DATA[HEAD : HEAD + 5]
    assert server.requests[0].path == f"http://models.invalid{FILE}"
    assert server.requests[0].headers["Proxy-Authorization"].startswith("Basic ")


@pytest.mark.parametrize("proxy", ["socks5://x:1", "nonsense://", "http://[::1"])
def test_proxies_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(SourceReadError, match="proxy"):
        HttpSource("http://models.invalid/x", Policy(attempts=1))


# --- locations --------------------------------------------------------------------------------------------------------


def test_url_location_names() -> None:
    location = UrlLocation("https://host/a/b/model%20one.safetensors?sig=1")
    assert (location.name, location.is_dir, location.names()) == ("model one.safetensors", False, None)
    assert location.sibling("sub/x y#?.bin").url == "https://host/a/b/sub/x%20y%23%3F.bin"
    folder = UrlLocation("https://host/a/b/?sig=1")
    assert (folder.name, folder.is_dir) == ("b", True)
    assert folder.child("config.json").url == "https://host/a/b/config.json"
    assert UrlLocation("https://host").sibling("x").url == "https://host/x"


HOSTILE = [
    "../x", "/etc/passwd", "C:\\x", "C:/x", "\\\\host\\share\\x", "a/../../x", "a/./b", "a//b", "", ".", "..", "x\0y",
    "a\\b", "https://evil/x",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_names_from_files_stay_in_the_folder(name: str) -> None:
    for ask in (UrlLocation("https://host/a/m").sibling, UrlLocation("https://host/a/").child):
        with pytest.raises(UnsafeContentError):
            ask(name)


@pytest.mark.parametrize("name", ["%2e%2e/x", "%2e%2e%2fx", "..%2fx", "@evil", "?x", "#x", ":80", "a;b"])
def test_odd_names_are_quoted(name: str) -> None:
    url = UrlLocation("https://host/a/m?sig=1").sibling(name).url
    assert url.startswith("https://host/a/")
    assert "/../" not in unquote(url.replace("%25", "%2525"))
    assert urlsplit(url).query == urlsplit(url).fragment == ""


def test_exists_and_folder_over_http(server: RangeServer) -> None:
    folder = locate(server.url("/models/"))
    assert folder.is_dir
    assert folder.child("model.safetensors").exists()
    assert not folder.child("model.safetensors.index.json").exists()
    assert folder.child("model.safetensors").sibling("model.safetensors").source().size == len(DATA)


@pytest.mark.parametrize(
    "url",
    ["javascript://alert(1)", "nosuch://x/y", "://x", "http://", "https:///x", "http://h:port/", "zip://a::http://h/x",
     "simplecache::https://h/x", "reference://x", "file://host/share", "memory://nothing/here", "http://[::1/x",
     "data://text/plain,abc", "local:///etc/passwd"],
)  # fmt: skip
def test_urls_that_name_nothing(url: str) -> None:
    with pytest.raises(SourceNotFoundError):
        locate(url).source()


def test_an_invalid_url_is_shown_unless_it_may_hold_a_password() -> None:
    with pytest.raises(SourceNotFoundError, match=r"not a valid URL: http://host:port/a/m.gguf\n") as caught:
        locate("http://host:port/a/m.gguf?sig=hunter2").source()
    assert "hunter2" not in str(caught.value)
    with pytest.raises(SourceNotFoundError, match="not a valid URL") as caught:
        locate("http://me:hunter2@host:port/x").source()
    assert "hunter2" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_as_url_gives_our_errors_only(text: str) -> None:
    for url in (f"http://{text}", f"{text}://x"):
        with contextlib.suppress(TaelError):
            UrlLocation(url) if url.startswith("http:") else remote._scheme(url)


@given(st.text(max_size=40))
def test_any_text_as_redirect_gives_our_errors_only(text: str) -> None:
    with contextlib.suppress(TaelError):
        remote_client.Client("http://host/x", QUICK)._redirected("http://host/x", text)


def test_file_url(tmp_path: Path) -> None:
    path = tmp_path / "a b.bin"
    path.write_bytes(b"abc")
    location = locate(path.as_uri())
    assert isinstance(location, LocalLocation)
    assert location.path == str(path)
    source = open_url(path.as_uri())
    assert isinstance(source, FileSource)
    assert read(source, 0, 3) == b"abc"
    with pytest.raises(SourceNotFoundError):
        locate((tmp_path / "none").as_uri())


def test_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(protocol: str) -> type:
        raise ImportError(f"no driver for {protocol}")

    monkeypatch.setattr("fsspec.get_filesystem_class", missing)
    for url, package in (("s3://b/x", "tael[s3]"), ("hf://o/m/x", "tael[hf]"), ("gs://b/x", "gcsfs")):
        with pytest.raises(MissingExtraError) as caught:
            locate(url)
        assert package in str(caught.value)


# --- fsspec -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> Iterator[fsspec.AbstractFileSystem]:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/t/model.safetensors", DATA)
    fs.pipe_file("/t/sub/x.bin", b"x")
    yield fs
    fs.rm("/t", recursive=True)


@pytest.mark.usefixtures("store")
def test_fsspec_reads_are_the_file() -> None:
    source = open_url("memory://t/model.safetensors")
    assert source.size == len(DATA)
    assert read(source, 0, len(DATA)) == DATA
    assert read(source, 70_001, 33) == DATA[70_001:70_034]
    with pytest.raises(CorruptFileError):
        source.read_into(len(DATA) - 1, memoryview(bytearray(2)))
    again = open_ref(json.loads(json.dumps(source.ref)))
    assert list(again.identity) == json.loads(json.dumps(source.identity))
    source.close()


def test_fsspec_location(store: fsspec.AbstractFileSystem) -> None:
    folder = locate("memory://t")
    assert folder.is_dir
    assert folder.names() == ["model.safetensors", "sub"]
    file = folder.child("model.safetensors")
    assert (file.name, file.is_dir, file.names()) == ("model.safetensors", False, ["model.safetensors", "sub"])
    assert read(file.sibling("sub/x.bin").source(), 0, 1) == b"x"
    assert read(locate(file.sibling("sub/x.bin").source().ref["url"]).source(), 0, 1) == b"x"
    assert not file.sibling("other").exists()
    with pytest.raises(SourceNotFoundError):
        file.sibling("other").source()
    for name in [*HOSTILE, "x::file:///etc/passwd", "x?versionId=1", "x#y", "x@main"]:
        with pytest.raises(UnsafeContentError):
            folder.child(name)
        with pytest.raises(UnsafeContentError):
            file.sibling(name)


def test_fsspec_small_reads_share_requests(store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    cat_file = type(store).cat_file

    def counting(self: object, path: str, start: int, end: int) -> bytes:
        asked.append(end - start)
        return bytes(cat_file(self, path, start, end))

    monkeypatch.setattr(type(store), "cat_file", counting)
    source = open_url("memory://t/model.safetensors")
    for offset in range(0, 3 * BLOCK, 500):
        read(source, offset, 500)
    assert asked == [2 * BLOCK, 4 * BLOCK]


class _Ranges(fsspec.AbstractFileSystem):
    """A store whose driver has no cat_file of its own, and a log of what is asked for."""

    protocol = "taelranges"
    asked: ClassVar[list[tuple[int, int]]] = []

    def info(self, path: str, **more: object) -> dict[str, object]:
        return {"name": path, "size": len(DATA), "type": "file", "etag": "1"}

    def _open(self, path: str, mode: str = "rb", **more: Any) -> AbstractBufferedFile:
        return _RangesFile(self, path, mode, size=len(DATA), **more)


class _RangesFile(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        _Ranges.asked.append((start, end))
        return DATA[start:end]


def test_fsspec_files_bring_no_cache_of_their_own() -> None:
    fsspec.register_implementation("taelranges", _Ranges, clobber=True)
    _Ranges.asked.clear()
    source = open_url("taelranges://x/model.safetensors")
    assert read(source, 10 * BLOCK + 7, BLOCK) == DATA[10 * BLOCK + 7 : 11 * BLOCK + 7]
    assert read(source, 20 * BLOCK + 7, 5) == DATA[20 * BLOCK + 7 : 20 * BLOCK + 12]
    assert _Ranges.asked == [(10 * BLOCK + 7, 11 * BLOCK + 7), (20 * BLOCK, 21 * BLOCK)]


def test_fsspec_changes_are_noticed(store: fsspec.AbstractFileSystem) -> None:
    source = open_url("memory://t/model.safetensors")
    source.check_unchanged()
    store.pipe_file("/t/model.safetensors", DATA[::-1])
    with pytest.raises(SourceChangedError):
        source.check_unchanged()
    store.pipe_file("/t/model.safetensors", DATA[:100])
    with pytest.raises(SourceChangedError):
        read(source, 0, 1000)
    store.rm("/t/model.safetensors")
    with pytest.raises(SourceChangedError):
        source.check_unchanged()


@pytest.mark.parametrize(
    ("raised", "error", "words"),
    [(PermissionError("s3cret"), SourceReadError, "access denied"),
     (RuntimeError("s3cret"), SourceReadError, "the store fails"),
     (socket.gaierror(-2, "s3cret"), SourceReadError, "name cannot be resolved"),
     (ConnectionRefusedError("s3cret"), SourceReadError, "cannot connect"),
     (TimeoutError("s3cret"), SourceReadError, "does not answer"),
     (FileNotFoundError("s3cret"), SourceNotFoundError, "no such file")],
)  # fmt: skip
def test_what_drivers_raise(
    store: fsspec.AbstractFileSystem,
    monkeypatch: pytest.MonkeyPatch,
    raised: Exception,
    error: type[TaelError],
    words: str,
) -> None:
    source = open_url("memory://t/model.safetensors")

    def failing(*args: object, **more: object) -> bytes:
        raise raised

    monkeypatch.setattr(type(store), "cat_file", failing)
    with pytest.raises(error, match=words) as caught:
        read(source, 0, 10)
    assert "s3cret" not in str(caught.value)


# --- end to end -------------------------------------------------------------------------------------------------------


def _safetensors(count: int, pad: int = 0) -> tuple[bytes, int]:
    """A file of `count` small tensors, and the size of its header."""
    header: dict[str, object] = {"__metadata__": {"pad": "x" * pad}}
    for index in range(count):
        where = [index * 16, index * 16 + 16]
        header[f"model.layers.{index}.mlp.weight"] = {"dtype": "F32", "shape": [2, 2], "data_offsets": where}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16 * count), 8 + len(text)


@pytest.mark.parametrize(("count", "pad"), [(3, 0), (10_000, 0), (10_000, 10_000_000)])
def test_opening_a_safetensors_url_reads_its_header_and_little_more(count: int, pad: int) -> None:
    import tael

    data, header = _safetensors(count, pad)
    with (
        RangeServer({"/model.safetensors": data}) as server,
        tael.open(server.url("/model.safetensors")) as checkpoint,
    ):
        assert len(checkpoint.tensors) == count
        assert len(server.requests) <= 3
        assert server.sent <= header + 128 * 1024
        assert list(checkpoint.problems) == []


def test_a_model_folder_on_a_web_server_and_in_a_store(tmp_path: Path) -> None:
    import tael

    one, _ = _safetensors(3)
    index = {"weight_map": {f"model.layers.{n}.mlp.weight": "model-1-of-1.safetensors" for n in range(3)}}
    files = {
        "model-1-of-1.safetensors": one,
        "model.safetensors.index.json": json.dumps(index).encode(),
        "config.json": b"{}",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    fs = fsspec.filesystem("memory")
    fs.put(str(tmp_path), "/hub", recursive=True)
    with RangeServer(root=tmp_path) as server:
        for url in (server.url("/"), "memory://hub"):
            with tael.open(url) as checkpoint:
                assert (checkpoint.format, len(checkpoint.tensors)) == ("hf", 3)
                assert list(checkpoint.extras["hf.side_files"]) == ["config.json"]
        for name in files:
            (tmp_path / name).unlink()
        with pytest.raises(TaelError, match="cannot be listed"):
            tael.open(server.url("/"))
        server.behaviour.status = 403
        with pytest.raises(SourceReadError, match="access denied"):
            tael.open(server.url("/"))
    fs.rm("/hub", recursive=True)


def test_converting_from_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a connection that breaks now and then, and one request for many small tensors."""
    import tael

    data, header = _safetensors(20_000)
    data = data[:header] + random.Random(7).randbytes(len(data) - header)
    (tmp_path / "local.safetensors").write_bytes(data)
    monkeypatch.setattr(remote_http, "POLICY", QUICK)
    with RangeServer({"/m/model.safetensors": data}) as server:
        server.behaviour.drop_after, server.behaviour.drops = 200_000, 6
        tael.convert(server.url("/m/model.safetensors"), tmp_path / "out.npz")
        assert tael.verify(tmp_path / "local.safetensors", tmp_path / "out.npz").equal
        assert len(server.requests) < 40
        server.behaviour.status = 500
        with pytest.raises(SourceReadError, match="HTTP 500"):
            tael.convert(server.url("/m/model.safetensors"), tmp_path / "none.npz")
    assert not (tmp_path / "none.npz").exists()


def test_a_file_that_changes_during_a_conversion_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tael

    data, header = _safetensors(100)
    with RangeServer({"/model.safetensors": data}) as server:
        check = HttpSource.check_unchanged

        def late(self: HttpSource) -> None:
            server.files["/model.safetensors"] = data[:header] + bytes(len(data) - header - 1) + b"!"
            check(self)

        monkeypatch.setattr(HttpSource, "check_unchanged", late)
        with pytest.raises(SourceChangedError):
            tael.convert(server.url("/model.safetensors"), tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


def test_policy_can_be_set_for_all(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_http, "POLICY", Policy(attempts=2, backoff=0.01))
    server.behaviour.status = 500
    with pytest.raises(SourceReadError, match="after 2 tries"):
        open_url(server.url(FILE))
