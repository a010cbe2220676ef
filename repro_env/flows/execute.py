"""The story of `repro-env exec`: a command, an image, a source -> a run with its record.

All that can be refused is refused before the run's folder exists. From then on there is a record, whatever
becomes of the command; without its end the run counts as interrupted.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Protocol

import msgspec

from repro_env import __version__
from repro_env.capture import variables
from repro_env.catalog import annotation, ids, noted, parents, recipe, records
from repro_env.catalog.noted import Failure
from repro_env.catalog.outputs import OUTSIDE
from repro_env.flows import before, data, ended, keptspec, rebuild, repository, siblings, snapshot, sourcedir, streams
from repro_env.flows.advice import Advisor
from repro_env.flows.asked import (
    Asked,
    caller_of,
    check_save,
    given_of,
    mounts_of,
    passed_of,
    python_path_of,
    secrets_of,
    seed_of,
    term_of,
    user_of,
)
from repro_env.flows.drift import check_drift, check_host, check_imports
from repro_env.flows.locate import runs_beside
from repro_env.flows.opening import announce, shown
from repro_env.flows.snapshot import Snapshot
from repro_env.io.files import atomic_write, remove_tree, room, walk
from repro_env.model import codec, redact
from repro_env.model.errors import RecordError, ReproEnvError
from repro_env.model.run import DataFact, End, Launch, Lost, Mount, Outcome, Parent, Request, Start
from repro_env.model.spec import Spec
from repro_env.model.talk import Tell
from repro_env.run import bytecode, plan
from repro_env.run.bytecode import Module
from repro_env.store.store import Store

TOOLS = Path(__file__).resolve().parents[1]
"""This package: the hooks are in it, and what training code may import of it."""


class Done(msgspec.Struct, frozen=True):
    folder: Path
    start: Start
    end: End
    compiled: tuple[Module, ...] = ()
    """Modules of the image that the command had to compile (`flows.bytecode.keep`)."""
    failures: tuple[Failure, ...] = ()
    """What a command that failed missed."""
    advice: tuple[str, ...] = ()
    """What the user may do about it: one line each."""


class Backend(Protocol):
    """A runner, and how its outputs come into the run's files."""

    began: bool
    """After `run` raised: the command was started all the same, and its end is not known."""
    compiled: tuple[Module, ...]
    """After `run`: modules of the image that the command had to compile."""
    lost: Lost | None
    """After `run`: what was not kept of what the command wrote outside the project."""

    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        """As `run.interface.Runner`."""
        ...

    def collect(self, workspace: Path, snapshot: Path, files: Path) -> tuple[str, ...]:
        """Leave in `files` what the command made or changed; return the files of the source that it removed."""
        ...


def runs_of(folder: Path, given: Path | None = None) -> Path:
    """Where the runs of the spec in `folder` are recorded."""
    return given if given is not None else runs_beside(folder)


