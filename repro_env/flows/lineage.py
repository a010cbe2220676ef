"""The story of `repro-env lineage`: a weights file, a digest or a run -> who made it, from what, and what came of it.

Every runs folder that was ever seen here is asked (`store.seen`). The index only leads to records; what is answered
stands in the record. "Nobody knows" is said after every record was read anew.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.catalog import index, lineage, manifest, records
from repro_env.catalog.index import Index, Summary
from repro_env.catalog.left import left
from repro_env.catalog.lineage import Edge, Family, Use
from repro_env.catalog.parents import run_above
from repro_env.catalog.records import Run, Unreadable
from repro_env.flows import specof
from repro_env.flows.runs import where
from repro_env.io.files import Found, sha256_of, walk
from repro_env.model.errors import DataError, RecordError, ReproEnvError, UsageError
from repro_env.model.talk import Tell
from repro_env.store.store import Store

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})")
_LEAST = 4
"""Characters of a run's name that may stand for it."""
_SURE = ("output", "checkpoints", "manifest", "left")
"""How a run is known to have written something, the surest first."""
_LONG = 1 << 30
"""Bytes to read from which on it is told."""


class Origin(msgspec.Struct, frozen=True):
    """A run that wrote the bytes."""

    run: Summary
    how: Literal["output", "checkpoints", "manifest", "left"]
    """`output`: the run's record has them. `checkpoints`: they came into its folder of checkpoints while it ran. `manifest`: a
    checkpoint's manifest says so, and its run is known. `left`: they lie among the files of a run that has no end, so no
    record vouches for them."""
    paths: tuple[str, ...]
    """Within the run's files; as the run saw them; of the manifest."""
    digest: str


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


