"""Options of the command line, declared at the fields that they set."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import FieldInfo

from repro_env.schema.errors import UsageError


class Option(msgspec.Struct, frozen=True):
    """The option that sets a field, in the annotation of the field. Its name is that of the encoded field."""

    help: str
    metavar: str = ""
    """Empty for an option without a value."""
    parse: Callable[[str], Any] | None = None
    """Parses the value, or one of several. None if the type of the field says how."""
    min: float | None = None
    max: float | None = None
    project: bool | tuple[str, ...] = False
    """Whether a project's `pyproject.toml` may set it, or the values that it may set. The project may be a stranger's."""
    refusal: str = "it belongs to a single command line"
    """Why a project must not set it."""


@functools.cache
def options_of(kind: type[msgspec.Struct]) -> dict[str, tuple[FieldInfo, Option]]:
    """Return the fields of a type that have an option, by name."""
    fields = msgspec.structs.fields(kind)
    return {field.name: (field, option) for field in fields for option in getattr(field.type, "__metadata__", ())}


def parse_mount(option: str, text: str) -> tuple[str, str]:
    """The parts of `SRC[:DST]`. An existing path that contains a colon is SRC alone."""
    source, colon, target = text.rpartition(":")
    if not colon or os.path.exists(text):  # noqa: PTH110
        source, target = text, ""
    if not source or (colon and target and not target.startswith("/")):
        hint = f"for example: {option} ./images:/data/images"
        raise UsageError(f'{option} must be SRC[:DST] with an absolute DST (got "{text}")', hint=hint)
    return source, target