def execute(asked: Asked, spec: Spec, folder: Path, *, store: Store, tell: Tell, backend: Backend | None = None) -> Done:
    """Run a command and record it. `folder` holds the spec. Raises before the start only; the command's own failure is in `End`.

    `UsageError`, `DataError`, `DriftError`, `RecordError` for what was asked; `SandboxError`, `RunError`,
    `CommandMissingError` when the command could not be started; what a rebuild raises.
    """
    runs = runs_of(folder, asked.runs)
    given, facts_given = given_of(asked)
    chosen = sourcedir.choose(spec, folder, store=store, given=asked.source, frozen=asked.frozen)
    workspace = str(chosen.root) if asked.runner == "host" and not asked.private else plan.workspace_of(spec)
    here = asked.here if asked.repeats else chosen.inside(asked.here, workspace)
    python_path = python_path_of(asked, chosen.root, workspace)
    mounts = mounts_of(asked, spec, here, tell)
    check_save(asked)
    for tag in asked.tags:
        annotation.check_tag(tag)
    if asked.runner == "docker":
        _engine().check(asked)
    seed = seed_of(asked, spec)
    shown_data = data.show(
        asked,
        spec,
        mounts,
        root=chosen.root,
        known=chosen.path is not None or sourcedir.is_known(spec, folder, store),
        store=store,
        tell=tell,
    )
    mounts = shown_data.mounts
    if asked.runner != "host":
        _ensure(spec, folder, store, tell)
    if asked.runner == "docker":
        _engine().load(asked, spec, store, tell)
    written = [Path(one.source) for one in mounts if one.kind == "checkpoints"]
    if asked.runner == "host":
        check_host(asked, spec, chosen)
    with tell.progress(0, "reading the source"):
        names = siblings.of_run(asked, spec, chosen.path, here, mounts=mounts, store=store)
        source = snapshot.take(
            spec,
            folder,
            directory=chosen.path,
            runs=runs,
            store=store,
            without=written,
            again=asked.again,
            siblings=names,
            restore=asked.runner != "host",  # which runs in the directory itself
        )
    if asked.runner == "host":
        check_imports(spec, source, folder, runs=runs, store=store)
    git = repository.Shown()
    if asked.runner != "host":
        git = repository.show(spec, source, chosen.root, workspace, mounts, store, again=asked.git, repeats=asked.repeats)
    run_id = ids.uuid7(time.time_ns() // 1_000_000, secrets.token_bytes(10))
    started = datetime.now(timezone.utc)
    command = shown(asked.command, variables.secret({**asked.environ, **{one.name: one.value for one in given}}))
    where = runs / records.name_of(started, command, run_id)
    request = Request(
        run_id=run_id,
        runner=asked.runner,
        command=asked.command,
        cwd=plan.working_folder(str(here), workspace, source.folders),
        workspace=workspace,
        snapshot=source.fact.seen,
        code=source.fact.digest,
        data=shown_data.facts,
        siblings=source.fact.siblings_tree,
        mounts=(*mounts, *git.mounts),
        given=given,
        python_path=python_path,
        caller=caller_of(asked),
        user=user_of(asked.environ),
        seed=seed,
        ranks=asked.ranks,
        determinism=asked.determinism,
        ids=asked.ids,
        threads=asked.threads,
        trace=asked.trace,
        network=asked.network,
        gpus=asked.gpus,
        tools=str(TOOLS),
        notes=str(where / "notes"),
    )
    launch = plan.plan(spec, request)
    if asked.runner == "host":
        check_drift(asked, spec, folder, launch, store, tell)
    with tell.progress(0, "reading checkpoints") if written else contextlib.nullcontext():
        held = before.take(mounts, store)
    start = Start(
        schema="repro-env/run-start/1",
        id=run_id,
        started=ended.moment(started),
        spec=launch.spec,
        image=launch.image,
        runner=asked.runner,
        command=command,
        cwd=launch.cwd,
        seed=seed,
        source=source.fact,
        data=shown_data.facts,
        given=facts_given,
        python_path=python_path,
        git=git.digest,
        passed=passed_of(asked, spec, launch, facts_given),
        network=asked.network or asked.runner == "host",
        host=host_facts(),
        ranks=asked.ranks,
        determinism=asked.determinism,
        ids=asked.ids,
        threads=plan.threads(spec, asked.determinism, asked.threads),
        trace=asked.trace,
        before=before.digest(held),
        gpus=asked.gpus,
        spec_file=keptspec.keep(asked, spec, folder, runs, store=store, tell=tell),
        exact=command == asked.command,
        term=None if asked.runner == "host" else term_of(asked.environ),
        recipe=recipe.files(asked.recipe, asked.here),
        parents=(*parents.named(asked.parents, runs, asked.here), *_parents(shown_data.facts, mounts, runs, store)),
        tool=__version__,
    )
    announce(asked, spec, start, where, chosen, git, launch, tell)
    backend = backend or _backend(asked, spec, folder, runs, source, store, tell)
    store.seen.see(runs)
    with store.lease.only(
        [*_needed(launch, folder, store), *filter(None, [git.digest])]
    ):  # a run may take days: all else may be removed meanwhile
        done = _run(asked, launch, start, source, runs, backend, tell, held, store)
    advice: tuple[str, ...] = ()
    if done.end.outcome.exit_code and asked.runner != "host":
        advisor = Advisor(asked, spec, launch, source, root=chosen.root, runs=runs, store=store)
        advice = advisor.lines(done.failures)
    return msgspec.structs.replace(done, compiled=backend.compiled, advice=advice)


def _parents(data: Sequence[DataFact], mounts: Sequence[Mount], runs: Path, store: Store) -> Iterator[Parent]:
    """The runs whose outputs are mounted: by their place, or by the bytes of a copy elsewhere."""
    yield from parents.mounted(mounts)
    copies = [fact for fact in data if fact.kind == "data" and parents.run_above(Path(fact.source)) is None]
    if copies:
        from repro_env.flows.known import known

        there = known([runs], store)
        for fact in copies if there.outputs else ():
            root = Path(fact.source)
            files = store.hashes.of(root, list(walk(root))) if root.is_dir() else {root.name: (fact.digest or "")[7:]}
            yield from parents.copied(fact, files, there.runs, there.outputs)


def _needed(launch: Launch, folder: Path, store: Store) -> list[str]:
    """What a run needs of the store."""
    spec = [folder.name] if folder.parent == store.root / "specs" else []
    return [launch.image, *launch.layers, launch.snapshot, *([launch.siblings] if launch.siblings else []), *spec]


def _run(
    asked: Asked,
    launch: Launch,
    start: Start,
    source: Snapshot,
    runs: Path,
    backend: Backend,
    tell: Tell,
    held: before.Listing | None,
    store: Store,
) -> Done:
    """From the first byte of the record to its last."""
    notes = Path(launch.notes)
    recording = records.begin(runs, notes.parent.name, more=[notes.name])
    try:
        recording.start(start)
        for kind, text in (*(("tag", tag) for tag in asked.tags), *((("note", asked.note),) if asked.note else ())):
            annotation.add(recording.folder, kind=kind, text=text)
        before.write(recording.folder, before.BEFORE, held)
        began = time.monotonic()
        with contextlib.nullcontext() if asked.output else streams.silent((1, 2)):
            outcome = backend.run(launch, folder=recording.folder)
    except ReproEnvError:
        if backend.began:
            _interrupted(launch, source, recording, backend)
        else:
            recording.discard()
        raise
    seconds = time.monotonic() - began
    with undisturbed(), tell.progress(0, "recording outputs"):
        files = recording.folder / "files"
        removed: tuple[str, ...] = ()
        problems: list[str] = []
        try:
            removed = backend.collect(Path(launch.workspace), source.tree, files)
        except (OSError, ReproEnvError) as error:
            problems.append(redact.line(f"(the outputs are not complete: {error})"))
            tell.warn(f"the outputs are not complete: {error}")
        after = before.take(launch.mounts, store)
        end = ended.end_of(
            launch,
            start,
            outcome,
            folder=recording.folder,
            seconds=seconds,
            started=recording.started,
            removed=removed,
            problems=problems,
            after=after,
            compiled=backend.compiled,
            lost=backend.lost,
            store=store,
        )
        failures = noted.read(Path(launch.notes) / plan.NOTES).failures if outcome.exit_code else ()
        with contextlib.suppress(OSError):
            remove_tree(Path(launch.notes))
        try:
            before.write(recording.folder, before.AFTER, after)
        except ReproEnvError as error:
            tell.warn(f"what the run left in its checkpoints could not be written down: {error}")
        done = Done(recording.folder, start, end, failures=failures)
        _finish(asked, recording, done, tell)
    return done


def _interrupted(launch: Launch, source: Snapshot, recording: records.Recording, backend: Backend) -> None:
    """A record without its end, and with what the command had written."""
    with undisturbed(), contextlib.suppress(OSError, ReproEnvError):
        backend.collect(Path(launch.workspace), source.tree, recording.folder / "files")
        ended.traced(launch, recording.folder)
        remove_tree(Path(launch.notes))
    recording.close()


def _finish(asked: Asked, recording: records.Recording, done: Done, tell: Tell) -> None:
    """Write the end, and what else was asked for. The command's own failure stays the answer; else ours is."""
    problem: ReproEnvError | None = None
    try:
        recording.finish(done.end)
    except ReproEnvError as error:
        problem = error
        tell.warn(f"the run is over and its end could not be recorded: {error}")
        recording.close()
    try:
        if asked.record is not None:
            atomic_write(asked.record, codec.pretty({"start": done.start, "end": done.end}))
        if asked.save is not None:
            save(done.folder / "files", asked.save)
            if (done.folder / OUTSIDE).is_dir():
                save(done.folder / OUTSIDE, asked.save / OUTSIDE)
    except OSError as error:
        problem = RecordError(
            f"cannot be written: {error.strerror}",
            where=str(error.filename or asked.save),
            hint=f"the outputs are in {done.folder / 'files'}",
        )
    except ReproEnvError as error:
        problem = error
    if problem is not None:
        if done.end.outcome.exit_code == 0:
            raise problem
        tell.warn(f"error: {problem}")


def save(files: Path, target: Path) -> None:
    """Copy a run's outputs, symlinks as symlinks, into a folder that holds none of them."""
    from repro_env.io.files import walk
    from repro_env.run.workspace import copy_file

    with room(target):
        target.mkdir(parents=True, exist_ok=True)
        for found in walk(files):
            here = target / found.path
            if found.kind == "dir":
                here.mkdir(exist_ok=True)
            elif found.kind == "link":
                here.symlink_to(found.target)
            elif found.kind == "file":
                copy_file(files / found.path, here)


class _Embedded:
    """The embedded runner; it writes into the run's files by itself."""

    def __init__(self, asked: Asked, spec: Spec, store: Store, tell: Tell) -> None:
        self._asked = asked
        self._spec = spec
        self._store = store
        self._tell = tell
        self.began = False
        self.compiled: tuple[Module, ...] = ()
        self.lost: Lost | None = None

    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        from repro_env.run.embedded import EmbeddedRunner

        store = self._store
        with store.bytecode.shown(launch.image, hidden=self._asked.hidden) as kept, contextlib.ExitStack() as waiting:
            if kept is None and not self._asked.repeats:  # importing torch takes half a minute then
                label = "waiting for output; a first run compiles what it imports"
                waiting.enter_context(self._tell.progress(0, label))
            runner = EmbeddedRunner(
                store.layers.path,
                merged=store.root / "merged",
                interpreter=self._spec.identity.interpreter.executable,
                bytecode=kept,
                bound=self._asked.keep_outside,
                hidden=secrets_of(self._asked),
                before=waiting.close,
            )
            outcome = runner.run(launch, folder=folder)
            self.lost = runner.lost
        if not outcome.signal:  # somebody who ended the run does not want to wait for more
            self.compiled = bytecode.modules(runner.compiled, self._spec, launch)
        return outcome

    def collect(self, workspace: Path, snapshot: Path, files: Path) -> tuple[str, ...]:  # noqa: ARG002
        from repro_env.run.workspace import harvest

        return harvest(files, snapshot)


def _backend(asked: Asked, spec: Spec, folder: Path, runs: Path, source: Snapshot, store: Store, tell: Tell) -> Backend:
    if asked.runner == "embedded":
        return _Embedded(asked, spec, store, tell)
    if asked.runner == "docker":
        docker: Backend = _engine().Docker(asked, spec, store, tell)
        return docker
    if asked.private:
        from repro_env.run.hostcopy import HostCopyRunner

        tree = source.fact.siblings_tree
        more = None if tree is None else store.layers.path(tree)
        return HostCopyRunner(source.tree, more, hidden=secrets_of(asked), bound=asked.keep_outside)
    from repro_env.run.host import HostRunner

    skip = (Path(spec.identity.layout.prefix), folder, runs, runs_of(folder))
    return HostRunner(skip=skip, hidden=secrets_of(asked))


def _engine() -> ModuleType:
    """Imported where it is needed: other runners do not pay for it."""
    from repro_env.flows import engine

    return engine


def _ensure(spec: Spec, folder: Path, store: Store, tell: Tell) -> None:
    """The image, rebuilt when it is not in the store."""
    rebuild.check_platform(spec)
    if rebuild.present(spec, folder, store):
        return
    tell.detail("the image is not on this machine yet: rebuilding it first")
    rebuild.rebuild(spec, folder, store=store, dry_run=False, tell=tell)


def host_facts() -> tuple[str, ...]:
    """This machine as a record has it: one fact a line, its name first."""
    from repro_env.capture import system

    host = system.host()
    return (
        f"os {host.os}",
        f"kernel {host.kernel}",
        f"cpu {host.cpu} ({host.machine})",
        f"isa {' '.join(host.isa)}",
        f"cores {host.cores}",
        f"memory {host.memory}",
    )


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not cost the record of what the first one stopped."""

    def later(number: int, frame: object) -> None:
        """A handler, since the command is over and nothing else has to stop."""

    try:
        old = {number: signal.signal(number, later) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    except ValueError:  # not the main thread: signals are not ours
        old = {}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
