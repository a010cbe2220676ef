"""Find the user's credentials for a registry, from `docker login` or a credential helper. They are kept in memory only."""

from __future__ import annotations

import base64
import json
import os
import warnings
from pathlib import Path
from typing import Any

import msgspec

from repro_env.schema.errors import NetworkError


class Credentials(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """The user's credentials for a registry. `str` and `repr` do not reveal them."""

    user: str = ""
    password: str = ""
    identity: str = ""
    """An identity token, which is exchanged for access tokens."""
    source: str = ""
    """Where the credentials were found, for messages."""

    def __repr__(self) -> str:
        return f"<credentials from {self.source}>"

    __str__ = __repr__

    @property
    def basic(self) -> str:
        """The value of an `Authorization` header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    @property
    def hidden(self) -> tuple[str, ...]:
        """The secrets, which no text may contain."""
        return tuple(filter(None, (self.password, self.identity, self.basic[6:] if self.password else "")))


def config_file() -> Path:
    """The path of Docker's configuration: in $DOCKER_CONFIG, else in `~/.docker`."""
    return Path(os.environ.get("DOCKER_CONFIG") or "~/.docker").expanduser() / "config.json"


def find(host: str) -> Credentials | None:
    """The credentials for `host[:port]`, or None. Raises `NetworkError` for a file or helper that cannot be used.

    No error quotes the file or the output of a helper, because both contain secrets.
    """
    from docker.auth import load_config
    from docker.errors import DockerException

    path = config_file()
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        what = f"Docker's configuration cannot be read: {error.strerror}"
        raise NetworkError(what, where=str(path), hint="check its permissions") from None
    try:
        config: Any = load_config(config_dict=json.loads(data))
        program = f"docker-credential-{config.get_credential_store(host)}"
    except (DockerException, ValueError, TypeError, AttributeError):
        what, hint = "this file is not a valid Docker configuration", "repair it, or log in again: docker login"
        raise NetworkError(what, where=str(path), hint=hint) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning about a missing helper; the error below names it
            fields = config.resolve_authconfig(host) or {}
        values = {
            "user": fields.get("Username") or fields.get("username") or "",
            "password": fields.get("Password") or fields.get("password") or "",
            "identity": fields.get("IdentityToken") or "",
            "source": program if "ServerAddress" in fields else str(path),
        }
        credentials = msgspec.convert(values, Credentials)
    except (DockerException, ValueError, TypeError, KeyError, msgspec.ValidationError):
        what = f"the credential helper is missing, failed, or returned invalid credentials for {host}"
        raise NetworkError(what, where=program, hint="run it by hand with `get`, and with the host on stdin") from None
    return credentials if credentials.password or credentials.identity else None
