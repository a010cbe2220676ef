"""Find the spec that a command names, or the nearest spec."""

from __future__ import annotations

from pathlib import Path

from repro_env.io.files import read_regular
from repro_env.schema import spec
from repro_env.schema.errors import SpecError, os_errors_as
from repro_env.schema.spec import Spec
from repro_env.store.specs import archive
from repro_env.store.specs.files import MAX_SIZE, SPEC

DIRECTORY = "repro"


def locate(given: str | None, start: Path) -> tuple[Spec, Path]:
    """Return the spec that `given` names, and the absolute path of its directory (which also holds `blobs/`).

    `given` is a spec file, its directory, or the directory above that; without it, the nearest `repro/spec.json` from
    `start` upwards. Raises `SpecError` if the spec does not exist or cannot be read.
    """
    path = _nearest(start) if given is None else _named(start / given, given)
    with os_errors_as(SpecError, "this spec cannot be read", where=path, hint="name a spec that repro-env capture wrote"):
        data = read_regular(path, MAX_SIZE)
    return spec.read(data, where=str(path)), path.parent.resolve()


def _nearest(start: Path) -> Path:
    start = start.absolute()
    for directory in (start, *start.parents):
        path = directory / DIRECTORY / SPEC
        if path.is_file():
            return path
    raise SpecError(
        f"neither this directory nor one above it has a {DIRECTORY}/{SPEC}",
        where=str(start),
        hint="run `repro-env capture` in your project directory, or name a spec",
    )


def _named(path: Path, given: str) -> Path:
    if not path.is_dir():
        if not path.exists():
            hint = "name a spec.json or its directory, an archive that repro-env pack wrote, or HOST/NAME:TAG"
            raise SpecError("this file does not exist", where=given, hint=hint)
        return path.resolve()
    for file in (path / SPEC, path / DIRECTORY / SPEC):
        if file.is_file():
            return file
    raise SpecError(f"this directory has no {SPEC}", where=given, hint="name the directory that `repro-env capture` wrote")


def runs_directory(directory: Path) -> Path:
    """Return the runs directory of the spec in `directory`: next to it, or the directory that keeps the spec for its runs."""
    return archive.runs_of(directory) or directory.parent / "runs"


def own_directories(root: Path, directory: Path) -> tuple[Path, ...]:
    """Return the directories that repro-env writes, which are not source: those of the spec in `directory`, and those in `root`."""
    own = (root / DIRECTORY, root / "runs") if (root / DIRECTORY / SPEC).is_file() else ()
    return (directory, runs_directory(directory), *own)
