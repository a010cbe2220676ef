"""The repository around the source: what git knows of it, as facts.

`gitask` is the only way to git, and sees to it that nothing is run, written or fetched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.capture import gitdiff, gitdir
from repro_env.capture.gitask import NOT_TEXT, GitError, Repo, ask, head, line, listing, opened, paths, reason, run
from repro_env.model import redact
from repro_env.model.environment import Git

_UNDER_WAY = (
    ("rebase-merge", "rebase"),
    ("rebase-apply", "rebase"),
    ("MERGE_HEAD", "merge"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
    ("BISECT_LOG", "bisect"),
)
_NAMED = 5
"""How many paths a line names before it counts the rest."""


class Answer(msgspec.Struct, frozen=True):
    """What git says about a folder."""

    git: Git | None
    """None when no repository holds the folder, or when git could not be asked. Paths are relative to the folder."""
    problems: tuple[str, ...] = ()
    """What could not be found out, or is not there: one line each."""
    notes: tuple[str, ...] = ()
    """What explains the facts, and nothing is wrong with."""


class Ignored(msgspec.Struct, frozen=True):
    """Paths that the repository's own rules leave out, relative to the folder that was asked about."""

    paths: frozenset[str]
    """Files, and folders that are ignored as a whole."""
    problem: str
    hollow: frozenset[str] = frozenset()
    """Those of the folders that no pattern names: just all that is in them is ignored."""


def look(root: Path, *, never: Sequence[Path] = (), held: AbstractSet[str] | None = None) -> Answer:
    """The state of the repository that holds `root`.

    Paths in `never` are not part of its diff. `held`: the paths below `root` that can count as untracked; None for all.
    """
    if not _inside(root):
        return Answer(None)
    try:
        with opened(root) as repo:
            gitdir.refuse_pipe(repo.top, deep=False)
            return Answer(None) if _is_ignored(repo) else _answer(repo, never, held)
    except GitError as error:
        return Answer(None, (redact.line(f"git facts of the source: {error}"),))


def ignored(root: Path) -> Ignored:
    """What the repository that holds `root` ignores below it. A root that is ignored itself is judged by no such rule."""
    if not _inside(root):
        return Ignored(frozenset(), "")
    try:
        with opened(root) as repo:
            return _ignored(repo)
    except GitError as error:
        return Ignored(frozenset(), redact.line(f"which paths git ignores: {error}"))


def ignores(root: Path, listed: Sequence[str]) -> frozenset[str]:
    """Those of the paths below `root` that the repository ignores, whether they exist or not; empty where git cannot tell."""
    if not listed or not _inside(root):
        return frozenset()
    try:
        with opened(root) as repo:
            done = run(repo, "check-ignore", "-z", "--stdin", stdin=listing(list(listed)))
            return frozenset() if done.code or _is_ignored(repo) else frozenset(paths(done.stdout))
    except GitError:
        return frozenset()


