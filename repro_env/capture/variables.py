"""The caller's environment variables, sorted into what may be written down.

An allow-list (`variablelist`) instead of a scanner: scanners miss most secrets in variables. Of a variable that is not on
the list the spec holds only the name, and `capture` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Literal

from repro_env.capture import variablelist
from repro_env.model import redact
from repro_env.model.credentials import is_random
from repro_env.model.environment import Variable, Variables
from repro_env.model.errors import UsageError

Effect = Literal["replayed", "recorded", "ours", "session", "unlisted"]
"""`ours`: recorded; every run has its own value. `session`: of the shell, not of a library. `unlisted`: not on the list."""

_PLACE = re.compile(r"_(?:DIR|HOME|ROOT|FOLDER|FILE|FILENAME|PATH|LOGPATH|HOST|PORT|URL|ADDR)\Z")
"""With a library's prefix such a variable names a path or address, which is only recorded."""
_NEVER = re.compile(r"TOKEN|SECRET|PASS|KEY|CRED|AUTH|COOKIE|SESSION|PRIVATE", re.IGNORECASE)
_FIXED = frozenset({"HOME", "USER", "LOGNAME", "TERM"})
"""Variables of the session that every run has anyway."""
_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SHORT = 6
_PLAIN = re.compile(r"[/~.][^\s=:@]*|[\d.,:-]+|\s*")
_INNOCENT = re.compile(r"AUTHOR(?!I)|KEYBOARD|KEYMAP|SESSION", re.IGNORECASE)
"""Words in names of variables that only look like those of `_NEVER`: DESKTOP_SESSION."""
_WORDS = re.compile(r"[A-Za-z]+(?:[-_./ ][A-Za-z]+)*")
_PATH = re.compile(r"[\w./-]+", re.ASCII)
_USERINFO = re.compile(r"://[^\s/:@]*:([^\s/@]+)@")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")


def effect(name: str) -> Effect:
    """What is done with a variable of this name. An exact name decides, else the longest prefix."""
    exact, prefixes = _index()
    if name in exact:
        return exact[name]
    found = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
    if found is None:
        return "unlisted"
    return "recorded" if prefixes[found] == "replayed" and _PLACE.search(name) else prefixes[found]


@lru_cache(1)
def _index() -> tuple[dict[str, Effect], dict[str, Effect]]:
    """Exact names; prefixes, the longest first."""
    exact: dict[str, Effect] = {}
    prefixes: dict[str, Effect] = {}

    def add(names: str, what: Effect) -> None:
        for name in names.split():
            (prefixes if name.endswith("*") else exact).setdefault(name.rstrip("*"), what)

    add(variablelist.OURS, "ours")
    for library in variablelist.LIBRARIES:
        add(library.replayed, "replayed")
        add(library.recorded, "recorded")
    add(variablelist.SESSION, "session")
    return exact, dict(sorted(prefixes.items(), key=lambda item: -len(item[0])))


def sort(environ: Mapping[str, str], added: Collection[str] = ()) -> Variables:
    """Sort variables by what may be done with them; each group sorted by name, values redacted.

    `added`: names to replay although no list has them (`capture --env`). A value with control characters, of undecodable
    bytes, too long for a line or with a secret in it is not written down: its name alone is. Names that are no
    identifiers (`BASH_FUNC_x%%`) are left out.
    """
    replayed, recorded, named = [], [], []
    for name, value in sorted(environ.items()):
        if not _NAME.fullmatch(name):
            continue
        what = "replayed" if name in added else effect(name)
        if is_secret(name):
            named.append(name)
        elif what == "replayed" and redact.line(value) == value:
            replayed.append(Variable(name=name, value=value))
        elif what in ("recorded", "ours") and _is_line(value):
            recorded.append(Variable(name=name, value=redact.line(value)))
        else:
            named.append(name)
    held = tuple(sorted(name for name in added if name in environ))
    return Variables(
        replayed=tuple(replayed), recorded=tuple(recorded), named=tuple(named), added=held, version=variablelist.VERSION
    )


def is_secret(name: str) -> bool:
    """Whether a name says that its value is a secret. Exact names on the list are exempt."""
    return _NEVER.search(name) is not None and name not in _index()[0]


def check_added(names: Iterable[str], environ: Mapping[str, str]) -> None:
    """Raises `UsageError` for a name of `capture --env` whose value cannot be held."""
    for name in names:
        where = f"--env {name}"
        if not _NAME.fullmatch(name):
            hint = (
                "give the name alone: its present value is captured"
                if "=" in name
                else "a name consists of letters, digits and _"
            )
            raise UsageError("it is not a valid name of a variable", where=where, hint=hint)
        if name not in environ:
            raise UsageError("this variable is not set here", where=where, hint="export it first")
        if effect(name) == "ours" or name in _FIXED or name.startswith("REPRO_ENV_"):
            raise UsageError(
                "every run sets this variable itself", where=where, hint=f"to set it for one run: repro-env exec {where}=VALUE"
            )
        if is_secret(name) or redact.line(environ[name]) != environ[name]:
            raise UsageError(
                "its name or value looks like a secret, or its value is not one line of text: a spec holds neither",
                where=where,
                hint=f"pass it to each run instead: repro-env exec {where}",
            )


def unlisted(names: Iterable[str]) -> tuple[str, ...]:
    """Of the variables that are kept by name only, those that the list does not explain: a program may read them."""
    return tuple(name for name in names if effect(name) != "session" and name not in _FIXED)


def unused(environ: Mapping[str, str], launched: Mapping[str, str], added: Collection[str]) -> tuple[str, ...]:
    """Variables of the list and `added` ones that are set here, and in a run not at all or to another value."""
    return tuple(
        name
        for name, value in sorted(environ.items())
        if (name in added or effect(name) in ("replayed", "recorded")) and launched.get(name) != value
    )


def hidden(environ: Mapping[str, str]) -> frozenset[str]:
    """Values that free text must not repeat (what a program prints, an error): of all variables that are kept by name only.

    Paths, numbers, plain words and values of less than six characters are not secrets: else `/home/runner` would have none of
    its words left where `USER` is `runner`.
    """
    kept = sort(environ)
    shown = {one.name for one in (*kept.replayed, *kept.recorded)}
    return _telling({name: value for name, value in environ.items() if name not in shown})


def secret(environ: Mapping[str, str]) -> frozenset[str]:
    """Values of the variables whose names say that they are secrets: no command line is written down with them."""
    return _telling({name: value for name, value in environ.items() if is_secret(name)})


def _telling(found: Mapping[str, str]) -> frozenset[str]:
    values = {value for name, value in found.items() if not _is_ordinary(name, value)}
    values |= {match[1] for value in found.values() for match in _USERINFO.finditer(value)}
    return frozenset(value for value in values if len(value) >= _SHORT and not _PLAIN.fullmatch(value))


def _is_ordinary(name: str, value: str) -> bool:
    """Whether a value is made of plain words, or is a name or path in a variable of the session; not where the name says secret."""
    if is_secret(name) and _NEVER.search(_INNOCENT.sub("", name)):
        return False
    if _WORDS.fullmatch(value):
        return True
    return effect(name) == "session" and _PATH.fullmatch(value) is not None and not is_random(value)


def _is_line(value: str) -> bool:
    return len(value) <= redact.LONGEST and not _NOT_TEXT.search(value)
