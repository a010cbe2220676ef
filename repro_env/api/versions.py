"""Versions of models: runs that were promoted under a name, and the stages that they have. And runs that are retired.

Everything is an annotation of a run, which is written once and travels with it. A stage belongs to the run that got it last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from repro_env.api import policy
from repro_env.compare.audit.auditor import check_own_files
from repro_env.compare.audit.findings import BAD
from repro_env.runs.records import annotation, records
from repro_env.runs.records.annotation import Annotation, Promotion
from repro_env.runs.specsearch import Specs
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import RecordError, UsageError
from repro_env.schema.progress import SILENT, Tell
from repro_env.specs.argument import current_directory, open_spec
from repro_env.store.specs.files import SPEC
from repro_env.store.specs.lookup import DIRECTORY
from repro_env.store.store import Store

_IMAGE = re.compile(r"image (\S+@sha256:[0-9a-f]{64})")
"""The line of a promotion with the pushed image."""


class Promoted(Frozen, frozen=True, kw_only=True):
    """An entry of the audit trail: a run got a version, or its version got a stage."""

    name: str
    number: int
    """Of the version."""
    stage: str
    run: str
    """The ID."""
    written: str
    by: str
    reason: tuple[str, ...]
    id: str
    """Of the annotation: entries sort by it."""
    is_retired: bool
    """Whether the run is."""
    image: str = ""
    """Where the image was pushed: `HOST/NAME@sha256:...`."""


def history(runs: Path) -> tuple[Promoted, ...]:
    """Return all promotions of a directory of runs, oldest first. Raises as `annotation.of`."""
    found = []
    for directory in records.directories(runs):
        annotations = annotation.of(directory)
        promotions = [(note, promotion) for note in annotations if (promotion := annotation.promotion_of(note)) is not None]
        if promotions:
            run, is_retired = records.read(directory).id, annotation.retirement(annotations) is not None
            found += [_entry(note, promotion, run, is_retired=is_retired) for note, promotion in promotions]
    return tuple(sorted(found, key=lambda entry: entry.id))


def current(entries: Sequence[Promoted]) -> dict[tuple[str, str], Promoted]:
    """Return the last promotion of each name and stage. `entries`: oldest first."""
    return {(entry.name, entry.stage): entry for entry in entries}


def promote(
    directory: Path,
    target: str,
    *,
    reason: str = "",
    by: str = "",
    to: str | None = None,
    store: Store | None = None,
    tell: Tell = SILENT,
) -> Promoted:
    """Make a run the next version of a model, unless it is one already, and give it a stage.

    `target`: NAME@STAGE. `to`: also push the image to this repository (HOST/NAME), tagged as version and as stage.

    Raises `UsageError` for an invalid target; `RecordError` if the run failed, is retired, or lost or changed files; `PolicyError` if it
    breaks the project's policy; what `push` raises.
    """
    wanted = annotation.parse_promotion(f"{target} v1")
    if wanted is None:
        hint = "both have lower-case letters, digits and -, for example classifier@production"
        raise UsageError(f'invalid version: it must be NAME@STAGE (got "{target}")', hint=hint)
    store = store or Store.open()
    _check(directory)
    run = records.read(directory)
    entries = [entry for entry in history(directory.parent) if entry.name == wanted.name]
    own = next((entry.number for entry in entries if entry.run == run.id), 0)
    promotion = wanted._replace(number=own or max((entry.number for entry in entries), default=0) + 1)
    image = "" if to is None else _push(directory, promotion, to, is_new=not own, store=store, tell=tell)
    text = "\n".join(filter(None, (str(promotion), f"image {image}" if image else "", reason)))
    note = annotation.add(directory, kind="promoted", text=text, by=by)
    return _entry(note, promotion, run.id, is_retired=False)


def retire(directory: Path, reason: str, *, by: str = "", undo: bool = False) -> Annotation:
    """Mark that a run must not be used any more, or with `undo` that it may. Raises as `api.runs.note`."""
    records.read(directory)
    if undo and annotation.retirement(annotation.of(directory)) is None:
        raise RecordError("this run is not retired", where=directory.name, hint="leave out --undo to retire it")
    return annotation.add(directory, kind="reinstated" if undo else "retired", text=reason, by=by)


def _entry(note: Annotation, promotion: Promotion, run: str, *, is_retired: bool) -> Promoted:
    found = _IMAGE.fullmatch("".join(note.text[1:2]))
    return Promoted(
        name=promotion.name,
        number=promotion.number,
        stage=promotion.stage,
        run=run,
        written=note.written,
        by=note.by,
        reason=note.text[2 if found else 1 :],
        id=note.id,
        is_retired=is_retired,
        image=found[1] if found else "",
    )


def _check(directory: Path) -> None:
    """Raise unless a run may be deployed: it ended well, is complete and unchanged, not retired, and keeps the policy."""
    run = records.read(directory)
    if run.end is None or run.end.outcome.status:
        raise RecordError(
            f"this run cannot be promoted: {run.ending}", where=directory.name, hint="promote a run that ended with 0"
        )
    if (retired := annotation.retirement(annotation.of(directory))) is not None:
        hint = f"promote another run, or take this back: repro-env runs retire --undo {run.short} REASON"
        raise RecordError(f"this run is retired: {retired.text[0]}", where=directory.name, hint=hint)
    if changed := next((finding for finding in check_own_files(run) if finding.state in BAD), None):
        what = f"a file of this run is not as recorded: {changed.what}: {changed.why}"
        raise RecordError(what, where=directory.name, hint=f"see all with: repro-env runs audit {run.short}")
    project = directory.parent.parent
    if (project / DIRECTORY / SPEC).is_file():
        rules = policy.find(open_spec(project / DIRECTORY), runs=directory.parent)
        broken = policy.judge(rules, run).broken if rules is not None else ()
        if rules is not None and broken:
            hint = "promote a run that keeps it; an exception is noted when the run starts (exec --except)"
            raise policy.error(rules, broken, hint)


def _push(directory: Path, promotion: Promotion, to: str, *, is_new: bool, store: Store, tell: Tell) -> str:
    """Push the image of a run under the tags of its version and its stage; return `HOST/NAME@DIGEST`."""
    from repro_env.api import push  # slow to import
    from repro_env.registry.client import Registry
    from repro_env.registry.reference import parse

    run = records.read(directory)
    found = Specs(directory.parent, current_directory(), store).of(run.start)
    if found is None:
        hint = "put the spec next to the runs, or leave out --to"
        raise RecordError("the spec of this run was not found", where=directory.name, hint=hint)
    version = parse(f"{to}:{promotion.name}-v{promotion.number}")
    with Registry(version.host) as registry:
        existing = registry.head(version.repository, version.tag or "")
    if existing is not None and is_new:
        what = "the registry has this version already, and a version does not change"
        raise RecordError(what, where=f"{to}:{version.tag}", hint="pull the runs of the others first: repro-env runs pull")
    pushed = push.push(f"{to}:{promotion.name}-{promotion.stage}", found.directory, frozen=True, store=store, tell=tell)
    if existing is not None and not pushed.image.endswith(existing):
        what = f"the registry has another image for this version: {existing}"
        raise RecordError(what, where=f"{to}:{version.tag}", hint="a version does not change; promote under another name")
    return push.push(f"{to}:{version.tag}", found.directory, frozen=True, store=store, tell=tell).image
