"""The source and the data of a capture, held against a folder or another capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.flows import snapshot, sourcedir
from repro_env.flows.data import places
from repro_env.flows.locate import ours, runs_beside
from repro_env.flows.opening import some
from repro_env.image.entry import Entry, entries_of, of_notes, ordered
from repro_env.model.environment import Git
from repro_env.model.errors import DataError, SourceError
from repro_env.model.spec import FileDigest, Notebook, Source, Spec
from repro_env.store.store import Store
from repro_env.verify import source as verify
from repro_env.verify.difference import Difference, NotCompared
from repro_env.verify.tree import changes, described

_OUTPUTS = "notebook: outputs only"
"""Run again, a notebook has other outputs; its code is the same."""


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The source of one side."""

    name: str
    entries: Mapping[str, Entry]
    """By path; directories only in what is on this machine."""
    git: Git | None
    notebooks: tuple[Notebook, ...]
    requirements: tuple[FileDigest, ...]
    outputs: frozenset[str] = frozenset()
    """New files that runs on the host left: no code."""
    restored: frozenset[str] = frozenset()
    """Captured files that git ignores and that are not here: runs take them from the capture."""


def captured(spec: Spec) -> Code | None:
    """The source as it was captured; None for a spec without one."""
    source = spec.observed.source
    if source is None:
        return None
    return Code(
        name="the capture",
        entries=of_notes(source.files),
        git=source.git,
        notebooks=source.notebooks,
        requirements=source.requirements,
    )


def live(source: Source, root: Path, folder: Path, store: Store, *, without: Sequence[Path] = ()) -> Code:
    """A folder by the rules of a capture. `folder` holds the spec: it and `runs/` beside it are no part of the source.

    `without`: folders of it that are no code either, such as those that a run wrote checkpoints to.
    Raises `SourceError` for a folder that is not there or cannot be read.
    """
    from repro_env.capture import git, notebook, requirements
    from repro_env.capture.source import look

    never = (*ours(root, folder), *without)
    own = snapshot.own_streams()
    seen = look(root, include=source.include, exclude=source.exclude, never=never, facts=False)
    found = [one for one in seen.found if one.key[:2] not in own]
    entries = ordered(entries_of(found, store.hashes.of(root, found)))
    then = of_notes(source.files)
    return Code(
        name=str(root),
        entries={entry.path: entry for entry in entries},
        git=git.look(root, never=never, held={one.path for one in found}).git,
        notebooks=notebook.look(root, found).notebooks,
        requirements=requirements.look(root, found).files,
        outputs=snapshot.outputs_of_runs([entry for entry in entries if entry.path not in then], runs_beside(folder), store),
        restored=frozenset(entry.path for entry in snapshot.missing_ignored(source, root, entries)),
    )


def different(left: Code, right: Code) -> tuple[Difference, ...]:
    """Files that differ, then what git says of the two."""
    notes = {one.what: one.why for one in (*_requirements(left, right), *_notebooks(left, right))}
    notes |= dict.fromkeys(right.outputs, snapshot.OUTPUT) | dict.fromkeys(right.restored, snapshot.RESTORED)
    found = [
        Difference(
            level="source",
            what=one.path,
            left=described(one.left),
            right=described(one.right),
            why=notes.get(one.path, "mode" if one.how == "mode" else ""),
            counts=notes.get(one.path) not in (_OUTPUTS, snapshot.OUTPUT, snapshot.RESTORED),
        )
        for one in changes(_files(left), _files(right))
    ]
    return (*found, *verify.commits(left.git, right.git, same=not any(one.counts for one in found)))


def check_left_out(spec: Spec, folder: Path, *, frozen: bool, store: Store) -> None:
    """Raises `SourceError` with the files beside the spec that differ from the captured ones, which alone leave the machine.

    With `frozen` they may differ. `folder` holds the spec.
    """
    source, then = spec.observed.source, captured(spec)
    if source is None or then is None or frozen:
        return
    directory = sourcedir.choose(spec, folder, store=store).path
    if directory is None:
        return
    now = live(source, directory, folder, store)
    marks = {"new": "+", "gone": "-"}
    changed = [
        f"{marks.get(change.how, '~')} {change.path}"
        for change in changes(_files(then), _files(now))
        if change.path not in now.outputs | now.restored
    ]
    if changed:
        differ = "1 file differs" if len(changed) == 1 else f"{len(changed)} files differ"
        raise SourceError(
            f"{differ} from the captured code, which is what would be sent: {some(changed, ', ')}",
            where=str(directory),
            hint="capture again, or send the captured code as it is with --frozen",
        )


def _files(code: Code) -> dict[str, Entry]:
    """Without directories: git holds no empty one, so a fresh clone has others."""
    return {path: entry for path, entry in code.entries.items() if entry.kind != "dir"}


def _requirements(left: Code, right: Code) -> list[Difference]:
    return list(verify.requirements(left.requirements, right.requirements))


def _notebooks(left: Code, right: Code) -> list[Difference]:
    from repro_env.capture.notebook import change

    now = {one.path: one for one in right.notebooks}
    found = []
    for old in left.notebooks:
        new = now.get(old.path)
        what = change(old, new) if new is not None else ""
        if new is not None and what:
            why = f"notebook: {what}" if what != "code" else "notebook: its code"
            was, now_is = old.code[7:19], new.code[7:19]
            found.append(Difference(level="source", what=old.path, left=was, right=now_is, why=why, counts=why != _OUTPUTS))
    return found


def data(spec: Spec, named: Mapping[str, Path], store: Store, *, root: Path | None) -> tuple[list[Difference], list[NotCompared]]:
    """Data named at capture against what is there now. `named`: target -> where it is, for data that the user names.

    `root`: what the captured path of the source stands for. Without it only named data is looked at: a spec from a stranger
    must not have a path of this machine read.
    """
    from repro_env.capture.data import fingerprint

    found: list[Difference] = []
    missing: list[NotCompared] = []
    for one in spec.observed.data:
        source = spec.observed.source
        near = places(one, source.path, root) if root is not None and source is not None else ()
        candidates = [named[one.path]] if one.path in named else near
        place = next((path for path in candidates if path.exists()), None)
        if place is None:
            why = "is not there" if candidates else "this spec was not captured here"
            missing.append(NotCompared(what=f"data {one.path}", why=f"{why}; say where it is: --data SRC:{one.path}"))
            continue
        try:
            found += verify.data([one], [fingerprint(place, one.path, store.hashes)])
        except DataError as error:
            missing.append(NotCompared(what=f"data {one.path}", why=str(error)))
    return found, missing
