"""The story of `repro-env verify`: a recorded run is run again from what it started from, and what it left is compared.

Nothing of the first run is touched: the new one writes into a folder of its own, and works on private copies of what
lay in its `--checkpoints`. What it needs and is not there any more is a reason to say so, never to go on with something else.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.catalog import records
from repro_env.catalog.records import Run
from repro_env.flows import before, committed, snapshot, traces
from repro_env.flows.asked import Asked, user_of
from repro_env.flows.execute import Backend, execute, host_facts
from repro_env.flows.runs import where
from repro_env.io.files import sha256_of
from repro_env.model.environment import Variable
from repro_env.model.errors import DataError, RecordError, ReproEnvError, SourceError, SpecError, UsageError
from repro_env.model.redact import REDACTED
from repro_env.model.run import DataFact, End, Mount, RunnerName
from repro_env.model.spec import Data, Spec
from repro_env.model.talk import Silent, Tell
from repro_env.run import comparing, plan
from repro_env.store.store import Store
from repro_env.verify import masks, outputs, trace
from repro_env.verify import verdict as judging
from repro_env.verify.outputs import Answer, File
from repro_env.verify.pairing import Paired, pair
from repro_env.verify.verdict import Here, Verdict

_TOOLS = Path(__file__).resolve().parents[1] / "inside"
_WANTED, _OUT = "wanted.json", "answers.json"
_ANSWERS = 64 << 20
"""Bytes of answers that are read."""
_NAMED = 3


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for."""

    word: str
    """The run, as a user names it."""
    here: Path
    environ: Mapping[str, str]
    runs: Path | None = None
    spec: str | None = None
    results: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    env: tuple[tuple[str, str | None], ...] = ()
    env_file: Path | None = None
    keep: bool = False


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    run: Run
    verdict: Verdict
    folder: Path | None = None
    """The new run's, with `keep`."""


class Side(msgspec.Struct, frozen=True):
    """What one of the two runs left."""

    digests: dict[str, str]
    """Path -> `sha256:<hex>`, as recorded. A file of a folder of checkpoints has the absolute path that the run saw."""
    places: dict[str, Path]
    """Path -> the file."""
    end: End


Look = Callable[[Sequence[tuple[Path, Path, bool]]], tuple[Answer, ...]]
"""Pairs of files of tensors, and whether names in them are masked -> what differs in them."""


def verify(wanted: Wanted, *, store: Store, tell: Tell, backend: Backend | None = None, look: Look | None = None) -> Verified:
    """Run a recorded run again, and compare. `backend` and `look` stand in for a real run, and a real look into its files.

    Raises `RecordError` for a run that cannot be verified, `SpecError`, `SourceError` where what it ran from is gone,
    `UsageError` for variables whose values are needed, and what `execute` raises before a run starts.
    """
    runs = where(wanted.runs, wanted.here)
    run = records.read(records.find(runs, wanted.word))
    end = _over(run)
    spec, folder = _spec(run, wanted, runs, store, tell)
    env = _given(run, wanted)
    spec = _source(run, spec, folder, runs, store, tell)
    asked = _asked(run, wanted, env)
    promise = judging.promised(run.start, end, _here(run, spec, asked))
    tell(promise.sentence)
    problems = _data(run, store, tell)
    with store.temp.folder() as temporary:
        mounts, changed = _checkpoints(run, temporary / "checkpoints")
        problems += changed
        if problems:
            more = f" and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
            problem = f"it cannot start from the same: {'; '.join(problems[:_NAMED])}{more}"
            return Verified(run=run, verdict=judging.verdict((), promise, problem=problem))
        asked = msgspec.structs.replace(
            asked,
            checkpoints=tuple((one.source, one.target) for one in mounts),
            runs=run.folder.parent if wanted.keep else temporary / "runs",
            kept=wanted.keep,
        )
        with aside():
            done = execute(asked, _expecting(spec, run), folder, store=store, tell=tell, backend=backend)
        if done.end.outcome.signal:
            problem = f"the new run was ended by signal {done.end.outcome.signal}"
            return Verified(
                run=run, verdict=judging.verdict((), promise, problem=problem), folder=done.folder if wanted.keep else None
            )
        tell(f"comparing with {run.folder.name}")
        sides = _side(run.folder, end, _mounts(run)), _side(done.folder, done.end, mounts)
        files = compare(*sides, wanted, look or _looker(spec, asked, store))
        found = judging.verdict(
            files,
            promise,
            problem=_exit(end, done.end),
            causes=judging.causes(end.effective, done.end.effective),
            first=first_step(run.folder, done.folder),
        )
        return Verified(run=run, verdict=found, folder=done.folder if wanted.keep else None)


