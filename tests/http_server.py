# SPDX-License-Identifier: Apache-2.0
"""A web server of a few files that knows ranges, keeps a log, and misbehaves on request.

    with RangeServer({"/model.safetensors": data}) as server:
        server.behaviour.drop_after = 1000
        tael.open(server.url("/model.safetensors"))
        assert server.requests[0].range == (0, 65535)

`root=` serves a folder instead of a table. Each switch of `Behaviour` may be set at any time.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit


@dataclass
class Behaviour:
    ranges: bool = True  # False: every answer is 200 with the whole file
    etag: str | None = "auto"  # "auto": of the content; None: none; else this text
    modified: str | None = None  # Last-Modified
    drop_after: int | None = None  # hang up after so many bytes of a body ...
    drops: int = -1  # ... that many times; -1: always
    truncate: int = 0  # send so many bytes less than announced, as every answer does
    short_range: int | None = None  # answer at most so many bytes of a range, honestly announced
    content_range: str | None = None  # send this Content-Range instead
    content_length: str | None = None  # send this Content-Length instead
    chunked: bool = False  # Transfer-Encoding: chunked, no Content-Length
    no_end: bool = False  # ... and no last chunk
    encoding: str | None = None  # Content-Encoding (the bytes stay as they are)
    statuses: list[int] = field(default_factory=list)  # the next answers, before the real ones
    status: int | None = None  # every answer
    retry_after: str | None = None
    redirects: dict[str, str] = field(default_factory=dict)  # path -> Location
    expired: set[str] = field(default_factory=set)  # paths that answer 403
    trickle: float | None = None  # seconds between two bytes of a body
    trickle_header: float | None = None  # seconds between two header lines, of which there is no end
    silent: float | None = None  # seconds before any answer
    login: str | None = None  # the Authorization header that is asked for


@dataclass
class Request:
    path: str  # with the query
    range: tuple[int, int] | None
    headers: Message  # asked for in any case
    status: int = 0
    sent: int = 0  # bytes of the body


class RangeServer:
    def __init__(self, files: Mapping[str, bytes] | None = None, *, root: Path | None = None) -> None:
        self.files = dict(files or {})
        self.root = root
        self.behaviour = Behaviour()
        self.requests: list[Request] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self  # type: ignore[attr-defined]
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> RangeServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, path: str = "/", login: str = "") -> str:
        return f"http://{login}{'@' if login else ''}127.0.0.1:{self.port}{path}"

    @property
    def sent(self) -> int:
        """Body bytes of all answers."""
        return sum(request.sent for request in self.requests)

    def size_and_reader(self, path: str) -> tuple[int, str, bytes | Path] | None:
        """Size, version and content of a file, or None."""
        if path in self.files:
            data = self.files[path]
            return len(data), hashlib.sha256(data).hexdigest()[:16], data
        if self.root is not None:
            file = (self.root / path.lstrip("/")).resolve()
            if file.is_file() and file.is_relative_to(self.root.resolve()):
                status = file.stat()
                return status.st_size, f"{status.st_size:x}-{status.st_mtime_ns:x}", file
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are what is tested here: no traceback in the log."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        server: RangeServer = self.server.owner  # type: ignore[attr-defined]
        how = server.behaviour
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        request = Request(self.path, (int(asked[1]), int(asked[2])) if asked else None, self.headers)
        server.requests.append(request)
        path = unquote(urlsplit(self.path).path)
        if how.silent is not None:
            time.sleep(how.silent)
        if how.trickle_header is not None:
            self._endless_header(how.trickle_header)
        elif path in how.redirects:
            self._empty(request, 302, Location=how.redirects[path])
        elif how.statuses or how.status is not None:
            extra = {} if how.retry_after is None else {"Retry-After": how.retry_after}
            self._empty(request, how.statuses.pop(0) if how.statuses else int(how.status or 0), **extra)
        elif path in how.expired:
            self._empty(request, 403)
        elif how.login is not None and self.headers.get("Authorization") != how.login:
            self._empty(request, 401)
        elif (found := server.size_and_reader(path)) is None:
            self._empty(request, 404)
        else:
            self._file(request, how, *found)

    def _file(self, request: Request, how: Behaviour, size: int, version: str, content: bytes | Path) -> None:
        etag = f'"{version}"' if how.etag == "auto" else how.etag
        wanted = request.range if how.ranges else None
        if wanted is not None and self.headers.get("If-Range") not in (None, etag):
            wanted = None
        if wanted is not None and wanted[0] >= size:
            return self._empty(request, 416, **{"Content-Range": f"bytes */{size}"})
        first, last = (wanted[0], min(wanted[1], size - 1)) if wanted else (0, size - 1)
        if wanted and how.short_range is not None:
            last = min(last, first + how.short_range - 1)
        request.status = 206 if wanted else 200
        self.send_response(request.status)
        if wanted:
            self.send_header("Content-Range", how.content_range or f"bytes {first}-{last}/{size}")
        for name, value in (("ETag", etag), ("Last-Modified", how.modified), ("Content-Encoding", how.encoding)):
            if value is not None:
                self.send_header(name, value)
        if how.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", how.content_length or str(last + 1 - first))
        self.end_headers()
        return self._body(request, how, content, first, last + 1 - how.truncate)

    def _body(self, request: Request, how: Behaviour, content: bytes | Path, at: int, end: int) -> None:
        stop = end
        if how.drop_after is not None and how.drops != 0:
            how.drops -= 1
            stop = min(end, at + how.drop_after)
        step = 1 if how.trickle is not None else 64 << 10
        while at < stop:
            piece = _read(content, at, min(step, stop - at))
            request.sent += len(piece)  # before they leave: who has them may look here at once
            try:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if how.chunked else piece)
            except OSError:
                self.close_connection = True
                return
            at += len(piece)
            if how.trickle is not None:
                time.sleep(how.trickle)
        if how.chunked and stop == end and not how.no_end:
            self.wfile.write(b"0\r\n\r\n")
        if stop < end or how.truncate:
            self.close_connection = True

    def _empty(self, request: Request, status: int, **headers: str) -> None:
        request.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _endless_header(self, pause: float) -> None:
        self.close_connection = True
        try:
            self.wfile.write(b"HTTP/1.1 206 Partial Content\r\n")
            while True:
                self.wfile.write(b"X")
                time.sleep(pause)
        except OSError:
            return


def _read(content: bytes | Path, offset: int, count: int) -> bytes:
    if isinstance(content, bytes):
        return content[offset : offset + count]
    with content.open("rb") as file:
        file.seek(offset)
        return file.read(count)
