"""The spec that a run names by its digest: beside the runs, from here upwards, in the store, or in git's history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from repro_env.flows.locate import FILE, FOLDER, MAX_SIZE, locate
from repro_env.model import spec as specs
from repro_env.model.errors import ReproEnvError
from repro_env.model.spec import Spec
from repro_env.store.store import Store

_VERSIONS = 200
"""Of one spec in a repository's history: so many are looked at."""


class Found(msgspec.Struct, frozen=True):
    spec: Spec
    folder: Path
    """Whose `blobs/` is looked into for what the spec carries."""
    commit: str = ""
    """The spec is not in the folder but in this commit."""


class Specs:
    """Each place is looked at once, and only when those before it do not have what is asked for."""

    def __init__(self, runs: Path, here: Path, store: Store) -> None:
        """`runs`: the folder of the runs; `here`: absolute, the caller's."""
        self._runs = runs
        self._here = here
        self._store = store
        self._known: dict[str, Found] = {}
        self._near = self._folders()
        self._past = self._committed(runs.parent)
        self.problems: list[str] = []
        """Specs that could not be read."""

    def find(self, digest: str) -> Found | None:
        """Its identity gives this digest. None when it is nowhere."""
        while digest not in self._known:
            found = next(self._near, None) or next(self._past, None)
            if found is None:
                return None
            self._known.setdefault(found.spec.digest, found)
        return self._known[digest]

    def all(self) -> list[Found]:
        """Every spec that lies in a folder, one for each digest."""
        for found in self._near:
            self._known.setdefault(found.spec.digest, found)
        return [found for found in self._known.values() if not found.commit]

    def _folders(self) -> Iterator[Found]:
        beside = self._runs.parent
        nearest = next(
            (folder / FOLDER for folder in (self._here, *self._here.parents) if (folder / FOLDER / FILE).is_file()), None
        )
        paths = [beside / FOLDER / FILE, *([nearest / FILE] if nearest else []), *sorted(beside.glob(f"*/{FILE}"))]
        paths += sorted((self._store.root / "specs").glob(f"*/{FILE}"))
        for path in dict.fromkeys(path.absolute() for path in paths):
            if path.is_file():
                try:
                    yield Found(*locate(str(path), self._here))
                except ReproEnvError as error:
                    self.problems.append(str(error))

    def _committed(self, root: Path) -> Iterator[Found]:
        from repro_env.capture import gittree
        from repro_env.capture.gitask import GitError

        path = f"{FOLDER}/{FILE}"
        seen = set()
        try:
            for commit in gittree.commits(root, most=_VERSIONS, path=path):
                for blob in gittree.files(root, commit, path):
                    if blob.name not in seen and blob.size <= MAX_SIZE:
                        seen.add(blob.name)
                        data = gittree.contents(root, [blob.name])[blob.name]
                        try:
                            yield Found(specs.read(data, where=f"{path} in commit {commit[:12]}"), root / FOLDER, commit)
                        except ReproEnvError as error:
                            self.problems.append(str(error))
        except GitError:
            return  # no repository, or none that can be asked
