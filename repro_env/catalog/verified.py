"""The verdicts of `verify`, kept beside the run: each is a JSON object for programs and the printed page for people.

    runs/20260701T101530Z-train-1f2e3d4c/verified/20260702T090000Z-5a6b7c8d.json
    runs/20260701T101530Z-train-1f2e3d4c/verified/20260702T090000Z-5a6b7c8d.txt

They are written once, and the record of the run stays as it is. Nothing is decided from them later.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from repro_env.catalog import ids
from repro_env.io.files import atomic_write, read_regular, room
from repro_env.model import codec, redact
from repro_env.model.errors import RecordError
from repro_env.model.text import Line

FOLDER = "verified"
_FAMILY = "repro-env/verified"
_LARGEST = 256 << 20
"""Bytes of a verdict that is read."""
_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}\.json")


class Last(msgspec.Struct, frozen=True, kw_only=True):
    """What `runs show` says of a verdict; its file holds more."""

    schema: Literal["repro-env/verified/1"]
    written: Line
    """UTC, ISO 8601."""
    level: Line
    same: bool
    ignored: Annotated[int, Meta(ge=0)]
    """Differences that did not count."""


def write(folder: Path, facts: Mapping[str, object], page: Iterable[str]) -> Path:
    """Keep a verdict in the directory of its run, and return the JSON file. Secrets are taken out.

    `facts`: at least the fields of `Last` without `schema` and `written`. `page`: lines, as printed without colour.

    Raises `RecordError` where it cannot be written, `DiskError`.
    """
    now = time.time_ns() // 1_000_000
    at = datetime.fromtimestamp(now / 1000, timezone.utc)
    name = f"{at:%Y%m%dT%H%M%SZ}-{ids.short(ids.uuid7(now, secrets.token_bytes(10)))}"
    head = {"schema": f"{_FAMILY}/1", "written": f"{at:%Y-%m-%dT%H:%M:%SZ}"}
    texts = {
        "txt": redact.lines("".join(f"{line}\n" for line in page)).encode("utf-8", "replace"),
        "json": codec.pretty({**head, **_secretless(msgspec.to_builtins(facts))}),  # last: it says that both are there
    }
    path = folder / FOLDER / name
    try:
        with room(folder):
            path.parent.mkdir(exist_ok=True)
            if path.parent.is_symlink():
                raise RecordError("is a symbolic link, and must be a directory", where=str(path.parent), hint="remove the link")
            for ending, data in texts.items():
                file = path.with_name(f"{name}.{ending}")
                atomic_write(file, data)
                file.chmod(0o444)
    except OSError as error:
        raise RecordError(
            f"the verdict cannot be kept: {error.strerror}",
            where=str(path.parent),
            hint="give yourself permission to write to the directory of the run",
        ) from None
    return path.with_name(f"{name}.json")


def last(folder: Path) -> Last | None:
    """The newest verdict of a run; None where there is none. Raises `SpecError` or `RecordError` for one that cannot be read."""
    try:
        names = sorted(path.name for path in (folder / FOLDER).iterdir() if _NAME.fullmatch(path.name))
        if not names:
            return None
        path = folder / FOLDER / names[-1]
        data = read_regular(path, _LARGEST, below=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(
            f"the verdict of a verification cannot be read: {error.strerror}",
            where=str(error.filename or folder / FOLDER),
            hint="make it readable for you, or remove it",
        ) from None
    codec.schema_of(data, family=_FAMILY, newest=1, where=str(path))
    return codec.decode(data, Last, where=str(path))


def _secretless(value: Any) -> Any:
    if isinstance(value, str):
        return redact.line(value)
    if isinstance(value, dict):
        return {key: _secretless(part) for key, part in value.items()}
    return [_secretless(part) for part in value] if isinstance(value, list) else value
