"""Send authenticated requests to a registry, get the tokens that it requires, and describe its errors."""

from __future__ import annotations

import contextlib
import re
import time
import urllib.parse
from collections.abc import Iterator, Mapping

import msgspec

from repro_env.io import dockerlogin
from repro_env.io.http import LATER, TRIES, Answer
from repro_env.io.registryhttp import PAUSE, Source, Web
from repro_env.io.urls import check, is_loopback, origin
from repro_env.registry.reference import api_host
from repro_env.schema import codec, redact
from repro_env.schema.errors import NetworkError, SpecError

_ADMIN = "ask its administrator"
_MAX_ERROR = 1 << 16
_MAX_TOKEN = 1 << 20
_MAX_QUOTE = 300
_MIN_LIFETIME = 60
"""Seconds; also the lifetime of a token that does not say, as in Docker."""
_USABLE = 0.8
"""The part of the lifetime in which a token is used: it must still be valid when it arrives."""
_CHALLENGE = re.compile(r'[\s,]*(?:([A-Za-z][\w-]*)(?:\s+|\s*(?=,|\Z)))?(?:([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+)))?')
"""The next scheme, parameter, or both."""
_MAX_HEADER = 8000


class _Error(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""


class _Errors(msgspec.Struct, frozen=True):
    errors: list[_Error] = []


class _TokenAnswer(msgspec.Struct, frozen=True):
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


def parse_challenges(header: str) -> dict[str, dict[str, str]]:
    """Parse `WWW-Authenticate`, in which a registry says how it wants requests to be authenticated.

    Returns scheme -> parameters, with names in lower case. Parsing ends at the first invalid text.
    """
    challenges: dict[str, dict[str, str]] = {}
    scheme, position, header = "", 0, header[:_MAX_HEADER]
    while (match := _CHALLENGE.match(header, position)) and (match[1] or (match[2] and scheme)):
        scheme = (match[1] or scheme).lower()
        parameters = challenges.setdefault(scheme, {})
        if match[2]:
            parameters.setdefault(match[2].lower(), re.sub(r"\\(.)", r"\1", match[3]) if match[4] is None else match[4])
        position = match.end()
    return challenges


class Server:
    """Requests to one registry. May be used from several threads."""

    def __init__(self, host: str, *, pause: float = PAUSE) -> None:
        self.host = host
        """As in references; the API may be on another host (docker.io)."""
        self.web = Web(pause=pause)
        self._base = ""
        self._challenge: tuple[str, dict[str, str]] | None = None
        """The scheme that the registry requires, `basic` or `bearer`, with its parameters."""
        self._credentials: dockerlogin.Credentials | None = None
        self._tokens: dict[str, Token] = {}
        """By scope."""

    def url(self, path: str) -> str:
        """The URL of a path below `/v2/`. A registry on this machine may use plain HTTP: this is checked once."""
        if not self._base:
            name = api_host(self.host)
            scheme = "http" if is_loopback(name) and not self.web.speaks_tls(name) else "https"
            self._base = f"{scheme}://{name}/v2/"
        return self._base + path

    @contextlib.contextmanager
    def send(
        self,
        method: str,
        url: str,
        *,
        scope: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | Source | None = None,
        tries: int = TRIES,
    ) -> Iterator[Answer]:
        """Send a request, with credentials if necessary, and only to this registry. The response may have any status except 401.

        `scope`: the permissions, in the form of a token's scope. A `Source` is sent once; 401 is then returned.
        """
        check(url, given_by=self.url(""))
        is_own = origin(url) == origin(self.url(""))
        for attempt in range(2):
            authorization = self._authorization(scope) if is_own else ""
            with self.web.send(method, url, headers=headers, authorization=authorization, body=body, tries=tries) as answer:
                if answer.status != 401 or not is_own or origin(answer.url) != origin(url):
                    yield answer
                    return
                self._authenticate(answer, scope, used=authorization, last=attempt == 1)
                if isinstance(body, Source):
                    yield answer
                    return

    def status_error(self, answer: Answer, where: str, *, doing: str) -> NetworkError:
        """The error for an unexpected status. `doing`: `pull` or `push`."""
        status, hint = answer.status, LATER
        if origin(answer.url) != origin(self.url("")):
            what = f"the registry redirects to {redact.url(answer.url)}, which answers with status {status}"
            return NetworkError(what, where=where, hint=hint)
        if status in (401, 403):
            user = f"the credentials from {self._credentials.source} are" if self._credentials else "anonymous users are"
            what, hint = f"{user} not allowed to {doing}", f"log in as a user who may {doing}: docker login {self.host}"
        elif status in (404, 410):
            what, hint = "the registry does not have this image or blob", "check the name; it may have been deleted"
        elif status == 413:
            what, hint = "the registry does not accept data of this size", _ADMIN
        elif status == 429:
            waiting = answer.headers.get("Retry-After", "")
            pause = f" and asks to wait {waiting} s" if waiting.isascii() and waiting.isdigit() else ""
            what, hint = f"the registry received too many requests{pause}", "wait a while and try again, or log in"
        else:
            what = "the registry has an internal problem" if status >= 500 else "the registry did not accept the request"
        return NetworkError(f"{what} (status {status}){self._message(answer)}", where=where, hint=hint)

    def _authorization(self, scope: str) -> str:
        if self._challenge is not None and self._challenge[0] == "basic":
            return self._credentials.basic if self._credentials else ""
        token = self._tokens.get(scope)
        return f"Bearer {token.value}" if token is not None and time.monotonic() < token.expires else ""

    def _authenticate(self, answer: Answer, scope: str, *, used: str, last: bool) -> None:
        """Get the credentials that a response with status 401 requires. Raises `NetworkError` if there is nothing more to try."""
        self._credentials = self._credentials or dockerlogin.find(self.host)
        challenges = parse_challenges(answer.headers.get("WWW-Authenticate", ""))
        if challenges.keys().isdisjoint({"bearer", "basic"}) and not last:
            what = f"the registry requires an unsupported kind of authentication: {redact.line(', '.join(challenges))[:100] or 'nothing'}"
            raise NetworkError(what, where=self.host, hint=_ADMIN)
        if "bearer" in challenges and not last:
            self._challenge = ("bearer", challenges["bearer"])
            self._tokens[scope] = self._request_token(challenges["bearer"], scope)
            return
        if self._credentials is None or not self._credentials.password:
            what = f"the registry requires credentials (status 401), and there are none for it in {dockerlogin.config_file()}"
            raise NetworkError(what, where=self.host, hint=f"docker login {self.host}")
        if last or used:
            what = f"the registry does not accept the credentials from {self._credentials.source} (status 401){self._message(answer)}"
            raise NetworkError(what, where=self.host, hint=f"log in as a user with this permission: docker login {self.host}")
        self._challenge = ("basic", {})

    def _request_token(self, parameters: Mapping[str, str], scope: str) -> Token:
        """Request a token from the server that a challenge names. Raises `NetworkError`, which contains no secret."""
        realm, service, credentials = parameters.get("realm", ""), parameters.get("service", ""), self._credentials
        if not realm:
            what = "this registry requires a token, but does not say where to get one"
            raise NetworkError(what, where=self.host, hint=_ADMIN)
        check(realm, given_by=self.url(""))
        shown = redact.url(realm)
        scopes = list(dict.fromkeys((scope, *parameters.get("scope", "").split())))
        if credentials is not None and credentials.identity:
            fields = {"grant_type": "refresh_token", "client_id": "repro-env", "refresh_token": credentials.identity}
            body = urllib.parse.urlencode({**fields, "service": service, "scope": " ".join(scopes)}).encode()
            request = self.web.send("POST", realm, body=body, headers={"Content-Type": "application/x-www-form-urlencoded"})
        else:
            query = urllib.parse.urlencode([("service", service)] * bool(service) + [("scope", scope) for scope in scopes])
            url = f"{realm}{'&' if '?' in realm else '?'}{query}"
            request = self.web.send("GET", url, authorization=credentials.basic if credentials else "")
        with request as answer:
            if answer.status in (400, 401, 403):
                problem = (
                    f"does not accept the credentials from {credentials.source}"
                    if credentials
                    else "requires credentials, and there are none"
                )
                what = f"the token server {problem} for {self.host} (status {answer.status})"
                raise NetworkError(what, where=shown, hint=f"docker login {self.host}")
            data = answer.read(_MAX_TOKEN) if answer.status == 200 else None
            if data is None:
                what = f"the token server did not answer with a token for {self.host} (status {answer.status})"
                raise NetworkError(what, where=shown, hint=LATER)
        try:
            token = codec.decode(data, _TokenAnswer, where=shown)
        except SpecError:
            token = _TokenAnswer()
        value = token.token or token.access_token or ""
        if not value or not value.isascii() or not value.isprintable():
            raise NetworkError("the token server's answer contains no valid token", where=shown, hint=_ADMIN)
        return Token(value, time.monotonic() + _USABLE * max(_MIN_LIFETIME, token.expires_in or 0))

    def _message(self, answer: Answer) -> str:
        """The registry's own message as one clause, without secrets that it may repeat."""
        try:
            data = answer.read(_MAX_ERROR)
            errors = codec.decoder(_Errors).decode(data or b"").errors[:3]
        except (NetworkError, msgspec.DecodeError, RecursionError):
            return ""
        secrets = [token.value for token in self._tokens.values()] + list(self._credentials.hidden if self._credentials else ())
        text = "; ".join(": ".join(filter(None, (error.code, error.message))) for error in errors)
        text = redact.line(text, secrets)
        return f": {text[:_MAX_QUOTE]}" if text else ""
