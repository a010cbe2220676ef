"""Repeat a recorded run: find its spec, code, data and checkpoints again, with the options that it had."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from repro_env.io.files import digest_of, sha256_of
from repro_env.runs.records import checkpointstate, ids, records
from repro_env.runs.records.records import Run
from repro_env.runs.specsearch import Found, Specs
from repro_env.runs.start import snapshot, sourcedirectory
from repro_env.runs.start.origin import Project, Submitted
from repro_env.runs.start.request import SIZES, RunOptions, pairs_of, streams_to_repeat
from repro_env.runs.start.sourcedirectory import SourceDirectory
from repro_env.sandbox import notebook, plan
from repro_env.schema.environment import Variable
from repro_env.schema.errors import DataError, RecordError, ReproEnvError, SourceError, SpecError, UsageError
from repro_env.schema.progress import Tell
from repro_env.schema.redact import REDACTED
from repro_env.schema.run import End, Mount, Start
from repro_env.schema.rundirectory import CHECKPOINTS_BEFORE, START, locate
from repro_env.schema.spec import Data, Source, Spec
from repro_env.store.store import Store


class Repeat(Submitted, frozen=True, kw_only=True):
    """A run that repeats a recorded one. Its record decides everything but the machine."""

    run: Run
    """The recorded run."""
    spec: Spec
    """That of the run, with its code and its data as the captured ones, which are checked again when the command starts."""
    options: RunOptions
    """Those of the run, and what the user gives again."""
    data: Mapping[str, str]
    """Path in the run -> path on this machine. Data that the record does not have are last."""
    follows_caller: ClassVar[bool] = False

    def working_directory(self, options: RunOptions, code: SourceDirectory, workspace: str) -> Path:  # noqa: ARG002
        """Return the recorded one."""
        return Path(self.start.cwd)

    def record(self, start: Start, options: RunOptions) -> Start:
        """Return the record with the streams of the recorded run and the times of its files."""
        recorded = self.start
        start = super().record(start, options)
        return msgspec.structs.replace(start, source=recorded.source, python_path=recorded.python_path, resumes=recorded.resumes)


def of(run: Run, project: Project, options: RunOptions) -> Repeat:
    """Return the origin that repeats a run with the spec of `project`. The code of the run is in the store afterwards.

    `options`: what the user gives again, because records are not trusted or do not have it: data, variables, the network, and the
    directory of the code. Raises `RecordError`, `SpecError`, `UsageError`, and `SourceError` if the recorded code is not found.
    """
    start = run.start
    resumed = _resumed(run)
    if project.spec.digest != start.spec:
        raise SpecError(
            f"this is not the spec of the run ({start.spec[:19]}…)", where=str(project.directory), hint="name the run's spec"
        )
    _check_given(run, options)
    data = {fact.target: fact.source for fact in start.data if fact.kind == "data"}
    for source, target in pairs_of(options.data):
        path = os.path.normpath(options.here / source)
        data[target or path] = path
    spec = _restore_source(run, project, options)
    kept = snapshot.drop_missing(start.source, project.store)
    code = msgspec.structs.replace(kept, directory=None, differs=(), restored=(), not_in_run={})
    return Repeat(
        run_id=ids.new(),
        resumed=resumed,
        start=msgspec.structs.replace(start, source=code),
        run=run,
        spec=spec,
        data=data,
        options=_options(run, options, data),
    )


def end_of(run: Run) -> End:
    """Return the end of a run. Raises `RecordError` if the run cannot be repeated."""

    def refused(what: str, hint: str, where: str = run.directory.name) -> RecordError:
        return RecordError(what, where=where, hint=hint)

    if run.state == "running":
        raise refused("this run is still running", "wait until it ends")
    if run.end is None:
        raise refused("this run was interrupted, so its results are not recorded", "verify a run that ended by itself")
    start_file = run.directory / START
    if run.end.start not in (None, f"sha256:{sha256_of(start_file)}"):
        what = "this file was changed after the run: end.json has a different digest for it"
        raise refused(what, "restore it from a backup", str(start_file))
    if signal := run.end.outcome.signal or run.end.outcome.interrupted:
        what = f"this run was ended by signal {signal}, so it stopped at an arbitrary point"
        raise refused(what, "verify a run that ended by itself")
    if run.start.command == notebook.COMMAND:
        what = "this run was the kernel of a notebook, and nothing can execute its cells again, because records do not have them"
        raise refused(what, "run the notebook with `repro-env exec jupyter execute`, and verify that run")
    if run.start.processes > 1:
        what = f"this run had {run.start.processes} processes of a launcher such as srun, and verify starts one process"
        raise refused(what, "start it again with the launcher, and compare both runs with `repro-env runs compare`")
    if any(REDACTED in word for word in run.start.command):
        what = "the command of this run has a secret, which records do not store"
        raise refused(what, "run it again, pass the secret with --env NAME, and verify that run")
    if not run.start.command_is_exact:
        what = "the command of this run has bytes that are not UTF-8, or a very long word, which records do not store"
        raise refused(what, "put the code or the name into a file, read that, and verify that run")
    return run.end


def _resumed(run: Run) -> Run | None:
    """Return the run with whose outputs this one started; None without one.

    Raises `RecordError` if these outputs are not the recorded ones any more, or if they were never recorded.
    """
    if run.start.resume_of is None:
        return None
    digest = next((parent.record for parent in run.start.parents if parent.how == "outputs"), None)
    runs = records.listing(run.directory.parent)[0]
    resumed = next((other for other in runs if other.id == run.start.resume_of), None)
    name = f"the run {ids.short(run.start.resume_of)}, with whose outputs this one started,"
    if resumed is None:
        hint = "restore it, or get it with `repro-env runs pull`"
        raise RecordError(f"{name} was not found", where=str(run.directory.parent), hint=hint)
    if resumed.end is None or resumed.end_digest != digest:
        why = "was killed, so its outputs are not recorded" if digest is None else "has another record now"
        raise RecordError(f"{name} {why}", where=resumed.directory.name, hint="verify a run that ended by itself")
    for output in resumed.end.outputs:
        path = locate(resumed.files, output.path)
        if digest_of(path, below=resumed.directory) != output.sha256:
            hint = "restore this file from a copy"
            raise RecordError(f"{name} does not have its recorded output any more", where=str(path), hint=hint)
    return resumed


def find_spec(run: Run, *, here: Path, store: Store) -> Found:
    """Search for the run's spec. Raises `SpecError` if it is not found."""
    found = Specs(run.directory.parent, here, store).of(run.start)
    if found is None:
        raise SpecError(
            f"the spec of this run ({run.start.spec[:19]}…) was not found next to the runs, here or in the store",
            where=run.directory.name,
            hint="get it from the person who made the run, and name it with --spec: a directory, an archive or a registry's REF",
        )
    return found


