"""The story of `repro-env verify`: a recorded run is run again from what it started from, and what it left is compared.

The record and the outputs of the first run are not touched: the new one writes into a folder of its own, and works on private
copies of what was in its `--checkpoints`. What it needs and is not there any more is a reason to say so, never to go on with something else.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.catalog import records
from repro_env.catalog.records import Run
from repro_env.flows import bytecode, origin, projectfile, results, siblings, streams
from repro_env.flows.asked import Asked
from repro_env.flows.execute import Backend, Done, execute, host_facts
from repro_env.flows.looker import Look, looker
from repro_env.flows.results import Globs
from repro_env.flows.runs import where
from repro_env.model import redact
from repro_env.model.run import End, RunnerName
from repro_env.model.spec import Spec
from repro_env.model.talk import Details, Tell
from repro_env.run import plan, pycache
from repro_env.run.bytecode import Module
from repro_env.store.store import Store
from repro_env.verify import verdict as judging
from repro_env.verify.compared import Ignored
from repro_env.verify.verdict import Here, Promise, Verdict

_NAMED = 3
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for."""

    word: str
    """The run, as a user names it."""
    here: Path
    environ: Mapping[str, str]
    runs: Path | None = None
    spec: str | None = None
    source: Path | None = None
    """Where the code of the run is now, where it is not found."""
    globs: Globs = Globs()
    """As the options say; what pyproject.toml says is added."""
    env: tuple[tuple[str, str | None], ...] = ()
    env_file: Path | None = None
    data: tuple[tuple[str, str], ...] = ()
    """(SRC, DST) as typed: where data of the run are now, or what a run on the host read and did not record; DST may be empty."""
    network: bool = False
    """Whether a run that could reach the network may do so again."""
    runner: RunnerName | None = None
    """Of the new run; None for the recorded one, and the image for a run on the host."""
    keep: bool = False
    output: bool = False
    """Show what the command prints."""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    run: Run
    verdict: Verdict
    folder: Path | None = None
    """The new run's, with `keep`."""
    stopped: int = 0
    """The signal by which somebody ended it; 0 for none."""
    project: Path | None = None
    """The directory whose pyproject.toml says what may differ; None where no outputs were compared."""
    problem: str = ""
    """What makes the two runs different whatever their outputs are."""


def verify(
    wanted: Wanted,
    *,
    store: Store,
    tell: Tell,
    backend: Backend | None = None,
    look: Look | None = None,
    keep_bytecode: Callable[..., None] = bytecode.keep,
) -> Verified:
    """Run a recorded run again, and compare.

    `backend`, `look` and `keep_bytecode` stand in for what happens in the image: a real run, a real look into its files, and
    compiling what the run had to compile.

    Raises `RecordError` for a run that cannot be verified, `SpecError`, `SourceError` where what it ran from is gone,
    `UsageError` for variables whose values are needed, and what `execute` raises before a run starts.
    """
    runs = where(wanted.runs, wanted.here)
    run = records.read(records.find(runs, wanted.word))
    end = origin.over(run)
    run, unrecorded = origin.given_data(run, wanted.data, wanted.here)
    left = results.side(run.folder, end, origin.mounts(run))
    wanted.globs.check(end, left.digests)
    spec, folder = origin.spec_of(run, wanted.spec, here=wanted.here, runs=runs, store=store, tell=tell)
    origin.check_given(run, wanted.env, wanted.env_file, network=wanted.network)
    project = projectfile.project(run.folder.parent, folder)
    globs = msgspec.structs.replace(wanted.globs, ignored=(*wanted.globs.ignored, *projectfile.ignores(project)))
    spec = origin.source(run, spec, folder, here=wanted.here, runs=runs, store=store, tell=tell, given=wanted.source)
    note = f"verifies {run.short}" if wanted.keep else ""
    asked = origin.asked(run, end, wanted.env, wanted.env_file, wanted.environ, note=note, runner=wanted.runner)
    asked = msgspec.structs.replace(asked, data=(*asked.data, *unrecorded), again=siblings.again(run.start.source, spec, store))
    promise = judging.promised(run.start, end, _here(run, end, spec, asked, store, [target for _, target in unrecorded]))
    kinds = results.kinds(left, globs)
    if "result" not in kinds:
        problem = f"{judging.nothing(kinds)}. The command was not run again"
        return Verified(run=run, verdict=judging.verdict((), promise, problem=problem))
    tell(promise.sentence)
    problems = origin.data(run, store, tell)
    with store.temp.folder() as temporary:
        with tell.progress(0, "copying checkpoints"):
            mounts, changed = origin.checkpoints(run, temporary / "checkpoints")
        if problems or changed:
            return Verified(run=run, verdict=_cannot_start(run, problems, changed, promise))
        asked = msgspec.structs.replace(
            asked,
            checkpoints=tuple((one.source, one.target) for one in mounts),
            runs=run.folder.parent if wanted.keep else temporary / "runs",
            kept=wanted.keep,
            output=wanted.output,
        )
        if asked.hidden:
            tell.detail("recompiling bytecode, as in the original run (it affects the order of sets)")
        label = f"running again, which took {end.seconds:.0f} s then"
        with streams.aside(), contextlib.nullcontext() if wanted.output else tell.progress(0, label):
            done = execute(asked, origin.expecting(spec, run), folder, store=store, tell=Details(tell), backend=backend)
        kept = done.folder if wanted.keep else None
        outcome = done.end.outcome
        if outcome.signal:
            memory = ", out of memory" if outcome.out_of_memory else ""
            found = judging.verdict((), promise, problem=f"the new run was ended by {_name(outcome.signal)}{memory}")
            stopped = outcome.signal if outcome.signal in _STOPS else 0
            return Verified(run=run, verdict=found, folder=kept, stopped=stopped)
        if problem := _unheld(run, end, done):
            return Verified(run=run, verdict=judging.verdict((), promise, problem=problem), folder=kept)
        right = results.side(done.folder, done.end, mounts)
        if run.start.runner == "host" and not left.copied:
            right, outside = results.without_outside(right)
            if outside:
                tell(
                    f"not compared: {outside:,} file{'s' * (outside > 1)} outside the project; a run on the host keeps only those in it"
                )
        more = _newly_compiled(end, done)
        keep_bytecode(more, spec, store=store, tell=tell, asked=asked, least=1)
        with tell.progress(0, f"comparing with {run.folder.name}"):
            found = judging.verdict(
                results.compare(left, right, globs, look or looker(spec, asked, store)),
                promise,
                problem=_exit(end, done.end),
                causes=(*judging.causes(end.effective, done.end.effective), *_compiled(more)),
                first=results.first_step(run.folder, done.folder),
            )
        return Verified(run=run, verdict=_without_secrets(found), folder=kept, project=project, problem=_exit(end, done.end))


