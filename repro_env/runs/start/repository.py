"""Mount the git repository of the source in a run, so that git prints the same there as on the host.

This is done only if the image has a git program. A run sees a directory made for it: the current `HEAD`, refs, tags and
index, a configuration with only format keys, no hooks, no logs, no remotes; and the repository's objects, read-only. This
module starts no git program and obeys no git configuration.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.environment.git.index import of_snapshot
from repro_env.io.files import read_regular, walk
from repro_env.oci import tar
from repro_env.oci.entry import Entry, escape, sort_with_parents
from repro_env.runs.start import snapshot
from repro_env.runs.start.snapshot import Snapshot
from repro_env.schema.environment import values_of
from repro_env.schema.patterns import lazy
from repro_env.schema.run import Mount
from repro_env.schema.spec import Spec
from repro_env.store.store import Store

_OWN = ("HEAD", "index")
_COMMON = ("packed-refs", "shallow", "info/exclude", "info/attributes", "info/grafts")
_LARGEST = 256_000_000
"""Most bytes of the files that are copied for a run."""
_KEY = lazy(
    rb"(?mi)^\s*(repositoryformatversion|filemode|ignorecase|symlinks|autocrlf|eol|objectformat|refstorage)\s*=\s*([a-z0-9]{1,16})\s*$"
)
_EXTENSIONS = ("objectformat", "refstorage")


class Repository(msgspec.Struct, frozen=True):
    mounts: tuple[Mount, ...] = ()
    digest: str | None = None
    """Diff ID of the copied directory, without the objects (`Start.git`)."""
    text: str = ""
    """A line for the user; empty if there is nothing to report."""


class _RefusedError(Exception):
    """The reason why a run cannot see the repository."""


def show(
    spec: Spec, source: Snapshot, live: Path, workspace: str, others: Sequence[Mount], store: Store, digest: str | None = None
) -> Repository:
    """Return the mounts with which a run sees the repository in `live`.

    `others`: the user's mounts. `digest`: of the copy that was made for a recorded run; None to make a copy.
    """
    top = next((directory for directory in (live, *live.parents) if os.path.lexists(directory / ".git")), None)
    if top is None or not _has_git(spec, store):
        return Repository()
    try:
        if top != live:
            raise _RefusedError(f"its top level is {top}, above the source")
        if any(f"{mount.target}/".startswith(f"{workspace}/.git/") for mount in others):
            raise _RefusedError("another mount is at or below its .git directory")
        if digest is None and source.fact.directory is None:
            raise _RefusedError("the run uses the captured source, not the live directory")
        own, common = _directories(live / ".git")
        objects = common / "objects"
        if not _is_directory(objects):
            raise _RefusedError(f"{objects} is not a directory")
        if _read(objects / "info" / "alternates"):
            raise _RefusedError("some of its objects are in another repository (objects/info/alternates)")
        digest = digest or _copy(own, common, live, source, store)
    except _RefusedError as error:
        return Repository(text=f"git in the run does not see the repository: {error}")
    tree = store.layers.path(digest)
    if tree is None:
        return Repository(
            text="git in the run does not see the repository: the copy for the first run was removed from the store"
        )
    target = f"{workspace}/.git"
    mounts = (
        Mount(kind="git", source=str(tree), target=target),
        Mount(kind="git", source=str(objects), target=f"{target}/objects"),
    )
    text = "git in the run sees the repository with its history, read-only and without its configuration"
    return Repository(mounts, digest, text)


def _has_git(spec: Spec, store: Store) -> bool:
    path = values_of(spec.identity.config.env).get("PATH", "")
    trees = [tree for layer in spec.expected.layers if (tree := store.layers.path(layer.diff_id)) is not None]
    return any(os.path.lexists(f"{tree}{directory}/git") for directory in path.split(":") for tree in trees)


def _directories(git: Path) -> tuple[Path, Path]:
    """Return the git directories of the working tree and of the repository; they differ only for a linked working tree."""
    if _is_directory(git):
        return git, git
    pointer = _read(git)
    if not pointer.startswith(b"gitdir: "):
        raise _RefusedError(f"{git} is neither a directory nor a file that names a directory")
    own = Path(os.path.realpath(git.parent / os.fsdecode(pointer[8:].rstrip(b"\n"))))
    # A forged `.git` file can name any repository. Only `git worktree add` also writes the name of the working tree there.
    back = os.fsdecode(_read(own / "gitdir").rstrip(b"\n"))
    if not back or os.path.realpath(own / back) != os.path.realpath(git):
        raise _RefusedError(f"{own} does not name it as its working tree")
    common = Path(os.path.realpath(own / os.fsdecode(_read(own / "commondir").rstrip(b"\n"))))
    if _is_directory(common / "reftable"):
        raise _RefusedError("it is a linked working tree of a repository with a reftable")
    return own, common


def _copy(own: Path, common: Path, live: Path, source: Snapshot, store: Store) -> str:
    """Write the git directory that a run sees to the store, and return its diff ID."""
    settings = {name.lower(): value for name, value in _KEY.findall(_read(common / "config"))}
    files = {name: data for name in _OWN if (data := _read(own / name))}
    files |= {name: data for name in _COMMON if (data := _read(common / name))}
    for path in _below(common, "refs", "reftable"):
        files[path] = _read(common / path)
    for item in sorted(own.glob("sharedindex.*")):
        files[item.name] = _read(item)
    if "HEAD" not in files:
        raise _RefusedError(f"{own}/HEAD is missing")
    if sum(map(len, files.values())) > _LARGEST:
        raise _RefusedError(f"its index and refs have more than {_LARGEST // 10**6} MB")
    if "index" in files:
        hash_size = 32 if settings.get(b"objectformat", b"").lower() == b"sha256" else 20
        files["index"] = of_snapshot(
            files["index"],
            lambda path: path not in source.paths and os.path.lexists(live / path),
            name=hash_size,
            time=lambda path: source.fact.times.get(escape(path), tar.MTIME * 10**9),
        )
    files["config"] = _config({name.decode(): value.decode() for name, value in settings.items()})
    entries = [Entry.of(path, data) for path, data in files.items()]
    return snapshot.add_tree(sort_with_parents([*entries, Entry("objects", "dir"), Entry("refs", "dir")]), _Bytes(files), store)


def _config(settings: Mapping[str, str]) -> bytes:
    core = [f"\t{name} = {value}\n" for name, value in sorted(settings.items()) if name not in _EXTENSIONS]
    extensions = [f"\t{name} = {settings[name]}\n" for name in _EXTENSIONS if name in settings]
    return "".join(
        ["[core]\n\tbare = false\n\tcheckstat = minimal\n", *core, *(["[extensions]\n", *extensions] if extensions else [])]
    ).encode()


def _below(common: Path, *directories: str) -> Iterator[str]:
    for directory in directories:
        if _is_directory(common / directory):
            yield from (f"{directory}/{file.path}" for file in walk(common / directory) if file.kind == "file")


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _read(path: Path) -> bytes:
    """Return the bytes of a regular file; empty if it is missing.

    A clone is untrusted, so symlinks are not followed, and named pipes are not opened.
    """
    try:
        return read_regular(path, _LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise _RefusedError(f"{path} cannot be read: {error.strerror}") from None


class _Bytes:
    """Contents of files, in memory."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        return iter([self._files[entry.path]])
