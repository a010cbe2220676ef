"""The functions of `import repro_env`: the same use cases as the commands, with values in and values out.

Nothing is printed, apart from what `output=True` shows of a command. Pass a `report` (`schema.progress.Tell`) to follow the progress.
Every function raises subclasses of `repro_env.ReproEnvError`; relative paths are those of the current directory.

    spec = repro_env.capture()
    repro_env.rebuild(spec)
    run = repro_env.execute(spec, ["train.py", "--lr", "0.1"], seed=7)
    assert repro_env.verify(run).verdict.same
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from repro_env.schema.progress import Silent, Tell
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.api.capture import CaptureResult
    from repro_env.api.check import CheckResult
    from repro_env.api.diff import DiffResult
    from repro_env.api.execute import FinishedRun
    from repro_env.api.lineage import Answer
    from repro_env.api.pack import Pack
    from repro_env.api.push import Pushed
    from repro_env.api.rebuild import Rebuilt
    from repro_env.api.runscompare import Compared
    from repro_env.api.show import Shown
    from repro_env.api.verify import Verified
    from repro_env.runs.records.summary import Listing
    from repro_env.schema.run import Ids, Mode, Ranks, RunnerName
    from repro_env.specs.argument import Opened

Pairs = Mapping[str, str] | Sequence[str]
"""Paths to mount: `{SRC: DST}`, or `[SRC]` for the same absolute path in the run."""


def capture(
    source: Path | str = ".",
    *,
    python: str | None = None,
    output: Path | str = "repro",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    data: Pairs = (),
    programs: Sequence[str] = (),
    env: Sequence[str] = (),
    seed: int = 0,
    not_secret: Sequence[str] = (),
    report: Tell | None = None,
) -> CaptureResult:
    """Capture a live environment and write its spec to the directory `output`. The options are those of `repro-env capture`."""
    from repro_env.api.capture import Request
    from repro_env.api.capture import capture as use_case
    from repro_env.environment.code import CodeRequest

    code = CodeRequest(
        source=Path(source).resolve(),
        output=Path(output).absolute(),
        include=tuple(include),
        exclude=tuple(exclude),
        not_secret=tuple(not_secret),
        data=tuple((here := Path.cwd() / path, target or str(here)) for path, target in _pairs(data)),
    )
    request = Request(
        python=python,
        code=code,
        environ=dict(os.environ),
        programs=tuple(programs),
        env=tuple(dict.fromkeys(env)),
        seed=seed,
    )
    return use_case(request, store=Store.open(), tell=report or Silent())


def rebuild(spec: CaptureResult | Path | str | None = None, *, dry_run: bool = False, report: Tell | None = None) -> Rebuilt:
    """Make the image of a spec in the store, and prove that it is the captured one. Its ID is `image_id` of the result."""
    from repro_env.api.rebuild import rebuild as use_case

    found, store, tell = _open(spec, report)
    return use_case(found.spec, found.directory, store=store, dry_run=dry_run, tell=tell)


def execute(
    spec: CaptureResult | Path | str | None,
    command: Sequence[str],
    *,
    data: Pairs = (),
    checkpoints: Pairs = (),
    seed: int | Literal["random"] | None = None,
    ranks: Ranks = "each",
    determinism: Mode = "warn",
    ids: Ids | None = None,
    threads: int | None = None,
    trace: bool = False,
    env: Mapping[str, str | None] | None = None,
    network: bool = False,
    source: Path | str | None = None,
    frozen: bool = False,
    runner: RunnerName = "embedded",
    gpus: int | Literal["all"] = 0,
    tags: Sequence[str] = (),
    note: str = "",
    runs: Path | str | None = None,
    output: bool = False,
    report: Tell | None = None,
) -> FinishedRun:
    """Run a command in the image of a spec, and record the run. The options are those of `repro-env exec`.

    The exit code of the command is `end.outcome.exit_code` of the result; a command that fails raises nothing. A value of None in
    `env` passes the caller's own value. `output`: the command prints to the stdout and stderr of this process.
    """
    from repro_env.api.execute import execute as use_case
    from repro_env.runs.start.request import RunOptions

    found, store, tell = _open(spec, report)
    options = RunOptions(
        command=tuple(command),
        here=Path.cwd(),
        environ=dict(os.environ),
        runner=runner,
        data=_pairs(data),
        checkpoints=_pairs(checkpoints),
        seed=seed,
        ranks=ranks,
        determinism=determinism,
        ids=ids or ("seeded" if determinism == "strict" else "system"),
        threads=threads,
        trace=trace,
        tags=tuple(tags),
        note=note,
        env=tuple((env or {}).items()),
        network=network,
        gpus=gpus,
        frozen=frozen,
        source=None if source is None else Path(source).absolute(),
        runs=found.runs if runs is None else Path(runs).absolute(),
        output=output,
    )
    return use_case(options, found.spec, found.directory, store=store, tell=tell)


def verify(
    run: FinishedRun | Path | str = "latest",
    *,
    runs: Path | str | None = None,
    results: Sequence[str] = (),
    ignore: Sequence[str] = (),
    data: Pairs = (),
    env: Mapping[str, str | None] | None = None,
    network: bool = False,
    spec: str | None = None,
    source: Path | str | None = None,
    runner: RunnerName | None = None,
    keep: bool = False,
    report: Tell | None = None,
) -> Verified:
    """Repeat a recorded run and compare the outputs. The answer is `verdict.same` of the result, its level `verdict.level`.

    `run`: what `execute` returned, the directory of a run, an ID, or "latest". The options are those of `repro-env verify`.
    """
    from repro_env.api.verify import VerifyRequest
    from repro_env.api.verify import verify as use_case
    from repro_env.compare.outputs.ignore import parse
    from repro_env.compare.outputs.results import Globs

    directory = run if isinstance(run, Path) else None if isinstance(run, str) else run.directory
    request = VerifyRequest(
        word=run if isinstance(run, str) else directory.name if directory is not None else "",
        here=Path.cwd(),
        environ=dict(os.environ),
        runs=directory.absolute().parent if directory is not None else None if runs is None else Path(runs).absolute(),
        spec=spec,
        source=None if source is None else Path(source).resolve(),
        globs=Globs(results=tuple(results), ignored=tuple(parse(text) for text in ignore)),
        env=tuple((env or {}).items()),
        data=_pairs(data),
        network=network,
        runner=runner,
        keep=keep,
    )
    return use_case(request, store=Store.open(), tell=report or Silent())


def check(
    spec: CaptureResult | Path | str | None = None,
    *,
    environment: bool = True,
    project: bool = True,
    python: str | None = None,
    source: Path | str | None = None,
    report: Tell | None = None,
) -> CheckResult:
    """Compare the live environment (`environment`) and the code (`project`) with a spec. The answer is `compared` of the result."""
    from repro_env.api.check import CheckOptions
    from repro_env.api.check import check as use_case

    found, store, tell = _open(spec, report)
    options = CheckOptions(
        environ=dict(os.environ),
        environment=environment,
        project=project,
        python=python,
        source=None if source is None else Path(source).resolve(),
    )
    return use_case(found.spec, found.directory, options, store=store, tell=tell)


def diff(left: str, right: str, *, report: Tell | None = None) -> DiffResult:
    """Compare two environments, each named as for `repro-env diff`: a spec, a Python, or "live"."""
    from repro_env.api.diff import diff as use_case

    return use_case(left, right, Path.cwd(), dict(os.environ), store=Store.open(), tell=report or Silent())


def show(spec: CaptureResult | Path | str | None = None) -> Shown:
    """Return what a spec holds, part by part, and what of it is on this machine."""
    from repro_env.api.show import show as use_case

    found, store, _ = _open(spec, None)
    return use_case(found.spec, found.directory, store)


def pack(
    spec: CaptureResult | Path | str | None,
    file: Path | str,
    *,
    everything: bool = False,
    frozen: bool = False,
    report: Tell | None = None,
) -> Pack:
    """Write a spec and its bundled files as one file; with `everything` all wheels and conda packages too."""
    from repro_env.api.pack import pack as use_case

    found, store, tell = _open(spec, report)
    return use_case(
        found.spec, found.directory, Path(file).absolute(), everything=everything, frozen=frozen, store=store, tell=tell
    )


def push(
    reference: str, spec: CaptureResult | Path | str | None = None, *, frozen: bool = False, report: Tell | None = None
) -> Pushed:
    """Send the image and the spec to a registry: HOST/NAME:TAG."""
    from repro_env.api.push import push as use_case
    from repro_env.registry.reference import parse

    found, store, tell = _open(spec, report)
    return use_case(found.spec, found.directory, parse(reference), frozen=frozen, store=store, tell=tell)


def list_runs(runs: Path | str | None = None, *, report: Tell | None = None) -> Listing:
    """Return the recorded runs of a directory; by default that of the nearest spec upwards."""
    from repro_env.api.runs import find_runs_directory
    from repro_env.api.runs import list_runs as use_case

    return use_case(find_runs_directory(None if runs is None else Path(runs).absolute(), Path.cwd()), report or Silent())


def compare_runs(left: str, right: str, *, runs: Path | str | None = None) -> Compared:
    """Compare the records and the outputs of two runs, each named by its ID or directory. Nothing is run."""
    from repro_env.api.runscompare import compare_runs as use_case

    return use_case((left, right), None if runs is None else Path(runs).absolute(), Path.cwd(), Store.open())


def lineage(name: str, *, runs: Path | str | None = None, report: Tell | None = None) -> Answer:
    """Find which run made a file, from what, and what was made from it. `name`: a file, a directory, a sha256, or a run."""
    from repro_env.api.lineage import lineage_of

    directory = None if runs is None else Path(runs).absolute()
    return lineage_of(name, Path.cwd(), runs=directory, store=Store.open(), tell=report or Silent())


def _open(spec: CaptureResult | Path | str | None, report: Tell | None) -> tuple[Opened, Store, Tell]:
    """Return a spec, the store, and where progress is reported."""
    from repro_env.specs.argument import open_spec

    store, tell = Store.open(), report or Silent()
    name = None if spec is None else str(spec if isinstance(spec, Path | str) else spec.path)
    return open_spec(name, Path.cwd(), store, tell), store, tell


def _pairs(paths: Pairs) -> tuple[tuple[str, str], ...]:
    if isinstance(paths, Mapping):
        return tuple((str(path), str(target)) for path, target in paths.items())
    return tuple((str(path), "") for path in paths)