def _over(run: Run) -> End:
    if run.state == "running":
        raise RecordError("is still running", where=run.folder.name, hint="wait for its end")
    if run.end is None:
        raise RecordError(
            "was interrupted: nothing says what it should give", where=run.folder.name, hint="verify a run that came to its end"
        )
    if run.end.outcome.signal:
        raise RecordError(
            f"was ended by signal {run.end.outcome.signal}: where it stopped is chance",
            where=run.folder.name,
            hint="verify a run that came to its end by itself",
        )
    if any(REDACTED in word for word in run.start.command):
        raise RecordError(
            "has a secret in its command, which the record does not hold",
            where=run.folder.name,
            hint="pass secrets by --env NAME, and verify such a run",
        )
    if not run.start.exact:
        raise RecordError(
            "has a command of more than one line, which the record does not hold",
            where=run.folder.name,
            hint="put the code into a file, and verify such a run",
        )
    return run.end


def _spec(run: Run, wanted: Wanted, runs: Path, store: Store, tell: Tell) -> tuple[Spec, Path]:
    """The spec that the run names, and the folder with what it carries."""
    if wanted.spec is not None:
        from repro_env.flows.opened import opened

        found = opened(wanted.spec, wanted.here, store, tell)
        if found.spec.digest != run.start.spec:
            raise SpecError(
                f"is another spec than the run's ({run.start.spec[:19]}…)", where=wanted.spec, hint="name the run's own"
            )
        return found.spec, found.folder
    from repro_env.flows.specof import Specs

    there = Specs(runs, wanted.here, store).find(run.start.spec)
    if there is None:
        raise SpecError(
            f"its spec ({run.start.spec[:19]}…) is neither beside the runs, nor here, in the store or in git's history",
            where=run.folder.name,
            hint="name it with --spec",
        )
    return there.spec, there.folder


def _given(run: Run, wanted: Wanted) -> tuple[tuple[str, str | None], ...]:
    """Variables that the run was given: the record holds names alone, so values have to come again."""
    known = {name for name, _ in wanted.env}
    if wanted.env_file is not None:
        from repro_env.flows.asked import read_env_file

        known |= {name for name, _ in read_env_file(wanted.env_file)}
    again: list[tuple[str, str | None]] = []
    for one in run.start.given:
        if one.name in known:
            continue
        if one.how == "host" and one.name in wanted.environ:
            again.append((one.name, None))
            continue
        raise UsageError(
            f"{one.name} was given to the run, and a record holds no values",
            where=run.folder.name,
            hint=f"give it again: --env {one.name}=VALUE",
        )
    return (*again, *wanted.env)


def _source(run: Run, spec: Spec, folder: Path, runs: Path, store: Store, tell: Tell) -> Spec:
    """The spec with the run's own source as the captured one: brought into the store from wherever it is still whole."""
    fact, source = run.start.source, spec.observed.source
    if source is None:
        raise SourceError("the spec holds no source", where=str(folder), hint="capture again with --source DIR")
    if fact.path != source.path:  # captured again elsewhere since: the run saw its code at its own place
        source = msgspec.structs.replace(source, path=fact.path)
        spec = msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, source=source))
    if store.layers.path(fact.digest) is None and not _brought(run, spec, folder, runs, store, tell):
        raise SourceError(
            f"its code ({fact.digest[:19]}…) is neither in the store nor beside the spec, nor is it the folder's or a commit's",
            where=run.folder.name,
            hint=f"bring {fact.path} back to what it was then, or restore the spec's blobs",
        )
    tree = msgspec.structs.replace(source.tree, sha256=fact.digest)
    observed = msgspec.structs.replace(spec.observed, source=msgspec.structs.replace(source, tree=tree))
    return msgspec.structs.replace(spec, observed=observed)