def _without_secrets(found: Verdict) -> Verdict:
    """The verdict without ignored values whose place is named as a secret's."""

    def hidden(ignored: Ignored) -> Ignored:
        then, now = (redact.value(ignored.place, text) for text in (ignored.then, ignored.now))
        return msgspec.structs.replace(ignored, then=then, now=now)

    files = tuple(msgspec.structs.replace(file, ignored=tuple(map(hidden, file.ignored))) for file in found.files)
    return msgspec.structs.replace(found, files=files)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has none
        return f"signal {number}"


def _here(run: Run, end: End, spec: Spec, asked: Asked, store: Store, unrecorded: Sequence[str]) -> Here:
    from repro_env.capture import gpu

    devices: tuple[str, ...] = ()
    if asked.gpus:
        devices = tuple(one.name for one in gpu.accelerators().devices)
    then, now = run.start.source, asked.again or run.start.source
    with store.bytecode.shown(spec.expected.image_id) as kept:
        compiles = pycache.KEPT in end.outcome.means and (kept is None or asked.runner == "host")
    return Here(
        host=host_facts(),
        threads={one.name: one.value for one in plan.threads(spec, asked.determinism, asked.threads)},
        devices=devices,
        given=tuple(one.name for one in run.start.given),
        compiles=compiles,
        runner=asked.runner,
        unrecorded=tuple(unrecorded),
        missing=tuple(path for path in (*then.ignored, *then.siblings) if path not in (*now.ignored, *now.siblings)),
    )


def _newly_compiled(end: End, done: Done) -> tuple[Module, ...]:
    """Modules of which the run found bytecode, and the new one did not."""
    if pycache.KEPT not in end.outcome.means:
        return ()
    return tuple(one for one in done.compiled if one.path not in end.compiled)


def _compiled(modules: tuple[Module, ...]) -> Iterator[str]:
    if modules:
        yield (
            f"{_modules(len(modules), 'was', 'were')} compiled, which was not needed then: sets of objects that are hashed by "
            "address may have another order; verify again, now that bytecode is kept"
        )


def _modules(count: int, one: str, several: str) -> str:
    return f"1 module {one}" if count == 1 else f"{count:,} modules {several}"


def _cannot_start(run: Run, data: Sequence[str], checkpoints: Sequence[str], promise: Promise) -> Verdict:
    """What is not as it was before the run, and what to do about it."""
    problems = [*data, *checkpoints]
    more = f" and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
    hints = ["restore it, or say where a copy is: verify --data SRC:DST"] if data else []
    if checkpoints:
        target = next(fact.target for fact in run.start.data if fact.kind == "checkpoints")
        hints.append(
            "restore these checkpoints from a copy; to verify a run that continues another, let it read the old "
            f"checkpoints with --data and write to a new directory: exec --data OLD --checkpoints NEW:{target}"
        )
    problem = f"it cannot start from the same: {'; '.join(problems[:_NAMED])}{more} ({'; '.join(hints)})"
    return judging.verdict((), promise, problem=problem)


def _unheld(run: Run, end: End, done: Done) -> str:
    """Why a failed repetition of a run on the host says nothing: only that run had all that it could read. Empty otherwise."""
    failed = _exit(end, done.end)
    if not failed or run.start.runner != "host" or not done.end.outcome.exit_code:
        return ""
    host = "" if done.start.runner == "host" else " or use --runner host"
    return f"{failed}; the recorded run was on the host, where it could read every file: name what it read with --data{',' if host else ''}{host}"


def _exit(then: End, now: End) -> str:
    if then.outcome.exit_code == now.outcome.exit_code:
        return ""
    return f"the command ended with exit code {now.outcome.exit_code} and not {then.outcome.exit_code}; -v shows what it prints"
