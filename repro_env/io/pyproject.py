"""Read what a project's `pyproject.toml` says for repro-env, in the table `tool.repro-env`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from repro_env.io.files import read_regular
from repro_env.schema import redact, toml
from repro_env.schema.errors import UsageError, os_errors_as

NAME = "pyproject.toml"
TABLE = "tool.repro-env"
_MOST = 1 << 20
"""Bytes of a file."""


def read(directory: Path, *names: str) -> tuple[dict[str, Any], Path]:
    """Return the table, or the table that `names` lead to in it, of the nearest file in a directory or a parent; and its path.

    It is empty if there is none. Raises `UsageError` if the file cannot be read.
    """
    paths = (parent / NAME for parent in (directory, *directory.parents))
    path = next((path for path in paths if os.path.isfile(path)), directory / NAME)  # noqa: PTH113 - false if it is unknown
    with os_errors_as(UsageError, "this file cannot be read", where=path, hint="it may have settings of repro-env"):
        try:
            data = read_regular(path.resolve(), _MOST)
        except FileNotFoundError:
            return {}, path
    hint = "correct the file: it must be a table of TOML"
    try:
        table: Any = toml.loads(data.decode())
        similar = [name for name, _ in table.get("tool", {}).items() if re.sub("[-_. ]", "", name).lower() == "reproenv"]
        if wrong := [name for name in similar if f"tool.{name}" != TABLE]:
            raise UsageError(f"[tool.{redact.line(wrong[0])}] is not read", where=str(path), hint=f"write [{TABLE}]")
        for name in (*TABLE.split("."), *names):
            table = table.get(name, {})
        return {str(key): value for key, value in table.items()}, path
    except (ValueError, AttributeError, RecursionError) as error:  # not UTF-8, no TOML, no table
        why = f": {redact.line(str(error))}" if isinstance(error, ValueError) else ""
        raise UsageError(f"{'.'.join((TABLE, *names))} cannot be read{why}", where=str(path), hint=hint) from None
