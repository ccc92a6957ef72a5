# SPDX-License-Identifier: Apache-2.0
"""Connections to web servers: pools, proxies, and answers that never end."""

from __future__ import annotations

import functools
import socket
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar
from urllib.parse import SplitResult, unquote

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


def _in_time(connection: urllib3.connection.HTTPConnection, respond: Callable[[], T]) -> T:
    """`respond()`, given up after the read timeout: a socket's own starts again with every byte of a trickle."""
    late = threading.Event()

    def hang_up(sock: socket.socket) -> None:
        late.set()
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

    limit = connection.timeout if isinstance(connection.timeout, int | float) else 30.0
    watch = threading.Timer(limit + 0.1, hang_up, (connection.sock,))
    watch.daemon = True
    watch.start()
    try:
        response = respond()
    except Exception:
        if late.is_set():
            raise TimeoutError from None
        raise
    finally:
        watch.cancel()
    if late.is_set():
        raise TimeoutError
    return response


class _Plain(urllib3.connection.HTTPConnection):
    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # as in urllib3 itself
        return _in_time(self, super().getresponse)


class _Secure(urllib3.connection.HTTPSConnection):
    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # as in urllib3 itself
        return _in_time(self, super().getresponse)


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Secure


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
