"""The door to git: it is asked, and never made to run anything of the repository's or to write there.

Hooks, file-system monitors, filters, external diffs, textconv and every transport are switched off, whatever a
repository's own configuration says; the index is not refreshed on disk, and nothing is fetched. A repository of another
user is git's to refuse, and it does (`safe.directory`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from repro_env.io import process
from repro_env.model.errors import SourceError

TIMEOUT = 600.0
"""Seconds for one question: a diff of large binary files takes long."""
_HARMLESS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.quotePath=false",
    "core.splitIndex=false",
    "core.untrackedCache=false",
    "protocol.allow=never",
)
_KEPT = re.compile(r"GIT_CONFIG_(?:GLOBAL|SYSTEM|NOSYSTEM|COUNT|KEY_\d+|VALUE_\d+)|GIT_CEILING_DIRECTORIES")
"""The caller's own configuration; the others, as a hook has them, lead to another repository or index."""
_SET = {
    # A partial clone may name any program as its remote. `protocol.allow` alone loses to a repository's `protocol.ext.allow`.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
NOT_TEXT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""What no stored path or line may hold."""


class GitError(Exception):
    """git's own words for why it does not answer."""


def ask(root: Path, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
    """What git prints. Raises `GitError` for every exit code but 0."""
    done = run(root, *args, stdin=stdin, env=env)
    if done.code or done.timed_out:
        raise GitError(reason(done, root))
    return done.stdout


def line(root: Path, *args: str) -> str:
    """The answer of a question that may have none."""
    return run(root, *args).stdout.decode("utf-8", "replace").strip()


def settings(root: Path) -> list[tuple[str, str]]:
    """(name, value) of all that configures a repository, the weightiest last."""
    rows = ask(root, "config", "--list", "-z").decode("utf-8", "surrogateescape").split("\0")
    return [(name, value) for name, _, value in (row.partition("\n") for row in rows if row)]


def paths(listed: bytes) -> list[str]:
    """Of a `-z` listing; a folder's trailing slash is taken off."""
    found = [os.fsdecode(path).rstrip("/") for path in listed.split(b"\0") if path]
    return [path.removeprefix("./") for path in found]


def listing(found: list[str]) -> bytes:
    """Paths as git reads them with `-z --stdin`."""
    return b"".join(os.fsencode(path) + b"\0" for path in found)


def reason(done: process.Done, root: Path) -> str:
    if done.timed_out:
        return "git did not answer in time"
    rows = done.stderr.decode("utf-8", "replace").strip().splitlines()
    said = next((row for row in rows if not row.startswith("warning:")), rows[0] if rows else "")
    if "dubious ownership" in said or "unsafe repository" in said:
        return (
            "the repository belongs to another user, and git does not read it;"
            f" if you trust it: git config --global --add safe.directory {_top(root)}"
        )
    return said or f"git ended with exit code {done.code}"


def _top(root: Path) -> Path:
    real = Path(os.path.realpath(root))
    return next((folder for folder in (real, *real.parents) if os.path.lexists(folder / ".git")), real)


def run(root: Path, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> process.Done:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or _KEPT.fullmatch(name)}
    options = [part for setting in _HARMLESS for part in ("-c", setting)]
    words = ["git", *options, "-C", str(root), *args]
    try:
        return process.run(words, env={**kept, **_SET, **(env or {})}, timeout=TIMEOUT, stdin=stdin, limit=1 << 30)
    except FileNotFoundError:
        raise GitError("there is no git program") from None
    except OSError as error:
        raise SourceError(f"git does not start: {error.strerror}", where=str(root)) from None
