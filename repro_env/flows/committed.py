"""The source of a run in git's history: the commit whose files give its very digest. It is computed, not believed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.capture import gittree
from repro_env.capture.gitask import GitError, Repo, opened
from repro_env.capture.gittree import Blob
from repro_env.capture.globs import globs
from repro_env.capture.rules import CACHES
from repro_env.capture.source import CAP
from repro_env.catalog.records import Run
from repro_env.catalog.retention import when
from repro_env.flows.locate import ours
from repro_env.image import layer
from repro_env.image.entry import Entry, Members, members, ordered
from repro_env.model.run import SourceFact, Start
from repro_env.model.spec import Source

MOST = 20
"""Commits that are tried, the newest before the run first: a run is mostly of the one before it."""


class Commit(msgspec.Struct, frozen=True):
    """A commit whose files are a source tree."""

    name: str
    entries: tuple[Entry, ...]
    data: dict[str, bytes]
    """Contents by path."""

    def members(self) -> Members:
        """For `store.layers.unpack`."""
        return members(self.entries, self)

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        """As `image.entry.Contents`."""
        yield self.data[entry.path]


class History:
    """The commits of the repository around a source folder. Each is read once, whatever is looked for."""

    def __init__(self, root: Path, *, never: Sequence[Path] = (), exclude: Sequence[str] = ()) -> None:
        """`never` and `exclude`: what in `root` is no part of a source, as `capture.source.look` takes them."""
        self._root = root
        self._never = [path.relative_to(root).as_posix() for path in never if path.is_relative_to(root)]
        self._exclude = globs(exclude)
        self._digests: dict[str, str] = {}

    def find(self, digest: str, *, likely: Iterable[str] = (), before: float | None = None) -> Commit | None:
        """The commit that gives a source's digest: one of `likely`, or one made before a time. None when none of those does.

        A repository that cannot be asked has none.
        """
        try:
            with opened(self._root) as repo:
                named = [one for one in likely if gittree.has(repo, one)]
                tried = dict.fromkeys([*named, *gittree.commits(repo, before=before, most=MOST, path=".")])
                return next((commit for name in tried if (commit := self._gives(repo, name, digest)) is not None), None)
        except GitError:
            return None

    def _gives(self, repo: Repo, name: str, digest: str) -> Commit | None:
        if self._digests.get(name, digest) != digest:
            return None
        try:
            commit = self._read(repo, name)
        except GitError:
            self._digests[name] = ""
            return None
        self._digests[name] = layer.diff_id(commit.members())
        return commit if self._digests[name] == digest else None

    def _read(self, repo: Repo, name: str) -> Commit:
        blobs = [one for one in gittree.files(repo, name) if not self._is_left_out(one.path)]
        if sum(one.size for one in blobs) > CAP:
            raise GitError(f"{name[:12]} holds more than a source may have")
        contents = gittree.contents(repo, (one.name for one in blobs))
        entries = ordered(_entry(one, contents[one.name]) for one in blobs)
        return Commit(name, tuple(entries), {one.path: contents[one.name] for one in blobs})

    def _is_left_out(self, path: str) -> bool:
        """As the rules of a capture say it; where they know more, the digest is another one and nothing is found."""
        parts = path.split("/")
        return (
            any(path == one or path.startswith(one + "/") for one in self._never)
            or any(part in CACHES for part in parts[:-1])
            or any(part == ".env" or part.startswith(".env.") for part in parts)
            or any(glob.matches(path) for glob in self._exclude)
        )


def of_run(run: Run, source: Source, folder: Path, *, root: Path | None = None) -> Commit | None:
    """The commit that a run's code is. `source` and `folder`: of its spec. `root`: another place of the code than the run's own."""
    root = root or place(run.start.source)
    never = (*ours(root, folder), run.folder.parent, *written(run.start, root))
    history = History(root, never=never, exclude=source.exclude)
    return history.find(run.start.source.digest, likely=likely(source), before=when(run))


def written(start: Start, at: Path | None = None) -> tuple[Path, ...]:
    """Folders of the source that the run wrote checkpoints to: they are no code (`snapshot.take`). `at`: where the source is now."""
    root = place(start.source)
    folders = (Path(one.source) for one in start.data if one.kind == "checkpoints")
    return tuple((at or root) / path.relative_to(root) for path in folders if root in path.parents)


def place(source: SourceFact) -> Path:
    """Where a run's code was on the machine that ran it, or was captured."""
    return Path(source.directory or source.path)


def likely(source: Source) -> tuple[str, ...]:
    """The commit that was there at capture."""
    return (source.git.commit,) if source.git is not None else ()


def _entry(one: Blob, data: bytes) -> Entry:
    if one.mode == gittree.LINK:
        try:
            return Entry(one.path, "link", target=data.decode())
        except UnicodeDecodeError:
            raise GitError("it has a symlink to what is not UTF-8") from None
    return Entry(one.path, "file", one.mode == gittree.EXECUTABLE, len(data), hashlib.sha256(data).hexdigest())
