"""Request bearer tokens from the server that a registry names, with or without the user's credentials."""

from __future__ import annotations

import time
import urllib.parse

import msgspec

from repro_env.io.dockerlogin import Credentials
from repro_env.io.registryhttp import Web
from repro_env.io.urls import check
from repro_env.registry.challenge import Challenge, merge_scopes
from repro_env.schema import codec, redact
from repro_env.schema.errors import NetworkError, SpecError

CLIENT = "repro-env"
_MAX_SIZE = 1 << 20
_MIN_LIFETIME = 60
"""Seconds; also the lifetime of a token that does not say, as in Docker."""
_USABLE = 0.8
"""The part of the lifetime in which a token is used: it must still be valid when it arrives."""


class _Answer(msgspec.Struct, frozen=True):
    token: str | None = None
    access_token: str | None = None
    expires_in: int | float | None = None


class Token(msgspec.Struct, frozen=True):
    """A bearer token. `str` and `repr` do not reveal it."""

    value: str
    expires: float
    """When it should be replaced, by the monotonic clock."""

    def __repr__(self) -> str:
        return "<token>"

    __str__ = __repr__

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() < self.expires


def request_token(
    web: Web, challenge: Challenge, scopes: tuple[str, ...], credentials: Credentials | None, *, host: str, given_by: str
) -> Token:
    """Request a token. `given_by`: the URL that answered with the challenge. Raises `NetworkError`, which contains no secret."""
    realm = challenge.parameters.get("realm", "")
    service = challenge.parameters.get("service", "")
    if not realm:
        raise NetworkError(
            "this registry requires a token, but does not say where to get one", where=host, hint="ask its administrator"
        )
    check(realm, given_by=given_by)
    scopes = merge_scopes((*scopes, challenge.parameters.get("scope", "")))
    shown = redact.url(realm)
    if credentials is not None and credentials.identity:
        fields = {"grant_type": "refresh_token", "client_id": CLIENT, "service": service, "refresh_token": credentials.identity}
        body = urllib.parse.urlencode(fields | {"scope": " ".join(scopes)}).encode()
        request = web.send("POST", realm, body=body, headers={"Content-Type": "application/x-www-form-urlencoded"})
    else:
        query = urllib.parse.urlencode([("service", service)] * bool(service) + [("scope", scope) for scope in scopes])
        url = realm + (("&" if "?" in realm else "?") + query if query else "")
        request = web.send("GET", url, authorization=credentials.basic if credentials else "")
    with request as answer:
        if answer.status in (400, 401, 403) and credentials is not None:
            what = (
                f"the token server does not accept the credentials from {credentials.source} for {host} (status {answer.status})"
            )
            raise NetworkError(what, where=shown, hint=f"log in again: docker login {host}")
        if answer.status in (401, 403):
            what = f"the token server requires credentials, and there are none for {host} (status {answer.status})"
            raise NetworkError(what, where=shown, hint=f"docker login {host}")
        if answer.status != 200:
            raise NetworkError(
                f"the token server refused a token for {host} (status {answer.status})", where=shown, hint="try again later"
            )
        data = answer.read(_MAX_SIZE)
    if data is None:
        raise NetworkError("the token server's answer was incomplete each time", where=shown, hint="try again later")
    try:
        token = codec.decode(data, _Answer, where=shown)
    except SpecError:
        token = _Answer()
    value = token.token or token.access_token or ""
    if not value or not value.isascii() or not value.isprintable():
        raise NetworkError("the token server's answer contains no valid token", where=shown, hint="ask its administrator")
    return Token(value, time.monotonic() + _USABLE * max(_MIN_LIFETIME, token.expires_in or 0))
