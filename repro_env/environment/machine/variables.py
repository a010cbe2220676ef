"""Sort the caller's environment variables by what a spec may contain of them.

Values are recorded only for variables on a list (`variables.ini`), because a scanner would miss most secrets. For all other
variables, the spec has only the name, and `capture` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Literal

from repro_env.environment.machine import lists
from repro_env.schema import redact
from repro_env.schema.credentials import is_random
from repro_env.schema.environment import Variable, Variables
from repro_env.schema.errors import UsageError
from repro_env.schema.patterns import lazy

Effect = Literal["replayed", "recorded", "captured", "session", "unlisted"]
"""`captured`: recorded, but every run has its own value. `session`: of the shell, not of a library. `unlisted`: not on the
list."""

_LOCATION = lazy(r"_(?:DIR|HOME|ROOT|FOLDER|FILE|FILENAME|PATH|LOGPATH|HOST|PORT|URL|ADDR)\Z")
"""Names with these ends contain a path or address, so they are only recorded, even if a prefix says to replay them."""
_SECRET_NAME = lazy(r"TOKEN|SECRET|PASS|KEY|CRED|AUTH|COOKIE|SESSION|PRIVATE", re.IGNORECASE)
_FIXED = frozenset({"HOME", "USER", "LOGNAME", "TERM"})
"""Variables of the session that every run sets itself."""
_SHORT = 6
_PLAIN = lazy(r"[/~.][^\s=:@]*|[\d.,:-]+|\s*")
_NOT_SECRET = lazy(r"AUTHOR(?!I)|KEYBOARD|KEYMAP|SESSION|TIKTOKEN|TOKENI[SZ]", re.IGNORECASE)
"""Words that match `_SECRET_NAME` but do not mean a secret, as in DESKTOP_SESSION and TOKENIZERS_PARALLELISM."""
_WORDS = lazy(r"[A-Za-z]+(?:[-_./ ][A-Za-z]+)*")
_PATH = lazy(r"[\w./-]+", re.ASCII)
_USERINFO = lazy(r"://[^\s/:@]*:([^\s/@]+)@")
_NAME = lazy(r"[A-Za-z_][A-Za-z0-9_]{0,199}")


def effect(name: str) -> Effect:
    """Return how a variable of this name is captured. An exact entry takes precedence, else the longest prefix."""
    exact, prefixes = _index()
    if name in exact:
        return exact[name]
    longest = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
    if longest is None:
        return "unlisted"
    return "recorded" if prefixes[longest] == "replayed" and _LOCATION.search(name) else prefixes[longest]


@lru_cache(1)
def _index() -> tuple[dict[str, Effect], dict[str, Effect]]:
    """Return the exact names, and the prefixes with the longest first."""
    effects: tuple[Effect, ...] = ("captured", "replayed", "recorded", "session")
    exact: dict[str, Effect] = {}
    prefixes: dict[str, Effect] = {}
    for section in lists.sections("variables"):
        for value in effects:
            for name in section.get(value, "").split():
                (prefixes if name.endswith("*") else exact).setdefault(name.rstrip("*"), value)
    return exact, dict(sorted(prefixes.items(), key=lambda item: -len(item[0])))


def sort(environ: Mapping[str, str], added: Collection[str] = ()) -> Variables:
    """Group variables by how they are captured. Each group is sorted by name, and values are redacted.

    `added`: names to replay although they are not on the list (`capture --env`). If a value has control characters or
    undecodable bytes, is too long for a line or contains a secret, only the name is recorded. Names that are not
    identifiers (`BASH_FUNC_x%%`) are left out.
    """
    replayed, recorded, named = [], [], []
    for name, value in sorted(environ.items()):
        if not _NAME.fullmatch(name):
            continue
        how = "replayed" if name in added else effect(name)
        if is_secret(name):
            named.append(name)
        elif how == "replayed" and redact.line(value) == value:
            replayed.append(Variable(name=name, value=value))
        elif how in ("recorded", "captured") and redact.printable(value):
            recorded.append(Variable(name=name, value=redact.line(value)))
        else:
            named.append(name)
    return Variables(
        replayed=tuple(replayed),
        recorded=tuple(recorded),
        named=tuple(named),
        added=tuple(sorted(name for name in added if name in environ)),
    )


def is_secret(name: str) -> bool:
    """Whether a name suggests that the value is a secret. Exact names on the list do not count."""
    return _SECRET_NAME.search(name) is not None and name not in _index()[0]


def check_added(names: Iterable[str], environ: Mapping[str, str]) -> None:
    """Raise `UsageError` for a name of `capture --env` whose value cannot be recorded."""
    for name in names:
        where = f"--env {name}"
        if not _NAME.fullmatch(name) or name not in environ:
            hint = "give only the name of a variable that is exported; capture records its current value"
            raise UsageError("no variable of this name is set", where=where, hint=hint)
        if effect(name) == "captured" or name in _FIXED or name.startswith("REPRO_ENV_"):
            raise UsageError(
                "every run sets this variable itself", where=where, hint=f"to set it for one run: repro-env exec {where}=VALUE"
            )
        if is_secret(name) or redact.line(environ[name]) != environ[name]:
            raise UsageError(
                "its name or value looks like a secret, or its value is not a single line of text; a spec must not contain it",
                where=where,
                hint=f"pass it to each run instead: repro-env exec {where}",
            )


def unlisted(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that may affect a program: all except those of the session."""
    return tuple(name for name in names if effect(name) != "session" and name not in _FIXED)


def unused(environ: Mapping[str, str], launched: Mapping[str, str], added: Collection[str]) -> tuple[str, ...]:
    """Return variables of the list, and `added` ones, that are set here but not in a run, or have a different value there."""
    return tuple(
        name
        for name, value in sorted(environ.items())
        if (name in added or effect(name) in ("replayed", "recorded")) and launched.get(name) != value
    )


def hidden_values(environ: Mapping[str, str]) -> frozenset[str]:
    """Return values that stored text (output or errors of a program) must not contain: of variables recorded only by name.

    Paths, numbers, plain words and values of less than six characters are not included. Otherwise, with `USER=runner`, the
    path `/home/runner` could not be stored.
    """
    groups = sort(environ)
    recorded = {variable.name for variable in (*groups.replayed, *groups.recorded)}
    return _secrets({name: value for name, value in environ.items() if name not in recorded})


def secret_values(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the values of variables whose names suggest a secret. A stored command line must not contain them."""
    return _secrets({name: value for name, value in environ.items() if is_secret(name)})


def _secrets(variables: Mapping[str, str]) -> frozenset[str]:
    values = {value for name, value in variables.items() if not _is_ordinary(name, value)}
    values |= {match[1] for value in variables.values() for match in _USERINFO.finditer(value)}
    return frozenset(value for value in values if len(value) >= _SHORT and not _PLAIN.fullmatch(value))


def _is_ordinary(name: str, value: str) -> bool:
    """Whether a value consists of plain words, or is a name or path in a variable of the session. False for secret names."""
    if is_secret(name) and _SECRET_NAME.search(_NOT_SECRET.sub("", name)):
        return False
    if _WORDS.fullmatch(value):
        return True
    return effect(name) == "session" and _PATH.fullmatch(value) is not None and not is_random(value)
