"""The commands `repro-env runs note`, `tag` and `untag`: add annotations to a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro_env.runs.records import annotation, records
from repro_env.runs.records.annotation import Annotation
from repro_env.schema.errors import RecordError


def note(run_directory: Path, text: str, *, decision: bool = False, by: str = "") -> Annotation:
    """Add a note or a decision to a run. Raises as `annotation.add`, and what reading the run's record raises."""
    records.read(run_directory)
    return annotation.add(run_directory, kind="decision" if decision else "note", text=text, by=by)


def tag(run_directory: Path, tags: Sequence[str], *, by: str = "") -> tuple[str, ...]:
    """Add tags to a run and return all its tags, sorted. Tags that the run already has are skipped.

    Raises as `note`. If a tag is invalid, nothing is written.
    """
    for name in tags:
        annotation.check_tag(name)
    records.read(run_directory)
    existing = annotation.tags(annotation.of(run_directory))
    for name in dict.fromkeys(tags):
        if name not in existing:
            annotation.add(run_directory, kind="tag", text=name, by=by)
    return annotation.tags(annotation.of(run_directory))


def untag(run_directory: Path, tags: Sequence[str], *, by: str = "") -> tuple[str, ...]:
    """Remove tags from a run and return the tags that remain. Raises `RecordError` if the run lacks one of them."""
    records.read(run_directory)
    existing = annotation.tags(annotation.of(run_directory))
    for name in tags:
        if name not in existing:
            hint = f"its tags are {', '.join(existing)}" if existing else "it has no tags"
            raise RecordError(f"this run does not have the tag {name!r}", where=run_directory.name, hint=hint)
    for name in dict.fromkeys(tags):
        annotation.add(run_directory, kind="untag", text=name, by=by)
    return annotation.tags(annotation.of(run_directory))
