"""Find the source of a run in the git history: the commit whose files have the recorded digest. The digest is recomputed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.environment.git import history as gittree
from repro_env.environment.git.command import GitError, Repo, open_repository
from repro_env.environment.git.history import Blob
from repro_env.environment.source.exclusions import CACHES
from repro_env.environment.source.selection import CAP
from repro_env.oci import layer
from repro_env.oci.entry import Entry, Members, members, sort_with_parents
from repro_env.runs.records.records import Run
from repro_env.runs.retention import start_time
from repro_env.schema.globs import globs
from repro_env.schema.run import SourceFact, Start
from repro_env.schema.spec import Source
from repro_env.store.specs.lookup import own_directories

MAX_COMMITS = 20
"""How many commits are tried, the latest before the run first: most runs use the latest commit."""


class Commit(msgspec.Struct, frozen=True):
    """A commit and the source tree that its files make."""

    name: str
    entries: tuple[Entry, ...]
    data: dict[str, bytes]
    """Contents by path."""

    def members(self) -> Members:
        """For `store.layers.unpack`."""
        return members(self.entries, self)

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        """As `oci.entry.Contents`."""
        yield self.data[entry.path]


class History:
    """The commits of the repository that contains a source directory. Each commit is read at most once."""

    def __init__(self, root: Path, *, never: Sequence[Path] = (), exclude: Sequence[str] = ()) -> None:
        """`never`, `exclude`: paths in `root` that are not part of the source, as in `environment.source.selection.look`."""
        self._root = root
        self._never = [path.relative_to(root).as_posix() for path in never if path.is_relative_to(root)]
        self._exclude = globs(exclude)
        self._digests: dict[str, str] = {}

    def find(self, digest: str, *, likely: Iterable[str] = (), before: float | None = None) -> Commit | None:
        """Return the commit whose source has this digest: one of `likely`, or one made before the time `before`.

        Returns None if the commit does not exist, or if git cannot read the repository.
        """
        try:
            with open_repository(self._root) as repo:
                present = [name for name in likely if gittree.has(repo, name)]
                names = dict.fromkeys([*present, *gittree.commits(repo, before=before, most=MAX_COMMITS, path=".")])
                return next((commit for name in names if (commit := self._read_if_equal(repo, name, digest)) is not None), None)
        except GitError:
            return None

    def _read_if_equal(self, repo: Repo, name: str, digest: str) -> Commit | None:
        """Return a commit if its source has this digest."""
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
        blobs = [blob for blob in gittree.files(repo, name) if not self._is_excluded(blob.path)]
        if sum(blob.size for blob in blobs) > CAP:
            raise GitError(f"commit {name[:12]} is larger than a source may be")
        contents = gittree.contents(repo, (blob.name for blob in blobs))
        entries = sort_with_parents(_entry(blob, contents[blob.name]) for blob in blobs)
        return Commit(name, tuple(entries), {blob.path: contents[blob.name] for blob in blobs})

    def _is_excluded(self, path: str) -> bool:
        """Whether a capture excludes this path. Rules that need more than the path are not applied; then no commit matches."""
        parts = path.split("/")
        return (
            any(path == excluded or path.startswith(excluded + "/") for excluded in self._never)
            or any(part in CACHES for part in parts[:-1])
            or any(part == ".env" or part.startswith(".env.") for part in parts)
            or any(glob.matches(path) for glob in self._exclude)
        )


def find_run_commit(run: Run, source: Source, spec_directory: Path, *, root: Path | None = None) -> Commit | None:
    """Return the commit with the code of a run. `source`: of its spec. `root`: the source directory, if not the one of the run."""
    root = root or source_directory(run.start.source)
    never = (*own_directories(root, spec_directory), run.directory.parent, *checkpoint_directories(run.start, root))
    history = History(root, never=never, exclude=source.exclude)
    return history.find(run.start.source.digest, likely=captured_commits(source), before=start_time(run))


def checkpoint_directories(start: Start, at: Path | None = None) -> tuple[Path, ...]:
    """Return the checkpoint directories of a run inside its source: they are not code. `at`: where the source is now."""
    root = source_directory(start.source)
    paths = (Path(mount.source) for mount in start.data if mount.kind == "checkpoints")
    return tuple((at or root) / path.relative_to(root) for path in paths if root in path.parents)


def source_directory(source: SourceFact) -> Path:
    """Return where the code of a run was on its machine; for the captured files, where they were captured."""
    return Path(source.directory or source.path)


def captured_commits(source: Source) -> tuple[str, ...]:
    """Return the commit at capture, if there was a git repository."""
    return (source.git.commit,) if source.git is not None else ()


def _entry(blob: Blob, data: bytes) -> Entry:
    if blob.mode == gittree.LINK:
        try:
            return Entry(blob.path, "link", target=data.decode())
        except UnicodeDecodeError:
            raise GitError("the target of a symlink is not UTF-8") from None
    return Entry(blob.path, "file", blob.mode == gittree.EXECUTABLE, len(data), hashlib.sha256(data).hexdigest())
