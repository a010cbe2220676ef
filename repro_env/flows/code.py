"""The source and the data of a capture, held against a folder or another capture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.flows import snapshot, trees
from repro_env.flows.locate import ours
from repro_env.flows.trees import Held
from repro_env.image.entry import Entry, entries_of, ordered
from repro_env.io.files import FileContents
from repro_env.model.environment import Git
from repro_env.model.errors import ArtifactError, DataError
from repro_env.model.spec import Data, FileDigest, Notebook, Source, Spec
from repro_env.store.store import Store
from repro_env.verify import source as verify
from repro_env.verify.difference import Difference, NotCompared
from repro_env.verify.tree import Change, changes, content, described

_EMPTY = "nothing lies in it, and git cannot hold it"
_OUTPUTS = "notebook: outputs only"
"""Run again, a notebook has other outputs; its code is the same."""


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The source of one side."""

    name: str
    digest: str
    """Of its tree as a layer tar; empty where the content is enough."""
    content: str | None
    """Of its files alone, without folders; None in specs that do not say it."""
    tree: Held | None
    """None where its paths cannot be told."""
    root: Path | None = None
    """Where it lies, of a folder of this machine."""
    never: tuple[Path, ...] = ()
    """What is no part of it there."""
    git: Git | None
    notebooks: tuple[Notebook, ...]
    requirements: tuple[FileDigest, ...]


def captured(spec: Spec, folder: Path, store: Store) -> Code | None:
    """The source as it was captured; None for a spec without one."""
    source = spec.observed.source
    if source is None:
        return None
    return Code(
        name="the capture",
        digest=source.tree.sha256,
        content=source.content,
        tree=trees.captured(source.tree, folder, store),
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
    from repro_env.lock import layers

    never = (*ours(root, folder), *without)
    own = snapshot.own_streams()
    seen = look(root, include=source.include, exclude=source.exclude, never=never, facts=False)
    found = [one for one in seen.found if one.key[:2] not in own]
    entries = ordered(entries_of(found, store.hashes.of(root, found)))
    return Code(
        name=str(root),
        digest="" if source.content else layers.tree_blob(entries, FileContents(root), facts=store.facts).sha256,
        content=content(entries),
        tree=trees.Listed(entries),
        root=root,
        never=never,
        git=git.look(root, never=never, held={one.path for one in found}).git,
        notebooks=notebook.look(root, found).notebooks,
        requirements=requirements.look(root, found).files,
    )


def different(left: Code, right: Code) -> tuple[Difference, ...]:
    """Files that differ, then what git says of the two."""
    known = left.content is not None and right.content is not None
    same = left.content == right.content if known else left.digest == right.digest
    found = [] if same else _files(left, right)
    return (*found, *verify.commits(left.git, right.git, same=not any(one.counts for one in found)))


def _files(left: Code, right: Code) -> list[Difference]:
    why = ""
    try:
        if left.tree is not None and right.tree is not None:
            return _by_path(left, right, left.tree.entries(), right.tree.entries())
        why = f"the files of {left.name if left.tree is None else right.name} are neither beside the spec nor in the store"
    except ArtifactError as error:
        why = str(error)
    known = {one.what: one for one in (*_by_git(left, right), *_notebooks(left, right), *_requirements(left, right))}
    if known and _is_clean(left.git) and _is_clean(right.git):
        return list(known.values())
    return [
        *known.values(),
        Difference(
            level="source",
            what="files of the source",
            left=(left.content or left.digest).removeprefix("sha256:")[:12],
            right=((right.content if left.content else None) or right.digest).removeprefix("sha256:")[:12],
            why=f"which {'other ones' if known else 'ones'} cannot be told: {why}",
        ),
    ]


def _by_git(left: Code, right: Code) -> list[Difference]:
    """Paths that differ between the two commits, as far as the repository around the folder has both."""
    from repro_env.capture import gitdiff
    from repro_env.capture.gitask import GitError

    if right.root is None or left.git is None or right.git is None or not (left.git.commit and right.git.commit):
        return []
    try:
        names = gitdiff.between(right.root, left.git.commit, right.git.commit)
    except GitError:
        return []
    apart = [os.path.relpath(path, right.root) for path in right.never]
    entries = right.tree.entries() if right.tree is not None else {}
    then = f"as in commit {left.git.commit[:12]}"
    return [
        Difference(
            level="source",
            what=name,
            left="" if status == "A" else then,
            right="" if status == "D" else described(entries.get(name)) or "there, and no part of the code by the rules",
        )
        for status, name in names
        if not any(name == path or name.startswith(path + "/") for path in apart)
    ]


def _is_clean(git: Git | None) -> bool:
    """Whether the files are those of the commit."""
    return git is not None and bool(git.commit) and not git.dirty and git.diff is None and not git.untracked


def _by_path(left: Code, right: Code, old: Mapping[str, Entry], new: Mapping[str, Entry]) -> list[Difference]:
    notes = {one.what: one.why for one in (*_requirements(left, right), *_notebooks(left, right))}
    return [
        Difference(
            level="source",
            what=one.path,
            left=described(one.left),
            right=described(one.right),
            why=_EMPTY if _is_folder(one) else notes.get(one.path, "mode" if one.how == "mode" else ""),
            counts=not _is_folder(one) and notes.get(one.path) != _OUTPUTS,
        )
        for one in changes(old, new)
    ]


def _is_folder(one: Change) -> bool:
    """A folder with nothing in it on one side, and not there on the other."""
    return {getattr(side, "kind", "dir") for side in (one.left, one.right)} == {"dir"}


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


def data(
    expected: Sequence[Data], places: Mapping[str, Path], store: Store, *, anywhere: bool
) -> tuple[list[Difference], list[NotCompared]]:
    """Data named at capture against what lies there now. `places`: target -> where it is, for those that were told.

    Without `anywhere` only these are looked at: a spec from a stranger must not have a path of this machine read.
    """
    from repro_env.capture.data import fingerprint

    found: list[Difference] = []
    missing: list[NotCompared] = []
    for one in expected:
        place = places.get(one.path, Path(one.path) if anywhere else None)
        if place is None or not place.exists():
            why = "is not there" if place is not None else "this spec was not captured here"
            missing.append(NotCompared(what=f"data {one.path}", why=f"{why}; say where it is: --data SRC:{one.path}"))
            continue
        try:
            found += verify.data([one], [fingerprint(place, one.path, store.hashes)])
        except DataError as error:
            missing.append(NotCompared(what=f"data {one.path}", why=str(error)))
    return found, missing
