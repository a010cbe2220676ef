"""HTTP to registries: the one door over `requests`, which is imported when something is asked.

https always; plain http to this machine alone. Proxies come from the environment, as Go programs read them: never for
loopback. Certificates: `io.trust`. No cookies, no netrc. Texts that leave here are redacted.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from repro_env import __version__
from repro_env.io import pace, trust
from repro_env.io.answer import LATER, content_range
from repro_env.io.broken import explained, is_no_tls, is_passing
from repro_env.io.files import CHUNK
from repro_env.io.target import check, is_loopback, joined, origin
from repro_env.model import redact
from repro_env.model.errors import NetworkError

TRIES = 5
"""Of a request that can be sent again, in all."""
PAUSE = 0.5
"""Seconds before the second try, doubled for each further one."""
LONGEST_PAUSE = 60.0
"""Seconds. A server that wants a longer pause (`Retry-After`) is told of instead of waited for."""
AGAIN = (429, 500, 502, 503, 504)
"""Statuses that may be another one in a moment."""
REDIRECTS = (301, 302, 303, 307, 308)
_HOPS = 5
CONNECT = 10.0
"""Seconds."""
READ = 60.0
"""Seconds without a byte."""
COMMIT = 600.0
"""Seconds without a byte after something was sent: a registry may copy a large blob before it answers."""
_PROBE = 5.0
_DRAIN = 1 << 16


class Answer:
    """What a server answered. Its body is read once, by one of `chunks` and `whole`."""

    def __init__(self, response: Any, url: str) -> None:
        self._response = response
        self.status: int = response.status_code
        self.url = url
        """Of whom the answer is, after redirects; may hold a signature: only `redact.url` of it is for people."""
        self.headers: Mapping[str, str] = response.headers

    @property
    def length(self) -> int:
        """Bytes of the body, as told; -1 when not told."""
        text = self.headers.get("Content-Length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1

    @property
    def range(self) -> tuple[int, int]:
        """First byte and size of the whole, of an answer with a part; (-1, -1) when not told."""
        return content_range(self._response)

    def chunks(self) -> Iterator[bytes]:
        """The body as it comes; ends without a word when the transfer is cut."""
        with contextlib.suppress(*_cuts()):
            yield from self._response.raw.stream(CHUNK, decode_content=False)

    def whole(self, limit: int) -> bytes | None:
        """The body; None when the transfer was cut. Raises `NetworkError` for one of over `limit` bytes."""
        body = bytearray()
        where = redact.url(self.url)
        read = getattr(self._response.raw, "read1", self._response.raw.read)  # of urllib3 2: what is there already
        if self.length > limit:
            raise NetworkError(f"answers with {self.length:,} bytes where at most {limit:,} are taken", where=where, hint=LATER)
        try:
            while chunk := read(_DRAIN, decode_content=False):
                body += chunk
                if len(body) > limit:
                    raise NetworkError(f"answers with over {limit:,} bytes", where=where, hint=LATER)
        except _cuts():
            return None
        return bytes(body) if self.length in (-1, len(body)) else None

    def finish(self) -> None:
        """Read a short body that nobody wants, so that the connection can be used again."""
        if 0 <= self.length <= _DRAIN or self._response.request.method == "HEAD":
            with contextlib.suppress(NetworkError, *_cuts()):
                self._response.raw.read(_DRAIN)


class Web:
    """Requests, each answered or explained. For several threads, and for processes forked from this one."""

    def __init__(self, *, pause: float = PAUSE) -> None:
        self._pause = pause
        self._own = threading.local()
        self._left: list[Any] = []  # of the process that we were forked from: not closed here, that would be felt there

    def __reduce__(self) -> tuple[object, ...]:
        return (_again, (self._pause,))

    @contextlib.contextmanager
    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        authorization: str = "",
        body: bytes | Iterable[bytes] | None = None,
        tries: int = TRIES,
        follow: bool = True,
    ) -> Iterator[Answer]:
        """Send, and give the answer, whatever its status; its body is not read yet.

        What fails for now is tried again, unless `body` is something that can be read only once. `authorization` goes to
        the server of `url` alone. Redirects are followed for GET and HEAD, and to https, or on loopback. Raises `NetworkError`.
        """
        check(url)
        again = tries if body is None or isinstance(body, bytes) else 1
        response, final = None, url
        for attempt in range(again):
            last = attempt + 1 == again
            try:
                response, final = self._follow(method, url, dict(headers or {}), authorization, body, follow=follow)
            except _Failed as failed:
                if last or not failed.passing:
                    raise failed.error from None
                self._rest(attempt, 0.0)
                continue
            if response.status_code not in AGAIN or last:
                break
            wanted = _retry_after(response.headers.get("Retry-After", ""))
            if wanted > LONGEST_PAUSE:
                break
            response.close()
            self._rest(attempt, wanted)
        answer = Answer(response, final)
        try:
            yield answer
        finally:
            answer.finish()
            answer._response.close()  # noqa: SLF001 - our own

    def pause(self, attempt: int) -> None:
        """Rest before a request is sent again that `send` cannot send again itself. `attempt` counts from 0."""
        self._rest(attempt, 0.0)

    def speaks_tls(self, host: str) -> bool:
        """Whether `host[:port]` of this machine answers in TLS. A certificate that is not trusted is an error, no answer."""
        requests = _requests()
        url = f"https://{host}/v2/"
        try:
            with self._session(url).get(url, timeout=(_PROBE, _PROBE), allow_redirects=False, stream=True):
                return True
        except requests.exceptions.RequestException as error:
            if is_no_tls(error):
                return False
            raise explained(error, url) from None

    def close(self) -> None:
        """Close the connections of this thread."""
        kept = getattr(self._own, "sessions", None)
        if kept is not None and kept[0] == os.getpid():
            for session in kept[1].values():
                session.close()
            del self._own.sessions

    def _rest(self, attempt: int, wanted: float) -> None:
        # Spread, so that several workers do not come back all at once.
        time.sleep(max(wanted, self._pause * 2**attempt * random.uniform(0.75, 1.25)))  # noqa: S311

    def _follow(
        self, method: str, url: str, headers: dict[str, str], authorization: str, body: Any, *, follow: bool
    ) -> tuple[Any, str]:
        first = url
        for _ in range(_HOPS + 1):
            own = headers | ({"Authorization": authorization} if authorization and origin(url) == origin(first) else {})
            response = self._once(method, url, own, body)
            target = response.headers.get("Location", "")
            if not (follow and response.status_code in REDIRECTS and target):
                return response, url
            response.close()
            if method not in ("GET", "HEAD"):
                raise _Failed(
                    NetworkError(f"redirects a {method} elsewhere, which is not followed", where=redact.url(url), hint=LATER)
                )
            following = joined(url, target)
            try:
                check(following, given_by=url)
            except NetworkError as error:
                raise _Failed(error) from None
            url = following
        raise _Failed(NetworkError(f"redirects more than {_HOPS} times", where=redact.url(first), hint=LATER))

    def _once(self, method: str, url: str, headers: dict[str, str], body: Any) -> Any:
        source = None if body is None or isinstance(body, bytes) else _Source(body)
        named = {"Accept-Encoding": "identity", "User-Agent": f"repro-env/{__version__}"} | headers
        read = COMMIT if method in ("PUT", "PATCH") else READ
        try:
            return self._session(url).request(
                method,
                url,
                headers=named,
                data=body if source is None else iter(source),
                stream=True,
                allow_redirects=False,
                timeout=(CONNECT, read),
                proxies=_proxies(url),
            )
        except BaseException as error:
            if source is not None and source.error is not None:
                raise source.error from None
            if isinstance(error, NetworkError):  # of the certificates for this server
                raise _Failed(error) from None
            if not isinstance(error, (OSError, ValueError, _requests().exceptions.BaseHTTPError)):
                raise
            raise _Failed(explained(error, url), passing=is_passing(error)) from None

    def _session(self, url: str) -> Any:
        """One for each process, thread and server: certificates are trusted for a server."""
        kept = getattr(self._own, "sessions", None)
        if kept is None or kept[0] != os.getpid():
            if kept is not None:
                self._left.append(kept)
            fresh: dict[str, Any] = {}
            kept = self._own.sessions = (os.getpid(), fresh)
        sessions: dict[str, Any] = kept[1]
        name = urllib.parse.urlsplit(url).netloc
        if name not in sessions:
            sessions[name] = _new_session(name)
        return sessions[name]


class _Failed(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, error: NetworkError, *, passing: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.passing = passing
        """It may be gone in a moment."""


class _Source:
    """A body that is read as it is sent; remembers what went wrong in making it, which is nobody else's fault."""

    def __init__(self, body: Iterable[bytes]) -> None:
        self._body = body
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._body:
                if chunk:  # an empty one would end the body
                    yield chunk
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            raise


