"""Defaults of options that a project sets. `schema.options.Option.project` says at each option whether it may."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence

import msgspec

from repro_env.schema import redact
from repro_env.schema.errors import UsageError
from repro_env.schema.options import Option, options_of

POLICY = "policy"
"""The key of the table with the rules."""
Value = bool | str | list[str]
"""As on the command line: whether an option without a value is given, its value, or all its values."""


def parse(
    table: Mapping[str, object], kinds: Sequence[type[msgspec.Struct]], others: Collection[str], where: str
) -> dict[str, Value]:
    """Return the values of options by name. Raises `UsageError` for an option that a project must not set, and for unknown ones.

    `kinds`: the types whose fields have the options. `others`: keys of the table that are not options. `where`: the table.
    """
    options = {field.encode_name: option for kind in reversed(kinds) for field, option in options_of(kind).values()}
    allowed = [name for name, option in options.items() if option.project]
    values = {}
    for name, value in table.items():
        if name in others:
            continue
        place = f"{where}.{redact.line(name)}"
        if name not in options:
            raise unknown(name, place, "option", [*allowed, *others])
        option = options[name]
        refused = not option.project or (isinstance(option.project, tuple) and value not in option.project)
        if refused:
            most = f", or choose from {', '.join(option.project)}" if isinstance(option.project, tuple) else ""
            hint = f"give --{name} on the command line{most}"
            raise UsageError(f"a project must not set this option, because {option.refusal}", where=place, hint=hint)
        values[name] = _value(value, option, place)
    return values


def _value(value: object, option: Option, where: str) -> Value:
    """Return a value as on the command line."""
    if not option.metavar:
        if isinstance(value, bool):
            return value
        raise UsageError("this must be true or false", where=where, hint="for example: true")
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, bool) or not isinstance(item, str | int | float) for item in items):
        raise UsageError("this must be a text or a number, or a list of them", where=where, hint=f"write it as {option.metavar}")
    return [*map(str, items)] if isinstance(value, list) else str(value)


def unknown(name: str, where: str, what: str, names: Sequence[str]) -> UsageError:
    """Return the error for a name that does not exist, with the nearest one."""
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(names)}"
    return UsageError(f'there is no {what} "{redact.line(name)}"', where=where, hint=hint)
