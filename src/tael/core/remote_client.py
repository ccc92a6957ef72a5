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

from tael.core.remote_pool import pool, proxy, queued, redact
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
    silence: float = 20.0  # between two packets, and for the whole header of an answer
    opening: float = 22.0  # for one read with all its tries, besides what bytes that came take ...
    slowest: int = 16 << 10  # ... at so many a second
    patience: float = 120.0  # instead of `opening`, so that a long conversion outlives a hiccup ...
    proven: int = 8 << 20  # ... of a source that has brought so many bytes
    refusals: int = 3  # tries where nobody listens, of a source that is not proven

    def deadline(self, nbytes: int, received: int) -> Deadline:
        """For a read of `nbytes` from a source that has brought `received` bytes before."""
        if received >= self.proven:
            return Deadline(self.patience + nbytes / self.slowest, self.slowest, self.attempts)
        return Deadline(self.opening, self.slowest, min(self.attempts, self.refusals))


POLICY = Policy()


class Deadline:
    """When one read is given up: after `seconds`, and what comes puts that off, but never by more than `seconds`.

    So a trickle ends soon, however much is asked for, and a slow but steady transfer does not.
    """

    def __init__(self, seconds: float, slowest: int, refusals: int) -> None:
        self.refusals = refusals
        self._seconds, self._slowest = seconds, slowest
        self._at, self._most = time.monotonic() + seconds, 0

    def left(self) -> float:
        return self._at - time.monotonic()

    def reached(self, position: int) -> None:
        """So many bytes of the read are there. What a new try brings again puts nothing off."""
        if position > self._most:
            self._at = min(time.monotonic() + self._seconds, self._at + (position - self._most) / self._slowest)
            self._most = position

    def put_off(self, seconds: float) -> None:
        self._at += seconds


class TryAgain(Exception):
    """This try failed, after `received` bytes; the next may not. `wait`: seconds that the server asked for."""

    def __init__(self, cause: str, *, wait: float | None = None, received: int = 0, refused: bool = False) -> None:
        super().__init__(cause)
        self.cause, self.wait, self.received, self.refused = cause, wait, received, refused


class RefusedError(SourceReadError):
    """The server will not give this file, and says so: what some stores answer of files that are not there."""


def split_url(url: str) -> SplitResult:
    """The parts of an http(s) URL. Raises `SourceNotFoundError` when it is none."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises when it is no number
        if parts.scheme in PORTS and parts.hostname:
            return parts
    except ValueError:
        pass
    # Where the password ends in a broken URL is anyone's guess: with an @ in it, none of it is shown.
    shown = f"{url.partition('://')[0]}://..." if "@" in url else redact(url)
    raise SourceNotFoundError(f"is not a valid URL: {clip(shown)}", hint="https://HOST/PATH/FILE")


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

    def retrying(self, action: Callable[[], T], deadline: Deadline) -> T:
        """What `action` returns, tried again after `TryAgain` as often and as long as the policy allows."""
        failures = 0
        while True:
            try:
                return action()
            except TryAgain as failure:
                failures = 1 if failure.received >= PROGRESS else failures + 1
                wait = self.policy.backoff * 2 ** (failures - 1) if failure.wait is None else failure.wait
                most = deadline.refusals if failure.refused else self.policy.attempts
                if failures >= most or wait >= deadline.left():
                    asked = f" and asks to wait {failure.wait:,.0f} s" if failure.wait else ""
                    tries = f" (after {failures} tries)" if failures > 1 else ""
                    raise SourceReadError(
                        f"{failure.cause}{asked}{tries}",
                        path=self.name,
                        hint="check the connection and the link, then run again",
                    ) from None
                time.sleep(wait)

    @contextmanager
    def get(self, headers: Mapping[str, str], deadline: Deadline) -> Iterator[BaseHTTPResponse]:
        """The answer (200, 206, 412 or 416), its body unread. Raises `TryAgain` or a `SourceError`."""
        response = self._follow(headers, deadline)
        try:
            yield response
        finally:
            _hand_back(response)

    def _follow(self, headers: Mapping[str, str], deadline: Deadline) -> BaseHTTPResponse:
        for _ in range(REDIRECTS + 1):
            where = self._where
            response = self._ask(where, headers, deadline)
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

    def _ask(self, where: str, headers: Mapping[str, str], deadline: Deadline) -> BaseHTTPResponse:
        parts = split_url(where)
        left = max(deadline.left(), 0.01)
        connect, silence = min(self.policy.connect, left), min(self.policy.silence, left)
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
                timeout=urllib3.Timeout(connect=connect, read=silence),
            )
        except exceptions.HTTPError as error:
            raise self.failure(error) from None
        finally:
            deadline.put_off(queued())

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
            return RefusedError(f"access denied (HTTP {status})", path=self.name, hint=hint)
        return RefusedError(
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
                return TryAgain(cause, received=received, refused=kind in _REFUSED)
        return TryAgain(f"the connection failed ({type(error).__name__})", received=received)


_FAILURES: tuple[tuple[type[Exception], str], ...] = (  # the more special first
    (exceptions.NameResolutionError, "the server's name cannot be resolved"),
    (exceptions.NewConnectionError, "cannot connect to the server"),
    (exceptions.ConnectTimeoutError, "the server does not answer"),
    (exceptions.ProxyError, "the proxy fails"),
    (exceptions.ReadTimeoutError, "the server sends nothing more"),
    (exceptions.ProtocolError, "the connection broke"),
)
_REFUSED = frozenset((exceptions.NameResolutionError, exceptions.NewConnectionError))


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
