"""Start git. Only this module does. It runs no program of a repository and writes nothing there.

Git gets a private copy of what it needs (`gitdir`), with a configuration written here. Of the user's and the repository's
settings it contains only those that cannot name a program. Nothing is fetched. Like git, this module refuses a repository
of another user.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.capture import gitdir
from repro_env.capture.gitdir import NOT_TEXT, GitError, NoRepositoryError
from repro_env.io import process
from repro_env.model.errors import SourceError

__all__ = [
    "NOT_TEXT", "GitError", "NoRepositoryError", "Repo", "ask", "head", "line", "listing", "opened", "paths", "reason", "run",
]  # fmt: skip

TIMEOUT = 600.0
"""Seconds for one question: a diff of large binary files takes long."""
PATIENCE = 1.0
"""Seconds until the working tree is searched for a named pipe that git waits for."""
_USERS = re.compile(r"GIT_CONFIG_(?:GLOBAL|SYSTEM|NOSYSTEM|COUNT|KEY_\d+|VALUE_\d+)")
"""Variables by which the caller sets the user's configuration."""
_SET = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_OURS = (
    ("core.bare", "false"),
    ("core.fsmonitor", "false"),
    ("core.hookspath", os.devnull),
    ("core.quotepath", "false"),
    ("core.repositoryformatversion", "1"),
    ("core.splitindex", "false"),
    ("core.untrackedcache", "false"),
    ("protocol.allow", "never"),
)
_WORDS = frozenset(
    {
        "core.autocrlf", "core.checkstat", "core.eol", "core.filemode", "core.ignorecase", "core.precomposeunicode",
        "core.sparsecheckout", "core.sparsecheckoutcone", "core.symlinks", "core.trustctime", "extensions.objectformat",
        "index.sparse", "sparse.expectfilesoutsideofpatterns",
    }
)  # fmt: skip
"""Settings that change answers and cannot name a program. Their value is one word."""
_INCOMPLETE = re.compile(rb"unable to read|bad (?:tree |commit )?object|missing (?:blob|tree|object)|promisor remote")
"""What git prints where an object is missing or damaged."""
_WORD = re.compile(r"[A-Za-z0-9]{1,16}")
_PATTERNS = (("core.excludesfile", "ignore"), ("core.attributesfile", "attributes"))
"""Settings that name a file of patterns, and its name in the user's own directory for git."""
_EXTENSIONS = frozenset(
    {"noop", "noop-v1", "objectformat", "partialclone", "preciousobjects", "relativeworktrees", "worktreeconfig"}
)
"""Supported extensions of the repository format. Any other could change the meaning of a file."""

Settings = Sequence[tuple[str, str]]


class Repo(msgspec.Struct, frozen=True):
    """An open repository that git can be asked about."""

    root: Path
    """The directory in it that queries are about: paths in answers are relative to it."""
    top: Path
    """Of the working tree."""
    own: Path
    """The repository's directory; for a linked working tree, the one of that tree. Git does not see it."""
    common: Path
    private: Path
    """The copy that git works with, for as long as the repository is open."""
    objects: Path
    """The repository's own directory of objects, in which git only reads."""
    settings: tuple[tuple[str, str], ...]
    """(name, value) of all settings of the user and the repository; the last one wins."""
    searched: set[Path]
    """Working trees that were searched for named pipes, and have none."""

    def at(self, root: Path) -> Repo:
        """The same repository, for queries about a different directory in it."""
        return msgspec.structs.replace(self, root=root)


@contextlib.contextmanager
def opened(root: Path) -> Iterator[Repo]:
    """The repository that holds `root`. Raises `GitError` when none does, or when it cannot or must not be read."""
    place = gitdir.find(root)
    if place is None:
        raise NoRepositoryError("not a git repository (or any of the parent directories): .git")
    with tempfile.TemporaryDirectory(prefix="repro-env-") as scratch:
        private = Path(scratch)
        try:
            settings = _prepare(place, private)
            objects = gitdir.objects(place.common)
        except OSError as error:
            raise GitError(f"{error.filename}: {error.strerror}") from None
        yield Repo(root, place.top, place.own, place.common, private, objects, settings, set())