def _brought(run: Run, spec: Spec, folder: Path, runs: Path, store: Store, tell: Tell) -> bool:
    fact, source = run.start.source, spec.observed.source
    if source is None:
        return False
    frozen = (True, False) if source.tree.sha256 == fact.digest else (False,)
    for one in frozen:
        with contextlib.suppress(ReproEnvError, OSError):
            taken = snapshot.take(
                spec, folder, runs=runs, frozen=one, store=store, tell=Silent(), without=committed.written(run.start)
            )
            if taken.fact.digest == fact.digest:
                return True
    if not snapshot.is_known(spec, folder, store):
        return False
    commit = committed.of_run(run, source, folder)
    if commit is None:
        return False
    store.layers.unpack(fact.digest, commit.members())
    tell(f"its code is that of commit {commit.name[:12]}")
    return True


def _expecting(spec: Spec, run: Run) -> Spec:
    """The spec, with the data of the run as those that are expected: they are looked at once more when it starts."""
    expected = tuple(
        Data(path=one.target, digest=one.digest, files=0, size=0) for one in run.start.data if one.digest is not None
    )
    return msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, data=expected))


def _asked(run: Run, wanted: Wanted, env: tuple[tuple[str, str | None], ...]) -> Asked:
    """The recorded request. A run on the host is run again in its image."""
    start = run.start
    runner: RunnerName = "docker" if start.runner == "docker" else "embedded"
    return Asked(
        command=start.command,
        here=Path(start.cwd),
        environ=wanted.environ,
        runner=runner,
        gpus=start.gpus if runner == "docker" else 0,
        data=tuple((one.source, one.target) for one in start.data if one.kind == "data"),
        seed=start.seed,
        ranks=start.ranks,
        determinism=start.determinism,
        threads=threads_asked(start.threads),
        trace=start.trace,
        env=env,
        env_file=wanted.env_file,
        network=start.network and start.runner != "host",
        note=f"verifies {run.short}" if wanted.keep else "",
        frozen=True,
    )


def threads_asked(recorded: Sequence[Variable]) -> int | None:
    """What `--threads` was: it alone names every library, with one number, and no other variable (`run.plan.threads`)."""
    values = {one.name: one.value for one in recorded}
    same = set(values.values())
    if values.keys() == plan.THREADS and len(same) == 1 and (count := same.pop()).isdigit():
        return int(count)
    return None


def _here(run: Run, spec: Spec, asked: Asked) -> Here:
    from repro_env.capture import gpu

    devices: tuple[str, ...] = ()
    if asked.gpus:
        devices = tuple(one.name for one in gpu.accelerators().devices)
    return Here(
        host=host_facts(),
        threads={one.name: one.value for one in plan.threads(spec, asked.determinism, asked.threads)},
        devices=devices,
        given=tuple(one.name for one in run.start.given),
    )


def _data(run: Run, store: Store, tell: Tell) -> list[str]:
    """One line for each piece of data that is not what the run saw."""
    from repro_env.capture.data import look

    problems = []
    for fact in run.start.data:
        if fact.kind != "data" or fact.digest is None:
            continue
        try:
            now = look(Path(fact.source), fact.target, store.hashes, tell).data
        except DataError as error:
            problems.append(f"data {fact.source}: {error.what}")
            continue
        if now.digest != fact.digest:
            problems.append(f"data {fact.source} are other now than in the run")
    return problems


def _mounts(run: Run) -> list[Mount]:
    def mount(fact: DataFact) -> Mount:
        return Mount(kind="checkpoints", source=fact.source, target=fact.target)

    return [mount(fact) for fact in run.start.data if fact.kind == "checkpoints"]


