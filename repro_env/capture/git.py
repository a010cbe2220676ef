"""The repository around the source: what git knows of it. Git is only asked, never made to run anything.

Hooks, file-system monitors, filters, external diffs and textconv are switched off, the index is not refreshed on
disk, and nothing is fetched.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.io import process
from repro_env.io.files import sha256_of
from repro_env.model import codec, redact
from repro_env.model.environment import Git
from repro_env.model.errors import SourceError

TIMEOUT = 600.0
"""Seconds for one question: a diff of large binary files takes long."""
_HARMLESS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "safe.directory=*",
    "protocol.allow=never",
    "core.quotePath=false",
)
_NOT_TEXT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_KEPT = frozenset({"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CEILING_DIRECTORIES"})
_DIFF = (
    "diff", "--binary", "--full-index", "--no-color", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-relative",
    "--diff-algorithm=myers", "--no-indent-heuristic", "--unified=3", "--inter-hunk-context=0", "--src-prefix=a/", "--dst-prefix=b/",
    "--submodule=short", "--ignore-submodules=dirty", "-O/dev/null",
)  # fmt: skip
"""Everything that a user's configuration could change in a diff is said."""


class _GitError(Exception):
    """git's own words for why it does not answer."""


class Answer(msgspec.Struct, frozen=True):
    """What git says about a folder."""

    git: Git | None
    """None when no repository holds the folder, or when git could not be asked. `untracked` is relative to the folder."""
    problem: str
    """Empty, or one line: what could not be found out, and why."""


class Ignored(msgspec.Struct, frozen=True):
    """Paths that the repository's own rules leave out, relative to the folder that was asked about."""

    paths: frozenset[str]
    """Files, and folders that are ignored as a whole."""
    problem: str


def look(root: Path, *, never: Sequence[Path] = (), held: AbstractSet[str] | None = None) -> Answer:
    """The state of the repository that holds `root`.

    Paths in `never` are not part of its diff. `held`: the paths below `root` that can count as untracked; None for all.
    """
    if not _inside(root):
        return Answer(None, "")
    try:
        if _is_ignored(root):
            return Answer(None, "")
        top = Path(os.fsdecode(_ask(root, "rev-parse", "--show-toplevel").rstrip(b"\n")))
        return Answer(*_facts(root, top, never, held))
    except _GitError as error:
        return Answer(None, redact.line(f"git facts of the source: {error}"))


