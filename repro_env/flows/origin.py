"""What a recorded run started from, as far as it is still there: its spec, code, data, checkpoints, variables and request."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.catalog.records import Run
from repro_env.flows import before, committed, snapshot, sourcedir
from repro_env.flows.asked import Asked
from repro_env.io.files import sha256_of
from repro_env.model.environment import Variable
from repro_env.model.errors import DataError, RecordError, ReproEnvError, SourceError, SpecError, UsageError
from repro_env.model.redact import REDACTED
from repro_env.model.run import DataFact, End, Mount, RunnerName
from repro_env.model.spec import Data, Spec
from repro_env.model.talk import Tell
from repro_env.run import plan, pycache
from repro_env.run.outside import ALL
from repro_env.store.store import Store


def over(run: Run) -> End:
    """The end of a run that can be repeated at all. Raises `RecordError`."""
    if run.state == "running":
        raise RecordError("is still running", where=run.folder.name, hint="wait for its end")
    if run.end is None:
        raise RecordError(
            "was interrupted: nothing says what it should give", where=run.folder.name, hint="verify a run that came to its end"
        )
    started = run.folder / "start.json"
    if run.end.start not in (None, f"sha256:{sha256_of(started)}"):
        raise RecordError(
            "was changed since the run: its end vouches for another beginning", where=str(started), hint="restore it from a copy"
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


def spec_of(run: Run, name: str | None, *, here: Path, runs: Path, store: Store, tell: Tell) -> tuple[Spec, Path]:
    """The spec that the run names, and the folder with what it carries. `name`: of the spec, where the user names one."""
    if name is not None:
        from repro_env.flows.opened import opened

        found = opened(name, here, store, tell)
        if found.spec.digest != run.start.spec:
            raise SpecError(f"is another spec than the run's ({run.start.spec[:19]}…)", where=name, hint="name the run's own")
        return found.spec, found.folder
    from repro_env.flows.specof import Specs

    there = Specs(runs, here, store).of(run.start)
    if there is None:
        raise SpecError(
            f"its spec ({run.start.spec[:19]}…) is neither beside the runs, nor here, in the store or in git's history",
            where=run.folder.name,
            hint="name it with --spec: its folder, a packed file or a registry's REF, from whoever made the run",
        )
    return there.spec, there.folder


def check_given(run: Run, env: Sequence[tuple[str, str | None]], env_file: Path | None, *, network: bool) -> None:
    """Refuse a run that was given variables or the network, unless the caller passes them again.

    A record is not trusted: its command must not get the caller's variables or network only because the record names them.
    Raises `UsageError`.
    """
    if run.start.network and run.start.runner != "host" and not network:
        raise UsageError(
            "the recorded run had access to the network, and `verify` grants it only on request",
            where=run.folder.name,
            hint="allow access to the network: --network",
        )
    known = {name for name, _ in env}
    if env_file is not None:
        from repro_env.flows.asked import read_env_file

        known |= {name for name, _ in read_env_file(env_file)}
    for one in run.start.given:
        if one.name not in known:
            value = "" if one.how == "host" else "=VALUE"
            raise UsageError(
                f"{one.name} was given to the run, and records do not hold values",
                where=run.folder.name,
                hint=f"give it again: --env {one.name}{value}",
            )


def source(
    run: Run, spec: Spec, folder: Path, *, here: Path, runs: Path, store: Store, tell: Tell, given: Path | None = None
) -> Spec:
    """The spec with the run's own source as the captured one, brought into the store from a place that still has all of it.

    `given`: the only place to look at, where the user names one. Raises `SourceError` where no place has the recorded code.
    """
    fact, source = run.start.source, spec.observed.source
    if source is None:
        raise SourceError("the spec holds no source", where=str(folder), hint="capture again with --source DIR")
    if fact.path != source.path:  # captured again elsewhere since: the run saw its code at its own place
        source = msgspec.structs.replace(source, path=fact.path)
        spec = msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, source=source))
    if given is not None and not _brought(run, spec, folder, [given], runs, store, tell):
        raise SourceError(
            f"its files are not the code of the run ({fact.digest[:19]}…), and no commit of its repository that was tried has that code",
            where=f"--source {given}",
            hint="verify runs the recorded code and no other: name a directory or a clone that has it, or leave --source out",
        )
    if store.layers.path(fact.digest) is None and not _brought(
        run, spec, folder, _places(run, spec, folder, here, runs, store), runs, store, tell
    ):
        raise SourceError(
            f"its code ({fact.digest[:19]}…) is neither in the store nor beside the spec, nor is it the folder's or a commit's",
            where=run.folder.name,
            hint=f"bring {committed.place(fact)} back to what it was then, or name a directory or a clone that has the code: --source DIR",
        )
    tree = msgspec.structs.replace(source.tree, sha256=fact.digest)
    observed = msgspec.structs.replace(spec.observed, source=msgspec.structs.replace(source, tree=tree))
    return msgspec.structs.replace(spec, observed=observed)


def _places(run: Run, spec: Spec, folder: Path, here: Path, runs: Path, store: Store) -> list[Path | None]:
    """Where the code of a run may be; None for the captured files."""
    places: list[Path | None] = [runs.absolute().parent, here]
    with contextlib.suppress(ReproEnvError):  # what another spec says of its place is not needed to find a run's code
        places.insert(0, sourcedir.choose(spec, folder, store=store).path)
    if sourcedir.is_known(spec, folder, store):
        places.insert(0, committed.place(run.start.source))
    return [None, *places]


def _brought(run: Run, spec: Spec, folder: Path, places: Sequence[Path | None], runs: Path, store: Store, tell: Tell) -> bool:
    fact, source = run.start.source, spec.observed.source
    if source is None:
        return False
    directories = [path for path in dict.fromkeys(places) if path is not None and sourcedir.holds(source, path)]
    captured = [None] if None in places and source.tree.sha256 == fact.digest else []
    for directory in (*captured, *directories):
        with contextlib.suppress(ReproEnvError, OSError):
            without = () if directory is None else committed.written(run.start, directory)
            restore = bool(fact.restored)
            taken = snapshot.take(spec, folder, directory=directory, runs=runs, store=store, without=without, restore=restore)
            if taken.fact.digest == fact.digest:
                return True
    for directory in directories:
        commit = committed.of_run(run, source, folder, root=directory)
        if commit is not None:
            store.layers.unpack(fact.digest, commit.members())
            tell.detail(
                f"its code is that of commit {commit.name[:12]}" + ("" if str(directory) == fact.path else f" of {directory}")
            )
            return True
    return False


def given_data(run: Run, given: Sequence[tuple[str, str]], here: Path) -> tuple[Run, tuple[tuple[str, str], ...]]:
    """The run with its data at the places that the user names now, and what of these (SRC, DST) its record does not name."""
    places = {target or os.path.normpath(here / source): os.path.normpath(here / source) for source, target in given}
    known = {fact.target for fact in run.start.data if fact.kind == "data"}
    facts = tuple(
        msgspec.structs.replace(fact, source=places[fact.target]) if fact.kind == "data" and fact.target in places else fact
        for fact in run.start.data
    )
    more = tuple((source, target) for target, source in places.items() if target not in known)
    return msgspec.structs.replace(run, start=msgspec.structs.replace(run.start, data=facts)), more


def expecting(spec: Spec, run: Run) -> Spec:
    """The spec, with the data of the run as those that are expected: they are looked at once more when it starts."""
    expected = tuple(
        Data(path=one.target, digest=one.digest, files=0, size=0) for one in run.start.data if one.digest is not None
    )
    return msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, data=expected))


def asked(
    run: Run,
    end: End,
    env: tuple[tuple[str, str | None], ...],
    env_file: Path | None,
    environ: Mapping[str, str],
    *,
    note: str,
    runner: RunnerName | None = None,
) -> Asked:
    """The recorded request. `runner`: None for the recorded one; but a run on the host is run again in its image."""
    start = run.start
    if start.term is not None:
        environ = {**environ, "TERM": start.term}
    runner = runner or ("docker" if start.runner == "docker" else "embedded")
    return Asked(
        command=start.command,
        here=Path(start.cwd),
        environ=environ,
        runner=runner,
        gpus=start.gpus if runner == "docker" else 0,
        data=tuple((one.source, one.target) for one in start.data if one.kind == "data"),
        seed=start.seed,
        ranks=start.ranks,
        determinism=start.determinism,
        ids=start.ids,
        threads=threads_asked(start.threads),
        trace=start.trace,
        env=env,
        env_file=env_file,
        network=start.network and start.runner != "host",
        note=note,
        frozen=True,
        private=True,
        repeats=True,
        keep_outside=ALL,
        hidden=hidden(end),
        git=start.git,
        python_path=start.python_path,
    )


def hidden(end: End) -> tuple[str, ...] | Literal["all"]:
    """The bytecode that the run did not find (`Asked.hidden`)."""
    return "all" if pycache.NONE in end.outcome.means else end.compiled


def threads_asked(recorded: Sequence[Variable]) -> int | None:
    """What `--threads` was: it alone names every library, with one number, and no other variable (`run.plan.threads`)."""
    values = {one.name: one.value for one in recorded}
    same = set(values.values())
    if values.keys() == plan.THREADS and len(same) == 1 and (count := same.pop()).isdigit():
        return int(count)
    return None


def data(run: Run, store: Store, tell: Tell) -> list[str]:
    """One line for each piece of data that is not what the run saw."""
    from repro_env.capture.data import look

    problems = []
    for fact in run.start.data:
        if fact.kind != "data":
            continue
        if fact.digest is None:  # without this check a forged record could mount any directory of this machine
            problems.append(f"data {fact.source}: the record has no digest of these data, so they cannot be compared")
            continue
        try:
            now = look(Path(fact.source), fact.target, store.hashes, tell).data
        except DataError as error:
            problems.append(f"data {fact.source}: {error.what}")
            continue
        if now.digest != fact.digest:
            problems.append(f"data {fact.source} have changed since the run")
    return problems


def mounts(run: Run) -> list[Mount]:
    """The folders of its checkpoints."""

    def mount(fact: DataFact) -> Mount:
        return Mount(kind="checkpoints", source=fact.source, target=fact.target)

    return [mount(fact) for fact in run.start.data if fact.kind == "checkpoints"]


def checkpoints(run: Run, to: Path) -> tuple[list[Mount], list[str]]:
    """Private copies of what lay in the run's folders of checkpoints; and why there is none."""
    there = mounts(run)
    if not there:
        return [], []
    listing = before.read(run.folder, before.BEFORE, run.start.before)
    if listing is None:
        return [], ["the record does not say what lay in its folders of checkpoints before it"]
    return before.copies(listing, there, to)