def _checkpoints(run: Run, to: Path) -> tuple[list[Mount], list[str]]:
    """Private copies of what lay in the run's folders of checkpoints; and why there is none."""
    mounts = _mounts(run)
    if not mounts:
        return [], []
    listing = before.read(run.folder, before.BEFORE, run.start.before)
    if listing is None:
        return [], ["the record does not say what lay in its folders of checkpoints before it"]
    return before.copies(listing, mounts, to)


def _exit(then: End, now: End) -> str:
    if then.outcome.exit_code == now.outcome.exit_code:
        return ""
    return f"the command ended with exit code {now.outcome.exit_code}, then with {then.outcome.exit_code}"


def _side(folder: Path, end: End, mounts: Sequence[Mount]) -> Side:
    digests = {one.path: one.sha256 for one in end.outputs}
    places = {one.path: folder / "files" / one.path for one in end.outputs}
    if mounts:
        start = records.read(folder).start
        old, new = before.read(folder, before.BEFORE, start.before), before.read(folder, before.AFTER, end.after)
        sources = {one.target: one.source for one in mounts}
        for shown, held in before.changed(old, new).items():
            digests[shown] = held.sha256
            places[shown] = Path(sources[held.target], held.path) if held.path else Path(sources[held.target])
    return Side(digests, places, end)


def compare(left: Side, right: Side, wanted: Wanted, look: Look) -> tuple[File, ...]:
    """Everything that two runs left: pairs by digest, then by what is in them."""
    paired = pair(left.digests, right.digests)
    found = [*_unpaired(paired, wanted), *_removed(left.end, right.end, wanted)]
    found += outputs.of_links(left.end.others, right.end.others, wanted.results, wanted.ignored)
    inside: list[tuple[str, str, outputs.Kind]] = []
    for one in paired.pairs:
        kind = outputs.kind_of(one.left, wanted.results, wanted.ignored)
        if left.digests[one.left] == right.digests[one.right]:
            found.append(outputs.equal(one.left, one.right, kind))
        elif kind == "volatile":
            found.append(File(path=one.left, now=one.right, kind=kind, level=None, by="nothing", why="it is not looked at"))
        else:
            why = _changed(left, one.left) or _changed(right, one.right)
            if why:
                found.append(File(path=one.left, now=one.right, kind=kind, level="different", why=f"its bytes differ, and {why}"))
            elif outputs.holds_tensors(one.left, _start(left.places[one.left])):
                inside.append((one.left, one.right, kind))
            else:
                found.append(_by_content(one.left, one.right, kind, left, right, wanted))
    if inside:
        masked = [not outputs.matches(path, wanted.results) for path, _, _ in inside]
        pairs = [(left.places[path], right.places[now], mask) for (path, now, _), mask in zip(inside, masked, strict=True)]
        for (path, now, kind), mask, answer in zip(inside, masked, look(pairs), strict=True):
            found.append(outputs.of_tensors(path, now, kind, answer, masked=mask))
    return tuple(found)


def _unpaired(paired: Paired, wanted: Wanted) -> Iterator[File]:
    def kind(path: str) -> outputs.Kind:
        return outputs.kind_of(path, wanted.results, wanted.ignored)

    for path in paired.missing:
        yield File(path=path, now="", kind=kind(path), level="different", by="nothing", why="it is missing now")
    for path in paired.new:
        yield File(path="", now=path, kind=kind(path), level="different", by="nothing", why="it was not there then")
    for one in paired.ambiguous:
        why = f"it could be paired with any of {', '.join(one.right[:_NAMED])}{' …' * (len(one.right) > _NAMED)}"
        for path in one.left:
            yield File(path=path, now="", kind=kind(path), level=None, by="nothing", why=why)
        for path in one.right:
            others = f"{', '.join(one.left[:_NAMED])}{' …' * (len(one.left) > _NAMED)}"
            yield File(
                path="", now=path, kind=kind(path), level=None, by="nothing", why=f"it could be paired with any of {others}"
            )


