"""Names of images in registries: `HOST/REPOSITORY:TAG@DIGEST`, read as Docker reads them."""

from __future__ import annotations

import re

import msgspec

from repro_env.model.errors import UsageError

DOCKER = "docker.io"
"""The host of names without one."""
_DOCKER_ALIASES = ("index.docker.io", "registry-1.docker.io", "registry.hub.docker.com")
_DOCKER_API = "registry-1.docker.io"
_LABEL = r"(?:[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9-]*[A-Za-z0-9])"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?::[0-9]{{1,5}})?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST = 255


class Reference(msgspec.Struct, frozen=True):
    """One image in one registry."""

    host: str
    """`host[:port]`, lower case."""
    repository: str
    tag: str = ""
    """Empty where only a digest is given."""
    digest: str = ""
    """`sha256:...`, or empty. Where it is given it decides, and the tag is for people."""

    @property
    def named(self) -> str:
        """What to ask the registry for: the digest, else the tag."""
        return self.digest or self.tag

    @property
    def name(self) -> str:
        """Without tag and digest."""
        return f"{self.host}/{self.repository}"

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def parse(text: str) -> Reference:
    """Raises `UsageError` for what is no name of an image. The tag is `latest` where neither tag nor digest is given."""
    if "://" in text:
        raise _bad(text, "names an image without `https://`")
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _bad(text, "has a digest that is not `sha256:` and 64 hexadecimal digits")
    first, slash, path = rest.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        host = first
    else:
        host, path = DOCKER, rest
    repository, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _bad(text, "has a tag with other characters than letters, digits, `_`, `.` and `-`")
    port = re.search(r":([0-9]+)\Z", host)
    if not _HOST.fullmatch(host) or (port and int(port[1]) > 65535):
        raise _bad(text, "has a host name that is none")
    host = host.lower()
    if host in _DOCKER_ALIASES:
        host = DOCKER
    if host == DOCKER and repository and "/" not in repository:
        repository = f"library/{repository}"
    if not _REPOSITORY.fullmatch(repository) or len(f"{host}/{repository}") > _LONGEST:
        raise _bad(text, "has a repository name that is none: lower-case letters, digits, `.`, `_` and `-`, parted by `/`")
    return Reference(host, repository, tag or ("" if digest else "latest"), digest)


def api_host(host: str) -> str:
    """Whom to ask about a host of a reference."""
    return _DOCKER_API if host == DOCKER else host


def _bad(text: str, what: str) -> UsageError:
    return UsageError(what, where=repr(text)[:200], hint="for example: registry.example.com/team/name:tag")