def ask(repo: Repo, *args: str, stdin: bytes = b"", index: Path | None = None) -> bytes:
    """What git prints. Raises `GitError` for every exit code but 0."""
    done = run(repo, *args, stdin=stdin, index=index)
    if done.code and _INCOMPLETE.search(done.stderr):
        partial = any(name == "extensions.partialclone" or name.endswith(".promisor") for name, _ in repo.settings)
        raise GitError(
            "the repository is a partial clone that lacks some objects, and repro-env fetches nothing; "
            "if you trust it, run `git diff HEAD` there, which fetches them"
            if partial
            else "the repository lacks some objects, or they are damaged; `git fsck` there names them"
        )
    if done.code or done.timed_out:
        raise GitError(reason(done))
    return done.stdout


def line(repo: Repo, *args: str) -> str:
    """The answer of a question that may have none."""
    return run(repo, *args).stdout.decode("utf-8", "replace").strip()


def head(repo: Repo, submodule: str = "") -> str:
    """Name of the current commit; empty on a branch without one. Raises `GitError` when that cannot be read.

    `submodule`: what the error calls the repository, if it is one.
    """
    verify = ("rev-parse", "-q", "--verify")
    if commit := line(repo, *verify, "HEAD^{commit}"):
        return commit
    if gitdir.is_unborn(repo.own, repo.common, target := (repo.private / "HEAD").read_bytes()):
        return ""
    named = line(repo, *verify, "HEAD")[:12] or NOT_TEXT.sub("?", os.fsdecode(target).removeprefix("ref: "))
    whose = f"HEAD of {submodule}" if submodule else "HEAD"
    raise GitError(
        f"the commit that {whose} names ({named}) cannot be read: the repository is damaged or incomplete; git fsck shows more"
    )


def paths(listed: bytes) -> list[str]:
    """Of a `-z` listing; a folder's trailing slash is taken off."""
    found = [os.fsdecode(path).rstrip("/") for path in listed.split(b"\0") if path]
    return [path.removeprefix("./") for path in found]


def listing(found: list[str]) -> bytes:
    """Paths as git reads them with `-z --stdin`."""
    return b"".join(os.fsencode(path) + b"\0" for path in found)


def reason(done: process.Done) -> str:
    if done.timed_out:
        return "git did not answer in time"
    rows = done.stderr.decode("utf-8", "replace").strip().splitlines()
    said = next((row for row in rows if not row.startswith("warning:")), rows[0] if rows else "")
    return said or f"git ended with exit code {done.code}"


def run(repo: Repo, *args: str, stdin: bytes = b"", index: Path | None = None) -> process.Done:
    """`index`: a copy to work with, instead of the private one."""
    env = {
        "GIT_DIR": str(repo.private),
        "GIT_WORK_TREE": str(repo.top),
        "GIT_INDEX_FILE": str(index or repo.private / "index"),
        "GIT_OBJECT_DIRECTORY": str(repo.objects),
        # An older git knows only some of these ways to see no configuration of the user's.
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "HOME": str(repo.private),
        "XDG_CONFIG_HOME": str(repo.private),
    }
    if repo.top not in repo.searched:
        done = _git("-C", str(repo.root), *args, stdin=stdin, env=env, timeout=PATIENCE)
        if not done.timed_out:
            return done
        gitdir.refuse_pipe(repo.top, deep=True)
        repo.searched.add(repo.top)
    return _git("-C", str(repo.root), *args, stdin=stdin, env=env)


def _git(*args: str, stdin: bytes, env: Mapping[str, str], timeout: float = TIMEOUT) -> process.Done:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return process.run(["git", *args], env={**kept, **_SET, **env}, timeout=timeout, stdin=stdin, limit=1 << 30)
    except FileNotFoundError:
        raise GitError("there is no git program") from None
    except OSError as error:
        raise SourceError(f"git does not start: {error.strerror}", where="git") from None


