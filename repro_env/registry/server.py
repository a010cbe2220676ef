"""One registry, asked with what it wants to be asked with, and its refusals as sentences."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from repro_env.io.answer import LATER
from repro_env.io.target import check, is_loopback, origin
from repro_env.io.web import PAUSE, TRIES, Answer, Web
from repro_env.model import codec, redact
from repro_env.model.errors import NetworkError
from repro_env.registry import auth, challenge, token
from repro_env.registry.reference import api_host

_SAID = 1 << 16
_QUOTED = 300


class _One(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""


class _Errors(msgspec.Struct, frozen=True):
    errors: list[_One] = []


class Server:
    """Requests to one registry. For several threads, for forked processes, and to be pickled: secrets are then read anew."""

    def __init__(self, host: str, *, pause: float = PAUSE) -> None:
        self.host = host
        """As references have it; who answers may have another name (docker.io)."""
        self.web = Web(pause=pause)
        self._base = ""
        self._wanted: challenge.Challenge | None = None
        self._known: auth.Credentials | None = None
        self._tokens: dict[tuple[str, ...], token.Token] = {}
        self._of = os.getpid()

    def __getstate__(self) -> dict[str, object]:
        return {"host": self.host, "web": self.web, "_base": self._base}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._wanted, self._known, self._tokens, self._of = None, None, {}, os.getpid()

    def url(self, path: str) -> str:
        """`path` below `/v2/`. A registry of this machine may speak plain HTTP: it is asked once."""
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
        body: bytes | Iterable[bytes] | None = None,
        tries: int = TRIES,
    ) -> Iterator[Answer]:
        """Send, with credentials where they are wanted, and only to this registry itself; the answer may have any status but 401.

        `scope`: what is asked for, as tokens name it. A `body` that can be read only once is sent once: then 401 is an answer.
        """
        scope = challenge.merged(scope)
        check(url, given_by=self.url(""))
        ours = origin(url) == origin(self.url(""))
        again = body is None or isinstance(body, bytes)
        for attempt in range(2):
            used = self._authorization(scope) if ours else ""
            with self.web.send(method, url, headers=headers, authorization=used, body=body, tries=tries) as answer:
                if answer.status != 401 or not ours or origin(answer.url) != origin(url):
                    yield answer
                    return
                self._learn(answer, scope, was_used=used, last=attempt == 1)
                if not again:
                    yield answer
                    return

    def refused(self, answer: Answer, where: str, *, doing: str = "") -> NetworkError:
        """The sentence for a status that is none of those hoped for. `doing`: `pull`, `push`."""
        status = answer.status
        if origin(answer.url) != origin(self.url("")):
            what = f"sends on to {redact.url(answer.url)}, and that answers with status {status}"
            return NetworkError(what, where=where, hint=LATER)
        said = self._said(answer)
        if status in (401, 403):
            who = f"the credentials of {self._known.source}" if self._known else "anybody without credentials"
            what = f"does not let {who} {doing or 'in'} (status {status}){said}"
            return NetworkError(what, where=where, hint=f"docker login {self.host}, as someone who may {doing or 'do this'}")
        if status in (404, 410):
            return NetworkError(
                f"is not there (status {status}){said}", where=where, hint="look at the name; it may have been deleted"
            )
        if status == 429:
            waiting = answer.headers.get("Retry-After", "")
            wanted = f" and wants a pause of {waiting} s" if waiting.isascii() and waiting.isdigit() else ""
            hint = "wait a while and try again" + ("" if self._known else f"; with docker login {self.host} more may be allowed")
            return NetworkError(f"gets too many requests (status 429){wanted}{said}", where=where, hint=hint)
        if status == 413:
            return NetworkError(f"takes nothing of this size (status 413){said}", where=where, hint="ask who runs that registry")
        if status >= 500:
            return NetworkError(f"has a problem of its own (status {status}){said}", where=where, hint=LATER)
        return NetworkError(f"answered with status {status}{said}", where=where, hint=LATER)

    def close(self) -> None:
        """Close the connections of this thread."""
        self.web.close()

    def _authorization(self, scope: tuple[str, ...]) -> str:
        if self._wanted is None:
            return ""
        if self._wanted.scheme == "basic":
            return self._known.basic if self._known else ""
        kept = self._tokens.get(scope)
        return f"Bearer {kept.value}" if kept is not None and kept.is_fresh else ""

    def _learn(self, answer: Answer, scope: tuple[str, ...], *, was_used: str, last: bool) -> None:
        """From a 401: get what is wanted. Raises `NetworkError` when there is nothing more to try."""
        if self._known is None:
            self._known = auth.find(self.host)
        wanted = challenge.parse(answer.headers.get("WWW-Authenticate", ""))
        bearer = next((one for one in wanted if one.scheme == "bearer"), None)
        basic = next((one for one in wanted if one.scheme == "basic"), None)
        if last or (basic is not None and bearer is None and was_used):
            if self._known is None:
                raise self._no_credentials()
            what = f"does not accept the credentials of {self._known.source} (status 401){self._said(answer)}"
            raise NetworkError(what, where=self.host, hint=f"docker login {self.host}, as someone who may do this")
        if bearer is not None:
            self._wanted = bearer
            self._tokens[scope] = token.ask(self.web, bearer, scope, self._known, host=self.host, given_by=self.url(""))
        elif basic is not None:
            if self._known is None or not self._known.password:
                raise self._no_credentials()
            self._wanted = basic
        else:
            named = ", ".join(one.scheme for one in wanted) or "nothing"
            raise NetworkError(
                f"wants credentials in a way that is not known here: {redact.line(named)[:100]}",
                where=self.host,
                hint="ask who runs that registry",
            )

    def _no_credentials(self) -> NetworkError:
        what = f"wants credentials (status 401), and there are none for it in {auth.config_file()}"
        return NetworkError(what, where=self.host, hint=f"docker login {self.host}")

    def _said(self, answer: Answer) -> str:
        """What the registry says itself, as one clause; without anything secret that it may repeat."""
        try:
            data = answer.whole(_SAID)
            said = codec.decoder(_Errors).decode(data or b"").errors[:3]
        except (NetworkError, msgspec.DecodeError, RecursionError):
            return ""
        hidden = [one.value for one in self._tokens.values()] + list(self._known.hidden if self._known else ())
        text = "; ".join(": ".join(filter(None, (one.code, one.message))) for one in said)
        text = redact.line(text, hidden)
        return f": {text[:_QUOTED]}" if text else ""
