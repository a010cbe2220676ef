"""Bearer tokens: asked of whom a registry names, with the user's credentials or without; kept in memory until they expire."""

from __future__ import annotations

import time
import urllib.parse

import msgspec

from repro_env.io.target import check
from repro_env.io.web import Web
from repro_env.model import codec, redact
from repro_env.model.errors import NetworkError, SpecError
from repro_env.registry.auth import Credentials
from repro_env.registry.challenge import Challenge, merged

CLIENT = "repro-env"
_LARGEST = 1 << 20
_LIFE = 60
"""Seconds, of a token that does not say, and of each at least: as Docker has it."""
_USED = 0.8
"""Of its life: it has to arrive before it ends."""


class _Answer(msgspec.Struct, frozen=True):
    token: str | None = None
    access_token: str | None = None
    expires_in: int | float | None = None


class Token(msgspec.Struct, frozen=True):
    """`repr` shows nothing of it."""

    value: str
    until: float
    """By the monotonic clock."""

    def __repr__(self) -> str:
        return "<token>"

    __str__ = __repr__

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() < self.until


def ask(web: Web, challenge: Challenge, scopes: tuple[str, ...], known: Credentials | None, *, host: str, given_by: str) -> Token:
    """`given_by`: the URL whose answer was the challenge. Raises `NetworkError`, in which no secret stands."""
    realm = challenge.parameters.get("realm", "")
    service = challenge.parameters.get("service", "")
    if not realm:
        raise NetworkError("wants a token and does not say whose", where=host, hint="ask who runs that registry")
    check(realm, given_by=given_by)
    scopes = merged((*scopes, challenge.parameters.get("scope", "")))
    shown = redact.url(realm)
    if known is not None and known.identity:
        fields = {"grant_type": "refresh_token", "client_id": CLIENT, "service": service, "refresh_token": known.identity}
        body = urllib.parse.urlencode(fields | {"scope": " ".join(scopes)}).encode()
        sent = web.send("POST", realm, body=body, headers={"Content-Type": "application/x-www-form-urlencoded"})
    else:
        query = urllib.parse.urlencode([("service", service)] * bool(service) + [("scope", scope) for scope in scopes])
        url = realm + (("&" if "?" in realm else "?") + query if query else "")
        sent = web.send("GET", url, authorization=known.basic if known else "")
    with sent as answer:
        if answer.status in (400, 401, 403) and known is not None:
            what = f"does not accept the credentials of {known.source} for {host} (status {answer.status})"
            raise NetworkError(what, where=shown, hint=f"log in again: docker login {host}")
        if answer.status in (401, 403):
            what = f"gives no token without credentials, and there are none for {host} (status {answer.status})"
            raise NetworkError(what, where=shown, hint=f"docker login {host}")
        if answer.status != 200:
            raise NetworkError(f"gives no token for {host} (status {answer.status})", where=shown, hint="try again later")
        data = answer.whole(_LARGEST)
    if data is None:
        raise NetworkError("breaks its answer off each time", where=shown, hint="try again later")
    try:
        given = codec.decode(data, _Answer, where=shown)
    except SpecError:
        given = _Answer()
    value = given.token or given.access_token or ""
    if not value or not value.isascii() or not value.isprintable():
        raise NetworkError("answers with something that is no token", where=shown, hint="ask who runs that registry")
    return Token(value, time.monotonic() + _USED * max(_LIFE, given.expires_in or 0))