class _Known(msgspec.Struct, frozen=True):
    """All that records here say."""

    runs: Mapping[str, Summary]
    """By id; of one that lies in several folders, the nearest."""
    outputs: Mapping[str, bytes]
    looked: tuple[Path, ...]
    missing: tuple[Path, ...]
    unreadable: tuple[Unreadable, ...]


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
        self._searched: dict[Path, list[manifest.Found]] = {}
        self._known = _Known({}, {}, (), (), ())

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
            where=_places(self._known.looked),
            hint="`repro-env runs list` shows runs; name their folder with --runs DIR",
        )

    def _look(self, near: Path | None = None, *, anew: bool = False) -> None:
        """Ask every folder; the one nearest to what is asked first."""
        first = [folder for folder in (near, self._given, self._default()) if folder is not None]
        if self._given is not None:
            records.folders(self._given)  # what is no folder is refused
        for folder in first:
            if folder.is_dir():
                self._store.seen.see(folder)
        every = dict.fromkeys([*(Path(os.path.realpath(folder)) for folder in first), *self._store.seen.folders()])
        kept = Index(self._store.runs)
        runs: dict[str, Summary] = {}
        outputs: dict[str, bytes] = {}
        looked: list[Path] = []
        missing: list[Path] = []
        unreadable: list[Unreadable] = []
        for folder in every:
            if not folder.is_dir():
                missing.append(folder)
                continue
            try:
                found = kept.listing(folder, outputs=True, anew=anew)
            except ReproEnvError as error:
                self._notes.append(f"not looked into: {error}")
                continue
            except OSError as error:
                self._notes.append(f"not looked into: {folder}: {error.strerror}")
                continue
            looked.append(folder)
            for one in found.runs:
                runs.setdefault(one.id, one)
            outputs.update(found.outputs)
            unreadable += found.unreadable
        self._known = _Known(runs, outputs, tuple(looked), tuple(missing), tuple(unreadable))

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
            raise RecordError(
                f"{word!r} means {len(found)} runs: {names}", where=_places(self._known.looked), hint="give more of the id"
            )
        return records.read(Path(found[0].folder)) if found else None

    def _of_run(self, run: Run) -> Answer:
        return self._answer(run=run)

    def _of_file(self, path: Path) -> Answer:
        inside = run_above(path)
        self._near = None if inside is None else inside.parent
        self._look(near=self._near)
        try:
            size = path.stat().st_size
            if size >= _LONG:
                self._tell(f"hashing {path.name} ({size:,} bytes)")
            digest = f"sha256:{sha256_of(path)}"
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", where=str(path), hint="make it readable for you") from None
        if digest == lineage.EMPTY:
            self._notes.append("it is empty: its bytes tell nothing of where it came from")
        return self._of_digest(digest, path, size)

    def _of_digest(self, digest: str, path: Path | None, size: int | None) -> Answer:
        place = None if path is None else self._place(path, digest)
        claim = None if path is None else self._claim(path, digest)
        uses, origins = self._recorded(digest)
        if not origins and not uses:
            # "Nobody knows" is never said from the index.
            self._look(near=self._near, anew=True)
            uses, origins = self._recorded(digest)
        if place is not None:
            origins = [place, *(one for one in origins if one.run.id != place.run.id)]
        if claim is not None:
            origins += self._claimed([claim], digest, origins)
        if not origins and digest != lineage.EMPTY:
            found = self._manifests(self._everywhere())
            origins = self._claimed(found, digest, ())
            claim = claim or next((one for one in found if _file_in(one, digest)), None)
        if not origins and size:
            origins = list(self._left(digest, size))
        if not origins:
            self._remember(digest)
        _one_digest(self._word, origins, uses)
        origins.sort(key=lambda one: (_SURE.index(one.how), one.run.id))
        told = _first(origins, place, claim)
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
        return tuple(use for use in uses if use.role != "output"), list(_outputs(uses, digest))

    def _place(self, path: Path, digest: str) -> Origin | None:
        """The run in whose files a file lies; only where its record says so, or where it has none yet."""
        folder = run_above(path)
        if folder is None:
            return None
        try:
            run = records.read(folder)
        except ReproEnvError as error:
            self._notes.append(f"it lies among the files of a run whose record cannot be read: {error}")
            return None
        summary = self._summary(run)
        name = path.relative_to(run.files).as_posix()
        if run.end is None:
            return Origin(summary, "left", (name,), digest)
        recorded = next((one.sha256 for one in run.end.outputs if one.path == name), None)
        if recorded == digest:
            return Origin(summary, "output", (name,), digest)
        if recorded is None:
            self._notes.append(f"it lies among the files of run {run.short}, which did not record it: it was put there later")
        else:
            self._notes.append(f"it lies among the files of run {run.short}, which recorded {recorded}: it was changed since")
        return None

    def _summary(self, run: Run) -> Summary:
        known = self._known.runs.get(run.start.id)
        return known if known is not None and known.folder == str(run.folder) else index.summary(run)

    def _claim(self, path: Path, digest: str) -> manifest.Found | None:
        """The manifest beside a file, when it speaks of these bytes."""
        try:
            found = manifest.beside(path)
        except ReproEnvError as error:
            self._notes.append(f"the manifest beside it was not used: {error}")
            return None
        if found is None:
            return None
        if f"sha256:{found.manifest.files[path.name].sha256}" != digest:
            self._notes.append(f"{found.path} names other bytes for it: it was changed since")
            return None
        if found.manifest.run and found.manifest.run not in self._known.runs:
            self._notes.append(f"{found.path} names run {found.manifest.run}, whose record is not known here")
        return found

    def _claimed(self, found: Iterable[manifest.Found], digest: str, have: Sequence[Origin]) -> list[Origin]:
        """Runs that manifests name for a digest, and that are known; each once."""
        ids = {one.run.id for one in have}
        made: dict[str, Origin] = {}
        for one in found:
            run = self._known.runs.get(one.manifest.run)
            kept = _file_in(one, digest)
            if run is not None and run.id not in ids and kept:
                paths = (*(made[run.id].paths if run.id in made else ()), str(one.path))
                made[run.id] = Origin(run, "manifest", paths, f"sha256:{kept}")
        return list(made.values())

    def _unfinished(self) -> list[Summary]:
        return [one for one in self._known.runs.values() if one.state != "done"]

    def _everywhere(self) -> list[Path]:
        """Folders with checkpoints that no record vouches for."""
        mounted = {Path(each.path) for one in self._known.runs.values() for each in one.data if each.role == "checkpoints"}
        return [*sorted(mounted), *(one.files for one in self._unfinished())]

    def _manifests(self, folders: Iterable[Path]) -> list[manifest.Found]:
        return [one for folder in dict.fromkeys(folders) for one in self._below(folder)]

    def _below(self, folder: Path) -> list[manifest.Found]:
        if folder not in self._searched:
            found = self._searched[folder] = []
            paths, whole = manifest.below(folder)
            if not whole:
                self._notes.append(f"not all of {folder} was searched for checkpoints")
            for path in paths:
                with contextlib.suppress(ReproEnvError):  # somebody else's file, or one that is being written
                    one = manifest.read(path)
                    if one is not None:
                        found.append(one)
        return self._searched[folder]

    def _left(self, digest: str, size: int) -> Iterator[Origin]:
        """Runs without an end that have a file of these bytes."""
        for run in self._unfinished():
            paths = tuple(one.path for one in _files(run.files) if one.size == size and _is(run.files / one.path, digest))
            if paths:
                yield Origin(run, "left", paths, digest)

    def _remember(self, digest: str) -> None:
        """Tell of runs whose folder is not there now: no record can be asked, so they are no answer."""
        kept = Index(self._store.runs)
        for folder in self._known.missing:
            found = kept.remembered(folder)
            made = [use.run for use in lineage.uses(digest, found.runs, found.outputs) if use.role == "output"]
            for run in made[:3]:
                self._notes.append(
                    f"{folder} is not there now; as far as is remembered, run {run.short} wrote it there on {run.started}:"
                    f" {shlex.join(run.command)}; image {run.image}, spec {run.spec}, source {run.source}, seed {run.seed}"
                )

    def _resumed(self) -> Iterator[Edge]:
        """What runs without an end went on from: only their checkpoints say so."""
        unfinished = {one.id: one for one in self._unfinished()}
        folders = [one.files for one in unfinished.values()]
        folders += [Path(each.path) for one in unfinished.values() for each in one.data if each.role == "checkpoints"]
        for one in self._manifests(folders):
            parent = one.manifest.parent
            if one.manifest.run in unfinished and parent is not None and parent.run and parent.run != one.manifest.run:
                yield Edge(parent.run, one.manifest.run, "resumed")

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
        known = self._known
        family = spec = summary = None
        if run is not None:
            summary = self._summary(run)
            between = {*lineage.edges({**known.runs, summary.id: summary}, known.outputs), *self._resumed()}
            family = lineage.family(summary.id, known.runs, sorted(between))
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
            looked=known.looked,
            missing=known.missing,
            unreadable=known.unreadable,
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