def _again(pause: float) -> Web:
    return Web(pause=pause)


def _requests() -> Any:
    import requests

    return requests


def _cuts() -> tuple[type[Exception], ...]:
    """What breaks a body off."""
    known = _requests().exceptions
    return (known.RequestException, known.BaseHTTPError, ConnectionError, TimeoutError)  # of requests, of urllib3, of Python


def _new_session(name: str) -> Any:
    from http.cookiejar import DefaultCookiePolicy

    requests = _requests()
    session = requests.Session()
    session.trust_env = False  # netrc, and certificates without those of this host: read by us
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    session.get_redirect_target = lambda _: None  # redirects are ours to follow
    session.mount("https://", _adapter(trust.trusted(name, requests.certs.where())))
    pace.keep(session)
    return session


def _adapter(context: Any) -> Any:
    """What `requests` reaches a server with, and any proxy before it."""
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def build_connection_pool_key_attributes(self, request: Any, verify: Any, cert: Any = None) -> Any:
            host, _ = super().build_connection_pool_key_attributes(request, verify, cert)
            return host, {"ssl_context": context}

        def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:  # noqa: ARG002
            conn.cert_reqs = "CERT_REQUIRED"  # and no file beside: the context has them all

        def proxy_manager_for(self, proxy: str, **more: Any) -> Any:
            own = {} if proxy.lower().startswith("socks") else {"proxy_ssl_context": context}
            return super().proxy_manager_for(proxy, **own, **more)

    return Adapter()


def _proxies(url: str) -> dict[str, str]:
    if is_loopback(urllib.parse.urlsplit(url).netloc):
        return {}
    found: dict[str, str] = _requests().utils.get_environ_proxies(url, no_proxy=None)
    return found


def _retry_after(text: str) -> float:
    """Seconds; 0 when not told."""
    if text.isascii() and text.isdigit():
        return float(text[:9])
    import email.utils

    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return 0.0
