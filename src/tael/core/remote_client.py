# SPDX-License-Identifier: Apache-2.0
"""One HTTP answer: redirects, logins, time limits, and which failures are worth another try.

Nothing here knows about ranges; that is remote_http.py. Messages never hold more of a URL than `redact` leaves.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import urllib3
from urllib3 import BaseHTTPResponse, exceptions

from tael.core.remote_pool import pool, proxy, redact
from tael.errors import SourceNotFoundError, SourceReadError, TaelError, clip

T = TypeVar("T")

REDIRECTS = 5
PROGRESS = 64 << 10  # a try that brought so much does not count as failed
PORTS = {"http": 80, "https": 443}
TRY_AGAIN = frozenset((408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524))
EXPIRED = frozenset((401, 403, 404, 410))  # what an old signed link answers


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient a source is: seconds, bytes, counts."""

    attempts: int = 5  # tries in a row that bring nothing
    backoff: float = 0.5  # before the second try; then it doubles
    longest_wait: float = 30.0  # that a server may ask for (Retry-After)
    connect: float = 10.0
    silence: float = 30.0  # between two packets, and for the whole header of an answer
    patience: float = 120.0  # for one read with all its tries, besides what its bytes take ...
    slowest: int = 16 << 10  # ... at so many a second

    def deadline(self, nbytes: int) -> float:
        return time.monotonic() + self.patience + nbytes / self.slowest


POLICY = Policy()


class TryAgain(Exception):
    """This try failed, after `received` bytes; the next may not. `wait`: seconds that the server asked for."""

    def __init__(self, cause: str, *, wait: float | None = None, received: int = 0) -> None:
        super().__init__(cause)
        self.cause, self.wait, self.received = cause, wait, received


