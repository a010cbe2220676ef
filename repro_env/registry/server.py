"""Send authenticated requests to a registry, and describe its errors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

import msgspec

from repro_env.io import dockerlogin
from repro_env.io.failures import LATER
from repro_env.io.registryhttp import PAUSE, TRIES, Source, Web
from repro_env.io.response import Answer
from repro_env.io.urls import check, is_loopback, origin
from repro_env.registry import challenge, token
from repro_env.registry.reference import api_host
from repro_env.schema import codec, redact
from repro_env.schema.errors import NetworkError

_MAX_ERROR = 1 << 16
_MAX_QUOTE = 300


class _Error(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""


class _Errors(msgspec.Struct, frozen=True):
    errors: list[_Error] = []


class Server:
    """Requests to one registry.

    May be used from several threads and in forked processes, and be pickled: secrets are then read again.
    """

    def __init__(self, host: str, *, pause: float = PAUSE) -> None:
        self.host = host
        """As in references; the API may be on another host (docker.io)."""
        self.web = Web(pause=pause)
        self._base = ""
        self._challenge: challenge.Challenge | None = None
        self._credentials: dockerlogin.Credentials | None = None
        self._tokens: dict[tuple[str, ...], token.Token] = {}
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, object]:
        return {"host": self.host, "web": self.web, "_base": self._base}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._challenge, self._credentials, self._tokens, self._pid = None, None, {}, os.getpid()

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
        scope: tuple[str, ...],
        headers: Mapping[str, str] | None = None,
        body: bytes | Source | None = None,
        tries: int = TRIES,
    ) -> Iterator[Answer]:
        """Send a request, with credentials if necessary, and only to this registry. The response may have any status except 401.

        `scope`: the permissions, in the form of token scopes. A `Source` is sent once; 401 is then
        returned.
        """
        scope = challenge.merge_scopes(scope)
        check(url, given_by=self.url(""))
        is_own = origin(url) == origin(self.url(""))
        can_repeat = not isinstance(body, Source)
        for attempt in range(2):
            authorization = self._authorization(scope) if is_own else ""
            with self.web.send(method, url, headers=headers, authorization=authorization, body=body, tries=tries) as answer:
                if answer.status != 401 or not is_own or origin(answer.url) != origin(url):
                    yield answer
                    return
                self._authenticate(answer, scope, used=authorization, last=attempt == 1)
                if not can_repeat:
                    yield answer
                    return

    def status_error(self, answer: Answer, where: str, *, doing: str) -> NetworkError:
        """The error for an unexpected status. `doing`: `pull` or `push`."""
        status = answer.status
        if origin(answer.url) != origin(self.url("")):
            what = f"the registry redirects to {redact.url(answer.url)}, which answers with status {status}"
            return NetworkError(what, where=where, hint=LATER)
        hint = LATER
        if status in (401, 403):
            user = f"the credentials from {self._credentials.source} are" if self._credentials else "anonymous users are"
            what, hint = f"{user} not allowed to {doing}", f"log in as a user who may {doing}: docker login {self.host}"
        elif status in (404, 410):
            what, hint = "the registry does not have this image or blob", "check the name; it may have been deleted"
        elif status == 413:
            what, hint = "the registry does not accept data of this size", "ask its administrator"
        elif status == 429:
            waiting = answer.headers.get("Retry-After", "")
            pause = f" and asks to wait {waiting} s" if waiting.isascii() and waiting.isdigit() else ""
            what, hint = f"the registry received too many requests{pause}", "wait a while and try again"
            hint += "" if self._credentials else f"; with docker login {self.host} more may be allowed"
        elif status >= 500:
            what = "the registry has an internal problem"
        else:
            what = "the registry did not accept the request"
        return NetworkError(f"{what} (status {status}){self._message(answer)}", where=where, hint=hint)

    def close(self) -> None:
        """Close the connections of this thread."""
        self.web.close()

    def _authorization(self, scope: tuple[str, ...]) -> str:
        if self._challenge is None:
            return ""
        if self._challenge.scheme == "basic":
            return self._credentials.basic if self._credentials else ""
        cached = self._tokens.get(scope)
        return f"Bearer {cached.value}" if cached is not None and cached.is_fresh else ""

    def _authenticate(self, answer: Answer, scope: tuple[str, ...], *, used: str, last: bool) -> None:
        """Get the credentials that a response with status 401 requires. Raises `NetworkError` if there is nothing more to try."""
        if self._credentials is None:
            self._credentials = dockerlogin.find(self.host)
        challenges = challenge.parse(answer.headers.get("WWW-Authenticate", ""))
        bearer = next((offer for offer in challenges if offer.scheme == "bearer"), None)
        basic = next((offer for offer in challenges if offer.scheme == "basic"), None)
        if last or (basic is not None and bearer is None and used):
            if self._credentials is None:
                raise self._no_credentials()
            what = f"the registry does not accept the credentials from {self._credentials.source} (status 401){self._message(answer)}"
            raise NetworkError(what, where=self.host, hint=f"log in as a user with this permission: docker login {self.host}")
        if bearer is not None:
            self._challenge = bearer
            self._tokens[scope] = token.request_token(
                self.web, bearer, scope, self._credentials, host=self.host, given_by=self.url("")
            )
        elif basic is not None:
            if self._credentials is None or not self._credentials.password:
                raise self._no_credentials()
            self._challenge = basic
        else:
            schemes = ", ".join(offer.scheme for offer in challenges) or "nothing"
            raise NetworkError(
                f"the registry requires an unsupported kind of authentication: {redact.line(schemes)[:100]}",
                where=self.host,
                hint="ask its administrator",
            )

    def _no_credentials(self) -> NetworkError:
        what = f"the registry requires credentials (status 401), and there are none for it in {dockerlogin.config_file()}"
        return NetworkError(what, where=self.host, hint=f"docker login {self.host}")

    def _message(self, answer: Answer) -> str:
        """The registry's own message as one clause, without secrets that it may repeat."""
        try:
            data = answer.read(_MAX_ERROR)
            errors = codec.decoder(_Errors).decode(data or b"").errors[:3]
        except (NetworkError, msgspec.DecodeError, RecursionError):
            return ""
        secrets = [item.value for item in self._tokens.values()] + list(self._credentials.hidden if self._credentials else ())
        text = "; ".join(": ".join(filter(None, (error.code, error.message))) for error in errors)
        text = redact.line(text, secrets)
        return f": {text[:_MAX_QUOTE]}" if text else ""