def _prepare(place: gitdir.Place, private: Path) -> tuple[tuple[str, str], ...]:
    """Make the private copy. Returns the settings of the user and the repository."""
    users = _users_settings()
    if not gitdir.owned(place) and not _is_trusted(place.top, users):
        raise GitError(
            "the repository belongs to another user, so git does not read it;"
            f" if you trust it, run git config --global --add safe.directory {place.top}"
        )
    shared, own = map(_parsed, gitdir.configurations(place))
    _refuse(place, shared, own)
    gitdir.copy_to(private, place)
    settings = (*users, *shared, *own)
    rows = dict(_OURS)
    rows |= {name: value for name, value in settings if name in _WORDS and _WORD.fullmatch(value)}
    rows |= {
        name: path for name, default in _PATTERNS if (path := _patterns(place.top, private, dict(settings).get(name), default))
    }
    text = "".join("[{}]\n{} = {}\n".format(*name.split("."), _escaped(value)) for name, value in rows.items())
    (private / "config").write_text(text)
    return settings


def _users_settings() -> Settings:
    """The settings from the user's and the system's files, and from the caller's variables."""
    kept = {name: value for name, value in os.environ.items() if _USERS.fullmatch(name)}
    done = _git("-C", "/", "config", "--list", "-z", stdin=b"", env={**kept, "GIT_DIR": os.devnull})
    if done.code or done.timed_out:
        raise GitError(reason(done))
    return _rows(done.stdout)


def _parsed(text: bytes) -> Settings:
    """The settings in the text of a repository's configuration; included files are not read."""
    if not text.strip():
        return ()
    words = ("config", "--file", "-", "--no-includes", "--list", "-z")
    done = _git(
        "-C", "/", *words, stdin=text, env={"GIT_DIR": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    )
    if done.code or done.timed_out:
        raise GitError(f"its configuration cannot be read: {reason(done)}")
    return _rows(done.stdout)


def _rows(listed: bytes) -> Settings:
    rows = (row.partition("\n") for row in listed.decode("utf-8", "surrogateescape").split("\0") if row)
    return tuple((name, value if equals else "true") for name, equals, value in rows)


def _is_trusted(top: Path, users: Settings) -> bool:
    """Whether the user named the working tree in `safe.directory`. The repository's own configuration does not count."""
    trusted = False
    for value in (value for name, value in users if name == "safe.directory"):
        path = os.path.expanduser(value)  # noqa: PTH111
        if not value:
            trusted = False
        elif path.endswith("/*"):
            trusted |= top.is_relative_to(os.path.realpath(path[:-2]))
        else:
            trusted |= value == "*" or (path.startswith("/") and os.path.realpath(path) == str(top))
    return trusted


def _refuse(place: gitdir.Place, shared: Settings, own: Settings) -> None:
    """Raise `GitError` for a repository in a format that cannot be copied, or with a working tree elsewhere."""
    settings = dict(shared)
    version = settings.get("core.repositoryformatversion", "0")
    if version not in ("0", "1"):
        raise GitError(f"Expected git repo version <= 1, found {NOT_TEXT.sub('?', version)}")
    names = {name.partition(".")[2]: value for name, value in shared if name.startswith("extensions.")}
    unknown = names.keys() - _EXTENSIONS - ({"refstorage"} if names.get("refstorage") == "files" else set())
    if unknown:
        listed = NOT_TEXT.sub("?", ", ".join(sorted(unknown)))
        raise GitError(f"the repository uses extensions that repro-env does not know: {listed}")
    about = dict((*(shared if place.own == place.common else ()), *own))
    if about.get("core.bare", "").lower() in ("true", "yes", "on", "1"):
        raise GitError("this operation must be run in a work tree")
    named = about.get("core.worktree")
    if named is not None and os.path.realpath(place.own / named) != str(place.top):
        raise GitError(f"its configuration sets another directory as the working tree: {NOT_TEXT.sub('?', named)}")


def _patterns(top: Path, private: Path, named: str | None, default: str) -> str:
    """A copy of a file of patterns; empty when there is none."""
    users = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    if named == "":
        return ""
    path = Path(users, "git", default) if named is None else top / os.path.expanduser(named)  # noqa: PTH111
    copy = private / f"{default}-patterns"
    gitdir.copy(path, copy)
    return str(copy) if copy.exists() else ""


def _escaped(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
