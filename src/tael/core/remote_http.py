# SPDX-License-Identifier: Apache-2.0
"""HttpSource: a file on a web server, read by ranges (RFC 9110, section 14).

The first request takes the first 64 KiB and learns size and version (ETag, Last-Modified) from the answer.
Every later answer must be of the same version. A broken connection goes on where it broke. A server that
knows no ranges is refused, but for small files, which are taken whole.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from tael.core.readahead import ReadAhead
from tael.core.remote_client import POLICY, Client, Deadline, Policy, TryAgain
from tael.core.remote_pool import hang_up, redact, socket_of
from tael.core.source import SourceId
from tael.errors import CorruptFileError, SourceChangedError, SourceReadError

HEAD = 64 << 10
WHOLE = 8 << 20  # the most that is taken from a server without ranges
STEP = 256 << 10  # one piece from the socket
END_MARK = 0.5  # seconds to wait for the end of an answer whose bytes are all there

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_NUMBER = re.compile(r"\d{1,19}")
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Version:
    """What tells one state of the file from another."""

    size: int
    etag: str | None
    modified: str | None

    @property
    def strong(self) -> bool:
        return self.etag is not None and not self.etag.startswith("W/")

    def same(self, other: Version) -> bool:
        """An answer to a conditional request may leave out Last-Modified, so a strong ETag decides alone."""
        return self == other or (self.strong and (self.size, self.etag) == (other.size, other.etag))


class HttpSource:
    """A file behind http:// or https://."""

    def __init__(self, url: str, policy: Policy | None = None) -> None:
        self.url, self.name = url, redact(url)
        self._policy = policy or POLICY
        self._client = Client(url, self._policy)
        self._received = 0  # bytes, of all answers
        self._ends = True  # its chunked answers have an end mark
        self._version, head = self._look(HEAD)
        self.size = self._version.size
        self.identity: SourceId = (self.size, self._version.etag, self._version.modified, zlib.crc32(head))
        self._ahead = ReadAhead(self._fetch, self.size, head)

    @property
    def ref(self) -> Mapping[str, Any]:
        return {"url": self.url}

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer = buffer.cast("B")
        if offset < 0 or offset + buffer.nbytes > self.size:
            raise CorruptFileError(
                f"needs bytes up to {offset + buffer.nbytes:,}, but the file ends at {self.size:,}", path=self.name
            )
        self._ahead.read_into(offset, buffer)

    def check_unchanged(self) -> None:
        validated = self._version.etag is not None or self._version.modified is not None
        version, head = self._look(1 if validated else HEAD)
        # Without ETag and date the first 64 KiB are the only witness besides the size.
        if not version.same(self._version) or (not validated and zlib.crc32(head) != self.identity[3]):
            raise self._changed()

    def close(self) -> None:
        self._ahead.close()

    # --- the first bytes ----------------------------------------------------------------------------------------------

    def _look(self, count: int) -> tuple[Version, bytes]:
        """Version and the first `count` bytes; of a server without ranges, the whole (small) file."""
        deadline = self._policy.deadline(count, self._received)

        def look() -> tuple[Version, bytes]:
            try:
                return self._look_once(count, deadline)
            except TryAgain as failure:
                failure.received = 0  # the next try starts at the beginning
                raise

        return self._client.retrying(look, deadline)

    def _look_once(self, count: int, deadline: Deadline) -> tuple[Version, bytes]:
        with self._client.get({"Range": f"bytes=0-{count - 1}"}, deadline) as response:
            if response.status == 206:
                first, last, size = self._content_range(response)
                if first != 0 or last >= count or last + 1 < min(count, size):
                    raise self._nonsense(f"bytes {first}-{last} of {size} for bytes 0-{count - 1}")
                body = bytearray(last + 1)
                if self._receive(response, memoryview(body), 0, deadline) < len(body):
                    raise TryAgain("the connection broke")
                return _version(response, size), bytes(body)
            if response.status == 200:
                return self._take_whole(response, deadline)
            if response.status == 416 and response.headers.get("Content-Range", "").strip() == "bytes */0":
                return _version(response, 0), b""
        raise SourceReadError(
            f"the server refuses ranges (HTTP {response.status})", path=self.name, hint=self._download_hint()
        )

    def _take_whole(self, response: BaseHTTPResponse, deadline: Deadline) -> tuple[Version, bytes]:
        self._check_encoding(response)
        promised = response.headers.get("Content-Length")
        if promised is None or (_NUMBER.fullmatch(promised) and int(promised) <= WHOLE):
            room = memoryview(bytearray(WHOLE + 1 if promised is None else int(promised)))
            got = self._receive(response, room, 0, deadline)
            if promised is not None and got < len(room):
                raise TryAgain("the connection broke")
            if got <= WHOLE:
                return _version(response, got), bytes(room[:got])
        size = f" of {int(promised):,} bytes" if promised is not None and _NUMBER.fullmatch(promised) else ""
        raise SourceReadError(
            f"the server sends no ranges, only the whole file{size}", path=self.name, hint=self._download_hint()
        )

    # --- ranges -------------------------------------------------------------------------------------------------------

    def _fetch(self, offset: int, buffer: memoryview) -> None:
        deadline = self._policy.deadline(len(buffer), self._received)
        done = 0

        def go_on() -> None:
            nonlocal done
            while done < len(buffer):
                try:
                    done += self._fetch_once(offset, buffer, done, deadline)
                except TryAgain as failure:
                    done += failure.received
                    raise

        self._client.retrying(go_on, deadline)

    def _fetch_once(self, offset: int, buffer: memoryview, done: int, deadline: Deadline) -> int:
        """Bytes received of one answer, behind those `done`: all, or as many as the server cares to send."""
        end = offset + len(buffer)
        offset, buffer = offset + done, buffer[done:]
        headers = {"Range": f"bytes={offset}-{end - 1}"}
        if self._version.strong:
            headers["If-Range"] = str(self._version.etag)
        with self._client.get(headers, deadline) as response:
            if response.status in (412, 416):
                raise self._changed()
            if response.status == 200:
                length = response.headers.get("Content-Length", "")
                size = int(length) if _NUMBER.fullmatch(length) else self.size
                if not self._version.same(_version(response, size)):
                    raise self._changed()
                raise SourceReadError("the server no longer sends ranges", path=self.name, hint=self._download_hint())
            first, last, size = self._content_range(response)
            if not self._version.same(_version(response, size)):
                raise self._changed()
            if first != offset or last >= end:
                raise self._nonsense(f"bytes {first}-{last} of {size} for bytes {offset}-{end - 1}")
            got = self._receive(response, buffer[: last + 1 - first], done, deadline)
            if got < last + 1 - first:
                raise TryAgain("the connection broke", received=got)
            return got

    def _receive(self, response: BaseHTTPResponse, buffer: memoryview, before: int, deadline: Deadline) -> int:
        """The body into `buffer`, `before` bytes into a read; how much of it there was. Or `TryAgain`."""
        done, late = 0, None
        try:
            with hang_up(socket_of(response), deadline.left) as late:
                while done < len(buffer):
                    if late.is_set():
                        raise self._too_slow(done, len(buffer))
                    piece = response.read1(min(STEP, len(buffer) - done))
                    if not piece:
                        break
                    buffer[done : done + len(piece)] = piece
                    done += len(piece)
                    self._received += len(piece)
                    deadline.reached(before + done)
        except HTTPError as error:
            if late is not None and late.is_set():
                raise self._too_slow(done, len(buffer)) from None
            raise self._client.failure(error, done) from None
        if late.is_set() and done < len(buffer):
            raise self._too_slow(done, len(buffer))
        if done == len(buffer) and self._ends and "chunked" in response.headers.get("Transfer-Encoding", ""):
            self._take_end(response)
        return done

    def _take_end(self, response: BaseHTTPResponse) -> None:
        """Reads the end mark too, so that the connection can serve again; a server that sends none is known by it."""
        until = time.monotonic() + END_MARK
        with suppress(HTTPError), hang_up(socket_of(response), lambda: until - time.monotonic()) as late:
            response.read1(1)
        self._ends = not late.is_set()

    def _too_slow(self, done: int, count: int) -> SourceReadError:
        return SourceReadError(
            f"the server is too slow: {done:,} of {count:,} bytes came in time",
            path=self.name,
            hint=self._download_hint(),
        )

    def _content_range(self, response: BaseHTTPResponse) -> tuple[int, int, int]:
        """First and last byte and the size of the whole, as the answer states them."""
        self._check_encoding(response)
        stated = response.headers.get("Content-Range", "")
        match = _CONTENT_RANGE.fullmatch(stated.strip())
        first, last, size = (int(number) for number in match.groups()) if match else (1, 0, 0)
        if not first <= last < size <= _LARGEST:
            raise self._nonsense(repr(stated[:60]) if stated else "no Content-Range")
        length = response.headers.get("Content-Length")
        if length is not None and length != str(last + 1 - first):
            raise self._nonsense(f"{length[:20]} bytes for bytes {first}-{last}")
        return first, last, size

    def _check_encoding(self, response: BaseHTTPResponse) -> None:
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise SourceReadError(
                f"the server compresses the file ({encoding[:20]}) though asked not to",
                path=self.name,
                hint=self._download_hint(),
            )

    def _nonsense(self, what: str) -> SourceReadError:
        return SourceReadError(f"the server answers nonsense: {what}", path=self.name, hint=self._download_hint())

    def _changed(self) -> SourceChangedError:
        return SourceChangedError("changed on the server while it was read", path=self.name, hint="run again")

    def _download_hint(self) -> str:
        link = self.name if self.name == self.url else "'THE-WHOLE-LINK'"
        return f"download it first: curl -LO {link}"


def _version(response: BaseHTTPResponse, size: int) -> Version:
    return Version(size, response.headers.get("ETag"), response.headers.get("Last-Modified"))
