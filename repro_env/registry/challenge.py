"""Parse the header `WWW-Authenticate`, in which a registry says how it wants requests to be authenticated."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

_SCHEME = re.compile(r"[\s,]*([A-Za-z][A-Za-z0-9_-]*)(?=\s+[A-Za-z0-9_-]+\s*=|\s*(?:,|\Z))")
_PARAMETER = re.compile(r'[\s,]*([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_MAX_LENGTH = 8000


class Challenge(msgspec.Struct, frozen=True):
    """A way to authenticate."""

    scheme: str
    """In lower case: `basic`, `bearer`."""
    parameters: dict[str, str]
    """By name in lower case."""


def parse(header: str) -> tuple[Challenge, ...]:
    """The challenges in order; parsing ends at the first invalid text."""
    challenges: list[Challenge] = []
    position = 0
    header = header[:_MAX_LENGTH]
    while match := _SCHEME.match(header, position):
        position = match.end()
        parameters: dict[str, str] = {}
        while (parameter := _PARAMETER.match(header, position)) is not None:
            value = parameter[3] if parameter[2] is None else re.sub(r"\\(.)", r"\1", parameter[2])
            parameters.setdefault(parameter[1].lower(), value)
            position = parameter.end()
        challenges.append(Challenge(match[1].lower(), parameters))
    return tuple(challenges)


def merge_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Merge scopes (`repository:NAME:pull,push`) to one scope per resource with all its actions, sorted."""
    actions: dict[str, set[str]] = {}
    for scope in scopes:
        for resource_scope in scope.split():
            resource, _, requested = resource_scope.rpartition(":")
            actions.setdefault(resource, set()).update(filter(None, requested.split(",")))
    return tuple(f"{resource}:{','.join(sorted(requested))}" for resource, requested in sorted(actions.items()))
