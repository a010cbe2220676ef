"""Parse names of images in registries: `HOST/REPOSITORY:TAG@DIGEST`, by Docker's rules."""

from __future__ import annotations

import re

import msgspec

from repro_env.schema.errors import UsageError

DOCKER = "docker.io"
"""The registry of names without a host."""
_DOCKER_ALIASES = ("index.docker.io", "registry-1.docker.io", "registry.hub.docker.com")
_DOCKER_API = "registry-1.docker.io"
_LABEL = r"(?:[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9-]*[A-Za-z0-9])"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?::[0-9]{{1,5}})?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_LENGTH = 255


class Reference(msgspec.Struct, frozen=True):
    """The name of an image in a registry."""

    host: str
    """`host[:port]`, lower case."""
    repository: str
    tag: str = ""
    """Empty if only a digest is given."""
    digest: str = ""
    """`sha256:...`, or empty. A digest takes precedence over the tag."""

    @property
    def tag_or_digest(self) -> str:
        """What to request from the registry: the digest if there is one, else the tag."""
        return self.digest or self.tag

    @property
    def name(self) -> str:
        """The name without tag and digest."""
        return f"{self.host}/{self.repository}"

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def parse(text: str) -> Reference:
    """Parse the name of an image.

    Raises `UsageError` if it is invalid. The tag is `latest` if neither tag nor digest is given.
    """
    if "://" in text:
        raise _invalid(text, "write the name of an image without `https://`")
    name, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _invalid(text, "the digest of an image name must be `sha256:` and 64 hexadecimal digits")
    first, slash, path = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        host = first
    else:
        host, path = DOCKER, name
    repository, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _invalid(text, "the tag of an image name may contain only letters, digits, `_`, `.` and `-`")
    port = re.search(r":([0-9]+)\Z", host)
    if not _HOST.fullmatch(host) or (port and int(port[1]) > 65535):
        raise _invalid(text, "the host in this image name is invalid")
    host = host.lower()
    if host in _DOCKER_ALIASES:
        host = DOCKER
    if host == DOCKER and repository and "/" not in repository:
        repository = f"library/{repository}"
    if not _REPOSITORY.fullmatch(repository) or len(f"{host}/{repository}") > _MAX_LENGTH:
        raise _invalid(
            text,
            "the repository in this image name is invalid: use lower-case letters, digits, `.`, `_` and `-`, separated by `/`",
        )
    return Reference(host, repository, tag or ("" if digest else "latest"), digest)


def api_host(host: str) -> str:
    """The host that serves the API for the host of a reference."""
    return _DOCKER_API if host == DOCKER else host


def _invalid(text: str, what: str) -> UsageError:
    return UsageError(what, where=repr(text)[:200], hint="for example: registry.example.com/team/name:tag")
