"""Check which servers may be contacted: https is allowed for all servers, plain http only for this machine."""

from __future__ import annotations

import ipaddress
import urllib.parse

from repro_env.schema import redact
from repro_env.schema.errors import NetworkError


def is_loopback(host: str) -> bool:
    """Whether `host`, `host:port` or `[address]:port` is a loopback address. Names are not resolved."""
    try:
        name = urllib.parse.urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def origin(url: str) -> tuple[str, str, int]:
    """Return the scheme, host name and port of a URL. Raises `ValueError` if the URL is invalid."""
    parts = urllib.parse.urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), parts.port or (443 if scheme == "https" else 80)


def resolve(base: str, location: str) -> str:
    """Resolve a `Location` header against a URL. An invalid one is returned unchanged, and `check` rejects it."""
    try:
        return urllib.parse.urljoin(base, location)
    except ValueError:
        return location


def check(url: str, *, given_by: str = "") -> None:
    """Raise `NetworkError` unless the URL is https, or http on loopback. `given_by`: the URL that redirected to this one.

    A remote server cannot redirect requests to a port of this machine.
    """
    where = redact.url(given_by or url)
    try:
        scheme, host, _ = origin(url)
    except ValueError:
        scheme, host = "", ""
    if scheme == "https" and host:
        return
    is_local = is_loopback(f"[{host}]" if ":" in host else host)
    if scheme == "http" and is_local and (not given_by or is_loopback(urllib.parse.urlsplit(given_by).netloc)):
        return
    shown = redact.line(redact.url(url))[:200]
    if scheme == "http" and host:
        redirected = f"the server refers to {shown}, but " if given_by else ""
        what = f"{redirected}plain http is allowed only for servers on this machine"
        raise NetworkError(what, where=where, hint="install a certificate on that server, and use https")
    what = f"the server refers to {shown!r}, which is not an https URL" if given_by else "this is not an https URL"
    raise NetworkError(what, where=where, hint="contact the operator of that server" if given_by else "correct the URL")