def _ignored(repo: Repo) -> Ignored:
    try:
        raw = ask(repo, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
    except GitError:
        if _is_ignored(repo):  # git fails to list files deep in an ignored directory
            return Ignored(frozenset(), "")
        raise
    listed = paths(raw)
    if "." in listed and _is_ignored(repo):
        return Ignored(frozenset(), "")
    folders = [row for row in raw.split(b"\0") if row.endswith(b"/") and row != b"./"]
    named = run(repo, "check-ignore", "-z", "--stdin", stdin=b"".join(row + b"\0" for row in folders)) if folders else None
    hollow = frozenset(paths(b"\0".join(folders))) - frozenset(paths(named.stdout if named is not None else b""))
    return Ignored(frozenset(listed) - {"."}, "", hollow)


def _answer(repo: Repo, never: Sequence[Path], held: AbstractSet[str] | None) -> Answer:
    root, top = repo.root, repo.at(repo.top)
    filtered = gitdiff.filtered(repo)
    large = filtered.get("lfs", [])
    commit = head(repo)
    branch = line(repo, "symbolic-ref", "-q", "--short", "HEAD")
    shallow = (repo.private / "shallow").exists()
    index = gitdiff.index_of(top)
    submodules = gitdiff.submodules(top, index)
    problems, notes = [], []
    try:
        whole = large if os.path.realpath(root) == str(repo.top) else gitdiff.filtered(top).get("lfs", [])
        diff = gitdiff.whole(top, commit, index, submodules, never, whole)
        dirty = diff is not None
    except GitError as error:
        diff, dirty = None, True
        problems.append(f"whether the source is as committed: {error}")
    listed = paths(ask(repo, "ls-files", "--others", "--exclude-standard", "-z"))
    untracked = [path for path in listed if held is None or path in held]
    remote = _remote(repo.settings, branch)
    real = os.path.realpath(root)
    modules = [(os.path.relpath(repo.top / one.path, real), one) for one in submodules]
    away = [path for path, one in modules if not one.there and not path.startswith("../")]
    if away:
        problems.append(f"{_some(away)}: a submodule that is not checked out, its files are missing: git submodule update --init")
    pointers = _pointers(root, large, [path for path, one in modules if one.there and not path.startswith("../")])
    if pointers:
        problems.append(f"{_some(pointers)}: on disk is the pointer of Git LFS, the content is missing: git lfs pull")
    if index.absent:
        notes.append(f"sparse checkout: {index.absent} committed files are not on disk and not in the snapshot")
    if index.hidden:
        notes.append(f"{_some(index.hidden)}: git was told to take no notice of edits there; the diff has them")
    if state := next((word for name, word in _UNDER_WAY if os.path.lexists(repo.own / name)), ""):
        notes.append(f"a {state} is under way in the repository")
    notes += _conversions(repo.settings, filtered)
    facts = Git(
        commit=commit,
        date=_date(repo, commit),
        branch=redact.line(branch),
        remote=redact.line(redact.url(remote)),
        pushed=_pushed(repo, commit, remote, shallow=shallow),
        dirty=dirty or bool(untracked),
        diff=diff,
        untracked=_stored(untracked),
        submodules=tuple(redact.line(f"{one.commit} {path}") for path, one in modules),
        shallow=shallow,
        sparse=bool(index.absent),
        worktree=repo.own != repo.common,
        state=state,
        lfs=_stored(pointers),
    )
    return Answer(facts, tuple(redact.line(one) for one in problems), tuple(redact.line(one) for one in notes))


def _date(repo: Repo, commit: str) -> str | None:
    """When a commit was made, in UTC; None where the commit does not say it."""
    header = ask(repo, "cat-file", "commit", commit).partition(b"\n\n")[0] if commit else b""
    found = re.search(rb"^committer .*> (\d{1,12}) [+-]\d{4}$", header, re.MULTILINE)
    if found is None:
        return None
    try:
        return datetime.fromtimestamp(int(found[1]), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return None


def _pointers(root: Path, large: Sequence[str], submodules: Sequence[str]) -> list[str]:
    found = gitdiff.pointers(root, large)
    for below in submodules:
        with opened(root / below) as repo:
            found += [f"{below}/{path}" for path in gitdiff.pointers(repo.root, gitdiff.filtered(repo).get("lfs", []))]
    return sorted(found)


def _conversions(configured: Sequence[tuple[str, str]], filtered: Mapping[str, list[str]]) -> list[str]:
    """Why files on disk may have other bytes than in the commit, and git calls them the same."""
    notes = [
        f"{_some(files)}: go through the git filter {name}, which was not run; edits are told by the bytes on disk"
        for name in gitdiff.filters(configured)
        if name != "lfs" and (files := filtered.get(name))
    ]
    ends = dict(configured).get("core.autocrlf", "")
    if ends in ("true", "input"):
        notes.append(f"git converts line ends here (core.autocrlf={ends}): the snapshot has the files as they are on disk")
    return notes


def _some(found: Sequence[str]) -> str:
    rest = len(found) - _NAMED
    return ", ".join(found[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _stored(found: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({NOT_TEXT.sub("?", path) for path in found}))


def _remote(configured: Sequence[tuple[str, str]], branch: str) -> str:
    """URL of the branch's own remote, else of `origin`, else of the first by name."""
    pairs = [(key, url) for key, url in reversed(configured) if key.startswith("remote.") and key.endswith(".url")]
    urls = {key[len("remote.") : -len(".url")]: url for key, url in pairs}
    own = dict(configured).get(f"branch.{branch}.remote", "") if branch else ""
    name = next((name for name in (own, "origin", *sorted(urls)) if name in urls), None)
    return "" if name is None else urls[name]


def _pushed(repo: Repo, commit: str, remote: str, *, shallow: bool) -> Literal["yes", "no", "unknown"]:
    """Whether a remote-tracking branch contains the commit, as of the last fetch."""
    if not commit or not remote:
        return "no"
    try:
        if not ask(repo, "for-each-ref", "--count=1", "refs/remotes"):
            return "unknown"
        if ask(repo, "for-each-ref", "--count=1", f"--contains={commit}", "refs/remotes"):
            return "yes"
        # Where history is cut, a branch may contain the commit behind its cut; not so when the commit is ahead of it.
        ahead = not shallow or ask(repo, "for-each-ref", "--count=1", f"--merged={commit}", "refs/remotes")
    except GitError:
        return "unknown"
    return "no" if ahead else "unknown"


def _inside(root: Path) -> bool:
    real = Path(os.path.realpath(root))
    return any(os.path.lexists(folder / ".git") for folder in (real, *real.parents))


def _is_ignored(repo: Repo) -> bool:
    done = run(repo, "check-ignore", "-q", ".")
    if done.code not in (0, 1) and b"outside repository" not in done.stderr:
        raise GitError(reason(done))
    return done.code == 0
