"""The command `repro-env lineage`: find the run that made a weights file or digest, its inputs, and the runs that used it.

Every record in every runs directory that the store remembers is read (`store.run_directories`).
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import msgspec

from repro_env.api.arguments import absolute
from repro_env.api.runs import find_runs_directory
from repro_env.io.files import sha256_of
from repro_env.runs import specsearch
from repro_env.runs.lineage import families, producers
from repro_env.runs.lineage.families import Family, Use
from repro_env.runs.lineage.knownruns import AllRuns, read_all_runs
from repro_env.runs.lineage.parents import run_containing
from repro_env.runs.lineage.producers import Producers
from repro_env.runs.records import checkpointmanifest as manifest
from repro_env.runs.records import ids, records
from repro_env.runs.records.records import Run, Unreadable
from repro_env.schema.errors import DataError, RecordError, UsageError, os_errors_as
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.rundirectory import START
from repro_env.specs.argument import current_directory
from repro_env.store.store import Store

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})")
_LEAST = 4
"""Fewest characters of a run's name that may identify it."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    query: str
    file: Path | None = None
    """The file that was named, with symlinks resolved."""
    size: int | None = None
    digest: str = ""
    """Digest of the file, or the digest that was named; empty if a run was named."""
    origins: tuple[Use, ...] = ()
    """The run that is shown in detail, then the others from oldest to newest."""
    uses: tuple[Use, ...] = ()
    """The other runs that have the digest in their records, oldest first."""
    run: Run | None
    """The run that made the file, or the run that was named."""
    family: Family | None
    """Of `run`."""
    manifest: manifest.File | None = None
    spec: specsearch.Found | None
    """Spec of `run`, if it was found."""
    looked: tuple[Path, ...]
    """Runs directories that were read."""
    missing: tuple[Path, ...]
    """Runs directories that were removed."""
    unreadable: tuple[Unreadable, ...]
    remarks: tuple[str, ...]

    @property
    def known(self) -> bool:
        """Whether the run that made it was found, or a run that was built from it. A run that only read it does not count."""
        return self.run is not None or any(use.how in ("source", "spec", "image") for use in self.uses)


def lineage(
    name: str,
    *,
    runs: Path | str | None = None,
    here: Path | None = None,
    store: Store | None = None,
    tell: Tell = SILENT,
) -> Answer:
    """Return the lineage of a file, a checkpoint's or run's directory, a (prefix of a) sha256, or a run's name.

    `runs`: another runs directory to search. `here`: the directory that relative paths start from, by default the current
    directory. Raises `DataError` if the file does not exist, `RecordError` if the run is not known, `UsageError` if `name` may
    mean several things.
    """
    return _Search(name, here or current_directory(), absolute(runs), store or Store.open(), tell).answer()