def _check_given(run: Run, options: RunOptions) -> None:
    """Raise `UsageError` if the run had variables or the network, and the caller does not pass them again.

    Records are not trusted: a command must not get the caller's variables or network only because its record names them.
    """
    if run.start.network and run.start.traits.has_own_network and not options.network:
        raise UsageError(
            "the recorded run had access to the network, and `verify` grants it only on request",
            where=run.directory.name,
            hint="allow it with --network",
        )
    if missing := [name for name in run.start.env_names if name not in options.env]:
        raise UsageError(
            f"the variable {missing[0]} was passed to the run, and records do not store values",
            where=run.directory.name,
            hint=f"pass it again: --env {missing[0]}=VALUE, or --env {missing[0]} for its value in your shell",
        )


def _restore_source(run: Run, project: Project, options: RunOptions) -> Spec:
    """Copy the run's source into the store, and return the spec with that source and the run's data as the captured ones."""
    fact, spec, given = run.start.source, project.spec, options.source
    source = spec.observed.source
    if source is None:
        raise SourceError("this spec has no source", where=str(project.directory), hint="capture again with --source DIR")
    # If it was captured again elsewhere later, the run saw its code at the earlier path.
    source = msgspec.structs.replace(source, path=fact.path)
    project = msgspec.structs.replace(project, spec=_observed(spec, source=source))
    places: list[Path | None] = [given] if given is not None else []
    if given is None and project.store.layers.path(fact.digest) is None:
        places = _candidates(run, project, source, options.here)
    if places and not any(_has_source(run, project, source, place) for place in places):
        problem, example = f"the code of this run ({fact.digest[:19]}…)", "for example a Git worktree of its commit"
        if given is not None:
            raise SourceError(
                f"{problem} is not in this directory",
                where=f"--source {given}",
                hint=f"verify runs only the recorded code: name a directory that has it, {example}, or omit --source",
            )
        raise SourceError(
            f"{problem} was not found in the store, next to the spec or in its directory",
            where=run.directory.name,
            hint=f"restore the code in {sourcedirectory.source_directory(fact)}, or name a directory that has it, "
            f"{example}: --source DIR",
        )
    tree = msgspec.structs.replace(source.tree, sha256=fact.digest)
    data = [Data(path=item.target, digest=item.digest, files=0, size=0) for item in run.start.data if item.digest is not None]
    return _observed(spec, source=msgspec.structs.replace(source, tree=tree), data=tuple(data))


