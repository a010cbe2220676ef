"""The command `repro-env runs compare`: compare the records of two runs. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from repro_env.api import protocols
from repro_env.api.arguments import absolute
from repro_env.api.runs import find_runs_directory
from repro_env.compare import runs as rules
from repro_env.compare.environments import code, sides
from repro_env.compare.environments import comparison as compare
from repro_env.compare.environments.difference import Difference, NotCompared, compare_values, sort_differences
from repro_env.compare.environments.trees import changes, describe
from repro_env.compare.outputs import results
from repro_env.compare.outputs.comparison import File
from repro_env.compare.outputs.evidence import Evidence
from repro_env.compare.outputs.judge import Judge
from repro_env.compare.runs import CheckpointFiles, MetricPair, Outputs
from repro_env.compare.traces import comparison as traces
from repro_env.compare.traces import divergence
from repro_env.runs.lineage import parents
from repro_env.runs.records import annotation, checkpointstate, records
from repro_env.runs.records.records import Run
from repro_env.runs.specsearch import Specs
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.run import Start
from repro_env.schema.rundirectory import CHECKPOINTS_AFTER, CHECKPOINTS_BEFORE
from repro_env.specs.argument import current_directory
from repro_env.store.store import Store

MOST_READ = 200
"""Outputs, and files of the code, that differ and are read, to show what differs in them."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    left: Run
    right: Run
    tags: tuple[tuple[str, ...], tuple[str, ...]]
    differences: tuple[Difference, ...]
    """Differences of the recorded facts, environment, code and data, ordered."""
    code: tuple[File, ...] = ()
    """The comparison of files of the code whose digests differ, of the first `MOST_READ`."""
    not_compared: tuple[NotCompared, ...]
    metrics: tuple[MetricPair, ...]
    outputs: Outputs
    files: tuple[File, ...] = ()
    """The comparison of outputs whose digests differ, of the first `MOST_READ`."""
    console: tuple[File, ...] = ()
    """The comparison of what the commands printed."""
    steps: divergence.Comparison | None
    """The compared traces; None if neither run has one."""

    @property
    def same(self) -> bool:
        """Whether both runs have the same outputs, byte for byte. Without outputs, what they printed decides."""
        if self.outputs == Outputs():
            return bool(self.console) and all(file.equal for file in self.console)
        return self.outputs.same


def compare_runs(left_name: str, right_name: str, *, runs: Path | str | None = None) -> Compared:
    """Compare the records and the outputs of two runs, each named by its ID or by its directory. Nothing is run.

    Raises `RecordError` if a run does not exist, `SpecError` if a record cannot be read.
    """
    here, store = current_directory(), Store.open()
    left, right = (records.read(_directory(name, absolute(runs), here)) for name in (left_name, right_name))
    differences, missing, lines = _environment(left, right, here, store)
    differences += _data(left.start, right.start)
    differences += rules.compare_starts(left.start, right.start)
    outputs = Outputs()
    console: tuple[File, ...] = ()
    files: tuple[File, ...] = ()
    metrics: tuple[MetricPair, ...] = ()
    if left.end is not None and right.end is not None:
        old, new = (results.side(run.directory, run.end, ()) for run in (left, right) if run.end is not None)
        judge = Judge(old.evidence, new.evidence)
        console = tuple(results.consoles(old, new, results.Globs(), judge))
        checkpoints = _checkpoint_files(left), _checkpoint_files(right)
        outputs = rules.outputs(left.end, right.end, checkpoints, judge.pair_names)
        differing = [names for names in outputs.pairs if not names.same]
        files = tuple(results.contents(old, new, differing[:MOST_READ], judge))
        differences += rules.compare_ends(left.end, right.end, outputs)
        metrics = rules.metrics(left.end.metrics, right.end.metrics, outputs)
    missing += _protocols(left, right, here, store)
    for run in (left, right):
        if run.end is None:
            missing.append(NotCompared(what="outputs, metrics and effective settings", why=f"{run.short} is {run.state}"))
    return Compared(
        left=left,
        right=right,
        tags=(annotation.tags(annotation.of(left.directory)), annotation.tags(annotation.of(right.directory))),
        differences=sort_differences(differences),
        code=lines,
        not_compared=tuple(missing),
        metrics=metrics,
        outputs=outputs,
        files=files,
        console=console,
        steps=traces.compare_traces(left.directory, right.directory),
    )


def _directory(word: str, runs: Path | None, here: Path) -> Path:
    if "/" in word and (here / word).is_dir():  # then no runs directory is needed
        return parents.directory_of(word, here, here)
    return parents.directory_of(word, find_runs_directory(runs, here), here)


