"""Read facts about the git repository that contains the source, and which paths it ignores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from repro_env.environment.git.command import GitError, Repo, git_line, git_output, open_repository
from repro_env.io.files import sha256_of
from repro_env.schema import redact
from repro_env.schema.environment import Git
from repro_env.schema.patterns import lazy

_POINTER = lazy(rb"version https://git-lfs\.github\.com/spec/v1\n(?:.*\n)*?oid sha256:([0-9a-f]{64})\nsize [0-9]+\n")


class Answer(msgspec.Struct, frozen=True):
    """What git reports about a directory. All paths are relative to it."""

    git: Git | None = None
    """None if the directory is not in a repository or is ignored by it, if there is no commit, or if git failed."""
    ignored: frozenset[str] = frozenset()
    """Ignored files, and the outermost directories that a pattern ignores."""
    problem: str = ""
    """What could not be determined; empty if there is no problem."""


def look(root: Path, *, never: Sequence[Path] = ()) -> Answer:
    """Return the state of the repository that contains `root`, as far as it concerns `root`. Changes in `never` do not count.

    The caller decides which untracked files are part of the source: here they do not count for `Git.dirty`. Of a nested
    repository, such as a submodule, only the commit counts: look into it to see its changes.
    """
    try:
        with open_repository(root) as repo:
            return _look(repo, [os.path.relpath(os.path.realpath(path), repo.top) for path in never])
    except GitError as error:
        return Answer(problem=redact.line(f"the git repository cannot be read: {error}") if str(error) else "")


def ignores(root: Path, paths: Sequence[str]) -> frozenset[str]:
    """Return those paths below `root` that the repository ignores, whether they exist or not. It is empty if git fails."""
    try:
        with open_repository(root) as repo:
            if not paths or git_line(repo, "check-ignore", "."):  # the directory itself is ignored
                return frozenset()
            stdin = b"".join(os.fsencode(path) + b"\0" for path in paths)
            listed = git_output(repo, "check-ignore", "-z", "--stdin", stdin=stdin)
            return frozenset(os.fsdecode(path) for path in listed.split(b"\0")[:-1])
    except GitError:
        return frozenset()


def _look(repo: Repo, never: Sequence[str]) -> Answer:
    prefix = os.path.relpath(os.path.realpath(repo.root), repo.top) + "/"
    prefix = "" if prefix == "./" else prefix
    command = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignored=matching")
    listed = git_output(repo, *command, "--ignore-submodules=dirty", "--", ".")
    states: dict[str, list[str]] = {"??": [], "!!": []}
    for row in listed.split(b"\0")[:-1]:
        path = os.fsdecode(row[3:])
        if prefix.startswith(path) and path.endswith("/"):
            return Answer()  # the directory itself is ignored
        if not any(f"{path}/".startswith(f"{own}/") for own in never):
            states.setdefault(row[:2].decode(), []).append(path)
    untracked, ignored = ([path.removeprefix(prefix).rstrip("/") for path in states.pop(mark)] for mark in ("??", "!!"))
    commit = git_line(repo, "rev-parse", "-q", "--verify", "HEAD^{commit}")
    if not commit:
        problem = "HEAD names no commit that git can read; make the first one, or run `git fsck` if there is one"
        return Answer(None, frozenset(ignored), problem)
    changed = any(not _is_unchanged_lfs_file(repo, path) for paths in states.values() for path in paths)
    branch = git_line(repo, "symbolic-ref", "-q", "--short", "HEAD")
    remote = _remote(repo, branch)
    facts = Git(
        commit=commit,
        date=_date(repo, commit),
        branch=redact.line(branch),
        remote=redact.line(redact.url(remote)),
        dirty=changed,
        untracked=tuple(untracked),
    )
    return Answer(facts, frozenset(ignored))


def _is_unchanged_lfs_file(repo: Repo, path: str) -> bool:
    """Whether a file only seems changed: the commit has an LFS pointer, and the file has the content that it points to."""
    try:
        pointer = _POINTER.match(git_output(repo, "cat-file", "blob", f"HEAD:{path}"))
        return pointer is not None and sha256_of(repo.top / path) == pointer[1].decode()
    except (GitError, OSError):
        return False


def _date(repo: Repo, commit: str) -> str | None:
    """Return the timestamp of a commit, in UTC; None if the commit has no valid one."""
    try:
        seconds = int(git_line(repo, "log", "-1", "--no-show-signature", "--format=%ct", commit))
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return None


def _remote(repo: Repo, branch: str) -> str:
    """Return the URL of the branch's own remote, else of `origin`, else of the first remote by name."""
    pairs = [(key, url) for key, url in reversed(repo.settings) if key.startswith("remote.") and key.endswith(".url")]
    urls = {key[len("remote.") : -len(".url")]: url for key, url in pairs}
    own = dict(repo.settings).get(f"branch.{branch}.remote", "")
    return next((urls[name] for name in (own, "origin", *sorted(urls)) if name in urls), "")
