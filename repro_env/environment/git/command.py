"""Open a repository and run git in it. Only this module starts git, and git runs no program that a repository names.

Git starts programs that a configuration names: filters, monitors, hooks, pagers, transports. So git never reads the
configuration of a repository. It works in a private directory, which has a configuration written by this module, with
only those settings of the user and the repository that cannot name a program. HEAD is copied there. The references, the
index and the lists of patterns are symlinks to the repository's own files, which are checked first, so that git neither waits
for a named pipe nor reads a huge file. Git writes nothing there and fetches nothing. Like git, this module refuses a
repository of another user.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from repro_env.io import process
from repro_env.io.files import read_regular
from repro_env.schema.errors import SourceError
from repro_env.schema.patterns import lazy

NOT_TEXT = lazy("[\x00-\x1f\x7f\ud800-\udfff]")
"""Characters that must not occur in a stored path or line."""
TIMEOUT = 600.0
"""Seconds for one git command: the status of a large working tree takes long."""
PATIENCE = 1.0
"""Seconds after which the working tree is searched for a named pipe that git may be waiting for."""
_LARGEST = 256 << 20
"""Maximum bytes of each file that git reads, apart from objects."""
_FROM_TREE = ("index", "info/sparse-checkout")
_SHARED = ("refs", "packed-refs", "shallow", "info/exclude", "info/attributes", "info/grafts")
"""What git needs of a repository: from the directory of the working tree, and from the one that all its working trees share."""
_PATTERNS = frozenset({".gitattributes", ".gitignore", ".gitmodules"})
_HEAD = lazy(rb"ref: refs/[^\0\n]+\n?|[0-9a-f]{40,64}\n?")
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_NO_USER = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
_FIXED_SETTINGS = {
    "core.bare": "false",
    "core.fsmonitor": "false",
    "core.hookspath": os.devnull,
    "core.quotepath": "false",
    "core.repositoryformatversion": "1",
    "core.splitindex": "false",
    "core.untrackedcache": "false",
    "protocol.allow": "never",
}
_COPIED_SETTINGS = frozenset(
    {
        "core.autocrlf", "core.checkstat", "core.eol", "core.filemode", "core.ignorecase", "core.precomposeunicode",
        "core.sparsecheckout", "core.sparsecheckoutcone", "core.symlinks", "core.trustctime", "extensions.objectformat",
        "index.sparse", "sparse.expectfilesoutsideofpatterns",
    }
)  # fmt: skip
"""Settings that affect git's output and cannot name a program. Their value is one word."""
_WORD = lazy(r"[A-Za-z0-9]{1,16}")
_PATTERN_FILES = (("core.excludesfile", "ignore"), ("core.attributesfile", "attributes"))
"""Settings that name a file of patterns, and its default name in git's directory of the user's configuration."""
_EXTENSIONS = frozenset(
    {"noop", "noop-v1", "objectformat", "partialclone", "preciousobjects", "relativeworktrees", "worktreeconfig"}
)
"""Supported extensions of the repository format. Any other extension could change the meaning of a file."""
_INCOMPLETE = lazy(rb"unable to read|corrupt|inflate|bad (?:tree |commit )?object|missing (?:blob|tree|object)|promisor remote")
"""What git prints if an object is missing or damaged."""

Settings = tuple[tuple[str, str], ...]


class GitError(Exception):
    """The reason why git failed, usually in git's own words."""


class NoRepositoryError(GitError):
    """There is no `.git` (then the text is empty), or it does not lead to a repository."""


class Repo(msgspec.Struct, frozen=True):
    """An open repository, in which git commands can be run. Its paths are real, except `root`."""

    root: Path
    """The directory in which commands run."""
    top: Path
    """The top directory of the working tree."""
    own: Path
    """The repository's directory; for a linked working tree, the one of that tree."""
    common: Path
    """The directory that all linked working trees share."""
    private: Path
    """The directory that git works with while the repository is open."""
    settings: Settings
    """(name, value) of all settings of the user and the repository. The last setting with a name counts."""


