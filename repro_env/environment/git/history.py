"""Read from the history of a repository whether a commit was pushed, and who wrote the lines of a file."""

from __future__ import annotations

from pathlib import Path

from repro_env.environment.git.command import GitError, git_line, git_output, open_repository
from repro_env.io.files import read_regular
from repro_env.schema import redact

_MOST = 1 << 20
"""Bytes of the list of first commits of a shallow clone."""


def is_pushed(root: Path) -> bool:
    """Return whether a branch of a remote has the commit, as far as the repository knows without asking the remote."""
    try:
        with open_repository(root) as repo:
            return bool(git_line(repo, "for-each-ref", "--count=1", "--contains=HEAD", "refs/remotes"))
    except GitError:
        return False


def authors(path: Path) -> dict[int, tuple[str, str]]:
    """Return name and address of the author of each line of a file.

    Lines that are in no commit are left out, and in a shallow clone those from before its first commits, whose authors it lacks.
    """
    try:
        with open_repository(path.parent) as repo:
            text = git_output(repo, "blame", "--line-porcelain", "--", path.name).decode("utf-8", "replace")
            shallow = repo.common / "shallow"
            is_shallow = git_line(repo, "rev-parse", "--is-shallow-repository") == "true"
            cut = read_regular(shallow, _MOST).decode().split() if is_shallow else []
    except (GitError, OSError):
        return {}
    found: dict[int, tuple[str, str]] = {}
    number, name, commit = 0, "", ""
    is_header = True
    for line in text.split("\n"):
        word, _, value = line.partition(" ")
        if is_header and value:
            commit, number = word, int(value.split(" ")[1])
        elif word == "author":
            name = redact.line(value)
        elif word == "author-mail" and commit.strip("0") and commit not in cut:
            found[number] = (name, redact.line(value.strip("<>")))
        is_header = line.startswith("\t")  # the content of a line is the last of its facts
    return found
