"""Find the spec of a run: next to the runs, in a directory above the caller, or in the store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from repro_env.io.files import sha256_of
from repro_env.schema import spec as model
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.run import Start
from repro_env.schema.spec import Spec
from repro_env.store.specs import archive as kept
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.specs.files import BLOBS
from repro_env.store.specs.lookup import DIRECTORY, FILE, locate
from repro_env.store.store import Store


class Found(msgspec.Struct, frozen=True):
    spec: Spec
    directory: Path
    """The directory with the spec's `blobs/`."""
    file: str
    """`sha256:<hex>` of the spec's file."""

    @property
    def missing(self) -> int:
        """Number of the spec's blobs that are not in its directory; a clone has none of them."""
        blobs = SpecBlobs(self.directory / BLOBS)
        return sum(blobs.path(digest) is None for digest in self.spec.bundled)


class Specs:
    """Search for specs. Each location is read once, and only if the earlier ones do not have the spec."""

    def __init__(self, runs: Path, here: Path, store: Store) -> None:
        """`runs`: the runs directory. `here`: the working directory, absolute."""
        self._runs = runs
        self._here = here
        self._store = store
        self._by_digest: dict[str, Found] = {}
        self._by_file: dict[str, Found] = {}
        self._directories = self._in_directories()
        self.problems: list[str] = []
        """Specs that could not be read."""

    def of(self, start: Start) -> Found | None:
        """Return the exact spec file of a run; if it is not found or not recorded, a spec with the same digest."""
        return self.exact(start) or self.find(start.spec)

    def exact(self, start: Start) -> Found | None:
        """Return the exact spec file of a run; None if it is not found or not recorded."""
        found = self._search(self._by_file, start.spec_file) if start.spec_file is not None else None
        return found if found is not None and found.spec.digest == start.spec else None

    def find(self, digest: str) -> Found | None:
        """Return a spec with this digest; None if it is not found."""
        return self._search(self._by_digest, digest)

    def all(self) -> list[Found]:
        """Return every spec in a directory, each file once."""
        for found in self._directories:
            self._add(found)
        return list(self._by_file.values())

    def _search(self, specs: dict[str, Found], digest: str) -> Found | None:
        """Return the first spec whose directory has every blob, or else the spec with the fewest missing blobs."""
        while (best := specs.get(digest)) is None or best.missing:
            found = next(self._directories, None)
            if found is None:
                break
            self._add(found)
        return specs.get(digest)

    def _add(self, found: Found) -> None:
        for specs, key in ((self._by_digest, found.spec.digest), (self._by_file, found.file)):
            if key not in specs or found.missing < specs[key].missing:
                specs[key] = found

    def _in_directories(self) -> Iterator[Found]:
        project = self._runs.parent
        nearest = next(
            (
                directory / DIRECTORY
                for directory in (self._here, *self._here.parents)
                if (directory / DIRECTORY / FILE).is_file()
            ),
            None,
        )
        first = project / DIRECTORY / FILE
        yield from self._read([first])
        yield from self._kept()
        paths = [*([nearest / FILE] if nearest else []), *sorted(project.glob(f"*/{FILE}"))]
        paths += sorted((self._store.root / "specs").glob(f"*/{FILE}"))
        yield from self._read(path for path in dict.fromkeys(path.absolute() for path in paths) if path != first.absolute())

    def _read(self, paths: Iterable[Path]) -> Iterator[Found]:
        for path in paths:
            if path.is_file():
                with self._collect_problems():
                    spec, directory = locate(str(path.absolute()), self._here)
                    yield Found(spec, directory, file=f"sha256:{sha256_of(directory / FILE)}")

    @contextlib.contextmanager
    def _collect_problems(self) -> Iterator[None]:
        try:
            yield
        except ReproEnvError as error:
            self.problems.append(str(error))
        except OSError as error:  # deleted in the meantime, or not a regular file
            self.problems.append(f"{error.filename}: {error.strerror}")

    def _kept(self) -> Iterator[Found]:
        for spec in kept.listing(self._runs):
            with self._collect_problems():
                data = kept.read(self._runs, spec.digest)
                yield Found(model.read(data, where=str(spec.directory / FILE)), spec.directory.resolve(), file=spec.digest)
