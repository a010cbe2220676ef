"""HTTP requests to registries, with `requests`, which is imported at the first request.

https is required, except for servers on this machine. Proxies are taken from the environment as in Go programs, never for
loopback addresses. `io.certificates` chooses the certificates. Cookies and netrc are not used. Errors contain redacted URLs only.
"""

from __future__ import annotations

import contextlib
import random
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from repro_env.io import certificates, http
from repro_env.io.http import LATER, TRIES, Answer, is_temporary, lacks_tls, network_error
from repro_env.io.urls import check, is_loopback, origin, resolve
from repro_env.schema import redact
from repro_env.schema.errors import NetworkError
from repro_env.version import __version__

PAUSE = 0.5
"""Seconds before the second try. Doubled for each further try."""
LONGEST_PAUSE = 60.0
"""Seconds. If a server requests a longer pause (`Retry-After`), its answer is returned instead."""
AGAIN = (429, 500, 502, 503, 504)
"""Statuses after which a request is repeated."""
REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 5
CONNECT = 10.0
"""Timeout for connecting, in seconds."""
READ = 60.0
"""Timeout for the next byte of an answer, in seconds."""
COMMIT = 600.0
"""The same after an upload: a registry may copy a large blob before it answers."""
_PROBE = 5.0


class Web:
    """Sends requests. Several threads can use it."""

    def __init__(self, *, pause: float = PAUSE) -> None:
        self._pause = pause
        self._sessions = http.Sessions(_new_session)
        """By host. The trusted certificates depend on the server."""

    @contextlib.contextmanager
    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        authorization: str = "",
        body: bytes | Source | None = None,
        tries: int = TRIES,
    ) -> Iterator[Answer]:
        """Send a request and yield the answer, whatever its status. The body has not been read yet.

        Temporary failures are retried, unless `body` is a `Source`. `authorization` is sent only to the server of
        `url`. Redirects are followed for GET and HEAD, to URLs that `urls.check` allows. Raises `NetworkError`.
        """
        check(url)
        max_tries = tries if body is None or isinstance(body, bytes) else 1
        response = None
        for attempt in range(max_tries):
            last = attempt + 1 == max_tries
            try:
                response = self._follow(method, url, dict(headers or {}), authorization, body)
            except NetworkError as error:
                if last or not is_temporary(error):
                    raise
                self.pause(attempt)
                continue
            if response.status_code not in AGAIN or last:
                break
            seconds = _retry_after(response.headers.get("Retry-After", ""))
            if seconds > LONGEST_PAUSE:
                break
            response.close()
            self.pause(attempt, seconds)
        with contextlib.closing(Answer(response)) as answer:
            yield answer

    def pause(self, attempt: int, seconds: float = 0.0) -> None:
        """Sleep before a request is repeated, at least for `seconds`. `attempt` counts from 0."""
        # The random factor spreads the requests of several workers.
        time.sleep(max(seconds, self._pause * 2**attempt * random.uniform(0.75, 1.25)))  # noqa: S311

    def speaks_tls(self, host: str) -> bool:
        """Whether `host[:port]` uses TLS; it must be on this machine. Raises `NetworkError` if its certificate is not trusted."""
        requests = _requests()
        url = f"https://{host}/v2/"
        try:
            with self._sessions.get(urllib.parse.urlsplit(url).netloc).get(
                url, timeout=(_PROBE, _PROBE), allow_redirects=False, stream=True
            ):
                return True
        except requests.exceptions.RequestException as error:
            if lacks_tls(error):
                return False
            raise network_error(error, url) from None

    def close(self) -> None:
        """Close the connections of all threads."""
        self._sessions.close()

    def _follow(self, method: str, url: str, headers: dict[str, str], authorization: str, body: Any) -> Any:
        first = url
        for _ in range(_MAX_REDIRECTS + 1):
            authorized = authorization and origin(url) == origin(first)
            response = self._request(method, url, headers | ({"Authorization": authorization} if authorized else {}), body)
            location = response.headers.get("Location", "")
            if response.status_code not in REDIRECTS or not location:
                return response
            response.close()
            if method not in ("GET", "HEAD"):
                what = f"the server redirects a {method} request, which is not supported"
                raise NetworkError(what, where=redact.url(url), hint=LATER)
            next_url = resolve(url, location)
            check(next_url, given_by=url)
            url = next_url
        what = f"the server redirects more than {_MAX_REDIRECTS} times"
        raise NetworkError(what, where=redact.url(first), hint=LATER)

    def _request(self, method: str, url: str, headers: dict[str, str], body: Any) -> Any:
        source = body if isinstance(body, Source) else None
        all_headers = {"Accept-Encoding": "identity", "User-Agent": f"repro-env/{__version__}"} | headers
        read = COMMIT if method in ("PUT", "PATCH") else READ
        try:
            return self._sessions.get(urllib.parse.urlsplit(url).netloc).request(
                method,
                url,
                headers=all_headers,
                data=body if source is None else iter(source),
                stream=True,
                allow_redirects=False,
                timeout=(CONNECT, read),
                proxies=_proxies(url),
            )
        except BaseException as error:
            if source is not None and source.error is not None:
                raise source.error from None
            if not isinstance(error, (OSError, ValueError, _requests().exceptions.BaseHTTPError)):
                raise
            raise network_error(error, url) from None


class Source:
    """A request body that is read while it is sent. Records the exception of its iterator, which is not a network error."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._chunks:
                if chunk:  # an empty chunk would end the body
                    yield chunk
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            raise


def _requests() -> Any:
    import requests

    return requests


def _new_session(name: str) -> Any:
    from http.cookiejar import DefaultCookiePolicy

    requests = _requests()
    session = requests.Session()
    session.trust_env = False  # do not read netrc; certificates and proxies are set by this module
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    session.get_redirect_target = lambda _: None  # `_follow` handles redirects
    session.mount("https://", _adapter(certificates.tls_context(name, requests.certs.where())))
    http.enforce_rate(session)
    return session


def _adapter(context: Any) -> Any:
    """Return a transport adapter that uses the TLS context for the server and for its proxy."""
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def build_connection_pool_key_attributes(self, request: Any, verify: Any, cert: Any = None) -> Any:
            host, _ = super().build_connection_pool_key_attributes(request, verify, cert)
            return host, {"ssl_context": context}

        def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:  # noqa: ARG002
            conn.cert_reqs = "CERT_REQUIRED"  # the context already contains all trusted certificates

        def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
            tls = {} if proxy.lower().startswith("socks") else {"proxy_ssl_context": context}
            return super().proxy_manager_for(proxy, **tls, **options)

    return Adapter()


def _proxies(url: str) -> dict[str, str]:
    if is_loopback(urllib.parse.urlsplit(url).netloc):
        return {}
    proxies: dict[str, str] = _requests().utils.get_environ_proxies(url, no_proxy=None)
    return proxies


def _retry_after(text: str) -> float:
    """Return the seconds that a Retry-After header asks for, or 0 if it is missing or invalid."""
    if text.isascii() and text.isdigit():
        return float(text[:9])
    import email.utils

    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return 0.0