def _removed(left: End, right: End, wanted: Wanted) -> Iterator[File]:
    """Files of the source that only one of the two runs deleted."""
    for path in sorted(set(left.removed) ^ set(right.removed)):
        why = "the run deleted it then, and not now" if path in left.removed else "the run deleted it now, and not then"
        kind = outputs.kind_of(path, wanted.results, wanted.ignored)
        yield File(path=path, now=path, kind=kind, level="different", by="nothing", why=why)


def _changed(side: Side, path: str) -> str:
    """Why a recorded file cannot be looked into; empty when it is what was recorded."""
    try:
        now = f"sha256:{sha256_of(side.places[path])}"
    except OSError as error:
        return f"the file {side.places[path]} cannot be read: {error.strerror}"
    return "" if now == side.digests[path] else f"the file {side.places[path]} was changed since the run"


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(8)


def _by_content(path: str, now: str, kind: outputs.Kind, left: Side, right: Side, wanted: Wanted) -> File:
    one, other = left.places[path], right.places[now]
    if max(one.stat().st_size, other.stat().st_size) > outputs.LARGEST:
        why = "its bytes differ, and it is too large to be compared as text"
        return File(path=path, now=now, kind=kind, level="different", why=why, apart=outputs.renamed(path, now))
    masked = not outputs.matches(path, wanted.results)
    return outputs.of_bytes(path, now, kind, one.read_bytes(), other.read_bytes(), masked=masked)


def _looker(spec: Spec, asked: Asked, store: Store) -> Look:
    """Looks into files where a run would be: with the environment's Python, both sides read-only."""

    def look(pairs: Sequence[tuple[Path, Path, bool]]) -> tuple[Answer, ...]:
        folders = list(dict.fromkeys(str(path.parent) for *both, _ in pairs for path in both))
        place = {folder: comparing.shown_at(number) for number, folder in enumerate(folders)}
        words = [
            [*(f"{place[str(path.parent)]}/{path.name}" for path in both), masks.NAMES if masked else ()]
            for *both, masked in pairs
        ]
        with store.temp.folder() as temporary:
            notes, folder = temporary / "notes", temporary / "run"
            notes.mkdir()
            folder.mkdir()
            (notes / _WANTED).write_bytes(msgspec.json.encode(words))
            launch = comparing.launch(
                spec,
                folders,
                user=user_of(asked.environ),
                empty=store.layers.add(()),
                tools=str(_TOOLS),
                notes=str(notes),
                wanted=_WANTED,
                out=_OUT,
            )
            try:
                with aside():
                    if asked.runner == "docker":
                        from repro_env.flows.engine import Docker

                        outcome = Docker(asked, spec, store).run(launch, folder=folder)
                    else:
                        from repro_env.run.embedded import EmbeddedRunner

                        outcome = EmbeddedRunner(store.layers.path, merged=store.root / "merged").run(launch, folder=folder)
            except ReproEnvError as error:
                return (Answer(problem=f"the comparison could not run: {error}"),) * len(pairs)
            if outcome.exit_code:
                return (Answer(problem=f"the comparison ended with exit code {outcome.exit_code}"),) * len(pairs)
            try:
                with (notes / _OUT).open("rb") as file:
                    data = file.read(_ANSWERS)
            except OSError as error:
                return (Answer(problem=f"the comparison gave no answer: {error.strerror}"),) * len(pairs)
            return outputs.answers(data, len(pairs))

    return look


def first_step(left: Path, right: Path) -> str:
    """Where training went apart, from the traces of both runs; empty without them, or where it did not."""
    read = [traces.read(folder) for folder in (left, right)]
    if not all(read):
        return ""
    found = trace.compare(*read)
    return trace.sentence(found.first[0]) if found.first else ""


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """What runs in the block prints to stderr: stdout is for the verdict."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        held = os.dup(1)
    except OSError:
        yield  # closed by whoever started us
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(held, 1)
        os.close(held)
