# SPDX-License-Identifier: Apache-2.0
"""Connections to web servers: pools, proxies, and answers that never end."""

from __future__ import annotations

import functools
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote
from weakref import WeakKeyDictionary

import urllib3
from urllib3 import exceptions

from tael.errors import SourceReadError

T = TypeVar("T")

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def redact(url: str) -> str:
    """`url` without user, password, query and fragment: these may be secrets."""
    head, mark, rest = url.partition("://")
    authority, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    return f"{head}{mark}{authority.rpartition('@')[2]}{slash}{path}"


_sockets: WeakKeyDictionary[urllib3.BaseHTTPResponse, socket.socket] = WeakKeyDictionary()
_turn = threading.local()  # .wait: seconds that this thread's last request stood in the queue for a connection


@contextmanager
def hang_up(sock: socket.socket | None, left: Callable[[], float]) -> Iterator[threading.Event]:
    """Shuts `sock` down once no time is `left()`, and sets the event.

    A socket's own limit starts again with every byte, and some loops of http.client end only when the server wishes.
    """
    done, late = threading.Event(), threading.Event()

    def watch() -> None:
        while (seconds := left()) > 0:
            if done.wait(seconds):
                return
        if done.is_set():
            return
        late.set()
        with suppress(OSError):
            if sock is not None:
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield late
    finally:
        done.set()


def socket_of(response: urllib3.BaseHTTPResponse) -> socket.socket | None:
    return _sockets.get(response)


def queued() -> float:
    """How long this thread's last request had to wait until one of the connections was free."""
    wait: float = getattr(_turn, "wait", 0.0)
    _turn.wait = 0.0
    return wait


def _in_time(
    connection: urllib3.connection.HTTPConnection, respond: Callable[[], urllib3.HTTPResponse]
) -> urllib3.HTTPResponse:
    """`respond()`, given up after the read timeout."""
    limit = connection.timeout if isinstance(connection.timeout, int | float) else 20.0
    until = time.monotonic() + limit + 0.1
    sock = connection.sock  # a response that ends with its connection takes it away
    with hang_up(sock, lambda: until - time.monotonic()) as late:
        try:
            response = respond()
        except Exception:
            if late.is_set():
                raise TimeoutError from None
            raise
    if late.is_set():
        raise TimeoutError
    if sock is not None:
        _sockets[response] = sock
    return response


class _Plain(urllib3.connection.HTTPConnection):
    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # as in urllib3 itself
        return _in_time(self, super().getresponse)


class _Secure(urllib3.connection.HTTPSConnection):
    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # as in urllib3 itself
        return _in_time(self, super().getresponse)


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Plain

    def _get_conn(self, timeout: float | None = None) -> Any:
        return _clocked(super()._get_conn, timeout)


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Secure

    def _get_conn(self, timeout: float | None = None) -> Any:
        return _clocked(super()._get_conn, timeout)


def _clocked(take: Callable[[float | None], T], timeout: float | None) -> T:
    begin = time.monotonic()
    try:
        return take(timeout)
    finally:
        _turn.wait = time.monotonic() - begin


@functools.cache
def pool(proxy: str | None) -> urllib3.PoolManager:
    """Four connections to each host, shared by all sources of the process."""
    if proxy is None:
        manager = urllib3.PoolManager(num_pools=16, maxsize=4, block=True)
    else:
        try:
            auth = urllib3.util.parse_url(proxy).auth
            login = urllib3.make_headers(proxy_basic_auth=unquote(auth)) if auth else None
            manager = urllib3.ProxyManager(proxy, num_pools=16, maxsize=4, block=True, proxy_headers=login)
        except exceptions.HTTPError:
            raise SourceReadError(
                f"cannot use the proxy {redact(proxy)}", hint="HTTPS_PROXY takes http:// and https:// proxies"
            ) from None
    manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}
    return manager


def proxy(parts: SplitResult) -> str | None:
    """The proxy that the environment names for a URL (HTTPS_PROXY, NO_PROXY, ...)."""
    host = parts.hostname or ""
    if host in LOOPBACK or urllib.request.proxy_bypass(host):
        return None
    proxy = urllib.request.getproxies().get(parts.scheme)
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"
