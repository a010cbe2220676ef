"""What the rebuilt environment has that the captured one had not, and the other way round. Pure.

Written apart from `repro_env`: a judge that used the rules of the judged would agree with their mistakes. What is not
compared is what installers write for themselves, and the way in which a generated script finds its python.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

OWN = frozenset(
    {"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"}
)
"""In `.dist-info`: what each installer writes about itself and its source."""
_SHELL = re.compile(r"#!/bin/sh\n'''exec' [^\n]*\n' '''\n")
_FIRST = re.compile(r"#![^\n]*\n")


class EmptyError(AssertionError):
    """Nothing was there to compare: no verdict."""


def differences(host: Mapping[str, Any], inside: Mapping[str, Any]) -> list[str]:
    """One line for each thing that differs, as `what: host | inside`. Raises `EmptyError` when the host's side says nothing."""
    if not host["files"] or not host["path"] or len(host["facts"]) < 10:
        raise EmptyError("the host's facts are empty")
    lists = ("path", "distributions")
    result = [f"{name}: {_shortest(host[name], inside[name])}" for name in lists if host[name] != inside[name]]
    for name in ("facts", "modules", "scripts"):
        first, other = host[name], inside[name]
        result += [
            f"{name} {key}: {first.get(key)} | {other.get(key)}"
            for key in sorted(first.keys() | other.keys())
            if first.get(key) != other.get(key)
        ]
    first, other = host["files"], inside["files"]
    for path in sorted(first.keys() | other.keys()):
        if not left_out(path) and not same(first.get(path), other.get(path)):
            result.append(f"file {path}: {_short(first.get(path))} | {_short(other.get(path))}")
    return result


def compared(host: Mapping[str, Any]) -> dict[str, int]:
    """How much a verdict rests on."""
    return {
        "files": sum(not left_out(path) for path in host["files"]),
        **{name: len(host[name]) for name in ("path", "distributions", "modules", "scripts")},
    }


def left_out(path: str) -> bool:
    directory, _, name = path.rpartition("/")
    if directory.endswith("/conda-meta") and (name.endswith(".json") or name in ("history", "state")):
        return True  # what conda notes down of itself: times, URLs with tokens, values of variables
    if path.endswith("/.venv/.lock"):
        return True  # uv's, empty: made whenever it installs
    return directory.endswith(".dist-info") and name in OWN


def same(first: list[Any] | None, other: list[Any] | None) -> bool:
    """Files by bytes and executable bit, links by target; scripts that differ in bytes by what they say."""
    if first is None or other is None:
        return False
    if first[:3] == other[:3]:
        return True
    if len(first) < 4 or len(other) < 4 or first[2] != other[2]:
        return False
    return meaning(first[3]) == meaning(other[3])


def meaning(script: str) -> str:
    """A stub as `module:attribute` when it does nothing else; any other script as its text without its way to python."""
    text = _SHELL.sub("", script, count=1) if _SHELL.match(script) else _FIRST.sub("", script, count=1)
    try:
        *before, last = ast.parse(text).body
    except (SyntaxError, ValueError):
        return text
    froms = [statement for statement in before if isinstance(statement, ast.ImportFrom)]
    others = [statement for statement in before if not isinstance(statement, ast.ImportFrom)]
    plain = all(isinstance(other, ast.Import) and all(name.name in ("re", "sys") for name in other.names) for other in others)
    if len(froms) != 1 or not plain or not isinstance(last, ast.If):
        return text
    call = ast.unparse(last.body[-1])
    if not re.fullmatch(r"sys\.exit\([\w.]+\(\)\)", call) or not all(
        "sys.argv[0]" in ast.unparse(statement) for statement in last.body[:-1]
    ):
        return text
    return f"{ast.unparse(froms[0])}; {ast.unparse(last.test)}: {call}"


def _shortest(first: list[Any], other: list[Any]) -> str:
    """The entries that are in first only; the order when both have the same."""
    missing, more = [entry for entry in first if entry not in other], [entry for entry in other if entry not in first]
    return f"{missing} | {more}" if missing or more else f"another order: {first} | {other}"


def _short(fact: list[Any] | None) -> str:
    if fact is None:
        return "is not there"
    return " ".join(str(part)[:12] if number == 1 and fact[0] == "file" else str(part) for number, part in enumerate(fact[:3]))
