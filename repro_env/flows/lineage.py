"""The story of `repro-env lineage`: a weights file, a digest or a run -> who made it, from what, and what came of it.

Every runs folder that was ever seen here is asked (`store.seen`). The index only leads to records; what is answered
stands in the record. "Nobody knows" is said after every record was read anew.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.catalog import lineage, manifest, origin, records
from repro_env.catalog.index import Summary
from repro_env.catalog.lineage import Family, Use
from repro_env.catalog.origin import Origin
from repro_env.catalog.parents import run_above
from repro_env.catalog.records import Run, Unreadable
from repro_env.flows import specof
from repro_env.flows.known import Known, known
from repro_env.flows.makers import Makers, remembered
from repro_env.flows.runs import where
from repro_env.io.files import sha256_of
from repro_env.model.errors import DataError, RecordError, UsageError
from repro_env.model.talk import Tell
from repro_env.store.store import Store

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})")
_LEAST = 4
"""Characters of a run's name that may stand for it."""


class Answer(msgspec.Struct, frozen=True):
    asked: str
    file: Path | None
    """The file that was meant, symlinks resolved."""
    size: int | None
    digest: str
    """Of the file, or the one that was asked for; empty where a run was."""
    origins: tuple[Origin, ...]
    """The run that is told in full first, the others from the oldest on."""
    uses: tuple[Use, ...]
    """Where else the digest stands in records, the oldest first."""
    run: Run | None
    """The run that made it, or the one that was asked for."""
    summary: Summary | None
    """Of `run`."""
    family: Family | None
    """Of `run`."""
    manifest: manifest.Found | None
    metadata: Mapping[str, str]
    """What a safetensors file says of itself."""
    spec: specof.Found | None
    """Of `run`, where it is still to be had."""
    looked: tuple[Path, ...]
    """Runs folders."""
    missing: tuple[Path, ...]
    """Those that were seen once and are not there now."""
    unreadable: tuple[Unreadable, ...]
    notes: tuple[str, ...]

    @property
    def known(self) -> bool:
        """Whether the question has an answer: who made it, or which runs stand on it. That a run was given it is none."""
        return self.run is not None or any(use.role in ("source", "spec", "image") for use in self.uses)


def lineage_of(word: str, here: Path, *, runs: Path | None, store: Store, tell: Tell) -> Answer:
    """`word`: a file, a checkpoint's or a run's folder, (the beginning of) a sha256, or any name of a run.

    `runs`: a runs folder to look into as well. Raises `DataError` for a file that is not there, `RecordError` for a run that is
    not known, `UsageError` for a word that may mean several things.
    """
    return _Story(word, here, runs, store, tell).answer()


