"""Start git. Only this module starts it. Git runs no program that a repository names, and writes nothing there.

Git works on a private copy of the files that it needs (`gitdir`), with a configuration written by this module. That
configuration has only those settings of the user and the repository that cannot name a program. Nothing is fetched. Like
git, this module refuses a repository of another user.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.environment.git import directory
from repro_env.environment.git.directory import NOT_TEXT, GitError, NoRepositoryError
from repro_env.io import process
from repro_env.schema.errors import SourceError

__all__ = [
    "NOT_TEXT", "GitError", "NoRepositoryError", "Repo", "failure_reason", "git_line", "git_output", "head_commit", "join_paths",
    "open_repository", "run_git", "split_paths",
]  # fmt: skip

TIMEOUT = 600.0
"""Seconds for one git command: a diff of large binary files takes long."""
PATIENCE = 1.0
"""Seconds after which the working tree is searched for a named pipe that git may be waiting for."""
_USER_CONFIGURATION = re.compile(r"GIT_CONFIG_(?:GLOBAL|SYSTEM|NOSYSTEM|COUNT|KEY_\d+|VALUE_\d+)")
"""Variables with which the caller sets the user's configuration."""
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_FIXED_SETTINGS = (
    ("core.bare", "false"),
    ("core.fsmonitor", "false"),
    ("core.hookspath", os.devnull),
    ("core.quotepath", "false"),
    ("core.repositoryformatversion", "1"),
    ("core.splitindex", "false"),
    ("core.untrackedcache", "false"),
    ("protocol.allow", "never"),
)
_COPIED_SETTINGS = frozenset(
    {
        "core.autocrlf", "core.checkstat", "core.eol", "core.filemode", "core.ignorecase", "core.precomposeunicode",
        "core.sparsecheckout", "core.sparsecheckoutcone", "core.symlinks", "core.trustctime", "extensions.objectformat",
        "index.sparse", "sparse.expectfilesoutsideofpatterns",
    }
)  # fmt: skip
"""Settings that affect git's output and cannot name a program. Their value is one word."""
_INCOMPLETE = re.compile(rb"unable to read|bad (?:tree |commit )?object|missing (?:blob|tree|object)|promisor remote")
"""What git prints if an object is missing or damaged."""
_WORD = re.compile(r"[A-Za-z0-9]{1,16}")
_PATTERN_FILES = (("core.excludesfile", "ignore"), ("core.attributesfile", "attributes"))
"""Settings that name a file of patterns, and its default name in git's directory of the user's configuration."""
_EXTENSIONS = frozenset(
    {"noop", "noop-v1", "objectformat", "partialclone", "preciousobjects", "relativeworktrees", "worktreeconfig"}
)
"""Supported extensions of the repository format. Any other extension could change the meaning of a file."""

Settings = Sequence[tuple[str, str]]


class Repo(msgspec.Struct, frozen=True):
    """An open repository, in which git commands can be run."""

    root: Path
    """The directory in which commands run: paths in their output are relative to it."""
    top: Path
    """The top directory of the working tree."""
    own: Path
    """The repository's directory; for a linked working tree, the one of that tree. Git does not see it."""
    common: Path
    """The directory that all linked working trees share. Git does not see it."""
    private: Path
    """The copy that git works with while the repository is open."""
    objects: Path
    """The repository's own directory of objects, in which git only reads."""
    settings: tuple[tuple[str, str], ...]
    """(name, value) of all settings of the user and the repository. The last setting with a name counts."""
    searched: set[Path]
    """Working trees that were searched for named pipes and have none."""

    def at(self, root: Path) -> Repo:
        """Return the same repository, with commands running in a different directory."""
        return msgspec.structs.replace(self, root=root)


@contextlib.contextmanager
def open_repository(root: Path) -> Iterator[Repo]:
    """Open the repository that contains `root`. Raises `GitError` if there is none, or if it cannot or must not be read."""
    location = directory.find(root)
    if location is None:
        raise NoRepositoryError("not a git repository (or any of the parent directories): .git")
    with tempfile.TemporaryDirectory(prefix="repro-env-") as scratch:
        private = Path(scratch)
        try:
            settings = _prepare(location, private)
            objects = directory.objects(location.common)
        except OSError as error:
            raise GitError(f"{error.filename}: {error.strerror}") from None
        yield Repo(root, location.top, location.own, location.common, private, objects, settings, set())


