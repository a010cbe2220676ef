"""Compare two runs by their records: their commands and settings, and their results. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from repro_env.compare.environments.difference import Difference, Level, sort_differences
from repro_env.compare.outputs.comparison import ARROW, Paired, PairNames, by_path, pair, read_other
from repro_env.schema.codec import Frozen
from repro_env.schema.run import Count, End, Metric, Start

_EMPTY = ("(pipe)", "(socket)", "(character device)", "(block device)")
"""The ends of lines from `sandbox.outputs` for things that have no content."""


class MetricPair(Frozen, frozen=True, kw_only=True):
    """A metric of one or both runs."""

    name: str
    file: str
    """The path in the left run if the file exists there, otherwise in the right run."""
    left: Metric | None
    right: Metric | None

    @property
    def same(self) -> bool:
        """Whether all recorded numbers are equal."""
        return self.left is not None and self.right is not None and _numbers(self.left) == _numbers(self.right)

    @property
    def change(self) -> float | None:
        """The right last value minus the left one; None if one of them is missing or not finite."""
        if self.left is None or self.right is None or isinstance(self.left.last, str) or isinstance(self.right.last, str):
            return None
        return self.right.last - self.left.last


class Outputs(Paired, frozen=True, kw_only=True):
    unread: tuple[str, ...] = ()
    """`<path> (why)`, for files that could not be read when their run ended."""

    @property
    def same(self) -> bool:
        """Whether there are outputs, and all of them are equal."""
        differing = self.missing or self.new or self.unread
        return bool(self.pairs) and not differing and all(pair.same for pair in self.pairs)


def compare_starts(left: Start, right: Start) -> tuple[Difference, ...]:
    """Return the facts that differ between the commands and settings of two runs."""
    return _different(dict(_facts_of_start(left)), dict(_facts_of_start(right)))


def compare_ends(left: End, right: End, files: Outputs) -> tuple[Difference, ...]:
    """Return the recorded results that differ, without metrics and outputs. `files`: the outputs of the same two runs."""
    return _different(dict(_facts_of_end(left, {})), dict(_facts_of_end(right, _partners(files))))


class CheckpointFiles(Frozen, frozen=True, kw_only=True):
    """The files that a run wrote to checkpoint directories, according to its record."""

    files: tuple[tuple[str, str], ...] = ()
    """(path inside the run, digest or `removed`)."""
    unread: tuple[str, ...] = ()
    """`<path> (why)`."""


def outputs(
    left: End,
    right: End,
    checkpoints: tuple[CheckpointFiles, CheckpointFiles] = (CheckpointFiles(), CheckpointFiles()),
    pair_names: PairNames = by_path,
) -> Outputs:
    """Compare outputs by the digests in the records. Links, special files and removed files count as outputs too."""
    old = {**dict(_contents(left)), **dict(checkpoints[0].files)}
    new = {**dict(_contents(right)), **dict(checkpoints[1].files)}
    unread = (
        line
        for end, more in zip((left, right), checkpoints, strict=True)
        for line in (*(line for line in end.special_files if _is_unread(line)), *more.unread)
    )
    paired = pair(old, new, pair_names)
    return Outputs(pairs=paired.pairs, missing=paired.missing, new=paired.new, unread=tuple(dict.fromkeys(unread)))


def metrics(left: Sequence[Metric], right: Sequence[Metric], files: Outputs) -> tuple[MetricPair, ...]:
    """Pair the metrics of two runs by file and name, sorted. `files`: the outputs of the same two runs."""
    partner = _partners(files)
    old = {(metric.file, metric.name): metric for metric in left}
    new = {(partner.get(metric.file, metric.file), metric.name): metric for metric in right}
    return tuple(
        MetricPair(name=name, file=file, left=old.get((file, name)), right=new.get((file, name)))
        for file, name in sorted(old.keys() | new.keys())
    )


def _partners(files: Outputs) -> dict[str, str]:
    """Map the right path of each pair of outputs to its left path."""
    return {pair.right: pair.left for pair in files.pairs}


_Key = tuple[Level, str, str]
_Item = tuple[_Key, str]


def _different(left: Mapping[_Key, str], right: Mapping[_Key, str]) -> tuple[Difference, ...]:
    return sort_differences(
        Difference(
            level, what, left.get((level, what, of), ""), right.get((level, what, of), ""), of=of, counts=level != "observed"
        )
        for level, what, of in left.keys() | right.keys()
        if left.get((level, what, of)) != right.get((level, what, of))
    )


def _facts_of_start(start: Start) -> Iterator[_Item]:
    yield ("command", "command", ""), start.command_line
    yield ("command", "directory", ""), start.cwd
    yield ("command", "runner", ""), start.runner
    yield ("command", "network", ""), "yes" if start.network else "no"
    yield from ((("command", f"variable {name}", ""), "given") for name in start.env_names)
    for data in start.data:
        if data.digest is None:
            yield ("command", f"{data.kind} at {data.target}", ""), data.source
    if start.processes > 1:
        yield ("command", "processes that share the run", ""), str(start.processes)
    if start.parents:
        yield ("command", "parents", ""), ", ".join(sorted({parent.id for parent in start.parents}))
    yield ("seeds", "seed", ""), str(start.seed)
    if start.resumes:
        yield ("seeds", "resumes", ""), str(start.resumes)
    yield ("seeds", "ranks", ""), start.ranks
    yield ("seeds", "ids", ""), start.ids
    yield ("numerics", "deterministic", ""), start.determinism
    yield from ((("numerics", f"{variable.name} (requested)", ""), variable.value) for variable in start.threads)
    for line in start.host:
        name, _, value = line.partition(" ")
        yield ("observed", name, ""), value
    yield ("observed", "repro-env", ""), start.tool


def _facts_of_end(end: End, partner: Mapping[str, str]) -> Iterator[_Item]:
    yield from ((("config", value.name, partner.get(value.file, value.file)), value.value) for value in end.parameters)
    if end.resumed:
        checkpoints = (f"{parent.id or 'no run'} step {parent.step}" for parent in end.resumed)
        yield ("command", "resumed from", ""), ", ".join(checkpoints)
    if end.ranks:
        sizes = sorted({f"{rank.size} ranks" + (f", {rank.training}" if rank.training else "") for rank in end.ranks})
        yield ("config", "distributed training", ""), "; ".join(sizes)
    seeds: dict[str, list[str]] = {}
    for seed in end.seeded:
        seeds.setdefault(f"{seed.what} at {seed.file}:{seed.line}", []).append(seed.shown)
    yield from ((("seeds", what, ""), ", ".join(values)) for what, values in seeds.items())
    yield from ((("seeds", generator, ""), "seeded by repro-env") for generator in end.auto_seeded)
    yield from _counts("seeds", end.system_randomness)
    yield from ((("numerics", fact.name, ""), fact.value) for fact in end.settings)
    yield from _counts("numerics", end.operations)
    for rank in end.ranks:
        yield ("observed", f"rank {rank.rank}", ""), f"of {rank.size} {rank.backend} {rank.device}".rstrip()
    yield ("observed", "isolation", ""), end.outcome.isolation
    for means in end.outcome.methods:
        name, _, value = means.partition(": ")
        yield ("observed", name, ""), value or "used"
    outcome = end.outcome
    yield ("end", "exit code", ""), str(outcome.exit_code)
    yield ("end", "signal", ""), str(outcome.signal or "none")
    yield ("end", "out of memory", ""), "yes" if outcome.out_of_memory else "no"


def _counts(level: Level, counts: Iterable[Count]) -> Iterator[_Item]:
    for item in counts:
        yield (level, f"{item.what} at {item.file}:{item.line}" if item.file else item.what, ""), f"{item.count} times"


def _contents(end: End) -> Iterator[tuple[str, str]]:
    """Yield the path and content of all that the command wrote or removed: a digest, or a description."""
    yield from ((output.path, output.sha256) for output in end.outputs)
    yield from (read_other(line) for line in end.special_files if not _is_unread(line))
    yield from ((path, "removed") for path in end.removed)


def _is_unread(line: str) -> bool:
    """Whether a line of `End.others` is about a file with unknown content, which does not count as equal."""
    what = read_other(line)[1]
    return not what.startswith(ARROW) and what not in _EMPTY


def _numbers(metric: Metric) -> tuple[object, ...]:
    return (metric.count, metric.last, metric.least, metric.most)
