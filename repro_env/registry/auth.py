"""Credentials for registries: those that `docker login` left, or that a credential helper gives. They stay in memory."""

from __future__ import annotations

import base64
import binascii
import os
import re
import urllib.parse
from pathlib import Path

import msgspec

from repro_env.io import process
from repro_env.model import codec
from repro_env.model.errors import NetworkError, SpecError
from repro_env.registry.reference import DOCKER

DOCKER_KEY = "https://index.docker.io/v1/"
"""What Docker keeps the credentials of docker.io under."""
_TOKEN_USER = "<token>"  # noqa: S105 - what a helper says instead of a user's name
_HELPER = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_TIMEOUT = 60.0
_LARGEST = 4 << 20


class Credentials(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What a registry knows the user by. `str` and `repr` show nothing of it."""

    user: str = ""
    password: str = ""
    identity: str = ""
    """A token that is exchanged for others."""
    source: str = ""
    """Where it was found: for people."""

    def __repr__(self) -> str:
        return f"<credentials from {self.source}>"

    __str__ = __repr__

    @property
    def basic(self) -> str:
        """The value of an `Authorization` header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    @property
    def hidden(self) -> tuple[str, ...]:
        """What must stand in no text."""
        return tuple(filter(None, (self.password, self.identity, self.basic[6:] if self.password else "")))


class _Auth(msgspec.Struct, frozen=True):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""


class _Config(msgspec.Struct, frozen=True, rename={"creds_store": "credsStore", "cred_helpers": "credHelpers"}):
    auths: dict[str, _Auth] | None = None
    creds_store: str = ""
    cred_helpers: dict[str, str] | None = None


class _Given(msgspec.Struct, frozen=True, rename="pascal"):
    username: str = ""
    secret: str = ""


def config_file() -> Path:
    """Docker's own: in $DOCKER_CONFIG, else in `~/.docker`."""
    return Path(os.environ.get("DOCKER_CONFIG") or "~/.docker").expanduser() / "config.json"


def find(host: str) -> Credentials | None:
    """None when there are none for `host[:port]`. Raises `NetworkError` for a file or a helper that cannot be used."""
    path = config_file()
    config = _read(path)
    key = DOCKER_KEY if host == DOCKER else host
    helper = next((name for place, name in (config.cred_helpers or {}).items() if _same(place, host)), "") or config.creds_store
    if helper:
        found = _ask(helper, key)
        if found is not None:
            return found
    kept = {place: one for place, one in (config.auths or {}).items() if _same(place, host)}
    return next((found for _, one in sorted(kept.items()) if (found := _kept(one, path))), None)


def _read(path: Path) -> _Config:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return _Config()
    except OSError as error:
        raise NetworkError(f"cannot be read: {error.strerror}", where=str(path), hint="look at its permissions") from None
    try:
        return codec.decode(data, _Config, where=str(path))
    except SpecError:  # its text may quote the file
        raise NetworkError(
            "is no configuration of Docker's", where=str(path), hint="mend it, or log in again: docker login"
        ) from None


def _same(place: str, host: str) -> bool:
    """Whether an entry of the file is for this host. Entries may be written as URLs."""
    if host == DOCKER:
        return place.rstrip("/") in (DOCKER_KEY.rstrip("/"), "https://index.docker.io", "index.docker.io", "docker.io")
    name = urllib.parse.urlsplit(place if "://" in place else f"//{place}")
    return name.netloc.lower() == host.lower() and name.path.strip("/") in ("", "v1", "v2")


def _kept(one: _Auth, path: Path) -> Credentials | None:
    user, password = one.username, one.password
    if one.auth:
        try:
            user, colon, password = base64.b64decode(one.auth, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if not colon:
            hint = "log in again: docker login"
            raise NetworkError("holds credentials that are not in Docker's form", where=str(path), hint=hint) from None
        password = password.strip("\0")
    if not (password or one.identitytoken):
        return None  # what `docker login` leaves beside a helper
    return Credentials(user, password, one.identitytoken, str(path))


def _ask(helper: str, key: str) -> Credentials | None:
    """Of a credential helper. What it prints may be a secret, so it stands in no error."""
    name = f"docker-credential-{helper}"
    if not _HELPER.fullmatch(helper):
        raise NetworkError(
            "names a credential helper that is no name", where=str(config_file()), hint="mend `credsStore` and `credHelpers`"
        )
    try:
        done = process.run([name, "get"], stdin=key.encode(), timeout=_TIMEOUT, limit=1 << 20)
    except OSError:
        what = f"the credential helper of {config_file()} cannot be started"
        raise NetworkError(what, where=name, hint="install it, or take it out of that file") from None
    if done.timed_out:
        raise NetworkError(
            f"gave no credentials for {key} in {_TIMEOUT:.0f} s", where=name, hint="try it by hand: it may want to ask"
        )
    if done.code:
        said = (done.stdout + done.stderr).decode(errors="replace").lower()
        if "not found" in said or "no credentials" in said:
            return None
        raise NetworkError(
            f"gave no credentials for {key} (exit status {done.code})",
            where=name,
            hint="try it by hand: `get`, on stdin the host",
        )
    try:
        given = codec.decode(done.stdout, _Given, where=name)
    except SpecError:
        raise NetworkError(
            f"answered with something that is no credentials for {key}", where=name, hint="try it by hand: `get`"
        ) from None
    if not given.secret:
        return None
    if given.username == _TOKEN_USER:
        return Credentials(identity=given.secret, source=name)
    return Credentials(given.username, given.secret, source=name)