def git_output(repo: Repo, *args: str, stdin: bytes = b"", index: Path | None = None) -> bytes:
    """Run a git command and return its output. Raises `GitError` if the exit code is not 0."""
    done = run_git(repo, *args, stdin=stdin, index=index)
    if done.code and _INCOMPLETE.search(done.stderr):
        partial = any(name == "extensions.partialclone" or name.endswith(".promisor") for name, _ in repo.settings)
        raise GitError(
            "the repository is a partial clone in which some objects are missing, and repro-env fetches nothing; "
            "if you trust it, run `git diff HEAD` there to fetch them"
            if partial
            else "some objects of the repository are missing or damaged; run `git fsck` there to list them"
        )
    if done.code or done.timed_out:
        raise GitError(failure_reason(done))
    return done.stdout


def git_line(repo: Repo, *args: str) -> str:
    """Run a git command and return its output, whatever its exit code is."""
    return run_git(repo, *args).stdout.decode("utf-8", "replace").strip()


def head_commit(repo: Repo, submodule: str = "") -> str:
    """Return the hash of the current commit; empty on a branch without a commit. Raises `GitError` if it cannot be read.

    `submodule`: the path of a submodule, for the error message.
    """
    verify = ("rev-parse", "-q", "--verify")
    if commit := git_line(repo, *verify, "HEAD^{commit}"):
        return commit
    if directory.is_unborn(repo.own, repo.common, target := (repo.private / "HEAD").read_bytes()):
        return ""
    name = git_line(repo, *verify, "HEAD")[:12] or NOT_TEXT.sub("?", os.fsdecode(target).removeprefix("ref: "))
    head_name = f"HEAD of {submodule}" if submodule else "HEAD"
    raise GitError(
        f"the commit of {head_name} ({name}) cannot be read, because the repository is damaged or incomplete; "
        "run `git fsck` there for details"
    )


def split_paths(listed: bytes) -> list[str]:
    """Return the paths of a `-z` listing, directories without a trailing slash."""
    return [os.fsdecode(path).rstrip("/").removeprefix("./") for path in listed.split(b"\0") if path]


def join_paths(paths: list[str]) -> bytes:
    """Return the paths in the form that git reads with `-z --stdin`."""
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def failure_reason(done: process.Done) -> str:
    """Return why a git command failed, from its error output."""
    if done.timed_out:
        return "git timed out"
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    message = next((line for line in lines if not line.startswith("warning:")), lines[0] if lines else "")
    return message or f"git ended with exit code {done.code}"


def run_git(repo: Repo, *args: str, stdin: bytes = b"", index: Path | None = None) -> process.Done:
    """Run a git command. `index`: the index file to use, instead of the private copy."""
    env = {
        "GIT_DIR": str(repo.private),
        "GIT_WORK_TREE": str(repo.top),
        "GIT_INDEX_FILE": str(index or repo.private / "index"),
        "GIT_OBJECT_DIRECTORY": str(repo.objects),
        # Older versions of git support only some of these ways to ignore the user's configuration.
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "HOME": str(repo.private),
        "XDG_CONFIG_HOME": str(repo.private),
    }
    if repo.top not in repo.searched:
        done = _git("-C", str(repo.root), *args, stdin=stdin, env=env, timeout=PATIENCE)
        if not done.timed_out:
            return done
        directory.refuse_pipe(repo.top, deep=True)
        repo.searched.add(repo.top)
    return _git("-C", str(repo.root), *args, stdin=stdin, env=env)


def _git(*args: str, stdin: bytes, env: Mapping[str, str], timeout: float = TIMEOUT) -> process.Done:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    full_env = {**inherited, **_ENVIRONMENT, **env}
    try:
        return process.run(["git", *args], env=full_env, timeout=timeout, stdin=stdin, limit=1 << 30)
    except FileNotFoundError:
        raise GitError("git is not installed or not on PATH") from None
    except OSError as error:
        raise SourceError(f"git did not start: {error.strerror}", where="git") from None