def _outputs(uses: Sequence[Use], digest: str) -> Iterator[Origin]:
    """Runs whose records, read now, have an output of this digest. One of which the record is gone meanwhile is left out."""
    for use in uses:
        if use.role != "output":
            continue
        try:
            run = records.read(Path(use.run.folder))
        except ReproEnvError:
            continue
        outputs = [(one.path, one.sha256) for one in (run.end.outputs if run.end is not None else ())]
        beside = [(one.shown, one.sha256) for one in left(run.folder, run.start, run.end)]
        for each in sorted({sha256 for _, sha256 in (*outputs, *beside) if sha256.startswith(digest)}):
            inside = tuple(path for path, sha256 in outputs if sha256 == each)
            outside = tuple(path for path, sha256 in beside if sha256 == each)
            yield Origin(use.run, "output" if inside else "checkpoints", inside or outside, each)


def _file_in(found: manifest.Found, digest: str) -> str:
    """The digest of a checkpoint's file that begins so, bare; empty where it has none."""
    start = digest.removeprefix("sha256:")
    if f"sha256:{start}" == lineage.EMPTY:
        return ""
    return next((each.sha256 for each in found.manifest.files.values() if each.sha256.startswith(start)), "")


def _one_digest(word: str, origins: Sequence[Origin], uses: Sequence[Use]) -> None:
    """Raises `UsageError` when the beginning of a digest is that of several."""
    every = {one.digest for one in origins} | {use.digest for use in uses}
    if len(every) > 1:
        raise UsageError(f"begins {len(every)} digests of known runs", where=word, hint="give more digits")


def _first(origins: Sequence[Origin], place: Origin | None, claim: manifest.Found | None) -> Origin | None:
    """The one whose run is told in full: where the file lies, whom its manifest names, who was the first."""
    if place is not None:
        return place
    named = next((one for one in origins if claim is not None and one.run.id == claim.manifest.run), None)
    return named or (origins[0] if origins else None)


def _files(folder: Path) -> Iterator[Found]:
    """Plain files below; none where that cannot be told."""
    try:
        yield from (one for one in walk(folder) if one.kind == "file")
    except (OSError, ReproEnvError):
        return


def _is(path: Path, digest: str) -> bool:
    try:
        return f"sha256:{sha256_of(path)}" == digest
    except OSError:
        return False


def _places(folders: Sequence[Path]) -> str:
    if not folders:
        return "no runs folder is known here"
    return str(folders[0]) if len(folders) == 1 else f"{folders[0]} and {len(folders) - 1} more"
