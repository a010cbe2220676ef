"""Lays out text with the templates that ship with us. Templates decide nothing: what they say was decided before."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro_env.model.errors import SpecError

if TYPE_CHECKING:
    from jinja2 import Environment

PACKAGE = Path(__file__).parents[1]


def render(name: str, /, **values: object) -> bytes:
    """A template filled with values, as UTF-8. Raises `SpecError` for a value that would break out of its line."""
    return _environment().get_template(name).render(values).encode()


def folder() -> Path:
    """Where the templates are: in the installed package, or beside it in a checkout."""
    shipped = PACKAGE / "_templates"
    return shipped if shipped.is_dir() else PACKAGE.parent / "templates"


def state() -> str:
    """Changes when a template is edited."""
    found = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder().iterdir())
    return repr(found)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(  # noqa: S701 - no HTML
        loader=FileSystemLoader(folder()),
        undefined=StrictUndefined,
        finalize=_one_line,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["toml"] = _toml
    return found


def _one_line(value: Any) -> Any:
    if isinstance(value, str) and not value.isprintable():
        raise SpecError(f"has a value that no line can hold: {value!r}", hint="capture again")
    return value


def _toml(value: str | int) -> str:
    """A TOML value; JSON's escapes are TOML's."""
    return json.dumps(value)
