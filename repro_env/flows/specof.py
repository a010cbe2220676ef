"""The spec that a run names: kept beside it, beside the runs, from here upwards, in the store, or in git's history."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from repro_env.catalog import specs as kept
from repro_env.flows.locate import FILE, FOLDER, MAX_SIZE, locate
from repro_env.io.files import sha256_of
from repro_env.model import spec as specs
from repro_env.model.errors import ReproEnvError
from repro_env.model.run import Start
from repro_env.model.spec import Spec
from repro_env.store.carried import Carried
from repro_env.store.parts import BLOBS
from repro_env.store.store import Store

_VERSIONS = 200
"""Of one spec in a repository's history: so many are looked at."""


class Found(msgspec.Struct, frozen=True):
    spec: Spec
    folder: Path
    """Whose `blobs/` is looked into for what the spec carries."""
    commit: str = ""
    """The spec is not in the folder but in this commit."""
    file: str = ""
    """`sha256:<hex>` of its file's bytes."""

    @property
    def missing(self) -> int:
        """How many of the spec's blobs are not in its directory: a clone has the spec without them."""
        blobs = Carried(self.folder / BLOBS)
        return sum(blobs.path(digest) is None for digest in self.spec.carried)


class Specs:
    """Each place is looked at once, and only when those before it do not have what is asked for."""

    def __init__(self, runs: Path, here: Path, store: Store) -> None:
        """`runs`: the folder of the runs; `here`: absolute, the caller's."""
        self._runs = runs
        self._here = here
        self._store = store
        self._known: dict[str, Found] = {}
        self._files: dict[str, Found] = {}
        self._near = self._folders()
        self._past = self._committed(runs.parent)
        self.problems: list[str] = []
        """Specs that could not be read."""

    def of(self, start: Start) -> Found | None:
        """The very file that a run ran from; where that is nowhere, or not recorded, one with the same identity."""
        return self.exact(start) or self.find(start.spec)

    def exact(self, start: Start) -> Found | None:
        """The very file that a run ran from. None when it is nowhere, or not recorded."""
        found = self._search(self._files, start.spec_file) if start.spec_file is not None else None
        return found if found is not None and found.spec.digest == start.spec else None

    def find(self, digest: str) -> Found | None:
        """Its identity gives this digest. None when it is nowhere."""
        return self._search(self._known, digest)

    def all(self) -> list[Found]:
        """Every spec that lies in a folder, each file once."""
        for found in self._near:
            self._add(found)
        return [found for found in self._files.values() if not found.commit]

    def _search(self, known: dict[str, Found], digest: str) -> Found | None:
        """Return the first spec whose directory has every blob, or else the spec with the fewest missing blobs."""
        for source in (self._near, self._past):
            while (best := known.get(digest)) is None or (source is self._near and best.missing):
                found = next(source, None)
                if found is None:
                    break
                self._add(found)
        return known.get(digest)

    def _add(self, found: Found) -> None:
        for known, key in ((self._known, found.spec.digest), (self._files, found.file)):
            if key not in known or (not found.commit and found.missing < known[key].missing):
                known[key] = found

    def _folders(self) -> Iterator[Found]:
        beside = self._runs.parent
        nearest = next(
            (folder / FOLDER for folder in (self._here, *self._here.parents) if (folder / FOLDER / FILE).is_file()), None
        )
        first = beside / FOLDER / FILE
        yield from self._read([first])
        yield from self._kept()
        rest = [*([nearest / FILE] if nearest else []), *sorted(beside.glob(f"*/{FILE}"))]
        rest += sorted((self._store.root / "specs").glob(f"*/{FILE}"))
        yield from self._read(path for path in dict.fromkeys(path.absolute() for path in rest) if path != first.absolute())

    def _read(self, paths: Iterable[Path]) -> Iterator[Found]:
        for path in paths:
            if path.is_file():
                with self._noted():
                    spec, folder = locate(str(path.absolute()), self._here)
                    yield Found(spec, folder, file=f"sha256:{sha256_of(folder / FILE)}")

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except ReproEnvError as error:
            self.problems.append(str(error))
        except OSError as error:  # gone meanwhile, or no plain file
            self.problems.append(f"{error.filename}: {error.strerror}")

    def _kept(self) -> Iterator[Found]:
        for one in kept.there(self._runs):
            with self._noted():
                data = kept.read(self._runs, one.digest)
                yield Found(specs.read(data, where=str(one.folder / FILE)), one.folder.resolve(), file=one.digest)

    def _committed(self, root: Path) -> Iterator[Found]:
        from repro_env.capture import gittree
        from repro_env.capture.gitask import GitError, opened

        path = f"{FOLDER}/{FILE}"
        seen = set()
        try:
            with opened(root) as repo:
                commits = gittree.commits(repo, most=_VERSIONS, path=path)
            for commit in commits:
                with opened(root) as repo:  # closed before each yield, because the caller may stop iterating
                    blobs = [one for one in gittree.files(repo, commit, path) if one.name not in seen and one.size <= MAX_SIZE]
                    contents = gittree.contents(repo, [one.name for one in blobs])
                for name, data in contents.items():
                    seen.add(name)
                    try:
                        read = specs.read(data, where=f"{path} in commit {commit[:12]}")
                        yield Found(read, root / FOLDER, commit, f"sha256:{hashlib.sha256(data).hexdigest()}")
                    except ReproEnvError as error:
                        self.problems.append(str(error))
        except GitError:
            return  # no repository, or none that can be asked