def ignored(root: Path) -> Ignored:
    """What the repository that holds `root` ignores below it. A root that is ignored itself is judged by no such rule."""
    if not _inside(root):
        return Ignored(frozenset(), "")
    try:
        listed = _paths(_ask(root, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"))
        if "." in listed and _is_ignored(root):
            return Ignored(frozenset(), "")
    except _GitError as error:
        try:
            # Deep in an ignored folder git does not list, it stops.
            return Ignored(frozenset(), "" if _is_ignored(root) else redact.line(f"which paths git ignores: {error}"))
        except _GitError:
            return Ignored(frozenset(), redact.line(f"which paths git ignores: {error}"))
    return Ignored(frozenset(listed) - {"."}, "")


def _facts(root: Path, top: Path, never: Sequence[Path], held: AbstractSet[str] | None) -> tuple[Git, str]:
    commit = _line(root, "rev-parse", "-q", "--verify", "HEAD^{commit}")
    branch = _line(root, "symbolic-ref", "-q", "--short", "HEAD")
    submodules = _submodules(top)
    problem = ""
    try:
        diff = _diff(top, commit, submodules, never)
        dirty = diff is not None
    except _GitError as error:
        diff, dirty, problem = None, True, redact.line(f"whether the source is as committed: {error}")
    listed = _paths(_ask(root, "ls-files", "--others", "--exclude-standard", "-z"))
    untracked = [path for path in listed if held is None or path in held]
    remote = _remote(root, branch)
    return Git(
        commit=commit,
        branch=redact.line(branch),
        remote=redact.line(redact.url(remote)),
        pushed=_pushed(root, commit, remote),
        dirty=dirty or bool(untracked),
        diff=diff,
        untracked=tuple(sorted({_NOT_TEXT.sub("?", path) for path in untracked})),
        submodules=tuple(
            redact.line(f"{used} {os.path.relpath(top / path, os.path.realpath(root))}") for path, used in submodules
        ),
    ), problem


def _diff(top: Path, commit: str, submodules: Iterable[tuple[str, str]], never: Sequence[Path]) -> str | None:
    """sha256 of the binary diff; with edited submodules, the digest of the list of all diffs. None when all is as committed."""
    base = commit or _line(top, "hash-object", "-t", "tree", "/dev/null")
    real = os.path.realpath(top)
    apart = [os.path.relpath(os.path.realpath(path), real) for path in never]
    specs = [f":(top,exclude,literal){path}" for path in apart if path != ".." and not path.startswith("../")]
    index = top / os.fsdecode(_ask(top, "rev-parse", "--git-path", "index").rstrip(b"\n"))
    with tempfile.TemporaryDirectory(prefix="repro-env-") as scratch:
        output, own = Path(scratch, "diff"), Path(scratch, "index")
        if index.exists():
            # `git diff` refreshes the index on disk, whatever it is told. The time is kept: git judges by it which
            # entries it has to read again.
            shutil.copy2(index, own)
        _ask(top, *_no_filters(top), *_DIFF, f"--output={output}", base, "--", *specs, index=own)
        whole = "sha256:" + sha256_of(output) if output.stat().st_size else None
    below = []
    for path, used in submodules:
        if (top / path / ".git").exists() and (part := _diff(top / path, used, _submodules(top / path), never)):
            below.append([path, part])
    return codec.digest([whole, *below]) if below else whole


def _no_filters(top: Path) -> list[str]:
    """Options that make every configured filter (git-lfs, git-crypt, anything) do nothing."""
    try:
        listed = _ask(top, "config", "--name-only", "-z", "--get-regexp", r"^filter\.")
    except _GitError:
        return []
    drivers = {key[len("filter.") :].rpartition(".")[0] for key in listed.decode("utf-8", "surrogateescape").split("\0") if key}
    settings = (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))
    return [part for driver in sorted(drivers) for key, value in settings for part in ("-c", f"filter.{driver}.{key}={value}")]


def _submodules(top: Path) -> list[tuple[str, str]]:
    """(path, commit that is checked out, else the recorded one), by path."""
    found = []
    for row in _ask(top, "ls-files", "-s", "-z").split(b"\0"):
        if row.startswith(b"160000 "):
            facts, _, path = row.decode("utf-8", "surrogateescape").partition("\t")
            there = (top / path / ".git").exists()
            used = _line(top / path, "rev-parse", "-q", "--verify", "HEAD^{commit}") if there else ""
            found.append((path, used or facts.split(" ")[1]))
    return sorted(found)


def _remote(root: Path, branch: str) -> str:
    """URL of the branch's own remote, else of `origin`, else of the first by name."""
    try:
        listed = _ask(root, "config", "-z", "--get-regexp", r"^remote\..*\.url$").decode("utf-8", "replace").split("\0")
    except _GitError:
        return ""
    pairs = (row.partition("\n") for row in reversed(listed) if row)
    urls = {key[len("remote.") : -len(".url")]: value for key, _, value in pairs}
    own = _line(root, "config", "--get", f"branch.{branch}.remote") if branch else ""
    name = next((name for name in (own, "origin", *sorted(urls)) if name in urls), None)
    return "" if name is None else urls[name]


def _pushed(root: Path, commit: str, remote: str) -> Literal["yes", "no", "unknown"]:
    """Whether a remote-tracking branch contains the commit, as of the last fetch."""
    if not commit or not remote:
        return "no"
    try:
        if not _ask(root, "for-each-ref", "--count=1", "refs/remotes"):
            return "unknown"
        return "yes" if _ask(root, "for-each-ref", "--count=1", f"--contains={commit}", "refs/remotes") else "no"
    except _GitError:
        return "unknown"


def _inside(root: Path) -> bool:
    real = Path(os.path.realpath(root))
    return any(os.path.lexists(folder / ".git") for folder in (real, *real.parents))


def _is_ignored(root: Path) -> bool:
    done = _run(root, "check-ignore", "-q", ".")
    if done.code not in (0, 1) and b"outside repository" not in done.stderr:
        raise _GitError(_reason(done))
    return done.code == 0


def _paths(listed: bytes) -> list[str]:
    """Of a `-z` listing; a folder's trailing slash is taken off."""
    paths = [os.fsdecode(path).rstrip("/") for path in listed.split(b"\0") if path]
    return [path.removeprefix("./") for path in paths]


def _line(root: Path, *args: str) -> str:
    """The answer of a question that may have none."""
    return _run(root, *args).stdout.decode("utf-8", "replace").strip()


def _ask(root: Path, *args: str, index: Path | None = None) -> bytes:
    done = _run(root, *args, index=index)
    if done.code or done.timed_out:
        raise _GitError(_reason(done))
    return done.stdout


def _reason(done: process.Done) -> str:
    rows = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return "git did not answer in time" if done.timed_out else rows[0] if rows else f"git ended with exit code {done.code}"


def _run(root: Path, *args: str, index: Path | None = None) -> process.Done:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in _KEPT}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_PAGER": "cat", "LC_ALL": "C"}
    if index is not None:
        env["GIT_INDEX_FILE"] = str(index)
    options = [part for setting in _HARMLESS for part in ("-c", setting)]
    try:
        return process.run(["git", *options, "-C", str(root), *args], env=env, timeout=TIMEOUT, limit=1 << 30)
    except FileNotFoundError:
        raise _GitError("there is no git program") from None
    except OSError as error:
        raise SourceError(f"git does not start: {error.strerror}", where=str(root)) from None
