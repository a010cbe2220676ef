"""The settings of engines: from the command line (`--job KEY=VALUE`) and the project's configuration.

The nearest `pyproject.toml`, in the working directory or a parent, has defaults in the table `tool.repro-env.jobs.ENGINE`. Its keys
are those of `--job`, and `template`, the path of a template relative to that file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from repro_env.io import pyproject
from repro_env.launch.engine import Engine, Settings
from repro_env.schema.errors import UsageError

S = TypeVar("S", bound=Settings)
JOBS = "jobs"


def parse(engine: Engine[S], words: Sequence[str], defaults: Mapping[str, object] | None = None, where: str = "") -> S:
    """Return the settings of `KEY=VALUE` words; `KEY` alone is `KEY=true`. Raises `UsageError`.

    `defaults`: values by key, which are used for keys that no word has. `where`: the file that has them.
    """
    fields = {field.encode_name: field for field in msgspec.structs.fields(engine.settings)}
    given: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        given.setdefault(key, []).append(value if equals else "true")
    values = {}
    for key, value in {**(defaults or {}), **given}.items():
        place = f"--job {key}" if key in given else f"{where}: {key}"
        if key not in fields:
            hint = f"the settings of {engine.name} are {', '.join(fields)}; `repro-env exec --on {engine.name} --job help` explains them"
            raise UsageError(f"{engine.name} has no setting of this name", where=place, hint=hint)
        is_list = isinstance(fields[key].default, tuple)
        chosen = value[-1] if key in given and not is_list else value
        try:
            values[fields[key].name] = msgspec.convert(chosen, fields[key].type, strict=False)
        except msgspec.ValidationError:
            shown = ", ".join(map(str, chosen)) if is_list and isinstance(chosen, list) else chosen
            raise UsageError(f'this setting has an invalid value (got "{shown}")', where=place, hint=_text(fields[key])) from None
    settings: S = engine.settings(**values)  # type: ignore[assignment]
    return settings


def explain(engine: Engine[Any]) -> list[tuple[str, str]]:
    """Return the settings of an engine and what they do."""
    return [(field.encode_name, _text(field)) for field in msgspec.structs.fields(engine.settings)]


def _text(field: msgspec.structs.FieldInfo) -> str:
    return str(next(meta.description for meta in reversed(field.type.__metadata__) if meta.description))


def defaults(name: str, directory: Path) -> tuple[dict[str, object], Path]:
    """Return the defaults for an engine and the file that has them; none of a directory without one. Raises `UsageError`."""
    return pyproject.read(directory, JOBS, name)
