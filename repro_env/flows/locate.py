"""Which spec is meant."""

from __future__ import annotations

from pathlib import Path

from repro_env.catalog import specs
from repro_env.io.files import read_regular
from repro_env.model import spec
from repro_env.model.errors import SpecError
from repro_env.model.spec import Spec

FOLDER = "repro"
FILE = "spec.json"
MAX_SIZE = 256 << 20
"""Bytes of a spec; the largest known is a few MB."""


def locate(given: str | None, start: Path) -> tuple[Spec, Path]:
    """The spec that is meant and the absolute folder that holds it (and `blobs/`).

    `given` is a spec file, its folder, or the folder above it; without it, the nearest `repro/spec.json` from
    `start` upwards. Raises `SpecError` when there is none or it cannot be read.
    """
    path = _nearest(start) if given is None else _named(start / given, given)
    try:
        data = read_regular(path, MAX_SIZE)
    except OSError as error:
        raise SpecError(
            f"cannot be read: {error.strerror}", where=str(path), hint="name a spec that repro-env capture wrote"
        ) from None
    return spec.read(data, where=str(path)), path.parent.resolve()


def _nearest(start: Path) -> Path:
    start = start.absolute()
    for folder in (start, *start.parents):
        path = folder / FOLDER / FILE
        if path.is_file():
            return path
    raise SpecError(
        f"no {FOLDER}/{FILE} here or above",
        where=str(start),
        hint="run `repro-env capture` in your project folder, or name a spec",
    )


def _named(path: Path, given: str) -> Path:
    if not path.is_dir():
        if not path.exists():
            raise SpecError("is not there", where=given, hint="name a spec.json or its folder, a packed FILE, or HOST/NAME:TAG")
        return path.resolve()
    for found in (path / FILE, path / FOLDER / FILE):
        if found.is_file():
            return found
    raise SpecError(f"holds no {FILE}", where=given, hint="name the folder that `repro-env capture` wrote")


def runs_beside(folder: Path) -> Path:
    """Where runs of the spec in `folder` are recorded: beside it, or around it where it was kept for runs that are there."""
    return specs.runs_of(folder) or folder.parent / "runs"


def ours(root: Path, folder: Path) -> tuple[Path, ...]:
    """What in the source `root` is no part of it: the spec's `folder` and the runs beside it, wherever they lie, and `root`'s own."""
    own = (root / FOLDER, root / "runs") if (root / FOLDER / FILE).is_file() else ()
    return (folder, runs_beside(folder), *own)
