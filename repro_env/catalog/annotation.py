"""What people say of a run afterwards: notes, decisions, tags. Each is a file of its own, written once, never changed.

    runs/20260701T101530Z-train-1f2e3d4c/annotations/<UUIDv7>.json

The record of the run stays as it is. A tag is taken off by a file that says so.
"""

from __future__ import annotations

import errno
import re
import secrets
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from repro_env.catalog import ids
from repro_env.io.files import atomic_write, read_regular, room
from repro_env.model import codec, redact
from repro_env.model.codec import Frozen
from repro_env.model.errors import RecordError, UsageError
from repro_env.model.text import Line

FOLDER = "annotations"
Kind = Literal["note", "decision", "tag", "untag"]
_FAMILY = "repro-env/annotation"
_LARGEST = 16 << 20
"""Bytes of one note that are read."""
_TAG = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/+-]{0,62}[A-Za-z0-9])?")


class Annotation(Frozen, frozen=True, kw_only=True):
    schema: Literal["repro-env/annotation/1"]
    id: Line
    """UUIDv7; they sort by time."""
    written: Line
    """UTC, ISO 8601 with milliseconds."""
    kind: Kind
    text: Annotated[tuple[Line, ...], Meta(min_length=1)]
    """The note, line by line; the one tag."""
    by: Line = ""
    """Who says so, as they named themselves."""


def add(folder: Path, *, kind: Kind, text: str, by: str = "") -> Annotation:
    """Say something of a run. `folder` is the run's. Secrets are taken out of the text.

    Raises `UsageError` for an empty text or a bad tag, `RecordError` when it cannot be written, `DiskError`.
    """
    if kind in ("tag", "untag"):
        check_tag(text)
    lines = tuple(redact.line(line.rstrip()) for line in redact.secretless(text).strip().splitlines())
    if not lines:
        raise UsageError("is empty", where=f"the {kind}", hint="say something, or leave it out")
    now = time.time_ns() // 1_000_000
    try:
        # Behind all that is there, whatever the clock says: the last word on a tag counts.
        last = max((int(path.stem.replace("-", "")[:12], 16) for path in _paths(folder)), default=0)
        moment = max(now, last + 1)
        one = Annotation(
            schema="repro-env/annotation/1",
            id=ids.uuid7(moment, secrets.token_bytes(10)),
            written=datetime.fromtimestamp(now / 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.") + f"{now % 1000:03d}Z",
            kind=kind,
            text=lines,
            by=redact.line(by.strip()),
        )
        path = folder / FOLDER / f"{one.id}.json"
        with room(folder):
            path.parent.mkdir(exist_ok=True)
            atomic_write(path, codec.pretty(one))
            path.chmod(0o444)
    except OSError as error:
        raise RecordError(
            f"cannot be written: {error.strerror}", where=str(folder / FOLDER), hint="mend the permissions of the run's folder"
        ) from None
    return one


def of(folder: Path) -> tuple[Annotation, ...]:
    """All that was said of a run, oldest first. Raises `SpecError` for one that cannot be read, `SpecVersionError` for a newer
    one, `RecordError` when the folder cannot be: a tag that is not seen must not pass for none."""
    try:
        return tuple(_read(path) for path in _paths(folder))
    except OSError as error:
        raise RecordError(
            f"cannot be read: {error.strerror}",
            where=str(error.filename or folder / FOLDER),
            hint="remove it, or give yourself permission to read it; `runs list` and `runs show` work without notes and tags",
        ) from None


def tags(annotations: Iterable[Annotation]) -> tuple[str, ...]:
    """Those that a run has now, sorted."""
    there = set()
    for one in annotations:
        if one.kind == "tag":
            there.add(one.text[0])
        elif one.kind == "untag":
            there.discard(one.text[0])
    return tuple(sorted(there))


def check_tag(tag: str) -> None:
    """Raises `UsageError` for what is no tag."""
    if not _TAG.fullmatch(tag):
        raise UsageError(
            "is no tag",
            where=repr(tag),
            hint="up to 64 letters, digits and . _ / + -, with a letter or digit at both ends",
        )


def _paths(folder: Path) -> list[Path]:
    try:
        if (folder / FOLDER).is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link, not a directory")
        return sorted(
            path
            for path in (folder / FOLDER).iterdir()
            if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.json", path.name)
        )
    except FileNotFoundError:
        return []


def _read(path: Path) -> Annotation:
    data = read_regular(path, _LARGEST, below=path.parent.parent)
    codec.schema_of(data, family=_FAMILY, newest=1, where=str(path))
    return codec.decode(data, Annotation, where=str(path))