@contextlib.contextmanager
def open_repository(root: Path) -> Iterator[Repo]:
    """Open the repository that contains `root`. Raises `GitError` if there is none, or if it cannot or must not be read."""
    top, own = _find(root)
    common = Path(os.path.realpath(own / _line(own / "commondir")))
    user = _settings("-C", "/", "config", "--list", variables=("GIT_CONFIG",))
    if not _is_owned(top, own) and not _is_trusted(top, user):
        raise GitError(
            "the repository belongs to another user, so git does not read it;"
            f" if you trust it, run git config --global --add safe.directory {top}"
        )
    command = ("-C", "/", "config", "--file", "-", "--no-includes", "--list")
    shared, of_tree = (
        _settings(*command, text=text) if (text := _read(path)).strip() else ()
        for path in (common / "config", own / "config.worktree")
    )
    _check_format(top, own, shared, (*(shared if own == common else ()), *of_tree))
    with tempfile.TemporaryDirectory(prefix="repro-env-") as scratch:
        repo = Repo(root, top, own, common, Path(scratch), (*user, *shared, *of_tree))
        _prepare(repo)
        yield repo


def git_output(repo: Repo, *args: str, stdin: bytes = b"") -> bytes:
    """Run a git command and return its output. Raises `GitError` if the exit code is not 0."""
    done = _run(repo, *args, stdin=stdin)
    if done.code and _INCOMPLETE.search(done.stderr):
        raise GitError(
            "some objects of the repository are damaged or missing; `git fsck` lists them, and in a partial clone that you trust, "
            "`git diff HEAD` fetches them"
        )
    try:
        return _checked(done)
    except GitError as error:
        raise GitError(str(error).replace(str(repo.private), str(repo.common))) from None


def git_line(repo: Repo, *args: str) -> str:
    """Run a git command and return its output, whatever its exit code is."""
    return _run(repo, *args).stdout.decode("utf-8", "replace").strip()


def _run(repo: Repo, *args: str, stdin: bytes = b"") -> process.Done:
    env = {
        "GIT_DIR": str(repo.private),
        "GIT_WORK_TREE": str(repo.top),
        "GIT_OBJECT_DIRECTORY": str(repo.common / "objects"),
        # Older versions of git support only some of these ways to ignore the user's configuration.
        **_NO_USER,
        "HOME": str(repo.private),
        "XDG_CONFIG_HOME": str(repo.private),
    }
    done = _git("-C", str(repo.root), *args, stdin=stdin, env=env, timeout=PATIENCE)
    if done.timed_out:
        _refuse_pipe(repo)
        done = _git("-C", str(repo.root), *args, stdin=stdin, env=env)
    return done


def _git(*args: str, stdin: bytes, env: Mapping[str, str], timeout: float = TIMEOUT) -> process.Done:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return process.run(["git", *args], env={**inherited, **_ENVIRONMENT, **env}, timeout=timeout, stdin=stdin, limit=1 << 30)
    except FileNotFoundError:
        raise GitError("git is not installed or not on PATH") from None
    except OSError as error:
        raise SourceError(f"git did not start: {error.strerror}", where="git") from None


def _checked(done: process.Done) -> bytes:
    """Return the output of a git command. Raises `GitError` with its error output if it failed."""
    if done.timed_out:
        raise GitError("git timed out")
    if done.code:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        message = next((line for line in lines if not line.startswith("warning:")), "")
        raise GitError(message or f"git ended with exit code {done.code}")
    return done.stdout


def _settings(*command: str, text: bytes = b"", variables: tuple[str, ...] = ()) -> Settings:
    """Return what `git config --list` prints: with the caller's variables the user's settings, else those in `text`."""
    caller = {name: value for name, value in os.environ.items() if name.startswith(variables)} if variables else _NO_USER
    output = _checked(_git(*command, "-z", stdin=text, env={**caller, "GIT_DIR": os.devnull}))
    parts = (part.partition("\n") for part in output.decode("utf-8", "surrogateescape").split("\0") if part)
    return tuple((name, value if newline else "true") for name, newline, value in parts)


def _find(root: Path) -> tuple[Path, Path]:
    """Find the working tree that contains `root`, and its repository's directory. Raises `NoRepositoryError`.

    A directory that looks like a bare repository is ignored, because a clone could contain it.
    """
    real = Path(os.path.realpath(root))
    for top in (real, *real.parents):
        dot_git = top / ".git"
        own = dot_git
        if not os.path.lexists(dot_git):
            continue
        if not dot_git.is_dir():
            pointer = _line(dot_git)
            own = dot_git.parent / pointer.removeprefix("gitdir: ")
            if not pointer.startswith("gitdir: ") or not os.path.lexists(own / "HEAD"):
                raise NoRepositoryError(f"{_printable(dot_git)} does not name a repository")
        if os.path.lexists(own / "HEAD"):  # like git, ignore an empty `.git` directory
            return top, Path(os.path.realpath(own))
    raise NoRepositoryError


