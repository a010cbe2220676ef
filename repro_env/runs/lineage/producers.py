"""Find the runs that wrote the bytes of a file: from records, and from the manifests of checkpoints.

`runs.lineage.knownruns` has read the records of all runs before. Something that cannot be read becomes a note.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from repro_env.runs.lineage import families
from repro_env.runs.lineage.families import EVIDENCE, Edge, Use
from repro_env.runs.lineage.knownruns import AllRuns
from repro_env.runs.lineage.parents import run_containing
from repro_env.runs.records import checkpointmanifest, records
from repro_env.runs.records.records import Run
from repro_env.schema.errors import ReproEnvError, UsageError
from repro_env.schema.rundirectory import output_of


def from_uses(uses: Sequence[Use]) -> list[Use]:
    """Return the uses in which a run wrote the file. An output that is also a checkpoint counts as an output."""
    outputs = {(use.run.id, use.digest) for use in uses if use.how == "output"}
    checkpoints = (use for use in uses if use.how == "checkpoints" and (use.run.id, use.digest) not in outputs)
    return [*(use for use in uses if use.how == "output"), *checkpoints]


def from_manifests(
    files: Iterable[checkpointmanifest.File], digest: str, runs: Mapping[str, Run], exclude: Sequence[Use]
) -> list[Use]:
    """Return the known runs (`runs`, by id) that manifests name for a digest, without those in `exclude`."""
    excluded = {origin.run.id for origin in exclude}
    found: dict[str, Use] = {}
    for file in files:
        run = runs.get(file.manifest.run)
        sha256 = find_digest(file, digest)
        if run is not None and run.id not in excluded and sha256:
            paths = (*(found[run.id].paths if run.id in found else ()), str(file.path))
            found[run.id] = Use(run, "manifest", paths, f"sha256:{sha256}")
    return list(found.values())


def find_digest(file: checkpointmanifest.File, digest: str) -> str:
    """Return the hex digest of the first file in a manifest whose digest starts with `digest`; empty if there is none."""
    prefix = digest.removeprefix("sha256:")
    if f"sha256:{prefix}" == families.EMPTY:
        return ""
    return next((entry.sha256 for entry in file.manifest.files.values() if entry.sha256.startswith(prefix)), "")


def check_unambiguous(word: str, origins: Sequence[Use], uses: Sequence[Use]) -> None:
    """Raise `UsageError` if several digests match `word`."""
    matches = {origin.digest for origin in origins} | {use.digest for use in uses}
    if len(matches) > 1:
        raise UsageError(f"{len(matches)} digests in the records start with {word}", hint="enter more of the digest")


def sort(origins: Iterable[Use]) -> list[Use]:
    """Sort origins by the strength of the evidence, then by the age of the run, the oldest first."""
    return sorted(origins, key=lambda origin: (EVIDENCE.index(origin.how), origin.run.id))


def choose(origins: Sequence[Use], container: Use | None, claim: checkpointmanifest.File | None) -> Use | None:
    """Choose the run to describe: the run that contains the file, else the run in its manifest, else the first origin."""
    if container is not None:
        return container
    claimed = next((origin for origin in origins if claim is not None and origin.run.id == claim.manifest.run), None)
    return claimed or (origins[0] if origins else None)


class Producers:
    """The searches for one answer. Each directory is searched once."""

    def __init__(self, runs: AllRuns, remarks: list[str]) -> None:
        """Look up runs in `runs`, and add remarks for the user to `remarks`."""
        self._runs = runs
        self._remarks = remarks
        self._searched: dict[Path, list[checkpointmanifest.File]] = {}

    def recorded(self, path: Path, digest: str) -> Use | None:
        """Return the run whose directory holds a file, if the run's record has the file's path and digest.

        Otherwise, a note says what the record has instead.
        """
        directory = run_containing(path)
        if directory is None:
            return None
        try:
            run = records.read(directory)
        except ReproEnvError as error:
            self._remarks.append(f"the file is in the directory of a run, but the run's record cannot be read: {error}")
            return None
        where = f"the file is in the directory of run {run.short}"
        if run.end is None:
            self._remarks.append(f"{where}, but that run is {run.state} and has recorded no outputs")
            return None
        name = output_of(path.relative_to(run.directory).as_posix()) or ""
        recorded = next((output.sha256 for output in run.end.outputs if output.path == name), None)
        if recorded == digest:
            return Use(run, "output", (name,), digest)
        if recorded is None:
            self._remarks.append(f"{where}, but the record does not have it: it was added after the run")
        else:
            self._remarks.append(f"{where}, but the record has the digest {recorded}: the file changed after the run")
        return None

    def claim(self, path: Path, digest: str) -> checkpointmanifest.File | None:
        """Return the manifest next to a file, if the manifest has the file's digest."""
        try:
            found = checkpointmanifest.find_for(path)
        except ReproEnvError as error:
            self._remarks.append(f"the manifest next to it was not used: {error}")
            return None
        if found is None:
            return None
        if f"sha256:{found.manifest.files[path.name].sha256}" != digest:
            self._remarks.append(f"{found.path} has another digest for it: the file changed later")
            return None
        if found.manifest.run and found.manifest.run not in self._runs.runs:
            self._remarks.append(f"{found.path} names run {found.manifest.run}, but that run's record is not on this machine")
        return found

    def manifests(self) -> list[checkpointmanifest.File]:
        """Return the manifests in checkpoint directories and in unfinished runs, whose files no record lists."""
        return self._manifests([*sorted(_checkpoint_directories(self._runs.runs.values())), *self._unfinished_files()])

    def _manifests(self, directories: Iterable[Path]) -> list[checkpointmanifest.File]:
        return [found for directory in dict.fromkeys(directories) for found in self._below(directory)]

    def _unfinished_files(self) -> list[Path]:
        return [run.files for run in self._runs.unfinished]

    def _below(self, directory: Path) -> list[checkpointmanifest.File]:
        if directory not in self._searched:
            manifests = self._searched[directory] = []
            paths, is_complete = checkpointmanifest.search(directory)
            if not is_complete:
                self._remarks.append(f"{directory} has too many files: only some of them were searched for checkpoints")
            for path in paths:
                with contextlib.suppress(ReproEnvError):  # not a manifest, or one that is being written
                    found = checkpointmanifest.read(path)
                    if found is not None:
                        manifests.append(found)
        return self._searched[directory]

    def resume_edges(self) -> Iterator[Edge]:
        """Yield the runs that unfinished runs resumed from, which only their checkpoints name."""
        unfinished = self._runs.unfinished
        ids = {run.id for run in unfinished}
        for found in self._manifests([*self._unfinished_files(), *_checkpoint_directories(unfinished)]):
            run, parent = found.manifest.run, found.manifest.parent
            if run in ids and parent is not None and parent.run and parent.run != run:
                yield Edge(parent.run, run, "resumed")


def _checkpoint_directories(runs: Iterable[Run]) -> set[Path]:
    return {Path(fact.source) for run in runs for fact in run.start.data if fact.kind == "checkpoints"}
