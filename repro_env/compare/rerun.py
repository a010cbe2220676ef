"""Find what a recorded run started from: its spec, code, data, checkpoints, variables and options."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.io.files import sha256_of
from repro_env.runs.records import checkpointstate, ids, records
from repro_env.runs.records.records import Run
from repro_env.runs.start import snapshot, sourcedirectory
from repro_env.runs.start.request import SIZES, RunOptions, streams_to_repeat
from repro_env.sandbox import plan
from repro_env.schema.environment import Variable
from repro_env.schema.errors import DataError, RecordError, ReproEnvError, SourceError, SpecError, UsageError
from repro_env.schema.progress import Tell
from repro_env.schema.redact import REDACTED
from repro_env.schema.run import End, Mount
from repro_env.schema.rundirectory import CHECKPOINTS_BEFORE, START, locate
from repro_env.schema.runners import RunnerName
from repro_env.schema.spec import Data, Source, Spec
from repro_env.store.store import Store


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


def resumed_directory(run: Run) -> Path | None:
    """Return the directory of the run with whose outputs this one started; None without one.

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
        try:
            same = f"sha256:{sha256_of(path, below=resumed.directory)}" == output.sha256
        except OSError:
            same = False
        if not same:
            hint = "restore this file from a copy"
            raise RecordError(f"{name} does not have its recorded output any more", where=str(path), hint=hint)
    return resumed.directory


def spec_of(run: Run, name: str | None, *, here: Path, runs: Path, store: Store, tell: Tell) -> tuple[Spec, Path]:
    """Return the run's spec and its directory. `name`: the spec that the user names, or None to search for it."""
    if name is not None:
        from repro_env.specs.argument import open_spec

        opened = open_spec(name, here, store, tell)
        if opened.spec.digest != run.start.spec:
            raise SpecError(f"this is not the spec of the run ({run.start.spec[:19]}…)", where=name, hint="name the run's spec")
        return opened.spec, opened.directory
    from repro_env.runs.specsearch import Specs

    found = Specs(runs, here, store).of(run.start)
    if found is None:
        raise SpecError(
            f"the spec of this run ({run.start.spec[:19]}…) was not found next to the runs, here or in the store",
            where=run.directory.name,
            hint="get it from the person who made the run, and name it with --spec: a directory, an archive or a registry's REF",
        )
    return found.spec, found.directory


def check_given(run: Run, env: Sequence[tuple[str, str | None]], *, network: bool) -> None:
    """Raise `UsageError` if the run had variables or the network, and the caller does not pass them again.

    Records are not trusted: a command must not get the caller's variables or network only because its record names them.
    """
    if run.start.network and run.start.runner != "host" and not network:
        raise UsageError(
            "the recorded run had access to the network, and `verify` grants it only on request",
            where=run.directory.name,
            hint="allow it with --network",
        )
    if missing := [name for name in run.start.env_names if name not in dict(env)]:
        raise UsageError(
            f"the variable {missing[0]} was passed to the run, and records do not store values",
            where=run.directory.name,
            hint=f"pass it again: --env {missing[0]}=VALUE, or --env {missing[0]} for its value in your shell",
        )


def restore_source(
    run: Run, spec: Spec, spec_directory: Path, *, here: Path, runs: Path, store: Store, given: Path | None = None
) -> Spec:
    """Copy the run's source into the store, and return the spec with that source as the captured one.

    `given`: the only directory to search, if the user names one. Raises `SourceError` if the recorded code is not found.
    """
    fact, source = run.start.source, spec.observed.source
    if source is None:
        raise SourceError("this spec has no source", where=str(spec_directory), hint="capture again with --source DIR")
    # If it was captured again elsewhere later, the run saw its code at the earlier path.
    source = msgspec.structs.replace(source, path=fact.path)
    spec = _observed(spec, source=source)
    places: list[Path | None] = [given] if given is not None else []
    if given is None and store.layers.path(fact.digest) is None:
        places = _candidates(run, spec, source, spec_directory, here, runs, store)
    if places and not any(_has_source(run, spec, spec_directory, place, runs, store) for place in places):
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
    return _observed(spec, source=msgspec.structs.replace(source, tree=tree))


def _observed(spec: Spec, **changes: object) -> Spec:
    """Return a spec with other observations."""
    return msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, **changes))


def _candidates(
    run: Run, spec: Spec, source: Source, spec_directory: Path, here: Path, runs: Path, store: Store
) -> list[Path | None]:
    """Return the places that may have the code of a run; None stands for the captured files."""
    directories = [runs.absolute().parent, here]
    with contextlib.suppress(ReproEnvError):  # the run's code may be found without the source directory
        chosen = sourcedirectory.choose(spec, spec_directory, store=store).path
        directories = [*([chosen] if chosen is not None else []), *directories]
    if sourcedirectory.is_trusted(spec, spec_directory, store):
        directories.insert(0, sourcedirectory.source_directory(run.start.source))
    captured = [None] if source.tree.sha256 == run.start.source.digest else []
    return [*captured, *dict.fromkeys(directories)]