class _Search:
    def __init__(self, word: str, here: Path, runs: Path | None, store: Store, tell: Tell) -> None:
        self._word = word
        self._here = here
        self._given = runs
        self._store = store
        self._tell = tell
        self._remarks: list[str] = []
        self._runs = AllRuns()
        self._producers = Producers(self._runs, self._remarks)

    def answer(self) -> Answer:
        path, mode = _path(self._here, self._word)
        if stat.S_ISDIR(mode):
            if (path / START).is_file():
                self._read_runs(near=path.parent)
                return self._answer(records.read(path))
            path, mode = _weights(path, self._word), stat.S_IFREG
        if stat.S_ISREG(mode):
            return self._of_file(path)
        if mode:
            raise DataError("this is neither a regular file nor a directory", where=self._word, hint="name a regular file")
        digest = _DIGEST.fullmatch(self._word)
        self._read_runs()
        if self._word.startswith("sha256:") or (digest and len(digest[1]) == 64):
            if digest is None:
                hint = "write sha256: and at least 8 hexadecimal digits"
                raise UsageError("this is not a sha256", where=self._word, hint=hint)
            return self._of_digest(f"sha256:{digest[1]}", None, None)
        run = self._named()
        if run is not None:
            return self._answer(run)
        if digest is not None:
            return self._of_digest(f"sha256:{digest[1]}", None, None)
        if "/" in self._word or "." in self._word:
            raise DataError("this file does not exist", where=self._word, hint="name a file, a sha256, or a run")
        raise RecordError(
            f"neither a run nor a file has the name {self._word!r}",
            where=self._runs.places,
            hint="`repro-env runs list` lists runs; name their directory with --runs DIR",
        )

    def _read_runs(self, near: Path | None = None) -> None:
        """Read every runs directory, the nearest one first."""
        if self._given is not None and not self._given.is_dir():
            what = "this is not a directory" if self._given.exists() else "this directory does not exist"
            raise RecordError(what, where=str(self._given), hint="name a runs directory with --runs DIR, or omit the option")
        first = [directory for directory in (near, self._given, self._default()) if directory is not None]
        self._runs = read_all_runs(first, self._store)
        self._producers = Producers(self._runs, self._remarks)
        self._remarks += self._runs.remarks

    def _default(self) -> Path | None:
        try:
            return find_runs_directory(None, self._here)
        except RecordError:
            return None

    def _named(self) -> Run | None:
        """Return the run with the given name, ID or prefix. Raises `RecordError` if several runs match."""
        word, runs = self._word, self._runs.runs
        if word == records.LATEST:
            directory = find_runs_directory(self._given, self._here)
            return records.read(records.find(directory, word))
        found = ids.matching(word, runs.values(), lambda run: (run.id, run.short, run.directory.name), least=_LEAST)
        if len(found) > 1:
            names = ", ".join(sorted(run.short for run in found)[:5])
            what = f"{word!r} matches {len(found)} runs: {names}"
            raise RecordError(what, where=self._runs.places, hint="write more characters of the ID")
        return found[0] if found else None

    def _of_file(self, path: Path) -> Answer:
        inside = run_containing(path)
        self._read_runs(near=None if inside is None else inside.parent)
        with os_errors_as(DataError, "this file cannot be read", where=path, hint="give yourself read permission"):
            size = path.stat().st_size
            with self._tell.progress(0, f"hashing {path.name}"):
                digest = f"sha256:{sha256_of(path)}"
        if digest == families.EMPTY:
            self._remarks.append("the file is empty, so its digest does not identify the run that made it")
        return self._of_digest(digest, path, size)

    def _of_digest(self, digest: str, path: Path | None, size: int | None) -> Answer:
        recorded = None if path is None else self._producers.recorded(path, digest)
        claim = None if path is None else self._producers.claim(path, digest)
        all_uses = families.uses(digest, self._runs.runs.values(), self._runs.written)
        uses = [use for use in all_uses if use.how not in families.EVIDENCE]
        origins = producers.from_uses(all_uses)
        if recorded is not None:
            origins = [recorded, *(other for other in origins if other.run.id != recorded.run.id)]
        if claim is not None:
            origins += producers.from_manifests([claim], digest, self._runs.runs, origins)
        if not origins and digest != families.EMPTY:
            found = self._producers.manifests()
            origins = producers.from_manifests(found, digest, self._runs.runs, ())
            claim = claim or next((manifest for manifest in found if producers.find_digest(manifest, digest)), None)
        producers.check_unambiguous(self._word, origins, uses)
        origins = producers.sort(origins)
        first = producers.choose(origins, recorded, claim)
        run = first.run if first is not None else next((use.run for use in uses if use.how == "record"), None)
        return msgspec.structs.replace(
            self._answer(run),
            file=path,
            size=size,
            digest=first.digest if first is not None else digest,
            origins=(*(() if first is None else (first,)), *(other for other in origins if other is not first)),
            uses=tuple(uses),
            manifest=claim,
        )

    def _answer(self, run: Run | None) -> Answer:
        """Return what is known about a run."""
        runs = self._runs
        family = spec = None
        if run is not None:
            edges = {*families.edges([*runs.runs.values(), run]), *self._producers.resume_edges()}
            family = families.family(run.id, runs.runs, edges)
            spec = specsearch.Specs(run.directory.parent, self._here, self._store).of(run.start)
        return Answer(
            query=self._word,
            run=run,
            family=family,
            spec=spec,
            looked=runs.looked,
            missing=runs.missing,
            unreadable=runs.unreadable,
            remarks=tuple(dict.fromkeys(self._remarks)),
        )


def _path(here: Path, word: str) -> tuple[Path, int]:
    """Return the path that a word names, and its mode; 0 if nothing exists there. Raises `DataError` if it cannot be checked."""
    try:
        path = Path(os.path.realpath(here / word))
        return path, path.stat().st_mode if word else 0
    except PermissionError as error:
        what = f"this path cannot be checked: {error.strerror}"
        raise DataError(what, where=word, hint="give yourself permission to read its directory") from None
    except (OSError, ValueError):  # it does not exist, is too long, or contains a NUL
        return here, 0


def _weights(directory: Path, word: str) -> Path:
    """Return the largest weights file in a checkpoint's directory, or else its largest file."""
    found = manifest.read(directory / manifest.NAME)
    if found is None or not found.manifest.files:
        raise UsageError("this directory is neither a checkpoint nor a run", where=word, hint="name a file in it")
    files = found.manifest.files
    name = max(sorted(files), key=lambda name: (name.endswith(".safetensors"), files[name].size))
    if "/" in name or not (directory / name).is_file():
        raise DataError(f"its manifest names {name}, which is missing", where=word, hint="name another file in it")
    return directory / name
