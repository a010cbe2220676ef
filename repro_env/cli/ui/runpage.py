"""The page of a run (`repro-env runs show`)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from repro_env.cli.ui import curves, messages, page
from repro_env.cli.ui.page import Page
from repro_env.launch.engine import State
from repro_env.runs.records import annotation, ids
from repro_env.runs.records.annotation import Annotation
from repro_env.runs.records.pulled import Pulled
from repro_env.runs.records.records import Run
from repro_env.runs.records.reports import MORE_VALUES
from repro_env.runs.records.submissions import Submitted
from repro_env.runs.records.summary import RunLine
from repro_env.runs.records.verdicts import Last
from repro_env.schema.messages import plural
from repro_env.schema.run import Count, End, GpuFact, Limits, Metric, Number, Parent, Process, Rank, Seeded, Start
from repro_env.store.specs import archive, files

Rows = Iterator[tuple[str, str]]
"""Labels and their texts."""
SHOWN = 20
"""Lines of a list that are shown without --all. The list of outputs is always complete."""


_LABEL = 8
_VALUES = 3
"""Seeds of one call that are shown without --all."""


def show(
    page: Page,
    run: Run,
    annotations: Sequence[Annotation],
    verdict: Last | None = None,
    source: Pulled | None = None,
    *,
    queue: str = "",
) -> None:
    """Add a run to its page (`new`).

    `annotations`: oldest first. `verdict`: of the last verification. `source`: of a run that was pulled. `queue`: the state of a run
    whose job may start again (`in_queue`).
    """
    page.rows(head(run, annotation.tags(annotations), queue))
    if verdict is not None:
        failed = ", the command failed in both runs" if verdict.failed else ""
        ignored = f", {plural(verdict.ignored, 'difference')} ignored" if verdict.ignored else ""
        level = f"{verdict.level}{'' if verdict.same else ', not as expected'}"
        page.row("verified", f"{level} ({verdict.written}{ignored}{failed})", indent=0)
    if source is not None:
        missing = f"; not here: {len(source.left_out)} outputs" if source.left_out else ""
        page.row("pulled", f"from {source.source}{missing}", indent=0)
        page.table([(f"left out {path}",) for path in source.left_out])
    page.rows(inputs(run, run.start.parents))
    if run.end is not None:
        _end(page, run.end)
        if page.is_file:
            curves.of_run(page, run)
    for note in annotations:
        if note.kind not in ("tag", "untag"):
            page.row(note.kind, note.written + (f" ({note.by})" if note.by else ""), indent=0)
            page.table([(line,) for line in note.text])


def commands(run: Run) -> list[str]:
    """What repeats a run, and compares the result."""
    return [f"repro-env verify {run.short}", f"repro-env runs get {run.short} --to outputs"]


def new(*, complete: bool) -> Page:
    """An empty page of a run. `complete`: do not shorten lists."""
    return Page(most=None if complete else SHOWN, label=_LABEL)


def number(value: Number) -> str:
    """The number with six digits; the record has all digits."""
    return value if isinstance(value, str) else f"{value:.6g}"


def head(run: Run, tags: Sequence[str] | None, queue: str = "") -> Rows:
    """What a run is. `tags`: None if they cannot be read. `queue`: as in `show`."""
    yield "run", run.start.id
    yield "directory", str(run.directory)
    if run.intact is False:
        yield "", "start.json was changed after the run: its digest is not the one in end.json"
    if tags is None or tags:
        yield "tags", "cannot be read" if tags is None else ", ".join(tags)
    yield "command", run.start.command_line
    yield "in", run.start.cwd
    yield "started", run.start.started
    if (job := run.start.job) is not None:
        yield "job", f"{job.engine} {job.id} on {job.node}" + (f", attempt {job.restarts + 1}" if job.restarts else "")
    yield "state", (queue or run.ending) + (f" after {run.end.seconds:.1f} s" if run.end else "")


def columns(start: Start) -> tuple[str, str, str]:
    """The short ID, the start and the shortened command of a run, for tables."""
    return ids.short(start.id), *start_columns(start.started, start.command)


def row(line: RunLine, ending: str = "", values: Sequence[str] = ()) -> tuple[str, ...]:
    """A row of `table`. `ending`: what is shown instead of how the run ended. `values`: of the metrics."""
    about = ("", "") if line.seconds is None else (f"{line.seconds:.1f} s", f"{line.outputs} ({messages.size(line.size)})")
    tags = "?" if line.tags is None else ", ".join(line.tags)
    return (ids.short(line.id), *start_columns(line.started, line.command), ending or line.ending, *about, *values, tags)


def table(rows: Sequence[tuple[str, ...]], metrics: Sequence[str] = ()) -> Page:
    """The table of runs, and of jobs that have not started. The last column is missing if no run has a tag."""
    header = ("ID", "WHEN (UTC)", "COMMAND", "STATE", "TIME", "OUTPUTS", *metrics, "TAGS")
    return page.table(rows, header=header if any(any(row[len(header) - 1 :]) for row in rows) else header[:-1])


def start_columns(started: str, words: Sequence[str]) -> tuple[str, str]:
    """The start and the shortened command of a run."""
    command = shlex.join(words)
    return started[:19].replace("T", " "), command if len(command) <= 40 else command[:39] + "…"


def before_start(state: State, submitted: Submitted) -> str:
    """The state of a submitted run that has no record here."""
    ended = "not recorded: " if submitted.submission.catalog else "did not start: "
    prefix = {"ended": ended, "unknown": "unknown: "}.get(state.phase, "")
    return f"{prefix}{state.text}"


def in_queue(run: Run | RunLine, state: State) -> str:
    """The state of an attempt whose job waits or runs, possibly on a machine whose locks are not seen here; else empty."""
    if state.phase == "running" and run.state != "done":
        return "running"
    return f"{run.ending}, queued again: {state.text}" if state.phase == "pending" else ""


def jobs(found: Iterable[tuple[Submitted, State]]) -> list[dict[str, object]]:
    """The submitted runs and the states of their jobs, for JSON."""
    return [
        {"directory": str(item.directory), "job": item.job, "submission": item.submission, "state": state}
        for item, state in found
    ]


def job(submitted: Submitted, state: State) -> Rows:
    """What is known about a submitted run that has not started."""
    submission = submitted.submission
    yield "run", submitted.id
    yield "command", submission.start.command_line
    yield "in", submission.start.cwd
    yield "submitted", submission.start.started
    yield "job", f"{submission.engine} {submitted.job or '(unknown)'}"
    yield (
        "state",
        before_start(state, submitted)
        + (f", exit {state.exit_code}" if state.phase == "ended" and state.exit_code is not None else ""),
    )
    if state.hint:
        yield "", state.hint
    yield "image", submission.start.image
    yield "spec", submission.start.spec
    yield "source", submission.start.source.digest
    yield "seed", str(submission.start.seed)
    yield "messages", str(submitted.directory)


def inputs(run: Run, parents: Sequence[Parent]) -> Rows:
    """What a run started from: image, spec, code, data, seed and settings."""
    start = run.start
    source = start.source
    kind = "captured" if source.directory is None else "live"
    yield "image", start.image
    yield "spec", start.spec
    if start.spec_file is not None:
        directory = archive.directory_of(run.directory.parent, start.spec_file)
        yield "", f"kept in {directory}" + ("" if (directory / files.SPEC).is_file() else " (missing)")
    yield "source", f"{source.directory or source.path} ({kind}, {source.digest})"
    yield from (("", f"differs {line}") for line in source.differs)
    yield from (("", f"copy of {path}") for path in source.ignored)
    resumes = f", resume {start.resumes}" if start.resumes else ""
    yield "seed", f"{start.seed}{resumes}" + (", the same on all ranks" if start.ranks == "same" else "")
    yield "mode", f"determinism: {start.determinism}" + (", traced" if start.trace else "")
    yield "ids", f"from the {'seed' if start.ids == 'seeded' else 'system'}"
    if start.defaults:
        yield "defaults", f"{', '.join(start.defaults)} (from pyproject.toml)"
    if start.threads:
        yield "threads", " ".join(f"{variable.name}={variable.value}" for variable in start.threads)
    for data in start.data:
        yield data.kind, f"{data.source} at {data.target}" + (f" ({data.digest})" if data.digest else "")
    yield from map(_parent, parents)
    yield from (("variable", f"{name} (set for the run)") for name in start.env_names)
    if start.host_env:
        yield "variables", f"{', '.join(start.host_env)} (passed by the host runner)"
    if limits := [text for text in _limits(start.limits) if text]:
        yield "limits", ", ".join(limits)
    yield "network", "yes: downloads are not recorded" if start.network else "no"
    yield from (("" if number else "host", _host(line)) for number, line in enumerate(start.host))
    yield from map(_gpu, start.devices)


def _limits(limits: Limits) -> Iterator[str]:
    yield f"{limits.cpus:g} CPUs" if limits.cpus else ""
    yield f"{messages.size(limits.memory)} of memory" if limits.memory else ""
    yield f"{limits.seconds} s" if limits.seconds else ""


def _gpu(fact: GpuFact) -> tuple[str, str]:
    facts = (fact.driver, f"UUID digest {fact.uuid}" if fact.uuid else "", *fact.mig)
    return "GPU", "; ".join(filter(None, (fact.name, *facts)))


def _host(line: str) -> str:
    name, _, value = line.partition(" ")
    return f"{name} {messages.size(int(value))}" if name == "memory" and value.isascii() and value.isdigit() else line


def _end(page: Page, end: End) -> None:
    page.rows(_outcome(end, complete=page.complete))
    if end.settings:
        page.row("settings", f"{len(end.settings)} at the end of the run", indent=0)
        page.table([(f"{fact.name} = {fact.value}",) for fact in end.settings])
    if end.parameters:
        count = len({parameter.file for parameter in end.parameters})
        page.row("config", f"{len(end.parameters)} values in {plural(count, 'file')}", indent=0)
        page.table([(f"{parameter.name} = {parameter.value}",) for parameter in end.parameters])
    if end.metrics:
        page.row("metrics", f"{len(end.metrics)} in {plural(len({metric.file for metric in end.metrics}), 'file')}", indent=0)
        page.table([_metric(metric) for metric in end.metrics], header=("NAME", "LAST", "MIN", "MAX", "VALUES", "FILE"))
    page.rows(_files(end))
    outputs = [(output.sha256.removeprefix("sha256:")[:16], messages.size(output.size), output.path) for output in end.outputs]
    page.table([*outputs, *(("-", "-", entry) for entry in end.special_files)], complete=True)


def _outcome(end: End, *, complete: bool) -> Rows:
    if end.outcome.timed_out:
        yield "time", "ended by the time limit"
    yield "isolation", end.outcome.isolation
    yield from (("", f"by {means}") for means in end.outcome.methods)
    yield from map(_parent, end.resumed)
    yield from map(_process, end.processes)
    yield from map(_rank, end.ranks)
    yield from (("seeded", generator) for generator in end.auto_seeded)
    yield from (("own seed", line) for line in own_seeds(end.seeded, complete=complete))
    yield from (("random", f"{_count(count)} (from the system)") for count in end.system_randomness)
    yield from (("not deterministic", _count(count)) for count in end.operations)


def _files(end: End) -> Rows:
    yield from (("not read", line) for line in end.unparsed_outputs)
    yield from (("removed", path) for path in end.removed)
    if end.trace:
        yield "trace", f"{len(end.trace)} files, {messages.size(sum(file.size for file in end.trace))}"
    if end.console:
        yield "console", ", ".join(f"{file.path} ({messages.size(file.size)})" for file in end.console)
    yield "outputs", f"{len(end.outputs)}, {messages.size(sum(output.size for output in end.outputs))}"


def _parent(parent: Parent) -> tuple[str, str]:
    how = {
        "named": "named with --parent",
        "data": "its outputs were used as data",
        "checkpoints": "its checkpoints were used",
        "outputs": "resumed, with its outputs",
        "resumed": "resumed from its checkpoint",
    }
    parts = [how[parent.how], parent.path, "" if parent.step is None else f"step {parent.step}", parent.sha256 or ""]
    if parent.id and parent.record is None:
        parts.append("its record was not found")
    return "parent", f"{ids.short(parent.id) if parent.id else '(no run)'} ({', '.join(filter(None, parts))})"


def _process(process: Process) -> tuple[str, str]:
    ending = f"signal {process.signal}" if process.signal else f"exit {process.exit_code}"
    ending += f" after {process.seconds:.1f} s"
    ending = "killed, or its command did not start" if process.exit_code is None else ending
    gpus = "".join(f", {device.name}{f' {device.uuid}' if device.uuid else ''}" for device in process.devices)
    return "process", f"{process.rank} on {process.node or 'an unknown machine'}: {ending}{gpus}"


def _rank(rank: Rank) -> tuple[str, str]:
    return "rank", f"{rank.rank} of {rank.size} ({', '.join(filter(None, (rank.backend, rank.device, rank.training)))})"


def _count(count: Count) -> str:
    times = "once" if count.count == 1 else f"{count.count:,} times"
    return f"{count.what} {times}" + (f" at {count.file}:{count.line}" if count.file else "")


def _metric(metric: Metric) -> tuple[str, ...]:
    return (metric.name, number(metric.last), number(metric.least), number(metric.most), f"{metric.count:,}", metric.file)


def own_seeds(seeds: Iterable[Seeded], *, complete: bool) -> list[str]:
    """One line for each call with which a script or its libraries set seeds. `complete`: show all recorded values."""
    calls: dict[tuple[str, str, int], list[str]] = {}
    for seed in seeds:
        calls.setdefault((seed.what, seed.file, seed.line), []).append(seed.shown)
    return [_own_seed(what, f"{file}:{line}", values, complete=complete) for (what, file, line), values in calls.items()]


def _own_seed(what: str, where: str, values: list[str], *, complete: bool) -> str:
    recorded = [value for value in values if value != MORE_VALUES]
    if len(values) == 1 and recorded:
        return f"{what}({recorded[0]}) at {where}"
    more = "more than " * (len(recorded) < len(values))
    shown = recorded if complete else recorded[:_VALUES]
    end = ", ..." if len(shown) < len(values) else ""
    return f"{what} at {where}, with {more}{len(recorded)} values: {', '.join(shown)}{end}"
