"""Read facts about the git repository that contains the source.

Git is started only through `git.command`, which ensures that git runs no program of the repository, writes nothing and fetches
nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.environment.git import diff as gitdiff
from repro_env.environment.git import directory as gitdir
from repro_env.environment.git.command import (
    NOT_TEXT,
    GitError,
    Repo,
    failure_reason,
    git_line,
    git_output,
    head_commit,
    join_paths,
    open_repository,
    run_git,
    split_paths,
)
from repro_env.schema import redact
from repro_env.schema.environment import Git
from repro_env.schema.messages import shorten

_NAMED = 5
"""How many paths a message names before it only counts the others."""


class Answer(msgspec.Struct, frozen=True):
    """The facts from git about a directory."""

    git: Git | None
    """None if the directory is not in a repository, or if git failed. Paths are relative to the directory."""
    problems: tuple[str, ...] = ()
    """What could not be determined, or is missing: one line each."""
    notes: tuple[str, ...] = ()
    """Explanations of the facts, which are not problems: one line each."""


class Ignored(msgspec.Struct, frozen=True):
    """Paths that the rules of a repository ignore, relative to the directory in question."""

    paths: frozenset[str]
    """Ignored files, and directories that are ignored completely."""
    problem: str
    hollow: frozenset[str] = frozenset()
    """Directories that match no pattern themselves, but all of whose content is ignored."""


def look(root: Path, *, never: Sequence[Path] = (), included: AbstractSet[str] | None = None) -> Answer:
    """Return the state of the repository that contains `root`.

    Paths in `never` are not part of its diff. `included`: the paths below `root` that can count as untracked; None for all.
    """
    if not _is_in_repository(root):
        return Answer(None)
    try:
        with open_repository(root) as repo:
            gitdir.refuse_pipe(repo.top, deep=False)
            return Answer(None) if _is_ignored(repo) else _answer(repo, never, included)
    except GitError as error:
        return Answer(None, (redact.line(f"cannot read the git facts of the source: {error}"),))


def ignored(root: Path) -> Ignored:
    """Return what the repository that contains `root` ignores below it: nothing if `root` itself is ignored."""
    if not _is_in_repository(root):
        return Ignored(frozenset(), "")
    try:
        with open_repository(root) as repo:
            return _ignored(repo)
    except GitError as error:
        return Ignored(frozenset(), redact.line(f"cannot list the paths that git ignores: {error}"))


def ignores(root: Path, listed: Sequence[str]) -> frozenset[str]:
    """Return the paths below `root` that the repository ignores, whether they exist or not. It is empty if git fails."""
    if not listed or not _is_in_repository(root):
        return frozenset()
    try:
        with open_repository(root) as repo:
            done = run_git(repo, "check-ignore", "-z", "--stdin", stdin=join_paths(list(listed)))
            return frozenset() if done.code or _is_ignored(repo) else frozenset(split_paths(done.stdout))
    except GitError:
        return frozenset()


def _ignored(repo: Repo) -> Ignored:
    try:
        raw = git_output(repo, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
    except GitError:
        if _is_ignored(repo):  # git fails to list files deep in an ignored directory
            return Ignored(frozenset(), "")
        raise
    listed = split_paths(raw)
    if "." in listed and _is_ignored(repo):
        return Ignored(frozenset(), "")
    directories = [path for path in raw.split(b"\0") if path.endswith(b"/") and path != b"./"]
    stdin = b"".join(path + b"\0" for path in directories)
    matched = run_git(repo, "check-ignore", "-z", "--stdin", stdin=stdin).stdout if directories else b""
    hollow = frozenset(split_paths(b"\0".join(directories))) - frozenset(split_paths(matched))
    return Ignored(frozenset(listed) - {"."}, "", hollow)


def _answer(repo: Repo, never: Sequence[Path], included: AbstractSet[str] | None) -> Answer:
    root, top = repo.root, repo.at(repo.top)
    commit = head_commit(repo)
    branch = git_line(repo, "symbolic-ref", "-q", "--short", "HEAD")
    index = gitdiff.index_of(top)
    submodules = gitdiff.submodules(top, index)
    problems, notes = [], []
    try:
        diff = gitdiff.combined_digest(top, commit, index, submodules, never)
        dirty = diff is not None
    except GitError as error:
        diff, dirty = None, True
        problems.append(f"git cannot compare the source with the commit: {error}")
    listed = split_paths(git_output(repo, "ls-files", "--others", "--exclude-standard", "-z"))
    untracked = [path for path in listed if included is None or path in included]
    remote = _remote(repo.settings, branch)
    real = os.path.realpath(root)
    modules = [(os.path.relpath(repo.top / module.path, real), module) for module in submodules]
    missing = [path for path, module in modules if not module.is_checked_out and not path.startswith("../")]
    if missing:
        problems.append(
            f"submodule not checked out, so its files are missing: {shorten(missing, _NAMED)}; run `git submodule update --init`"
        )
    pointers = _pointers(repo, [path for path, module in modules if module.is_checked_out and not path.startswith("../")])
    if pointers:
        problems.append(f"only a Git LFS pointer is on disk, not the content: {shorten(pointers, _NAMED)}; run `git lfs pull`")
    if index.hidden:
        notes.append(f"git is configured to ignore edits of {shorten(index.hidden, _NAMED)}; the recorded diff includes them")
    facts = Git(
        commit=commit,
        date=_date(repo, commit),
        branch=redact.line(branch),
        remote=redact.line(redact.url(remote)),
        pushed=_pushed(repo, commit, remote),
        dirty=dirty or bool(untracked),
        diff=diff,
        untracked=tuple(sorted({NOT_TEXT.sub("?", path) for path in untracked})),
        submodules=tuple(redact.line(f"{module.commit} {path}") for path, module in modules),
    )
    return Answer(facts, tuple(redact.line(problem) for problem in problems), tuple(redact.line(note) for note in notes))


def _date(repo: Repo, commit: str) -> str | None:
    """Return the timestamp of a commit, in UTC; None if the commit has no valid one."""
    header = git_output(repo, "cat-file", "commit", commit).partition(b"\n\n")[0] if commit else b""
    match = re.search(rb"^committer .*> (\d{1,12}) [+-]\d{4}$", header, re.MULTILINE)
    if match is None:
        return None
    try:
        return datetime.fromtimestamp(int(match[1]), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return None


def _pointers(repo: Repo, submodules: Sequence[str]) -> list[str]:
    """Return the files of the repository and its submodules that have only a Git LFS pointer on disk."""
    pointers = gitdiff.pointers(repo)
    for submodule in submodules:
        with open_repository(repo.root / submodule) as inner:
            pointers += [f"{submodule}/{path}" for path in gitdiff.pointers(inner)]
    return sorted(pointers)


def _remote(configured: Sequence[tuple[str, str]], branch: str) -> str:
    """Return the URL of the branch's own remote, else of `origin`, else of the first remote by name."""
    pairs = [(key, url) for key, url in reversed(configured) if key.startswith("remote.") and key.endswith(".url")]
    urls = {key[len("remote.") : -len(".url")]: url for key, url in pairs}
    own = dict(configured).get(f"branch.{branch}.remote", "") if branch else ""
    name = next((name for name in (own, "origin", *sorted(urls)) if name in urls), None)
    return "" if name is None else urls[name]


def _pushed(repo: Repo, commit: str, remote: str) -> Literal["yes", "no", "unknown"]:
    """Whether a remote-tracking branch contains the commit, as of the last fetch."""
    if not commit or not remote:
        return "no"
    try:
        if not git_output(repo, "for-each-ref", "--count=1", "refs/remotes"):
            return "unknown"
        if git_output(repo, "for-each-ref", "--count=1", f"--contains={commit}", "refs/remotes"):
            return "yes"
        # In a shallow clone, a branch may contain the commit in the missing history, unless the commit is ahead of a branch.
        is_ahead = not (repo.private / "shallow").exists() or git_output(
            repo, "for-each-ref", "--count=1", f"--merged={commit}", "refs/remotes"
        )
    except GitError:
        return "unknown"
    return "no" if is_ahead else "unknown"


def _is_in_repository(root: Path) -> bool:
    real = Path(os.path.realpath(root))
    return any(os.path.lexists(directory / ".git") for directory in (real, *real.parents))


def _is_ignored(repo: Repo) -> bool:
    done = run_git(repo, "check-ignore", "-q", ".")
    if done.code not in (0, 1) and b"outside repository" not in done.stderr:
        raise GitError(failure_reason(done))
    return done.code == 0
