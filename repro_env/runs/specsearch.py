"""Find the spec of a run: next to the runs, in a directory above the caller, or in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from repro_env.io.files import read_regular
from repro_env.schema import codec
from repro_env.schema import spec as model
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.run import Start
from repro_env.schema.spec import Spec
from repro_env.store.specs import archive
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.specs.files import BLOBS, MAX_SIZE, SPEC
from repro_env.store.specs.lookup import DIRECTORY
from repro_env.store.store import Store


class Found(msgspec.Struct, frozen=True):
    spec: Spec
    digest: str
    """Of the spec."""
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
    """Search for specs. Each file is read once, and only if the earlier ones are not the spec."""

    def __init__(self, runs: Path, here: Path, store: Store) -> None:
        """`runs`: the runs directory. `here`: the working directory, absolute."""
        self._found: list[Found] = []
        self._unread = iter(_paths(runs, here, store))
        self.problems: list[str] = []
        """Specs that could not be read."""

    def of(self, start: Start) -> Found | None:
        """Return the exact spec file of a run; if it is not found or not recorded, a spec with the same digest."""
        return self.exact(start) or self.find(start.spec)

    def exact(self, start: Start) -> Found | None:
        """Return the exact spec file of a run; None if it is not found or not recorded."""
        return self._choose(lambda found: (found.file, found.digest) == (start.spec_file, start.spec))

    def find(self, digest: str) -> Found | None:
        """Return a spec with this digest; None if it is not found."""
        return self._choose(lambda found: found.digest == digest)

    def all(self) -> Iterator[Found]:
        """Yield every spec file, in the order of the search."""
        yield from tuple(self._found)
        for found in filter(None, map(self._read, self._unread)):
            self._found.append(found)
            yield found

    def _choose(self, fits: Callable[[Found], bool]) -> Found | None:
        """Return the first spec that fits and has every blob in its directory, or else the one with the fewest missing blobs."""
        best: Found | None = None
        for found in self.all():
            if fits(found) and (best is None or found.missing < best.missing):
                best = found
                if not best.missing:
                    break
        return best

    def _read(self, path: Path) -> Found | None:
        runs = archive.runs_of(path.parent)
        try:
            data = read_regular(path, MAX_SIZE) if runs is None else archive.read(runs, path.parent.name.replace("-", ":"))
            spec = model.read(data, where=str(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ReproEnvError) as error:
            self.problems.append(f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error))
            return None
        return Found(spec, spec.digest, path.parent.resolve(), codec.digest_of(data))


def _paths(runs: Path, here: Path, store: Store) -> list[Path]:
    """Return where specs may be: next to the runs, the copies for the runs, above `here`, elsewhere in the project, in the store."""
    project = runs.absolute().parent
    paths = [project / DIRECTORY / SPEC, *(copy.directory.absolute() / SPEC for copy in archive.listing(runs))]
    paths += [path for directory in (here, *here.parents) if (path := directory / DIRECTORY / SPEC).is_file()][:1]
    paths += [*sorted(project.glob(f"*/{SPEC}")), *sorted((store.root / "specs").glob(f"*/{SPEC}"))]
    return list(dict.fromkeys(paths))
