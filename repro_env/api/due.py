"""The command `repro-env due`: say which runs must be verified or made again, and why. It runs and writes nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

from repro_env.api import protocols, versions
from repro_env.compare.audit.findings import Answer
from repro_env.compare.audit.shared import SharedParts, check_rebuild
from repro_env.compare.outputs.verdict import machine_differences
from repro_env.io import pyproject
from repro_env.policy import due as rules
from repro_env.policy.due import DUE, Facts, Reason, Watch
from repro_env.runs.records import annotation, records, verdicts
from repro_env.runs.records.records import Run
from repro_env.runs.specsearch import Found, Specs
from repro_env.runs.start.inputs import host_facts
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import NetworkError, ReproEnvError
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.sources import Package
from repro_env.schema.spec import Spec
from repro_env.specs.argument import current_directory
from repro_env.store.store import Store

_REQUESTS = 6


class DueRun(Frozen, frozen=True, kw_only=True):
    run: str
    """The ID."""
    command: str
    why: str
    """Why the run is watched."""
    reasons: tuple[Reason, ...]
    unknown: tuple[str, ...]
    """What could not be found out."""


class Due(Frozen, frozen=True, kw_only=True):
    runs: tuple[DueRun, ...]
    """Those that are watched, the newest first."""

    @property
    def good(self) -> bool:
        """Whether a run is watched, and nothing is due or unknown."""
        return bool(self.runs) and not any(run.reasons or run.unknown for run in self.runs)


def due(runs: Path, *, ask: bool = False, now: datetime | None = None, store: Store | None = None, tell: Tell = SILENT) -> Due:
    """Judge the watched runs of a directory: those with a stage or a tag of `[tool.repro-env.due]`, or else the last good one.

    `ask`: also ask the indexes about vulnerable and yanked distributions, and the servers for what a rebuild would download.
    Raises `UsageError` for invalid settings, and what reading the records raises.
    """
    store = store or Store.open()
    project = runs.parent
    watch = settings(project)
    now = now or datetime.now(timezone.utc)
    found = []
    for run, why in watched(runs, watch):
        facts, unknown = _facts(run, ask=ask, store=store, tell=tell)
        reasons = tuple(rules.reasons(facts, watch, now))
        found.append(DueRun(run=run.id, command=run.start.command_line, why=why, reasons=reasons, unknown=tuple(unknown)))
    return Due(runs=tuple(found))


def settings(project: Path) -> Watch:
    """Return the settings of a project. Raises `UsageError` for invalid ones."""
    table, path = pyproject.read(project, DUE)
    return rules.parse(table, f"{path}: {pyproject.TABLE}.{DUE}")


def watched(runs: Path, watch: Watch) -> Iterator[tuple[Run, str]]:
    """Yield the runs that are watched, and why. A retired run never is."""
    staged: dict[str, list[str]] = {}
    for entry in versions.current(versions.history(runs)).values():
        staged.setdefault(entry.run, []).append(f"{entry.name}@{entry.stage}")
    any_found = False
    last = None
    for directory in records.directories(runs):
        annotations = annotation.of(directory)
        if annotation.retirement(annotations) is not None:
            continue
        why = [tag for tag in annotation.tags(annotations) if tag in watch.tags]
        run = records.read(directory)
        if why := sorted({*staged.get(run.id, ()), *why}):
            any_found = True
            yield run, ", ".join(why)
        elif last is None and run.end is not None and not run.end.outcome.status:
            last = run
    if not any_found and last is not None:
        yield last, "the last run"


def _facts(run: Run, *, ask: bool, store: Store, tell: Tell) -> tuple[Facts, list[str]]:
    """Read what the rules need, and what could not be found out."""
    here, runs = current_directory(), run.directory.parent
    unknown: list[str] = []
    shared = SharedParts(runs, here, store, ask=False, tell=tell)
    data: list[str] = []
    for fact in run.start.data:
        if fact.kind == "data" and (answer := shared.check_data(fact)) is not None:
            state, why = answer
            (unknown if state == "unknown" else data).append(f"data {fact.source}: {why}")
    verdict = verdicts.last(run.directory)
    packages: list[Package] = []
    download = ""
    if ask:
        found = Specs(runs, here, store).of(run.start)
        if found is None:
            unknown.append("its spec was not found, so its packages are not known")
        else:
            packages, failures = _ask(found.spec, tell)
            unknown += failures
            answer = _check_rebuild_elsewhere(found, store)
            if answer is not None and answer[0] == "gone":
                download = f"without the files of this machine, {answer[1]}"
            elif answer is not None:
                unknown.append(f"without the files of this machine, {answer[1]}")
    last = verdict.host if verdict is not None else ()
    facts = Facts(
        verdict=verdict,
        machine=tuple(machine_differences(run.start, host_facts(), last)),
        data=tuple(data),
        packages=tuple(packages),
        download=download,
        evaluations=protocols.evaluate(run, protocols.find(runs.parent), here, store),
    )
    return facts, unknown


def _check_rebuild_elsewhere(found: Found, store: Store) -> Answer:
    """Check that a machine without the files of this one could rebuild the image: an empty store, and no installed files."""
    from repro_env.delivery.builder.sinks import StoreSink  # slow to import

    with tempfile.TemporaryDirectory() as directory:
        empty = Store.open(Path(directory, "store"))
        empty.facts = store.facts  # which blobs next to the spec were checked
        sink = StoreSink(empty)
        sink.accepts_installed_files = False
        return check_rebuild(found, empty, sink, ask=True)


def _ask(spec: Spec, tell: Tell) -> tuple[list[Package], list[str]]:
    """Ask the indexes about each distribution that came from one. Return the answers, and what was not answered."""
    from repro_env.environment.python import packagemanagers  # slow to import, like the next ones
    from repro_env.environment.wheels import advisories
    from repro_env.io.indexhttp import Session

    indexed = {hint.sha256 for hint in spec.hints.wheels if hint.index}
    packages = sorted({(wheel.name, wheel.version) for wheel in spec.identity.distributions if wheel.sha256 in indexed})
    answers, failures = [], []
    sources = packagemanagers.look(None, os.environ)
    with Session(prefix=spec.identity.layout.prefix, sources=sources) as session, ThreadPoolExecutor(_REQUESTS) as pool:

        def answer(package: tuple[str, str]) -> Package | ReproEnvError | None:
            try:
                return advisories.ask(session, *package)
            except NetworkError as error:
                return error

        with tell.progress(0, "asking the indexes"):
            for package, found in zip(packages, pool.map(answer, packages), strict=True):
                if isinstance(found, Package):
                    answers.append(found)
                else:
                    failures.append(f"{' '.join(package)}: {found or 'no index has advisories for it'}")
    if len(failures) > 1 and len(failures) == len(packages):
        failures = [f"no index answered for {len(packages)} distributions; the first: {failures[0]}"]
    return answers, failures
