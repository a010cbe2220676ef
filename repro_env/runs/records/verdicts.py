"""The verdicts of `verify`, stored in the directory of the run, as JSON for programs and as text for people.

    runs/20260701T101530Z-train-1f2e3d4c/verified/20260702T090000Z-5a6b7c8d.json
    runs/20260701T101530Z-train-1f2e3d4c/verified/20260702T090000Z-5a6b7c8d.txt

They are written once, and the record of the run does not change. repro-env never decides anything from them.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from repro_env.io.files import read_regular
from repro_env.runs.records import ids
from repro_env.runs.records.files import write_once
from repro_env.schema import codec, redact
from repro_env.schema.errors import RecordError, os_errors_as
from repro_env.schema.rundirectory import VERIFIED
from repro_env.schema.text import Line

_FAMILY = "repro-env/verified"
_LARGEST = 256 << 20
"""Bytes of a verdict that is read."""
_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}\.json")


class Last(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a verdict that other commands show."""

    schema: Literal["repro-env/verified/1"]
    written: Line
    """UTC, ISO 8601."""
    level: Line
    same: bool
    failed: bool = False
    """Whether the command failed in both runs."""
    ignored: Annotated[int, Meta(ge=0)]
    """The number of differences that did not count."""
    host: tuple[Line, ...] = ()
    """The facts of the machine that repeated the run, as in the record of a run."""


def write(directory: Path, facts: Mapping[str, object], page: Iterable[str]) -> Path:
    """Write a verdict to the directory of its run, without secrets, and return the path of the JSON file.

    `facts`: at least the fields of `Last` without `schema` and `written`. `page`: the printed lines, without colour.

    Raises `RecordError` if it cannot be written, and `DiskError`.
    """
    now = time.time_ns() // 1_000_000
    at = datetime.fromtimestamp(now / 1000, timezone.utc)
    name = f"{at:%Y%m%dT%H%M%SZ}-{ids.short(ids.uuid7(now, secrets.token_bytes(10)))}"
    head = {"schema": f"{_FAMILY}/1", "written": f"{at:%Y-%m-%dT%H:%M:%SZ}"}
    texts = {
        "txt": redact.lines("".join(f"{line}\n" for line in page)).encode("utf-8", "replace"),
        "json": codec.pretty({**head, **_secretless(msgspec.to_builtins(facts))}),  # written last: if it is there, both are
    }
    for ending, data in texts.items():
        write_once(directory / VERIFIED / f"{name}.{ending}", data, "the verdict")
    return directory / VERIFIED / f"{name}.json"


def last(directory: Path) -> Last | None:
    """The newest verdict of a run, or None. Raises as `history`."""
    return next(history(directory), None)


def history(directory: Path) -> Iterator[Last]:
    """Yield the verdicts of a run, the newest first. Raises `SpecError` or `RecordError` if one cannot be read."""
    hint = "give yourself permission to read it, or remove it"
    with os_errors_as(RecordError, "the verdict cannot be read", default=directory / VERIFIED, hint=hint):
        try:
            paths = [path for path in (directory / VERIFIED).iterdir() if _NAME.fullmatch(path.name)]
        except FileNotFoundError:
            return
        # Names sort by the second, so the time of the file decides between verdicts of the same second.
        for path in sorted(paths, key=lambda path: (path.name.partition("-")[0], path.lstat().st_mtime_ns), reverse=True):
            data = read_regular(path, _LARGEST, below=directory)
            codec.schema_of(data, family=_FAMILY, newest=1, where=str(path))
            yield codec.decode(data, Last, where=str(path))


def _secretless(value: Any) -> Any:
    if isinstance(value, str):
        return redact.line(value)
    if isinstance(value, dict):
        return {key: _secretless(part) for key, part in value.items()}
    return [_secretless(part) for part in value] if isinstance(value, list) else value