def _observed(spec: Spec, **changes: object) -> Spec:
    """Return a spec with other observations."""
    return msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, **changes))


def _candidates(run: Run, project: Project, source: Source, here: Path) -> list[Path | None]:
    """Return the places that may have the code of a run; None stands for the captured files."""
    spec, directory, store = project.spec, project.directory, project.store
    directories = [project.runs.absolute().parent, here]
    with contextlib.suppress(ReproEnvError):  # the run's code may be found without the source directory
        chosen = sourcedirectory.choose(spec, directory, store=store).path
        directories = [*([chosen] if chosen is not None else []), *directories]
    if sourcedirectory.is_trusted(spec, directory, store):
        directories.insert(0, sourcedirectory.source_directory(run.start.source))
    captured = [None] if source.tree.sha256 == run.start.source.digest else []
    return [*captured, *dict.fromkeys(directories)]


def _has_source(run: Run, project: Project, source: Source, place: Path | None) -> bool:
    """Whether a place has the run's code. If so, the code is in the store afterwards."""
    with contextlib.suppress(ReproEnvError, OSError):
        if place is None or sourcedirectory.holds(source, place):
            without = () if place is None else sourcedirectory.checkpoint_directories(run.start, place)
            restore = bool(run.start.source.restored)
            return project.snapshot(place, without=without, restore=restore).fact.digest == run.start.source.digest
    return False


def _options(run: Run, options: RunOptions, data: Mapping[str, str]) -> RunOptions:
    """Return `options` with those of a run."""
    start, streams, environ = run.start, streams_to_repeat(run.start, run.end), options.environ
    if start.terminal_type is not None:
        environ = {**environ, "TERM": start.terminal_type}
    if streams is not None:
        environ = {name: value for name, value in environ.items() if name not in SIZES and (name != "TERM" or value)}
        environ |= {name: str(size) for name, size in streams.variables}
    return msgspec.structs.replace(
        options,
        command=start.words or start.command,
        here=Path(start.cwd),
        environ=environ,
        gpus=(start.gpus or "none") if options.traits.is_isolated and start.traits.is_isolated else None,
        data=[(source, target) for target, source in data.items()],
        seed=start.seed,
        ranks=start.ranks,
        determinism=start.determinism,
        ids=start.ids,
        threads=threads_option(start.threads),
        trace=start.trace,
        network=start.network and start.traits.has_own_network,
        source=None,
        frozen=True,
        streams=streams,
    )


def threads_option(recorded: Sequence[Variable]) -> int | None:
    """Return the value of `--threads`: only this option sets all of these variables to one number (`sandbox.plan.threads`)."""
    counts = {variable.value for variable in recorded}
    is_option = {variable.name for variable in recorded} == plan.THREADS and len(counts) == 1
    return int(count) if is_option and (count := counts.pop()).isdigit() else None


def data_problems(run: Run, paths: Mapping[str, str], store: Store, tell: Tell) -> list[str]:
    """Return a line for each data path that is missing, or that has changed since the run. `paths`: as `Repeat.data`."""
    from repro_env.environment.source.data import look

    problems = []
    for fact in (fact for fact in run.start.data if fact.kind == "data"):
        path = paths[fact.target]
        if fact.digest is None:  # without this check a forged record could mount any directory of this machine
            problems.append(f"data {path}: the record has no digest of these data, so they cannot be compared")
            continue
        try:
            if look(Path(path), fact.target, store.hashes, tell).data.digest != fact.digest:
                problems.append(f"data {path} have changed since the run")
        except DataError as error:
            problems.append(f"data {path}: {error.what}")
    return problems


def checkpoint_mounts(run: Run) -> list[Mount]:
    """Return the mounts of the run's checkpoint directories."""
    facts = (fact for fact in run.start.data if fact.kind == "checkpoints")
    return [Mount(kind="checkpoints", source=fact.source, target=fact.target) for fact in facts]


def copy_checkpoints(run: Run, to: Path) -> tuple[list[Mount], list[str]]:
    """Copy the checkpoints that the run started with to `to`. Returns the mounts of the copies, and problems."""
    mounts = checkpoint_mounts(run)
    if not mounts:
        return [], []
    listing = checkpointstate.read(run.directory, CHECKPOINTS_BEFORE, run.start.checkpoints_before)
    if listing is None:
        return [], ["the record does not list the files that were in its checkpoint directories before the run"]
    return checkpointstate.copy_files(listing, mounts, to)
