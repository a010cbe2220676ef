"""The stories of `repro-env runs note`, `tag` and `untag`: something is said of runs that are there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro_env.catalog import annotation, records
from repro_env.catalog.annotation import Annotation
from repro_env.model.errors import RecordError


def note(folder: Path, text: str, *, decision: bool = False, by: str = "") -> Annotation:
    """Raises as `annotation.add`, and what reading the run's record raises."""
    records.read(folder)
    return annotation.add(folder, kind="decision" if decision else "note", text=text, by=by)


def tag(folder: Path, tags: Sequence[str], *, by: str = "") -> tuple[str, ...]:
    """Put tags on a run; those that it has stay as they are. Returns all that it has then, sorted. Raises as `note`, before
    the first is written when one is no tag."""
    for one in tags:
        annotation.check_tag(one)
    records.read(folder)
    there = annotation.tags(annotation.of(folder))
    for one in dict.fromkeys(tags):
        if one not in there:
            annotation.add(folder, kind="tag", text=one, by=by)
    return annotation.tags(annotation.of(folder))


def untag(folder: Path, tags: Sequence[str], *, by: str = "") -> tuple[str, ...]:
    """Take tags off a run. Returns those that it has then. Raises `RecordError` when it has not all of them."""
    records.read(folder)
    there = annotation.tags(annotation.of(folder))
    for one in tags:
        if one not in there:
            has = f"it has {', '.join(there)}" if there else "it has none"
            raise RecordError(f"has no tag {one!r}", where=folder.name, hint=has)
    for one in dict.fromkeys(tags):
        annotation.add(folder, kind="untag", text=one, by=by)
    return annotation.tags(annotation.of(folder))
