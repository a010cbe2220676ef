"""The page of one run, for people (`repro-env runs show`)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from repro_env.catalog import annotation, ids, specs
from repro_env.catalog.annotation import Annotation
from repro_env.catalog.records import Run
from repro_env.catalog.verified import Last
from repro_env.cli import ownseeds, say
from repro_env.model.run import Count, End, Metric, Number, Parent, Rank

SHOWN = 20
"""Lines of one list, unless all are asked for. Outputs are always all there."""


def lines(run: Run, said: Sequence[Annotation], verdict: Last | None = None, *, whole: bool = False) -> Iterator[str]:
    """`said`: its annotations, oldest first. `verdict`: of its last verification. `whole`: no list is cut."""
    most = None if whole else SHOWN
    yield from _head(run, said)
    if verdict is not None:
        ignored = f", {verdict.ignored:,} difference{'s' * (verdict.ignored != 1)} ignored" if verdict.ignored else ""
        yield f"verified  {verdict.level}{'' if verdict.same else ', not as expected'} ({verdict.written}{ignored})"
    yield from _began(run)
    if run.end is not None:
        yield from _ended(run.end, most)
    yield from _notes(said)


def number(value: Number) -> str:
    """Six digits; the record has them all."""
    return value if isinstance(value, str) else f"{value:.6g}"


def state(run: Run) -> str:
    from repro_env.catalog.index import ended

    if run.end is None:
        return run.state
    outcome = run.end.outcome
    return ended(outcome.exit_code, outcome.signal, out_of_memory=outcome.out_of_memory)


def _head(run: Run, said: Sequence[Annotation]) -> Iterator[str]:
    yield f"run       {run.start.id}"
    yield f"folder    {run.folder}"
    if run.intact is False:
        yield "          start.json was changed: it is not the one that end.json speaks of"
    tags = annotation.tags(said)
    if tags:
        yield f"tags      {', '.join(tags)}"
    yield f"command   {shlex.join(run.start.command)}"
    yield f"in        {run.start.cwd}"
    yield f"started   {run.start.started}"
    yield f"state     {state(run)}" + (f" after {run.end.seconds:.1f} s" if run.end else "")


def _kept(run: Run) -> Iterator[str]:
    """Where the spec lies that it ran from, beside its record."""
    if run.start.spec_file is not None:
        folder = specs.place(run.folder.parent, run.start.spec_file)
        yield str(folder) if (folder / specs.FILE).is_file() else f"{folder}, and is not there"


def _began(run: Run) -> Iterator[str]:
    start = run.start
    source = start.source
    kind = "captured" if source.directory is None else "live"
    yield f"image     {start.image}"
    yield f"spec      {start.spec}"
    yield from (f"  kept in {path}" for path in _kept(run))
    yield f"source    {source.directory or source.path} ({kind}, {source.digest})"
    yield from (f"  differs {line}" for line in source.differs)
    yield from (f"  copy of {path}" for path in (*source.ignored, *source.siblings))
    yield f"seed      {start.seed}" + (", the same on all ranks" if start.ranks == "same" else "")
    yield f"mode      deterministic: {start.determinism}" + ("" if start.trace is None else ", traced")
    yield f"ids       from the {'seed' if start.ids == 'seeded' else 'system'}"
    if start.threads:
        yield f"threads   {' '.join(f'{one.name}={one.value}' for one in start.threads)}"
    yield from (f"{one.kind:<9} {one.source} at {one.target}" + (f" ({one.digest})" if one.digest else "") for one in start.data)
    yield from (f"recipe    {one.path} ({one.sha256})" for one in start.recipe)
    yield from map(_parent, start.parents)
    yield from (f"variable  {one.name} (given: {one.how})" for one in start.given)
    if start.passed:
        yield f"variables {', '.join(start.passed)} (the host runner passed them on)"
    yield f"network   {'yes: inputs not closed' if start.network else 'no'}"
    yield from (f"{'' if number else 'host':<9} {_host(line)}" for number, line in enumerate(start.host))


def _host(line: str) -> str:
    name, _, value = line.partition(" ")
    return f"{name} {say.size(int(value))}" if name == "memory" and value.isascii() and value.isdigit() else line


def _ended(end: End, most: int | None) -> Iterator[str]:
    yield f"isolation {end.outcome.isolation}"
    yield from (f"  by      {means}" for means in end.outcome.means)
    yield from map(_parent, end.resumed)
    yield from map(_rank, end.world)
    yield from (f"seeded    {hole}" for hole in end.holes)
    yield from (f"own seed  {line}" for line in ownseeds.lines(end.seeded, whole=most is None))
    yield from (f"entropy   {_count(one)}" for one in end.entropy)
    yield from (f"not deterministic {_count(one)}" for one in end.operations)
    if end.effective:
        yield f"in force  {len(end.effective)} settings when it ended"
        yield from _cut([f"  {one.name} = {one.value}" for one in end.effective], most)
    if end.parameters:
        yield f"config    {len(end.parameters)} values in {_files(one.file for one in end.parameters)}"
        yield from _cut([f"  {one.name} = {one.value}" for one in end.parameters], most)
    if end.metrics:
        yield f"metrics   {len(end.metrics)} in {_files(one.file for one in end.metrics)}"
        rows = [_metric(one) for one in end.metrics]
        header, *table = say.table(rows, header=("NAME", "LAST", "LEAST", "MOST", "VALUES", "FILE")).splitlines()
        yield f"  {header}"
        yield from _cut([f"  {row}" for row in table], most)
    yield from (f"not read  {one}" for one in end.unread)
    yield from (f"removed   {path}" for path in end.removed)
    if end.trace:
        yield f"trace     {len(end.trace)} files, {say.size(sum(one.size for one in end.trace))}"
    if end.console:
        yield f"console   {', '.join(f'{one.path} ({say.size(one.size)})' for one in end.console)}"
    if end.lost is not None:
        yield f"lost      {end.lost.files:,} files, {say.size(end.lost.size)}: written outside the project and not kept"
        yield from _cut([f"  {line}" for line in end.lost.largest], most)
    yield f"outputs   {len(end.outputs)}, {say.size(sum(one.size for one in end.outputs))}"
    yield from (f"  {one.sha256.removeprefix('sha256:')[:16]}  {say.size(one.size):>9}  {one.path}" for one in end.outputs)
    yield from (f"  {'-':<16}  {'-':>9}  {other}" for other in end.others)


def _notes(said: Iterable[Annotation]) -> Iterator[str]:
    for one in said:
        if one.kind in ("note", "decision"):
            yield f"{one.kind:<9} {one.written}" + (f" ({one.by})" if one.by else "")
            yield from (f"  {line}" for line in one.text)


def _parent(one: Parent) -> str:
    what = {
        "named": "named",
        "data": "its data are of it",
        "checkpoints": "its checkpoints are of it",
        "resumed": "resumed from it",
    }
    parts = [what[one.how], one.path, "" if one.step is None else f"step {one.step}"]
    if one.id and one.record is None:
        parts.append("its end was not here")
    return f"parent    {ids.short(one.id) if one.id else '(no run)'} ({', '.join(filter(None, parts))})"


def _rank(one: Rank) -> str:
    return f"rank      {one.rank} of {one.size} ({', '.join(filter(None, (one.backend, one.device)))})"


def _count(one: Count) -> str:
    times = "once" if one.count == 1 else f"{one.count:,} times"
    return f"{one.what} {times}" + (f" at {one.file}:{one.line}" if one.file else "")


def _metric(one: Metric) -> tuple[str, ...]:
    return (one.name, number(one.last), number(one.least), number(one.most), f"{one.count:,}", one.file)


def _files(paths: Iterable[str]) -> str:
    count = len(set(paths))
    return f"{count} file{'s' * (count != 1)}"


def _cut(rows: list[str], most: int | None) -> Iterator[str]:
    yield from rows[:most]
    if most is not None and len(rows) > most:
        yield f"  and {len(rows) - most:,} more (--all shows them)"
