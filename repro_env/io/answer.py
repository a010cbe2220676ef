"""What a server answered: its body, its headers that matter, and in one sentence why it is no use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from repro_env.io.files import CHUNK
from repro_env.io.pip import cuts
from repro_env.model import redact
from repro_env.model.errors import NetworkError

LATER = "try again; if it stays so, ask who runs that server"
MAX_PAGE = 64 << 20
"""Bytes of one index page; the largest known is about 6 MB."""


_PART = 1 << 14
"""Bytes read of a page at once: compressed ones can become a thousand times as many."""


def whole_body(response: Any, url: str) -> bytes | None:
    """The body of a response; None if the transfer was cut. Raises `NetworkError` for a page that is too large."""
    body = bytearray()
    told = length(response)
    try:
        for chunk in response.iter_content(_PART) if told <= MAX_PAGE else ():
            body += chunk
            if len(body) > MAX_PAGE:
                break
    except cuts():
        return None
    if max(told, len(body)) > MAX_PAGE:
        raise NetworkError(f"is a page of over {MAX_PAGE >> 20} MiB", where=redact.url(url), hint=LATER)
    if told >= 0 and not getattr(response, "from_cache", False) and response.raw.tell() < told:
        return None
    return bytes(body)


def finish(response: Any) -> None:
    """Read the short body of an answer that is not wanted, so that its connection can be used again."""
    with contextlib.suppress(NetworkError, *cuts()):
        response.raw.read(1 << 16)


def chunks(response: Any) -> Iterator[bytes]:
    """The body as it comes; ends without a word when the transfer is cut."""
    with contextlib.suppress(*cuts()):
        yield from response.raw.stream(CHUNK, decode_content=False)


def exactly(response: Any, size: int) -> bytes | None:
    """A body of this many bytes; None when the transfer was cut."""
    body = bytearray()
    for chunk in chunks(response):
        body += chunk
        if len(body) > size:
            return None
    return bytes(body) if len(body) == size else None


@contextlib.contextmanager
def translated(url: str) -> Iterator[None]:
    """Turn what pip, requests and urllib3 raise into one sentence."""
    where = redact.url(url)
    try:
        yield
    except NetworkError:
        raise
    except Exception as error:
        kinds = [type(one).__name__ for one in chain(error)]
        if not any(type(one).__module__.startswith("pip.") or isinstance(one, OSError) for one in chain(error)):
            raise
        text = " ".join(str(one) for one in chain(error)).lower()
        proxy = any("Proxy" in kind for kind in kinds)
        if any("SSL" in kind or "Certificate" in kind for kind in kinds) or "certificate" in text or "tls ca" in text:
            what, hint = "its certificate cannot be verified", "set pip's `cert` option to the certificates of your site"
        elif proxy:
            what, hint = "the proxy does not let this through", "look at pip's `proxy` option and the *_PROXY variables"
        elif "name or service" in text or "nameresolution" in text.replace(" ", "") or "getaddrinfo" in text:
            what, hint = "its host name is not known here", "look at the index's name in pip's configuration, and at the network"
        elif any("Timeout" in kind for kind in kinds) or "timed out" in text:
            what, hint = "did not answer in time", "try again, or raise pip's `timeout` option"
        elif "too many" in text and "response" in text:
            what, hint = "answers with errors only", LATER
        else:
            what, hint = "cannot be reached", "look at the network and at `pip config list`"
        raise NetworkError(what, where=where, hint=hint) from None


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was made of."""
    seen: set[int] = set()
    pending: list[BaseException] = [error]
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
        pending += [other for other in inner if isinstance(other, BaseException)]


def refused(status: int, url: str) -> NetworkError:
    if status in (401, 403, 407):
        what = f"wants credentials that pip does not have (status {status})"
        hint = "put them where pip finds them: netrc, keyring, or the URL in pip's configuration"
    elif status in (404, 410):
        what, hint = f"is not there (status {status})", "look for the file elsewhere, or capture again where it is"
    elif status == 429:
        what, hint = "gets too many requests (status 429)", "wait a while and try again"
    elif status >= 500:
        what, hint = f"has a problem of its own (status {status})", LATER
    else:
        what, hint = f"answered with status {status}", LATER
    return NetworkError(what, where=redact.url(url), hint=hint)


def cut(url: str) -> NetworkError:
    return NetworkError("breaks off each time before the end", where=redact.url(url), hint=LATER)


def length(response: Any) -> int:
    """-1 when not told."""
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdigit() else -1


def content_range(response: Any) -> tuple[int, int]:
    """First byte and size of the whole; (-1, -1) when not told."""
    unit, _, rest = response.headers.get("Content-Range", "").partition(" ")
    span, _, total = rest.partition("/")
    start = span.partition("-")[0]
    if unit.lower() != "bytes" or not (start.isascii() and start.isdigit() and total.isascii() and total.isdigit()):
        return -1, -1
    return int(start), int(total)


def strong_tag(response: Any) -> str:
    tag = str(response.headers.get("ETag", ""))
    return tag if tag.startswith('"') else ""


def content_type(response: Any) -> str:
    return str(response.headers.get("Content-Type", "")).partition(";")[0].strip().lower()
