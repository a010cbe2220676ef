"""Fill the templates that ship with the package. Templates contain no decisions."""

from __future__ import annotations

import functools
import json
import shlex
from typing import TYPE_CHECKING, Any

from repro_env.io import package
from repro_env.schema.errors import SpecError

if TYPE_CHECKING:
    from jinja2 import Environment


def render(name: str, /, **values: object) -> bytes:
    """Return a template filled with values, as UTF-8. Raises `SpecError` for a value that does not fit into one line."""
    return _environment().get_template(name).render(values).encode()


@functools.lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(  # noqa: S701 - no HTML
        loader=FileSystemLoader(package.templates()),
        undefined=StrictUndefined,
        finalize=_one_line,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["toml"] = json.dumps  # the escapes of JSON are valid in TOML
    environment.filters["yaml"] = functools.partial(json.dumps, ensure_ascii=False)  # also in JSON; YAML has no surrogates
    environment.filters["sh"] = shlex.quote
    environment.filters["expression"] = lambda text: text.replace("${{", "${{ '${{' }}")  # literally, in a workflow of GitHub
    return environment


def _one_line(value: Any) -> Any:
    if isinstance(value, str) and not value.isprintable():
        raise SpecError(f"a value contains a line break or a control character: {value!r}", hint="capture again")
    return value
