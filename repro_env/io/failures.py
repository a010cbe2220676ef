"""Translate failures of HTTP requests to one sentence each, for indexes and registries.

Exceptions of requests, urllib3 and pip are recognized by the names of their classes, since pip has its own copies of both. Their
own messages are not shown, because they may contain the password of a proxy.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterator

from repro_env.schema import redact
from repro_env.schema.errors import NetworkError

LATER = "try again; if the problem persists, contact the operator of that server"
_MALFORMED = {"InvalidHeader", "InvalidURL", "InvalidSchema", "MissingSchema"}
_CUT = {"RequestException", "HTTPError", "ConnectionError", "TimeoutError"}
"""Base classes of the exceptions for a transfer that was cut off."""


def network_error(error: BaseException, url: str, *, certificate_hint: str = "") -> NetworkError:
    """Return the `NetworkError` for an exception that a request to `url` raised."""
    kinds = class_names(error)
    host = urllib.parse.urlsplit(url).netloc
    if kinds & {"ProxyError", "InvalidProxyURL", "ProxySchemeUnknown"} or "SOCKS" in str(error)[:200]:
        what = "the proxy rejected the connection"
        hint = (
            "check HTTPS_PROXY, NO_PROXY and, for package indexes, pip's `proxy` option; a SOCKS proxy needs the package PySocks"
        )
    elif "SSLCertVerificationError" in kinds:
        if any("mismatch" in str(cause).lower() for cause in chain(error)):
            what, hint = "the server's certificate is for a different host", "use the host name in the certificate"
        else:
            what = "the server's certificate cannot be verified"
            hint = f"put the certificate of its authority into /etc/docker/certs.d/{host}/ca.crt, or set SSL_CERT_FILE"
            hint = certificate_hint or hint
    elif "SSLError" in kinds:
        what = "the TLS connection failed"
        hint = "check whether that port serves https, and whether the server requires a client certificate"
    elif kinds & {"gaierror", "NameResolutionError", "LocationParseError"}:
        what, hint = "the host name cannot be resolved", "check the name and the network"
    elif kinds & {"ConnectionRefusedError", "NewConnectionError"}:
        what, hint = "the server cannot be reached", "check the address, the network, and whether the server runs"
    elif kinds & {"Timeout", "TimeoutError"}:
        what, hint = "the server did not answer in time", LATER
    elif kinds & {"RetryError", "ResponseError"}:
        what, hint = "the server answered every request with an error", LATER
    elif kinds & _MALFORMED or not kinds & {"OSError", "HTTPError", "BaseHTTPError"}:
        what, hint = "the address or a header of the request is malformed", "check the address and the credentials"
    else:
        what, hint = "the server broke off the connection", LATER
    return NetworkError(what, where=redact.url(url), hint=hint)


def is_temporary(error: BaseException) -> bool:
    """Whether another try may succeed. An invalid certificate, host name or URL is permanent."""
    kinds = class_names(error)
    return "OSError" in kinds and not kinds & (_MALFORMED | {"SSLCertVerificationError", "gaierror", "NameResolutionError"})


def lacks_tls(error: BaseException) -> bool:
    """Whether an error of the first connection shows that the server does not use TLS."""
    kinds = class_names(error)
    if kinds & {"SSLCertVerificationError", "ConnectionRefusedError", "gaierror", "ConnectTimeout"}:
        return False
    return bool(kinds & {"SSLError", "ReadTimeout", "ConnectionResetError", "RemoteDisconnected", "ProtocolError"})


@contextlib.contextmanager
def end_at_cut() -> Iterator[None]:
    """End the block without an error if a transfer is cut off."""
    try:
        yield
    except Exception as error:
        if not {kind.__name__ for kind in type(error).__mro__} & _CUT:
            raise


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes, and the exceptions that it wraps."""
    visited: set[int] = set()
    pending: list[BaseException] = [error]
    while pending:
        current = pending.pop()
        if id(current) in visited:
            continue
        visited.add(id(current))
        yield current
        inner = [current.__cause__, current.__context__, getattr(current, "reason", None), *current.args]
        pending += [cause for cause in inner if isinstance(cause, BaseException)]


def status_error(status: int, url: str) -> NetworkError:
    """Return the error for an unexpected HTTP status."""
    if status in (401, 403, 407):
        what = f"the server requires credentials that pip does not have (status {status})"
        hint = "put them where pip finds them: netrc, keyring, or the URL in pip's configuration"
    elif status in (404, 410):
        what = f"the file does not exist on the server (status {status})"
        hint = "look for the file elsewhere, or capture again on a machine that has it"
    elif status == 429:
        what, hint = "the server received too many requests (status 429)", "wait a while and try again"
    elif status >= 500:
        what, hint = f"the server reported an internal error (status {status})", LATER
    else:
        what, hint = f"the server answered with status {status}", LATER
    return NetworkError(what, where=redact.url(url), hint=hint)


def cut_error(url: str) -> NetworkError:
    """Return the error for a transfer that was cut off on every try."""
    return NetworkError("the server broke off every transfer before the end", where=redact.url(url), hint=LATER)


def class_names(error: BaseException) -> set[str]:
    """Return the names of all classes of an exception and of its causes."""
    return {kind.__name__ for cause in chain(error) for kind in type(cause).__mro__}