def _is_owned(top: Path, own: Path) -> bool:
    """Whether the repository belongs to the user. As in git, root may also read a repository of the user who called sudo."""
    users = {os.geteuid()}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        users.add(int(os.environ["SUDO_UID"]))
    return all(path.lstat().st_uid in users for path in (top / ".git", top, own))


def _is_trusted(top: Path, user: Settings) -> bool:
    """Whether the user named the working tree in `safe.directory`. The repository's own configuration does not count."""
    values = [value for name, value in user if name == "safe.directory"]
    return any(value == "*" or os.path.realpath(os.path.expanduser(value)) == str(top) for value in values)  # noqa: PTH111


def _check_format(top: Path, own: Path, shared: Settings, settings: Settings) -> None:
    """Raise `GitError` if the format is not supported, or if the working tree is elsewhere. `settings`: those that name it."""
    version = dict(shared).get("core.repositoryformatversion", "0")
    names = {name.partition(".")[2]: value for name, value in shared if name.startswith("extensions.")}
    unknown = names.keys() - _EXTENSIONS - ({"refstorage"} if names.get("refstorage") == "files" else set())
    if version not in ("0", "1") or unknown:
        what = ", ".join(sorted(unknown)) or f"repositoryformatversion {version}"
        raise GitError(f"the repository has a format that repro-env does not support: {NOT_TEXT.sub('?', what)}")
    worktree = dict(settings).get("core.worktree")
    if worktree is not None and os.path.realpath(own / worktree) != str(top):
        raise GitError(f"the repository's configuration sets a different working tree: {NOT_TEXT.sub('?', worktree)}")


def _prepare(repo: Repo) -> None:
    """Fill the private directory."""
    head = _read(repo.own / "HEAD")
    if not _HEAD.fullmatch(head) or not (repo.common / "objects").is_dir():
        raise NoRepositoryError(f"not a git repository: {_printable(repo.own)}")
    (repo.private / "HEAD").write_bytes(head)
    (repo.private / "info").mkdir()
    _check(repo.common / "objects" / "info" / "alternates")
    split = [path.name for path in repo.own.glob("sharedindex.*")]
    for origin, names in ((repo.own, (*_FROM_TREE, *split)), (repo.common, _SHARED)):
        for name in names:
            if _check(origin / name):
                (repo.private / name).symlink_to(origin / name)
    copied = dict(_FIXED_SETTINGS)
    copied |= {name: value for name, value in repo.settings if name in _COPIED_SETTINGS and _WORD.fullmatch(value)}
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    for name, default in _PATTERN_FILES:
        path = repo.top / os.path.expanduser(dict(repo.settings).get(name, f"{home}/git/{default}"))  # noqa: PTH111
        copied[name] = str(path) if path != repo.top and _check(path) else ""
    text = "".join("[{}]\n{} = {}\n".format(*name.split("."), _quoted(value)) for name, value in copied.items())
    (repo.private / "config").write_text(text, errors="surrogateescape")


def _check(path: Path) -> bool:
    """Whether a file or a directory of files exists. Raises `GitError` if git would wait for a file or need much memory."""
    for file in (path, *path.rglob("*")):
        try:
            facts = file.stat()
        except OSError:
            continue  # missing, or a dangling symlink
        if not stat.S_ISREG(facts.st_mode) and (not stat.S_ISDIR(facts.st_mode) or file.is_symlink()):
            raise GitError(f"{_printable(file)} is not a regular file")
        if facts.st_size > _LARGEST:
            raise GitError(f"{_printable(file)} is larger than {_LARGEST:,} bytes")
    return path.exists()


def _refuse_pipe(repo: Repo) -> None:
    """Raise `GitError` if git would wait for a named pipe in the repository or in the working tree."""
    for start in dict.fromkeys((repo.top, repo.own, repo.common)):
        for directory, _, names in os.walk(start):
            for name in names:
                path = Path(directory, name)
                if (name in _PATTERNS or ".git" in path.parts or start != repo.top) and path.is_fifo():
                    raise GitError(f"{_printable(path)} is a named pipe, for which git would wait forever; remove it")


def _read(path: Path) -> bytes:
    """Return the bytes of a regular file; empty if it does not exist. Raises `GitError` for other kinds and large files."""
    try:
        return read_regular(Path(os.path.realpath(path)), 1 << 20)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise GitError(f"{_printable(path)} cannot be read: {error.strerror}") from None


def _line(path: Path) -> str:
    """Return the path that a small file contains."""
    return os.fsdecode(_read(path).partition(b"\0")[0].rstrip(b"\r\n"))


def _printable(path: Path) -> str:
    return NOT_TEXT.sub("?", str(path))


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
