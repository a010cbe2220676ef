"""The command `repro-env exec`: run a command with an image and a source, and record the run.

Every check comes before the run directory is created. From then on the run has a record, even if the command fails; a
record without an end means that the run was interrupted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import msgspec

from repro_env.api import preflight, rebuild
from repro_env.api.arguments import Pairs, absolute, pairs_of
from repro_env.api.runs import finish_interrupted
from repro_env.compare.environments.drift import check_drift, check_host, check_imports
from repro_env.compare.preflight.check import facts_of
from repro_env.delivery.builder import layers
from repro_env.io import package
from repro_env.io.files import remove_tree, walk
from repro_env.io.patience import PATIENCE
from repro_env.io.signals import handled
from repro_env.launch import engines
from repro_env.runs.execution import bytecode, imageprogram
from repro_env.runs.execution.advice import Advisor
from repro_env.runs.execution.streams import silent
from repro_env.runs.lineage import parents
from repro_env.runs.lineage.knownruns import read_all_runs
from repro_env.runs.records import annotation, checkpointstate, records, submissions
from repro_env.runs.records import end as ended
from repro_env.runs.records import notes as noted
from repro_env.runs.records.notes import Failure
from repro_env.runs.records.processes import Gathering, Place
from repro_env.runs.records.records import Recording, Run
from repro_env.runs.start import data, devices, launcher, repository, resumption, script, snapshot, sourcedirectory, speccopy
from repro_env.runs.start.inputs import Inputs
from repro_env.runs.start.report import announce, exact_words, redact_command
from repro_env.runs.start.repository import Repository
from repro_env.runs.start.request import (
    RunOptions,
    caller_variables_of,
    host_variables_of,
    mounts_of,
    python_path_of,
    read_env_file,
    secrets_of,
    seed_of,
    streams_of,
    term_of,
    user_of,
    variables_of,
)
from repro_env.runs.start.snapshot import Snapshot
from repro_env.runs.start.sourcedirectory import SourceDirectory
from repro_env.sandbox import fabric, plan
from repro_env.sandbox.runner import Runner
from repro_env.sandbox.runners import runner_class
from repro_env.sandbox.session import FORWARDED
from repro_env.sandbox.workspace import collect, is_collected
from repro_env.schema import redact
from repro_env.schema.environment import Environ
from repro_env.schema.errors import RecordError, ReproEnvError, UsageError
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.run import (
    DataFact,
    End,
    Gpus,
    Ids,
    Limits,
    Member,
    Mode,
    Mount,
    Outcome,
    Parent,
    Process,
    Ranks,
    Request,
    StandardStreams,
    Start,
)
from repro_env.schema.rundirectory import CHECKPOINTS_AFTER, CHECKPOINTS_BEFORE, FILES, NOTES
from repro_env.schema.runners import RunnerName
from repro_env.schema.spec import Spec
from repro_env.specs.argument import Opened, SpecName, current_directory, open_spec
from repro_env.store.specs.lookup import runs_directory
from repro_env.store.store import Store
from repro_env.version import __version__


class FinishedRun(msgspec.Struct, frozen=True):
    directory: Path
    start: Start
    end: End
    failures: tuple[Failure, ...] = ()
    """What a failed command did not find."""
    advice: tuple[str, ...] = ()
    """What the user can do about the failure: one line each."""
    own: Outcome | None = None
    """The outcome of this process, if it shares the run with others."""
    stopped: int = 0
    """The signal that came while the outputs were read, so that they are not all recorded; or 0."""
    is_last: bool = True
    """Whether this process recorded the end of the run. If not, `end` has only what this process knows, and others still run."""

    @property
    def status(self) -> int:
        """The exit code of `exec`."""
        status = (self.own or self.end.outcome).status
        return 128 + self.stopped if self.stopped and not status else status


def execute(
    spec: SpecName,
    command: Sequence[str],
    *,
    data: Pairs = (),
    checkpoints: Pairs = (),
    data_changed: bool = False,
    seed: int | Literal["random"] | None = None,
    ranks: Ranks = "each",
    determinism: Mode = "warn",
    ids: Ids | None = None,
    threads: int | None = None,
    trace: bool = False,
    env: Mapping[str, str | None] | None = None,
    env_file: Path | str | None = None,
    network: bool = False,
    source: Path | str | None = None,
    frozen: bool = False,
    runner: RunnerName = "embedded",
    gpus: int | str | None = None,
    limits: Limits = Limits(),  # noqa: B008  frozen
    parents: Sequence[str] = (),
    tags: Sequence[str] = (),
    note: str = "",
    runs: Path | str | None = None,
    run_id: str | None = None,
    resume: str | None = None,
    keeps_record: bool = True,
    output: bool = False,
    streams: StandardStreams | None = None,
    store: Store | None = None,
    tell: Tell = SILENT,
) -> FinishedRun:
    """Run a command in the image of a spec, and record the run. The options are those of `repro-env exec`.

    A failure of the command itself is not an error: its exit code is `end.outcome.exit_code` of the result. A value of None in
    `env` passes the caller's own value. `gpus` is None, a number, or text as for `--gpus`. `output`: the command prints to the stdout and stderr of this process.
    `streams`: those of another run (`Start.streams`), to connect the standard streams in the same way, without input. Without
    `keeps_record`, messages do not mention the run directory, because the caller removes it. Raises as `run`.
    """
    store = store or Store.open()
    options = options_of(
        command,
        runner=runner,
        data=data,
        checkpoints=checkpoints,
        seed=seed,
        ranks=ranks,
        determinism=determinism,
        ids=ids,
        threads=threads,
        trace=trace,
        parents=parents,
        tags=tags,
        note=note,
        env=env,
        env_file=env_file,
        network=network,
        gpus=gpus,
        limits=limits,
        frozen=frozen,
        source=source,
        data_changed=data_changed,
        runs=runs,
        run_id=run_id,
        resume=resume,
        keeps_record=keeps_record,
        output=output,
        streams=streams,
    )
    return run(options, open_spec(spec, options.here, store, tell), store=store, tell=tell)


def options_of(
    command: Sequence[str],
    *,
    data: Pairs = (),
    checkpoints: Pairs = (),
    determinism: Mode = "warn",
    ids: Ids | None = None,
    env: Mapping[str, str | None] | None = None,
    env_file: Path | str | None = None,
    source: Path | str | None = None,
    parents: Sequence[str] = (),
    tags: Sequence[str] = (),
    runs: Path | str | None = None,
    **others: Any,
) -> RunOptions:
    """Return the options of a run, for the arguments of `execute`. Raises `UsageError`."""
    check_command(command)
    return RunOptions(
        command=tuple(command),
        here=current_directory(),
        environ=Environ(os.environ),
        data=pairs_of(data),
        checkpoints=pairs_of(checkpoints),
        determinism=determinism,
        ids=ids or ("seeded" if determinism == "strict" else "system"),
        parents=tuple(parents),
        tags=tuple(tags),
        env=(*read_env_file(absolute(env_file)), *(env or {}).items()),
        source=absolute(source),
        runs=absolute(runs),
        **others,
    )


def check_command(command: Sequence[str]) -> None:
    """Raise `UsageError` if there is no command."""
    if not command:
        raise UsageError("no command was given", hint="for example: train.py --epochs 3")
    if not command[0]:
        raise UsageError("the command is an empty string", hint="check the variable that it came from")


def run(options: RunOptions, opened: Opened, *, store: Store, tell: Tell, backend: Runner | None = None) -> FinishedRun:
    """Run a command and record it.

    Raises `UsageError`, `DataError`, `DriftError`, `RecordError` for the options; `MachineError` if this machine cannot run the image;
    `SandboxError`, `RunError`, `CommandMissingError` if the command cannot be started; what a rebuild raises.
    """
    shared = launcher.find(options)
    if shared is not None:
        return _run_shared(options, opened, *shared, store=store, tell=tell, backend=backend)
    inputs = prepare(options, opened, compiles=backend is None, store=store, tell=tell)
    announce(inputs, tell)
    with _ready(inputs, store):
        done = _run(inputs, backend or _backend(inputs, store), store, tell)
    return _with_advice(done, inputs, store)


@contextlib.contextmanager
def _ready(inputs: Inputs, store: Store) -> Iterator[None]:
    """Hold what a run uses of the store while it runs."""
    store.run_directories.add(inputs.runs, inputs.start.source.trees)
    # A run may take days, and garbage collection may remove everything that it does not use.
    with store.lease.restrict_to(_used_entries(inputs, store)):
        yield


def _backend(inputs: Inputs, store: Store) -> Runner:
    options = inputs.options
    return imageprogram.runner(inputs.spec, options, store, bytecode=inputs.bytecode, hidden=secrets_of(options))


def _with_advice(done: FinishedRun, inputs: Inputs, store: Store) -> FinishedRun:
    if not done.status or inputs.options.runner in ("host", "pod"):
        return done
    return msgspec.structs.replace(done, advice=Advisor(inputs, store).lines(done.failures, done.directory))


def _run_shared(
    options: RunOptions, opened: Opened, member: Member, key: str, *, store: Store, tell: Tell, backend: Runner | None
) -> FinishedRun:
    """Run a command as one of several processes that share a run (`runs.records.processes`). Raises as `run`."""
    options = msgspec.structs.replace(options, member=member)
    gathering = Gathering(options.runs or opened.runs or runs_directory(opened.directory), key)
    compiles = backend is None
    with gathering:
        directory, inputs = gathering.current(), None
        if directory is None:
            inputs = prepare(options, opened, compiles=compiles, store=store, tell=tell)
            recording = _begin(inputs)
            try:
                _backend(inputs, store).prepare(inputs.launch, recording.directory)
                gathering.announce(recording.directory)
            except BaseException:
                recording.discard()
                raise
        else:
            recording = Recording(directory, -1)
        place = Place(recording.directory, member)
    is_first = inputs is not None
    try:
        if inputs is None:
            run = records.read(recording.directory)
            recording.start_digest = run.start_digest
            inputs = prepare(options, opened, joined=run, compiles=compiles, store=store, tell=tell)
        devices = inputs.launch.gpus.facts
        process = Process(rank=member.rank, local_rank=member.local_rank, node=member.node, exit_code=None, devices=devices)
        with _ended_by_sigterm():
            nodes = list(dict.fromkeys(process.node for process in place.wait(process, gathering)))
        if len(nodes) > 1 and not options.network:
            raise launcher.no_network(f"{len(nodes)} machines ({', '.join(nodes)})")
        if is_first:
            announce(inputs, tell)
            where = f" on {len(nodes)} machines" if len(nodes) > 1 else ""
            tell(f"{member.size} processes{where} share the project directory: if two write the same file, the last one counts")
        with _ready(inputs, store):
            outcome, seconds = _start_command(inputs, backend or _backend(inputs, store), recording)
    except BaseException:
        if _is_last(place, gathering):
            if not place.has_started:
                recording.discard()
            elif inputs is not None:
                _record_end_of_all(inputs, recording, place, store, tell)
        place.close()
        recording.close()
        raise
    failures = noted.read(Path(inputs.launch.notes) / plan.notes_file(member)).failures if outcome.exit_code else ()
    process = msgspec.structs.replace(process, exit_code=outcome.exit_code, signal=outcome.signal, seconds=round(seconds, 3))
    with deferred_signals():
        if _is_last(place, gathering, process, outcome):
            done = _record_end_of_all(inputs, recording, place, store, tell)
        else:
            end = End(
                schema="repro-env/run-end/1", id=inputs.start.id, ended=ended.timestamp(datetime.now(timezone.utc)),
                seconds=process.seconds, outcome=outcome, outputs=(), special_files=(), removed=(), auto_seeded=(),
            )  # fmt: skip
            done = FinishedRun(recording.directory, inputs.start, end, is_last=False)
        place.close()
        recording.close()
    return _with_advice(msgspec.structs.replace(done, own=outcome, failures=failures), inputs, store)


def _is_last(place: Place, gathering: Gathering, process: Process | None = None, outcome: Outcome | None = None) -> bool:
    """Leave a run, as in `Place.leave`. The last process has all its files in the directory of the run."""
    is_last = place.leave(gathering, process, outcome)
    if is_last:
        start = records.read(place.directory).start
        runner_class(start.runner).restore(place.directory, start.id, start.source.path)
    return is_last


def _record_end_of_all(inputs: Inputs, recording: Recording, place: Place, store: Store, tell: Tell) -> FinishedRun:
    """Record the end of a run that processes shared, as the last of them."""
    processes, outcome = place.parts()
    seconds = max(process.seconds for process in processes)
    done = _record_end(inputs, recording, outcome, seconds, store, tell, processes=processes)
    place.tidy()
    return done


def prepare(
    options: RunOptions,
    opened: Opened,
    *,
    compiles: bool,
    is_here: bool = True,
    joined: Run | None = None,
    store: Store,
    tell: Tell,
) -> Inputs:
    """Check the options, and bring the image and the source into the store. Nothing is recorded yet. Raises as `run`.

    `compiles`: also the bytecode of the image. `is_here`: the command runs on this machine, so it is examined, with its GPUs. The
    code of a submitted run is that of the submission, whatever its directory has now. `joined`: the run of another process that this
    one joins. Its code, its seed and its parents are those of that run.
    """
    spec, spec_directory = opened.spec, opened.directory
    if options.runs is None:
        options = msgspec.structs.replace(options, runs=opened.runs)
    is_host = options.runner == "host"
    runs = options.runs or runs_directory(spec_directory)
    run_id, resumed = resumption.find(options, spec, runs) if joined is None else (joined.id, None)
    submission = submissions.read(runs, options.run_id) if options.run_id is not None else None
    made = joined.start if joined is not None else submission.start if submission is not None else None
    if resumed is not None:
        finish_interrupted(resumed, store)
        if not is_collected(resumed.directory):
            raise RecordError(
                "the outputs of this killed run cannot be separated from its code, which is not in the store any more",
                where=str(resumed.directory / FILES),
                hint="copy the outputs into the project, and start a new run",
            )
    given = variables_of(options)
    code = sourcedirectory.choose(spec, spec_directory, store=store, given=options.source, frozen=options.frozen)
    workspace = plan.workspace_of(spec)
    here = options.here if options.recorded is not None else code.inside(options.here, workspace)
    mounts = mounts_of(options, spec, here, tell)
    if made is None and resumed is None and options.recorded is None:
        others = (*(mount.target for mount in mounts), *(item.path for item in spec.observed.data), spec.identity.layout.prefix)
        script.check(options.command, code, here=here, workspace=workspace, others=others)
    for tag in options.tags:
        annotation.check_tag(tag)
    for note in runner_class(options.runner).check(spec, options.limits) if is_here else ():
        tell(f"not as requested: {note}")
    if not is_host:
        layers.check_platform(spec)
    gpus = Gpus()
    if is_here:
        gpus, absence = devices.choose(options, spec)
        checks = preflight.examine(
            spec,
            store,
            gpus=gpus.facts,
            absence=absence,
            runner=options.runner,
            replays_threads=options.determinism != "off",
        )
        preflight.require(checks, spec_directory, here=options.here, tell=tell)
        if options.network and not is_host:
            adapters = fabric.look(facts_of(spec).packages)
            gpus = msgspec.structs.replace(gpus, nodes=(*gpus.nodes, *adapters.nodes))
            if adapters.problem and joined is None:
                tell.warn(adapters.problem)
    run_data = data.collect(
        options,
        spec,
        mounts,
        root=code.root,
        is_trusted=code.path is not None or sourcedirectory.is_trusted(spec, spec_directory, store),
        store=store,
        tell=tell,
    )
    compiled = None
    if is_host:
        check_host(spec, code)
    elif options.traits.needs_image:
        compiled = _prepare_image(options, spec, spec_directory, compiles=compiles, store=store, tell=tell)
    if made is None:
        source, git = _read_source(options, spec, spec_directory, code, workspace, runs, run_data.mounts, store, tell)
    else:
        source = snapshot.recall(made.source, store)
        git = repository.show(spec, source, code.root, workspace, run_data.mounts, store, recorded=made)
    started = datetime.now(timezone.utc)
    command = redact_command(options.command, secrets_of(options))
    words = exact_words(options.command, command)
    start = Start(
        schema="repro-env/run-start/1",
        id=run_id,
        started=ended.timestamp(started),
        spec=spec.digest,
        image=spec.expected.image_id,
        runner=options.runner,
        command=command,
        cwd=plan.working_directory(str(here), workspace, source.directories),
        seed=seed_of(options.seed, spec) if resumed is None or options.seed is not None else resumed.start.seed,
        source=resumption.with_times(source.fact, resumed, options.recorded),
        data=run_data.facts,
        env_names=tuple(variable.name for variable in given),
        python_path=python_path_of(options, code.root, workspace),
        git=git.digest,
        network=options.network or is_host,
        host=host_facts(),
        ranks=options.ranks,
        determinism=options.determinism,
        ids=options.ids,
        threads=plan.threads(spec, options.determinism, options.threads),
        trace=options.trace,
        gpus=gpus.count,
        devices=gpus.facts,
        limits=options.limits,
        processes=1 if options.member is None else options.member.size,
        command_is_exact=(words or command) == options.command,
        words=words,
        terminal_type=term_of(options.environ),
        streams=streams_of(options),
        parents=()
        if joined is not None
        else (
            *parents.from_options(options.parents, runs, options.here),
            *(() if resumed is None else (resumption.parent_of(resumed),)),
            *_find_parents(run_data.facts, run_data.mounts, runs, store),
        ),
        resume_of=None if resumed is None else resumed.id,
        resumes=resumption.count(options, resumed),
        job=engines.job_of(options.environ),
        tool=__version__,
    )
    if joined is not None:
        launcher.check_same(start, joined.start, has_seed=isinstance(options.seed, int))
        start = joined.start
    request = Request(
        command=options.command,
        mounts=(*run_data.mounts, *git.mounts),
        env=given,
        caller=caller_variables_of(options),
        user=user_of(options.environ),
        threads=options.threads,
        network=options.network,
        gpus=gpus,
        tools=str(package.ROOT),
        resumed=None if resumed is None else str(resumed.directory.resolve()),
        notes=str((runs / records.name_of(started, command, run_id) if joined is None else joined.directory) / NOTES),
        member=options.member,
        streams=options.streams,
    )
    launch = plan.plan(spec, start, request)
    if is_host:
        check_drift(spec, spec_directory, launch, store, tell)
    checkpoints = None
    if joined is None:
        with tell.progress(0, "reading checkpoints") if options.checkpoints else contextlib.nullcontext():
            checkpoints = checkpointstate.scan(launch.mounts, store)
        start = msgspec.structs.replace(
            start,
            host_env=host_variables_of(options, spec, launch),
            checkpoints_before=checkpointstate.digest(checkpoints),
            spec_file=speccopy.keep(options, spec, spec_directory, runs, store=store, tell=tell),
        )
    return Inputs(
        options=options,
        spec=spec,
        spec_directory=spec_directory,
        code=code,
        source=source,
        repository=git,
        bytecode=compiled,
        checkpoints=checkpoints,
        start=start,
        launch=launch,
    )


def _prepare_image(
    options: RunOptions, spec: Spec, spec_directory: Path, *, compiles: bool, store: Store, tell: Tell
) -> Path | None:
    """Bring the image to where the runner uses it. Return its bytecode in the store, with `compiles`."""
    if not rebuild.present(spec, spec_directory, store):
        tell.detail("the image is not on this machine yet; rebuilding it first")
        rebuild.rebuild(Opened(spec, spec_directory), store=store, tell=tell)
    if options.runner == "docker":
        from repro_env.runs.execution import engine  # slow to import

        engine.load(spec, store, tell)
    return bytecode.of_image(spec, options, store=store, tell=tell) if compiles else None


def _read_source(
    options: RunOptions,
    spec: Spec,
    spec_directory: Path,
    code: SourceDirectory,
    workspace: str,
    runs: Path,
    mounts: Sequence[Mount],
    store: Store,
    tell: Tell,
) -> tuple[Snapshot, Repository]:
    """Copy the code into the store, and find its git repository, which runs in the image see."""
    is_host = options.runner == "host"
    with tell.progress(0, "reading the source"):
        source = snapshot.take(
            spec,
            spec_directory,
            directory=code.path,
            runs=runs,
            store=store,
            without=[Path(mount.source) for mount in mounts if mount.kind == "checkpoints"],
            recorded=None if options.recorded is None else options.recorded.source,
            restore=True,
        )
    if is_host:
        check_imports(spec, source, spec_directory, runs=runs, store=store)
        return source, Repository()
    return source, repository.show(spec, source, code.root, workspace, mounts, store, recorded=options.recorded)


def _find_parents(data: Sequence[DataFact], mounts: Sequence[Mount], runs: Path, store: Store) -> Iterator[Parent]:
    """Return the runs whose outputs are mounted, from their run directories or as copies with the same content."""
    yield from parents.from_mounts(mounts)
    copies = [fact for fact in data if fact.kind == "data" and parents.run_containing(Path(fact.source)) is None]
    if copies:
        known = read_all_runs([runs], store)
        for fact in copies if known.runs else ():
            root = Path(fact.source)
            files = store.hashes.of(root, list(walk(root))) if root.is_dir() else {root.name: (fact.digest or "")[7:]}
            yield from parents.from_copies(fact, files, known)


def _used_entries(inputs: Inputs, store: Store) -> list[str]:
    """Return the names of the store entries that a run uses."""
    launch, directory = inputs.launch, inputs.spec_directory
    names = [launch.image, *launch.layers, launch.snapshot, inputs.repository.digest]
    names += [directory.name] if directory.parent == store.root / "specs" else []
    names += [] if inputs.bytecode is None else [inputs.bytecode.name]
    return [name for name in names if name is not None]


def _run(inputs: Inputs, backend: Runner, store: Store, tell: Tell) -> FinishedRun:
    """Run the command and write the record, from start to end."""
    recording = _begin(inputs)
    try:
        outcome, seconds = _start_command(inputs, backend, recording)
    except ReproEnvError:
        recording.discard()
        raise
    with deferred_signals():
        return _record_end(inputs, recording, outcome, seconds, store, tell)


def _begin(inputs: Inputs) -> Recording:
    """Make the directory of a run with the record of its start."""
    options = inputs.options
    recording = records.begin(inputs.runs, inputs.run_directory.name, more=[Path(inputs.launch.notes).name])
    try:
        recording.start(inputs.start)
        for kind, text in (*(("tag", tag) for tag in options.tags), *((("note", options.note),) if options.note else ())):
            annotation.add(recording.directory, kind=kind, text=text)
        checkpointstate.write(recording.directory, CHECKPOINTS_BEFORE, inputs.checkpoints)
    except ReproEnvError:
        recording.discard()
        raise
    return recording


def _start_command(inputs: Inputs, backend: Runner, recording: Recording) -> tuple[Outcome, float]:
    """Run the command; return how it ended, and the seconds that it took."""
    began = time.monotonic()
    with contextlib.nullcontext() if inputs.options.output else silent((1, 2)):
        outcome = backend.run(inputs.launch, directory=recording.directory)
    return outcome, time.monotonic() - began


def _record_end(
    inputs: Inputs,
    recording: Recording,
    outcome: Outcome,
    seconds: float,
    store: Store,
    tell: Tell,
    *,
    processes: tuple[Process, ...] = (),
) -> FinishedRun:
    """Record the outputs and the end of a run."""
    launch, start = inputs.launch, inputs.start
    with tell.progress(0, "recording outputs"):
        removed: tuple[str, ...] = ()
        problems: list[str] = []
        try:
            trees = (store.layers.path(diff_id) for diff_id in launch.layers)
            removed = collect(recording.directory, inputs.source.tree, [tree for tree in trees if tree is not None])
        except (OSError, ReproEnvError) as error:
            problems.append(redact.line(f"(the outputs are not complete: {error})"))
            tell.warn(f"the outputs are not complete: {error}")
        after = checkpointstate.scan(launch.mounts, store)
        end = ended.read_end(
            launch,
            start,
            outcome,
            run_directory=recording.directory,
            seconds=seconds,
            started=recording.start_digest,
            removed=removed,
            problems=problems,
            after=after,
            processes=processes,
            store=store,
        )
        if stopped := PATIENCE.ended_by:
            end = msgspec.structs.replace(end, outcome=msgspec.structs.replace(end.outcome, interrupted=stopped))
            tell.warn(
                f"{signal_name(stopped)} came while the outputs were read: the record is not complete, and names what is missing"
            )
        failures = noted.of_run(Path(launch.notes)).failures if outcome.exit_code else ()
        with contextlib.suppress(OSError):
            remove_tree(Path(launch.notes))
        try:
            checkpointstate.write(recording.directory, CHECKPOINTS_AFTER, after)
        except ReproEnvError as error:
            tell.warn(f"the list of the checkpoint files after the run could not be written: {error}")
        try:
            recording.finish(end)
        except ReproEnvError as error:
            tell.warn(f"the run is finished, but its end could not be recorded: {error}")
            recording.close()
            if outcome.exit_code == 0:  # otherwise, the exit code of the command is more important
                raise
    return FinishedRun(recording.directory, start, end, failures=failures, stopped=stopped)


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def host_facts() -> tuple[str, ...]:
    """Return the facts of this machine for the record: one per line, each starting with its name."""
    from repro_env.environment.machine import host as machine

    host = machine.host()
    return (
        f"os {host.os}",
        f"kernel {host.kernel}",
        f"cpu {host.cpu} ({host.machine})",
        f"isa {' '.join(host.isa)}",
        f"cores {host.cores}",
        f"memory {host.memory}",
    )


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process with its clean-up, while no command runs. The first process of a container would ignore it."""

    def end(number: int, frame: object) -> None:  # noqa: ARG001
        raise SystemExit(128 + number)

    with handled([signal.SIGTERM], end):
        yield


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Let no signal end this process while a run is recorded: a second Ctrl-C must not lose the record of the run.

    Outputs that are not read two seconds after SIGINT, SIGTERM, SIGHUP or SIGQUIT are recorded by name.
    """

    def defer(number: int, frame: object) -> None:  # noqa: ARG001
        if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            PATIENCE.limit(number)

    with handled(sorted(FORWARDED), defer):
        try:
            yield
        finally:
            PATIENCE.restore()
