"""The usual command lines of two commands, read without the option parser, which takes longer to import than all the rest.

Whatever is not plain here (help, an unknown option, a missing value) is left to the parser, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from repro_env.cli import say

_MOST = 2**32 - 1


class Option(msgspec.Struct, frozen=True):
    name: str
    """Of the parameter."""
    kind: Literal["text", "path", "list", "number", "flag"] = "text"


COMMANDS: Mapping[str, Mapping[str, Option]] = {
    "capture": {
        "--python": Option("python"),
        "--source": Option("source", "path"),
        "--include": Option("include", "list"),
        "--exclude": Option("exclude", "list"),
        "--data": Option("data", "list"),
        "--output": Option("output", "path"),
        "--base": Option("base"),
        "--keep-base": Option("keep_base", "flag"),
        "--with": Option("with_", "list"),
        "--env": Option("env", "list"),
        "--seed": Option("seed", "number"),
        "--not-secret": Option("not_secret", "list"),
        "--json": Option("json", "flag"),
    },
    "rebuild": {
        "": Option("spec"),
        "--output": Option("output"),
        "--with-source": Option("with_source", "flag"),
        "--frozen": Option("frozen", "flag"),
        "--user": Option("user"),
        "--provenance": Option("provenance", "path"),
        "--builder": Option("builder"),
        "--dry-run": Option("dry_run", "flag"),
        "--json": Option("json", "flag"),
    },
}
"""Command -> option -> parameter; "" is an argument that stands alone, once."""


def run(arguments: Sequence[str]) -> bool:
    """Run a usual command line. False when it is none, and nothing was done."""
    command = arguments[0] if arguments else ""
    values = read(command, arguments[1:]) if command in COMMANDS else None
    if values is None:
        return False
    if (level := values.pop("level", None)) is not None:
        say.set_level(level)
    if command == "capture":
        from repro_env.cli import captured

        captured.run(**values)
    else:
        from repro_env.cli import rebuilt

        rebuilt.run(**values)
    return True


def read(command: str, words: Sequence[str]) -> dict[str, Any] | None:
    """Parameters by name, those alone that were given, and `level`; None for what the parser has to read."""
    options = COMMANDS[command]
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in say.LEVELS:
            if values.setdefault("level", say.LEVELS[word]) != say.LEVELS[word]:
                return None
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        option = options.get(name)
        if option is None or (not name and (option.name in values or word.startswith("-"))):
            return None
        if option.kind == "flag":
            if equals:
                return None
            values[option.name] = True
            continue
        if name and not equals:
            if not rest or rest[0].startswith("-"):
                return None
            value = rest.pop(0)
        if option.kind == "list":
            values.setdefault(option.name, []).append(value)
        elif option.kind == "path":
            values[option.name] = Path(value)
        elif option.kind == "number":
            if not (value.isascii() and value.isdigit() and len(value) < 11 and int(value) <= _MOST):
                return None
            values[option.name] = int(value)
        else:
            values[option.name] = value
    return values