class _Story:
    def __init__(self, word: str, here: Path, runs: Path | None, store: Store, tell: Tell) -> None:
        self._word = word
        self._here = here
        self._given = runs
        self._store = store
        self._tell = tell
        self._notes: list[str] = []
        self._near: Path | None = None
        """The runs folder among whose runs the asked file lies."""
        self._known = Known()
        self._makers = Makers(self._known, self._notes)

    def answer(self) -> Answer:
        path, mode = _path(self._here, self._word)
        if stat.S_ISDIR(mode):
            if (path / "start.json").is_file():
                self._look(near=path.parent)
                return self._of_run(records.read(path))
            path, mode = _weights(path, self._word), stat.S_IFREG
        if stat.S_ISREG(mode):
            return self._of_file(path)
        if mode:
            raise DataError("is neither a file nor a folder", where=self._word, hint="name a plain file")
        digest = _DIGEST.fullmatch(self._word)
        self._look()
        if self._word.startswith("sha256:") or (digest and len(digest[1]) == 64):
            if digest is None:
                raise UsageError("is no sha256", where=self._word, hint="give sha256: and at least 8 of its hexadecimal digits")
            return self._of_digest(f"sha256:{digest[1]}", None, None)
        run = self._named()
        if run is not None:
            return self._of_run(run)
        if digest is not None:
            return self._of_digest(f"sha256:{digest[1]}", None, None)
        if "/" in self._word or "." in self._word:
            raise DataError("no such file", where=self._word, hint="name a file, a sha256, or a run")
        raise RecordError(
            f"there is no run {self._word!r}, nor a file of that name",
            where=self._known.places,
            hint="`repro-env runs list` shows runs; name their folder with --runs DIR",
        )

    def _look(self, near: Path | None = None, *, anew: bool = False) -> None:
        """Ask every folder; the one nearest to what is asked first."""
        if self._given is not None and not self._given.is_dir():
            what = "is no folder" if self._given.exists() else "is not there"
            raise RecordError(what, where=str(self._given), hint="name a folder of runs with --runs DIR, or leave it out")
        first = [folder for folder in (near, self._given, self._default()) if folder is not None]
        self._known = known(first, self._store, anew=anew)
        self._makers = Makers(self._known, self._notes)
        self._notes += self._known.notes

    def _default(self) -> Path | None:
        try:
            return where(None, self._here)
        except RecordError:
            return None

    def _named(self) -> Run | None:
        """The run that the word is a name of. Raises `RecordError` when it may be several."""
        word, runs = self._word, self._known.runs
        if word == records.LATEST:
            folder = where(self._given, self._here)
            return records.read(records.find(folder, word))
        found = [one for one in runs.values() if word in (one.id, one.short, Path(one.folder).name)]
        if not found and len(word) >= _LEAST:
            found = [
                one for one in runs.values() if any(name.startswith(word) for name in (one.short, Path(one.folder).name, one.id))
            ]
        if len(found) > 1:
            names = ", ".join(sorted(one.short for one in found)[:5])
            raise RecordError(f"{word!r} means {len(found)} runs: {names}", where=self._known.places, hint="give more of the id")
        return records.read(Path(found[0].folder)) if found else None

    def _of_run(self, run: Run) -> Answer:
        return self._answer(run=run)

    def _of_file(self, path: Path) -> Answer:
        inside = run_above(path)
        self._near = None if inside is None else inside.parent
        self._look(near=self._near)
        try:
            size = path.stat().st_size
            with self._tell.progress(0, f"hashing {path.name}"):
                digest = f"sha256:{sha256_of(path)}"
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", where=str(path), hint="make it readable for you") from None
        if digest == lineage.EMPTY:
            self._notes.append("it is empty: its bytes tell nothing of where it came from")
        return self._of_digest(digest, path, size)

    def _of_digest(self, digest: str, path: Path | None, size: int | None) -> Answer:
        place = None if path is None else self._makers.place(path, digest)
        claim = None if path is None else self._makers.claim(path, digest)
        uses, origins = self._recorded(digest)
        if not origins and not uses:
            # "Nobody knows" is never said from the index.
            self._look(near=self._near, anew=True)
            uses, origins = self._recorded(digest)
        if place is not None:
            origins = [place, *(one for one in origins if one.run.id != place.run.id)]
        if claim is not None:
            origins += origin.claimed([claim], digest, self._known.runs, origins)
        if not origins and digest != lineage.EMPTY:
            found = self._makers.manifests()
            origins = origin.claimed(found, digest, self._known.runs, ())
            claim = claim or next((one for one in found if origin.file_in(one, digest)), None)
        if not origins and size:
            origins = list(self._makers.left(digest, size))
        if not origins:
            self._notes += remembered(digest, self._known, self._store)
        origin.check_one(self._word, origins, uses)
        origins = origin.ordered(origins)
        told = origin.first(origins, place, claim)
        whose = told.run if told is not None else next((use.run for use in uses if use.role == "record"), None)
        return self._answer(
            run=None if whose is None else records.read(Path(whose.folder)),
            digest=told.digest if told is not None else digest,
            path=path,
            size=size,
            origins=([] if told is None else [told]) + [one for one in origins if one is not told],
            uses=uses,
            claim=claim,
        )

    def _recorded(self, digest: str) -> tuple[tuple[Use, ...], list[Origin]]:
        """Where records have a digest: among what went in, among the outputs."""
        uses = lineage.uses(digest, self._known.runs.values(), self._known.outputs)
        return tuple(use for use in uses if use.role != "output"), list(origin.recorded(uses, digest))

    def _answer(
        self,
        *,
        run: Run | None,
        digest: str = "",
        path: Path | None = None,
        size: int | None = None,
        origins: Sequence[Origin] = (),
        uses: Sequence[Use] = (),
        claim: manifest.Found | None = None,
    ) -> Answer:
        there = self._known
        family = spec = summary = None
        if run is not None:
            summary = self._makers.summary(run)
            between = {*lineage.edges({**there.runs, summary.id: summary}, there.outputs), *self._makers.resumed()}
            family = lineage.family(summary.id, there.runs, sorted(between))
            spec = specof.Specs(run.folder.parent, self._here, self._store).of(run.start)
        return Answer(
            asked=self._word,
            file=path,
            size=size,
            digest=digest,
            origins=tuple(origins),
            uses=tuple(uses),
            run=run,
            summary=summary,
            family=family,
            manifest=claim,
            metadata={} if path is None else manifest.metadata(path),
            spec=spec,
            looked=there.looked,
            missing=there.missing,
            unreadable=there.unreadable,
            notes=tuple(dict.fromkeys(self._notes)),
        )


def _path(here: Path, word: str) -> tuple[Path, int]:
    """Where a word leads, and the mode of what is there; 0 for nothing. Raises `DataError` where that cannot be told."""
    try:
        path = Path(os.path.realpath(here / word))
        return path, path.stat().st_mode if word else 0
    except PermissionError as error:
        raise DataError(f"cannot be looked at: {error.strerror}", where=word, hint="make its folder readable for you") from None
    except (OSError, ValueError):  # not there; too long, or with a NUL, for a path
        return here, 0


def _weights(folder: Path, word: str) -> Path:
    """The file that stands for a checkpoint's folder: the largest with weights, or the largest."""
    found = manifest.read(folder / manifest.NAME)
    if found is None or not found.manifest.files:
        raise UsageError("is a folder, and neither a checkpoint nor a run", where=word, hint="name a file in it")
    files = found.manifest.files
    name = max(sorted(files), key=lambda one: (one.endswith(".safetensors"), files[one].size))
    if "/" in name or not (folder / name).is_file():
        raise DataError(f"its manifest names {name}, which is not there", where=word, hint="name a file that is there")
    return folder / name