def _checkpoint_files(run: Run) -> CheckpointFiles:
    """Return the files that the run wrote to directories of `--checkpoints`."""
    if run.end is None or not any(fact.kind == "checkpoints" for fact in run.start.data):
        return CheckpointFiles()
    try:
        old = checkpointstate.read(run.directory, CHECKPOINTS_BEFORE, run.start.checkpoints_before)
        new = checkpointstate.read(run.directory, CHECKPOINTS_AFTER, run.end.checkpoints_after)
    except ReproEnvError as error:
        return CheckpointFiles(unread=(f"checkpoints of {run.short} ({error.what})",))
    if new is None:
        return CheckpointFiles(unread=(f"checkpoints of {run.short} (its record does not list them)",))
    paths = {file.shown for file in new.files}
    removed = [file.shown for file in old.files if file.shown not in paths] if old is not None else []
    written = [(path, file.sha256) for path, file in checkpointstate.changed_files(old, new).items()]
    return CheckpointFiles(
        files=(*written, *((path, "removed") for path in removed)),
        unread=tuple(line for line in new.special_files if " -> " not in line),
    )


def _environment(left: Run, right: Run, here: Path, store: Store) -> tuple[list[Difference], list[NotCompared], tuple[File, ...]]:
    """Return the differences of spec, image and code, what could not be compared, and the files of the code that differ."""
    found: list[Difference] = []
    missing: list[NotCompared] = []
    specs = [Specs(run.directory.parent, here, store) for run in (left, right)]
    if left.start.spec != right.start.spec:
        old, new = (search.of(run.start) for search, run in zip(specs, (left, right), strict=True))
        if old is not None and new is not None:
            old_side = sides.spec_side(old.spec, old.directory, left.short, store)
            new_side = sides.spec_side(new.spec, new.directory, right.short, store)
            found += compare.environments(old_side, new_side, store)
        else:
            lost = [run for run, spec in ((left, old), (right, new)) if spec is None]
            names = ", ".join(f"the spec of {run.short} ({run.start.spec[7:19]})" for run in lost)
            missing.append(NotCompared(what="environment", why=f"they differ, but this was not found: {names}"))
            found += _digests(left.start, right.start)
    lines: tuple[File, ...] = ()
    if left.start.source.digest != right.start.source.digest:
        more, lines = _source(left, right, specs, store)
        found += more
    return found, missing, lines


def _digests(left: Start, right: Start) -> list[Difference]:
    pairs = (("spec digest", left.spec, right.spec), ("image ID", left.image, right.image))
    return [Difference("digests", what, old, new) for what, old, new in pairs if old != new]


def _source(left: Run, right: Run, specs: list[Specs], store: Store) -> tuple[list[Difference], tuple[File, ...]]:
    """Return the files of the code that differ, and what differs in them; a single difference if the files are not known."""
    old, new = trees = [code.recorded(run.start, search, store) for run, search in zip((left, right), specs, strict=True)]
    if old is not None and new is not None:
        found = changes(old.entries, new.entries)
        paths = [change.path for change in found if change.how == "content"][:MOST_READ]
        differences = [Difference("source", change.path, describe(change.left), describe(change.right)) for change in found]
        return differences, tuple(_lines(old.contents(paths), new.contents(paths)))
    names = " and ".join(run.short for run, tree in zip((left, right), trees, strict=True) if tree is None)
    difference = Difference(
        "source",
        "files of the source",
        left.start.source.digest[7:19],
        right.start.source.digest[7:19],
        f"their names are not known, because the code of {names} was not found",
    )
    return [difference], ()


def _lines(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> Iterator[File]:
    """Compare the content of files of the code, by their paths. Nothing of a run explains a difference of its code."""
    judge = Judge(Evidence(), Evidence())
    for path in sorted(old.keys() & new.keys()):
        yield judge.of_bytes(File(path=path, now=path, kind="result"), old[path], new[path])


def _protocols(left: Run, right: Run, here: Path, store: Store) -> list[NotCompared]:
    """Return that metrics cannot be compared, if only one of the runs was made under a protocol."""
    found = protocols.find(left.directory.parent.parent)
    sides = [protocols.evaluate(run, found, here, store) for run in (left, right)] if found else [(), ()]
    missing = []
    for old, new in zip(*sides, strict=True):
        other = (old, left) if old.departures else (new, right)
        if bool(old.departures) != bool(new.departures):
            why = f"run {other[1].short} is not under the protocol {old.protocol}: {other[0].departures[0]}"
            missing.append(NotCompared(what="metrics", why=why))
    return missing


def _data(left: Start, right: Start) -> list[Difference]:
    """Return the mounted data that differ, by their path in the run."""
    old, new = ({fact.target: fact.digest for fact in start.data if fact.digest is not None} for start in (left, right))
    return list(compare_values(old, new, "data", describe=lambda digest: f"sha256 {digest[7:19]}"))