def _has_source(run: Run, spec: Spec, spec_directory: Path, place: Path | None, runs: Path, store: Store) -> bool:
    """Whether a place has the run's code. If so, the code is in the store afterwards."""
    fact, source = run.start.source, spec.observed.source
    with contextlib.suppress(ReproEnvError, OSError):
        if source is not None and (place is None or sourcedirectory.holds(source, place)):
            without = () if place is None else sourcedirectory.checkpoint_directories(run.start, place)
            restore = bool(fact.restored)
            code = snapshot.take(spec, spec_directory, directory=place, runs=runs, store=store, without=without, restore=restore)
            return code.fact.digest == fact.digest
    return False


def relocate_data(run: Run, given: Sequence[tuple[str, str]], here: Path) -> tuple[Run, tuple[tuple[str, str], ...]]:
    """Return the run with its data at the paths that the user names, and those (SRC, DST) that its record does not have."""
    paths = {target or os.path.normpath(here / source): os.path.normpath(here / source) for source, target in given}
    recorded = {fact.target for fact in run.start.data if fact.kind == "data"}
    facts = tuple(
        msgspec.structs.replace(fact, source=paths[fact.target]) if fact.kind == "data" and fact.target in paths else fact
        for fact in run.start.data
    )
    more = tuple((source, target) for target, source in paths.items() if target not in recorded)
    return msgspec.structs.replace(run, start=msgspec.structs.replace(run.start, data=facts)), more


def expect_data(spec: Spec, run: Run) -> Spec:
    """Return the spec with the run's data as the expected data, which are checked again when the command starts."""
    expected = [Data(path=fact.target, digest=fact.digest, files=0, size=0) for fact in run.start.data if fact.digest is not None]
    return _observed(spec, data=tuple(expected))


def request(
    run: Run,
    unrecorded: tuple[tuple[str, str], ...],
    env: tuple[tuple[str, str | None], ...],
    environ: Mapping[str, str],
    *,
    note: str,
    runner: RunnerName | None,
    resumed: Path | None,
    store: Store,
) -> RunOptions:
    """Return the options that repeat a run.

    `unrecorded`: data that its record does not have. `runner`: None for the recorded one, or for the embedded one after a host run. `resumed`: as
    `resumed_directory` returned it.
    """
    start, streams = run.start, streams_to_repeat(run.start, run.end)
    if start.terminal_type is not None:
        environ = {**environ, "TERM": start.terminal_type}
    if streams is not None:
        environ = {name: value for name, value in environ.items() if name not in SIZES and (name != "TERM" or value)}
        environ |= {name: str(size) for name, size in streams.variables}
    runner = runner or ("embedded" if start.runner == "host" else start.runner)
    return RunOptions(
        command=start.words or start.command,
        here=Path(start.cwd),
        environ=environ,
        runner=runner,
        gpus=None if "host" in (runner, start.runner) else start.gpus or "none",
        data=(*((fact.source, fact.target) for fact in start.data if fact.kind == "data"), *unrecorded),
        seed=start.seed,
        ranks=start.ranks,
        determinism=start.determinism,
        ids=start.ids,
        threads=threads_option(start.threads),
        trace=start.trace,
        env=env,
        network=start.network and start.runner != "host",
        note=note,
        resume=None if resumed is None else str(resumed.resolve()),
        frozen=True,
        streams=streams,
        recorded=msgspec.structs.replace(start, source=snapshot.drop_missing(start.source, store)),
    )


def threads_option(recorded: Sequence[Variable]) -> int | None:
    """Return the value of `--threads`: only this option sets all of these variables to one number (`sandbox.plan.threads`)."""
    counts = {variable.value for variable in recorded}
    is_option = {variable.name for variable in recorded} == plan.THREADS and len(counts) == 1
    return int(count) if is_option and (count := counts.pop()).isdigit() else None


def data_problems(run: Run, store: Store, tell: Tell) -> list[str]:
    """Return a line for each data path that is missing, or that has changed since the run."""
    from repro_env.environment.source.data import look

    problems = []
    for fact in (fact for fact in run.start.data if fact.kind == "data"):
        if fact.digest is None:  # without this check a forged record could mount any directory of this machine
            problems.append(f"data {fact.source}: the record has no digest of these data, so they cannot be compared")
            continue
        try:
            if look(Path(fact.source), fact.target, store.hashes, tell).data.digest != fact.digest:
                problems.append(f"data {fact.source} have changed since the run")
        except DataError as error:
            problems.append(f"data {fact.source}: {error.what}")
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