def split_url(url: str) -> SplitResult:
    """The parts of an http(s) URL. Raises `SourceNotFoundError` when it is none."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises when it is no number
        if parts.scheme in PORTS and parts.hostname:
            return parts
    except ValueError:
        pass
    # Where the password ends in a broken URL is anyone's guess, so none of it is shown.
    raise SourceNotFoundError(f"is not a valid URL: {clip(url.partition('://')[0])}://...")


class Client:
    """GETs one URL. Remembers where redirects led, and goes back to the start when that link has expired."""

    def __init__(self, url: str, policy: Policy) -> None:
        self.url, self.policy, self.name = url, policy, redact(url)
        parts = split_url(url)
        self._origin = _origin(parts)
        self._auth: dict[str, str] = {}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._auth = urllib3.make_headers(basic_auth=user.encode().decode("latin-1"))
        self._start = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
        self._where = self._start

    def retrying(self, action: Callable[[], T], deadline: float) -> T:
        """What `action` returns, tried again after `TryAgain` as often and as long as the policy allows."""
        failures = 0
        while True:
            try:
                return action()
            except TryAgain as failure:
                failures = 1 if failure.received >= PROGRESS else failures + 1
                wait = self.policy.backoff * 2 ** (failures - 1) if failure.wait is None else failure.wait
                if failures >= self.policy.attempts or time.monotonic() + wait > deadline:
                    tries = f" (after {failures} tries)" if failures > 1 else ""
                    raise SourceReadError(
                        f"{failure.cause}{tries}",
                        path=self.name,
                        hint="check the connection and the link, then run again",
                    ) from None
                time.sleep(wait)

    @contextmanager
    def get(self, headers: Mapping[str, str]) -> Iterator[BaseHTTPResponse]:
        """The answer (200, 206, 412 or 416), its body unread. Raises `TryAgain` or a `SourceError`."""
        response = self._follow(headers)
        try:
            yield response
        finally:
            _hand_back(response)

    def _follow(self, headers: Mapping[str, str]) -> BaseHTTPResponse:
        for _ in range(REDIRECTS + 1):
            where = self._where
            response = self._ask(where, headers)
            if response.status in (200, 206, 412, 416):
                return response
            _hand_back(response)
            if response.status in (301, 302, 303, 307, 308) and response.headers.get("Location"):
                self._where = self._redirected(where, response.headers["Location"])
            elif response.status in EXPIRED and where != self._start:
                self._where = self._start
                raise TryAgain(f"the link that it redirects to answers HTTP {response.status}")
            else:
                self._where = self._start
                raise self._refusal(response)
        self._where = self._start
        raise SourceReadError(
            f"more than {REDIRECTS} redirects", path=self.name, hint="open the link in a browser and copy where it ends"
        )

    def _ask(self, where: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        parts = split_url(where)
        auth = self._auth if _origin(parts) == self._origin else {}
        try:
            return pool(proxy(parts)).request(
                "GET",
                where,
                headers={"Accept-Encoding": "identity", "User-Agent": "tael", **auth, **headers},
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                pool_timeout=self.policy.patience,
                timeout=urllib3.Timeout(connect=self.policy.connect, read=self.policy.silence),
            )
        except exceptions.HTTPError as error:
            raise self.failure(error) from None

    def _redirected(self, where: str, location: str) -> str:
        try:
            target = urljoin(where, location)
        except ValueError:
            target = ""
        scheme = target.partition("://")[0].lower()
        if scheme not in PORTS or (where.startswith("https:") and scheme != "https"):
            raise SourceReadError(
                f"redirects from {where.partition(':')[0]} to {clip(redact(target)) or 'nowhere'}: refused",
                path=self.name,
                hint="give that link itself if you trust it",
            )
        split_url(target)
        return target

    def _refusal(self, response: BaseHTTPResponse) -> TryAgain | TaelError:
        status = response.status
        if status in TRY_AGAIN:
            wait = _retry_after(response.headers.get("Retry-After"))
            if wait is None or wait <= self.policy.longest_wait:
                return TryAgain(f"the server answers HTTP {status}", wait=wait)
            return SourceReadError(
                f"the server answers HTTP {status} and asks to wait {wait:,.0f} s",
                path=self.name,
                hint="run again then",
            )
        if status in (404, 410):
            return SourceNotFoundError(f"no such file (HTTP {status})", path=self.name, hint="check the link")
        if status in (401, 403, 407):
            hint = "the link may have expired or need a login: open it in a browser, or download the file there"
            if self._origin[1] == "huggingface.co":
                hint = "it may be gated or private: set HF_TOKEN and name it hf://OWNER/MODEL/FILE"
            return SourceReadError(f"access denied (HTTP {status})", path=self.name, hint=hint)
        return SourceReadError(
            f"the server answers HTTP {status}", path=self.name, hint="open the link in a browser to see what it says"
        )

    def failure(self, error: exceptions.HTTPError, received: int = 0) -> TryAgain | TaelError:
        """What to make of an error of urllib3; its own text is not used, as it may hold the whole URL."""
        if isinstance(error, exceptions.SSLError):
            reason = getattr(error.args[0] if error.args else None, "verify_message", "") or "handshake failed"
            return SourceReadError(
                f"no secure connection: {reason}", path=self.name, hint="check the clock and the link"
            )
        if isinstance(error, exceptions.LocationValueError):
            return SourceNotFoundError("is not a valid URL", path=self.name)
        for kind, cause in _FAILURES:
            if isinstance(error, kind):
                return TryAgain(cause, received=received)
        return TryAgain(f"the connection failed ({type(error).__name__})", received=received)


_FAILURES: tuple[tuple[type[Exception], str], ...] = (  # the more special first
    (exceptions.NameResolutionError, "the server's name cannot be resolved"),
    (exceptions.NewConnectionError, "cannot connect to the server"),
    (exceptions.ConnectTimeoutError, "the server does not answer"),
    (exceptions.ProxyError, "the proxy fails"),
    (exceptions.ReadTimeoutError, "the server sends nothing more"),
    (exceptions.ProtocolError, "the connection broke"),
)


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    return parts.scheme, (parts.hostname or "").lower(), parts.port or PORTS[parts.scheme]


def _hand_back(response: BaseHTTPResponse) -> None:
    """Return the connection to its pool; one with an unread body is closed, as it would have to be read first."""
    response.close()
    response.release_conn()


def _retry_after(value: str | None) -> float | None:
    """Seconds: the header holds them, or a date."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value[:12])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