def _prepare(location: directory.Location, private: Path) -> tuple[tuple[str, str], ...]:
    """Make the private copy, and return the settings of the user and the repository."""
    user = _user_settings()
    if not directory.is_owned(location) and not _is_trusted(location.top, user):
        raise GitError(
            "the repository belongs to another user, so git does not read it;"
            f" if you trust it, run git config --global --add safe.directory {location.top}"
        )
    shared, own = map(_parse, directory.configurations(location))
    _check_format(location, shared, own)
    directory.copy_to(private, location)
    settings = (*user, *shared, *own)
    copied = dict(_FIXED_SETTINGS)
    copied |= {name: value for name, value in settings if name in _COPIED_SETTINGS and _WORD.fullmatch(value)}
    for name, default in _PATTERN_FILES:
        if path := _copy_patterns(location.top, private, dict(settings).get(name), default):
            copied[name] = path
    text = "".join("[{}]\n{} = {}\n".format(*name.split("."), _quoted(value)) for name, value in copied.items())
    (private / "config").write_text(text)
    return settings


def _user_settings() -> Settings:
    """Return the settings from the user's and the system's files, and from the caller's variables."""
    variables = {name: value for name, value in os.environ.items() if _USER_CONFIGURATION.fullmatch(name)}
    done = _git("-C", "/", "config", "--list", "-z", stdin=b"", env={**variables, "GIT_DIR": os.devnull})
    if done.code or done.timed_out:
        raise GitError(failure_reason(done))
    return _pairs(done.stdout)


def _parse(text: bytes) -> Settings:
    """Return the settings in a repository's configuration. Files that it includes are not read."""
    if not text.strip():
        return ()
    command = ("config", "--file", "-", "--no-includes", "--list", "-z")
    env = {"GIT_DIR": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    done = _git("-C", "/", *command, stdin=text, env=env)
    if done.code or done.timed_out:
        raise GitError(f"the repository's configuration cannot be read: {failure_reason(done)}")
    return _pairs(done.stdout)


def _pairs(output: bytes) -> Settings:
    parts = (part.partition("\n") for part in output.decode("utf-8", "surrogateescape").split("\0") if part)
    return tuple((name, value if newline else "true") for name, newline, value in parts)


def _is_trusted(top: Path, user: Settings) -> bool:
    """Whether the user named the working tree in `safe.directory`. The repository's own configuration does not count."""
    trusted = False
    for value in (value for name, value in user if name == "safe.directory"):
        path = os.path.expanduser(value)  # noqa: PTH111
        if not value:
            trusted = False
        elif path.endswith("/*"):
            trusted |= top.is_relative_to(os.path.realpath(path[:-2]))
        else:
            trusted |= value == "*" or (path.startswith("/") and os.path.realpath(path) == str(top))
    return trusted


def _check_format(location: directory.Location, shared: Settings, own: Settings) -> None:
    """Raise `GitError` if the repository's format is not supported, or if its working tree is in a different directory."""
    version = dict(shared).get("core.repositoryformatversion", "0")
    if version not in ("0", "1"):
        raise GitError(f"Expected git repo version <= 1, found {NOT_TEXT.sub('?', version)}")
    names = {name.partition(".")[2]: value for name, value in shared if name.startswith("extensions.")}
    unknown = names.keys() - _EXTENSIONS - ({"refstorage"} if names.get("refstorage") == "files" else set())
    if unknown:
        listed = NOT_TEXT.sub("?", ", ".join(sorted(unknown)))
        raise GitError(f"the repository uses extensions that repro-env does not support: {listed}")
    settings = dict((*(shared if location.own == location.common else ()), *own))
    if settings.get("core.bare", "").lower() in ("true", "yes", "on", "1"):
        raise GitError("this operation must be run in a work tree")
    worktree = settings.get("core.worktree")
    if worktree is not None and os.path.realpath(location.own / worktree) != str(location.top):
        raise GitError(f"the repository's configuration sets a different working tree: {NOT_TEXT.sub('?', worktree)}")


def _copy_patterns(top: Path, private: Path, setting: str | None, default: str) -> str:
    """Copy a file of patterns and return the path of the copy; empty if the file does not exist."""
    config_home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    if setting == "":
        return ""
    path = Path(config_home, "git", default) if setting is None else top / os.path.expanduser(setting)  # noqa: PTH111
    copy = private / f"{default}-patterns"
    directory.copy(path, copy)
    return str(copy) if copy.exists() else ""


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
