"""Whom a URL asks, and whether he may be asked: https always, plain http of this machine alone."""

from __future__ import annotations

import ipaddress
import urllib.parse

from repro_env.model import redact
from repro_env.model.errors import NetworkError

_ASK = "ask who runs that server"


def is_loopback(host: str) -> bool:
    """Whether `host`, `host:port` or `[address]:port` is this machine, by its name alone."""
    try:
        name = urllib.parse.urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def origin(url: str) -> tuple[str, str, int]:
    """Who answers for a URL: scheme, host name, port. Raises `ValueError` for what is no URL."""
    parts = urllib.parse.urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), parts.port or (443 if scheme == "https" else 80)


def joined(base: str, location: str) -> str:
    """The URL of a `Location`, which may be a path. One that is no URL stays what it is, and `check` refuses it."""
    try:
        return urllib.parse.urljoin(base, location)
    except ValueError:
        return location


def check(url: str, *, given_by: str = "") -> None:
    """Refuse what is neither https nor, on loopback, http. `given_by`: the URL whose answer named this one.

    A server elsewhere cannot send us to a port of this machine.
    """
    where = redact.url(given_by or url)
    try:
        scheme, host, _ = origin(url)
    except ValueError:
        scheme, host = "", ""
    if scheme == "https" and host:
        return
    near = is_loopback(f"[{host}]" if ":" in host else host)
    if scheme == "http" and near and (not given_by or is_loopback(urllib.parse.urlsplit(given_by).netloc)):
        return
    shown = redact.line(redact.url(url))[:200]
    if scheme == "http" and host:
        who = f"sends on to {shown}" if given_by else "is asked without https"
        what = f"{who}: plain HTTP is for registries of this machine alone"
        raise NetworkError(what, where=where, hint="give that server a certificate, and ask it by https")
    raise NetworkError(f"sends on to {shown!r}, which is no https URL" if given_by else "is no https URL", where=where, hint=_ASK)
