"""What people add to a run after it ended: notes, decisions and tags, versions of models, and that it is retired. Each is a separate file, written once and never changed.

    runs/20260701T101530Z-train-1f2e3d4c/annotations/<UUIDv7>.json

The record of the run does not change. Another annotation (`untag`) removes a tag.
"""

from __future__ import annotations

import errno
import re
import secrets
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from repro_env.io.files import read_regular
from repro_env.runs.records import ids
from repro_env.runs.records.files import write_once
from repro_env.schema import codec, redact
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import RecordError, ReproEnvError, UsageError, os_errors_as
from repro_env.schema.rundirectory import ANNOTATIONS
from repro_env.schema.text import Line

Kind = Literal["note", "decision", "tag", "untag", "promoted", "retired", "reinstated"]
_FAMILY = "repro-env/annotation"
_LARGEST = 16 << 20
"""The largest annotation file that is read, in bytes."""
_RETIRED = "(retired)"
"""How lists show that a run is retired. No tag can have this form."""
_EXCEPTION = "exception to "
"""How the note of an exception begins."""
_TAG = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/+-]{0,62}[A-Za-z0-9])?")


_PROMOTION = re.compile(r"([a-z0-9]+(?:[._-][a-z0-9]+)*)@([a-z0-9]+(?:-[a-z0-9]+)*) v([1-9][0-9]{0,8})")


class Promotion(NamedTuple):
    """A version of a model, and the stage that it got."""

    name: str
    stage: str
    number: int

    @property
    def version(self) -> str:
        """As lists show it. No tag can have this form."""
        return f"{self.name}@v{self.number}"

    def __str__(self) -> str:
        return f"{self.name}@{self.stage} v{self.number}"


class Annotation(Frozen, frozen=True, kw_only=True):
    schema: Literal["repro-env/annotation/1"]
    id: Line
    """A UUIDv7, so annotations sort by time."""
    written: Line
    """UTC, ISO 8601 with milliseconds."""
    kind: Kind
    text: Annotated[tuple[Line, ...], Meta(min_length=1)]
    """The lines of the note or decision, the reason for `retired` and `reinstated`, the tag, or a promotion and its reason."""
    by: Line = ""
    """The author's name, as the author gave it."""


def add(directory: Path, *, kind: Kind, text: str, by: str = "") -> Annotation:
    """Write an annotation to the directory of a run, without secrets.

    Raises `UsageError` if the text is empty or the tag is invalid, `RecordError` if it cannot be written, and `DiskError`.
    """
    if kind in ("tag", "untag"):
        check_tag(text)
    lines = tuple(redact.line(line.rstrip()) for line in redact.secretless(text).strip().splitlines())
    if not lines:
        raise UsageError(f"the text of the {kind} is empty", hint=f"enter a text, or leave the {kind} out")
    now = time.time_ns() // 1_000_000
    # The id sorts after all existing ones even if the clock was set back, because the newest annotation of a tag counts.
    newest = max((int(path.stem.replace("-", "")[:12], 16) for path in _paths(directory)), default=0)
    annotation = Annotation(
        schema="repro-env/annotation/1",
        id=ids.uuid7(max(now, newest + 1), secrets.token_bytes(10)),
        written=datetime.fromtimestamp(now / 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.") + f"{now % 1000:03d}Z",
        kind=kind,
        text=lines,
        by=redact.line(by.strip()),
    )
    write_once(directory / ANNOTATIONS / f"{annotation.id}.json", codec.pretty(annotation), f"the {kind}")
    return annotation


def of(directory: Path) -> tuple[Annotation, ...]:
    """Return the annotations of a run, oldest first.

    Raises `SpecError` if one is damaged, `SpecVersionError` if a newer version wrote it, and `RecordError` if a file or the
    directory cannot be read: a tag that cannot be read must not look like a missing tag.
    """
    paths = _paths(directory)
    with _reading(directory):
        return tuple(_read(path) for path in paths)


def tags(annotations: Iterable[Annotation]) -> tuple[str, ...]:
    """Return the current tags of a run, sorted, with its versions and `(retired)`. `annotations`: oldest first."""
    current = set[str]()
    for annotation in annotations:
        if annotation.kind == "tag":
            current.add(annotation.text[0])
        elif annotation.kind == "untag":
            current.discard(annotation.text[0])
        elif (promotion := promotion_of(annotation)) is not None:
            current.add(promotion.version)
        elif annotation.kind == "retired":
            current.add(_RETIRED)
        elif annotation.kind == "reinstated":
            current.discard(_RETIRED)
    return tuple(sorted(current))


def promotion_of(annotation: Annotation) -> Promotion | None:
    """Return the promotion that an annotation is; None for others."""
    return parse_promotion(annotation.text[0]) if annotation.kind == "promoted" else None


def parse_promotion(text: str) -> Promotion | None:
    """Parse `NAME@STAGE vN`; None for another text."""
    match = _PROMOTION.fullmatch(text)
    return Promotion(match[1], match[2], int(match[3])) if match else None


def retirement(annotations: Iterable[Annotation]) -> Annotation | None:
    """Return why a run is retired; None if it is not. `annotations`: oldest first."""
    last = None
    for annotation in annotations:
        if annotation.kind in ("retired", "reinstated"):
            last = annotation if annotation.kind == "retired" else None
    return last


def exception(text: str) -> str:
    """Return the note for `RULE=REASON`: an exception to a rule of the project's policy."""
    rule, _, reason = text.partition("=")
    return f"{_EXCEPTION}{rule.strip()}: {reason.strip()}"


def exceptions(annotations: Iterable[Annotation]) -> dict[str, str]:
    """Return the reasons for the exceptions of a run, by rule."""
    notes = (note.text[0] for note in annotations if note.kind == "note" and note.text[0].startswith(_EXCEPTION))
    pairs = (note.removeprefix(_EXCEPTION).partition(": ") for note in notes)
    return {rule: reason for rule, _, reason in pairs if reason}


def current_tags(directory: Path) -> tuple[str, ...] | None:
    """Return the current tags of a run; None if its annotations cannot be read."""
    try:
        return tags(of(directory))
    except ReproEnvError:
        return None


def check_tag(tag: str) -> None:
    """Raise `UsageError` if the tag is invalid."""
    if not _TAG.fullmatch(tag):
        raise UsageError(
            f"invalid tag: {tag!r}",
            hint="a tag has up to 64 letters, digits and . _ / + -, and starts and ends with a letter or digit",
        )


def _paths(directory: Path) -> list[Path]:
    with _reading(directory), suppress(FileNotFoundError):
        if (directory / ANNOTATIONS).is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link, but must be a directory")
        names = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.json")
        return sorted(path for path in (directory / ANNOTATIONS).iterdir() if names.fullmatch(path.name))
    return []


def _reading(directory: Path) -> AbstractContextManager[None]:
    hint = "give yourself permission to read it, or remove it; `runs list` and `runs show` work without notes and tags"
    what = "the notes and tags of the run cannot be read"
    return os_errors_as(RecordError, what, default=directory / ANNOTATIONS, hint=hint)


def _read(path: Path) -> Annotation:
    data = read_regular(path, _LARGEST, below=path.parent.parent)
    codec.schema_of(data, family=_FAMILY, newest=1, where=str(path))
    return codec.decode(data, Annotation, where=str(path))
