"""What a registry wants to be asked with: the header `WWW-Authenticate`, as values."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

_SCHEME = re.compile(r"[\s,]*([A-Za-z][A-Za-z0-9_-]*)(?=\s+[A-Za-z0-9_-]+\s*=|\s*(?:,|\Z))")
_PARAMETER = re.compile(r'[\s,]*([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_LONGEST = 8000


class Challenge(msgspec.Struct, frozen=True):
    """One way to be let in."""

    scheme: str
    """Lower case: `basic`, `bearer`."""
    parameters: dict[str, str]
    """By name, lower case."""


def parse(header: str) -> tuple[Challenge, ...]:
    """In their order; what cannot be read ends the list."""
    found: list[Challenge] = []
    position = 0
    header = header[:_LONGEST]
    while match := _SCHEME.match(header, position):
        position = match.end()
        parameters: dict[str, str] = {}
        while (one := _PARAMETER.match(header, position)) is not None:
            value = one[3] if one[2] is None else re.sub(r"\\(.)", r"\1", one[2])
            parameters.setdefault(one[1].lower(), value)
            position = one.end()
        found.append(Challenge(match[1].lower(), parameters))
    return tuple(found)


def merged(scopes: Iterable[str]) -> tuple[str, ...]:
    """Scopes (`repository:NAME:pull,push`), one for each resource with all that is asked of it, sorted."""
    actions: dict[str, set[str]] = {}
    for scope in scopes:
        for one in scope.split():
            resource, _, wanted = one.rpartition(":")
            actions.setdefault(resource, set()).update(filter(None, wanted.split(",")))
    return tuple(f"{resource}:{','.join(sorted(wanted))}" for resource, wanted in sorted(actions.items()))
