"""Two runs by their records: in what they were asked otherwise, and in what they came to otherwise. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from repro_env.model.codec import Frozen
from repro_env.model.run import Count, End, Metric, Start
from repro_env.verify import pairing
from repro_env.verify.pairing import Ambiguous

Part = Literal["command", "recipe", "seeds", "numbers", "machine", "end"]
"""What was asked; what the configuration says; where random numbers come from; how numbers are computed; where; the end."""
_EMPTY = (" (pipe)", " (socket)", " (character device)", " (block device)")
"""What `catalog.outputs` says of things that hold nothing."""
PARTS: tuple[Part, ...] = get_args(Part)


class Fact(Frozen, frozen=True, kw_only=True):
    """Something that the two records say otherwise."""

    part: Part
    what: str
    of: str = ""
    """The configuration file of a value, by its path in the left run if it is there."""
    left: str
    """Empty: this record does not say it."""
    right: str


class Measured(Frozen, frozen=True, kw_only=True):
    """A series of numbers on both sides, or on one."""

    name: str
    file: str
    """Of the left side, where it is there; else of the right."""
    left: Metric | None
    right: Metric | None

    @property
    def same(self) -> bool:
        """All that is recorded of it."""
        return self.left is not None and self.right is not None and _numbers(self.left) == _numbers(self.right)

    @property
    def change(self) -> float | None:
        """Right less left, of the last values; None where one of them is no number."""
        if self.left is None or self.right is None or isinstance(self.left.last, str) or isinstance(self.right.last, str):
            return None
        return self.right.last - self.left.last


class Pair(Frozen, frozen=True):
    """An output of both sides, and whether its bytes are the same."""

    left: str
    right: str
    same: bool


class Outputs(Frozen, frozen=True, kw_only=True):
    pairs: tuple[Pair, ...] = ()
    """Sorted by the left path."""
    missing: tuple[str, ...] = ()
    """Only left."""
    new: tuple[str, ...] = ()
    """Only right."""
    ambiguous: tuple[Ambiguous, ...] = ()
    unread: tuple[str, ...] = ()
    """`<path> (why)`: what could not be read when one of the runs ended."""

    @property
    def same(self) -> bool:
        """Not when there is nothing to compare."""
        others = self.missing or self.new or self.ambiguous or self.unread
        return bool(self.pairs) and not others and all(one.same for one in self.pairs)


def begun(left: Start, right: Start) -> tuple[Fact, ...]:
    """What was asked otherwise."""
    return _different(dict(_begun(left)), dict(_begun(right)))


def ended(left: End, right: End, files: Outputs) -> tuple[Fact, ...]:
    """Return the recorded results that differ, without metrics and outputs. `files`: the outputs of the same two runs."""
    return _different(dict(_ended(left, {})), dict(_ended(right, _partners(files))))


class Beside(Frozen, frozen=True, kw_only=True):
    """What a run left in folders of checkpoints, as far as that is recorded."""

    files: tuple[tuple[str, str], ...] = ()
    """(path as the run saw it, digest, or `removed`)."""
    unread: tuple[str, ...] = ()
    """`<path> (why)`."""


def outputs(left: End, right: End, beside: tuple[Beside, Beside] = (Beside(), Beside())) -> Outputs:
    """By the digests of the records. What is no plain file counts as it is told, and a removed file as an output too."""
    old, new = {**dict(_left(left)), **dict(beside[0].files)}, {**dict(_left(right)), **dict(beside[1].files)}
    paired = pairing.pair(old, new)
    return Outputs(
        pairs=tuple(Pair(one.left, one.right, old[one.left] == new[one.right]) for one in paired.pairs),
        missing=paired.missing,
        new=paired.new,
        ambiguous=paired.ambiguous,
        unread=tuple(
            dict.fromkeys(
                line
                for end, more in zip((left, right), beside, strict=True)
                for line in (*(line for line in end.others if _unread(line)), *more.unread)
            )
        ),
    )


def metrics(left: Sequence[Metric], right: Sequence[Metric], files: Outputs) -> tuple[Measured, ...]:
    """Beside each other where their files are, by name; sorted by file and name. `files`: of the same two runs."""
    partner = _partners(files)
    old = {(one.file, one.name): one for one in left}
    new = {(partner.get(one.file, one.file), one.name): one for one in right}
    return tuple(
        Measured(name=name, file=file, left=old.get((file, name)), right=new.get((file, name)))
        for file, name in sorted(old.keys() | new.keys())
    )


def _partners(files: Outputs) -> dict[str, str]:
    """Right path -> left path of the outputs that are pairs."""
    return {pair.right: pair.left for pair in files.pairs}


_Key = tuple[Part, str, str]
_Said = tuple[_Key, str]


def _different(left: Mapping[_Key, str], right: Mapping[_Key, str]) -> tuple[Fact, ...]:
    """In the order of the parts, then of the left record, then of the right one."""
    keys = sorted(dict.fromkeys((*left, *right)), key=lambda key: PARTS.index(key[0]))
    return tuple(
        Fact(part=part, what=what, of=of, left=left.get((part, what, of), ""), right=right.get((part, what, of), ""))
        for part, what, of in keys
        if left.get((part, what, of)) != right.get((part, what, of))
    )


def _begun(start: Start) -> Iterator[_Said]:
    yield ("command", "command", ""), shlex.join(start.command)
    yield ("command", "folder", ""), start.cwd
    yield ("command", "runner", ""), start.runner
    yield ("command", "network", ""), "yes" if start.network else "no"
    yield from ((("command", f"variable {one.name}", ""), f"given ({one.how})") for one in start.given)
    for one in start.data:
        if one.digest is None:
            yield ("command", f"{one.kind} at {one.target}", ""), one.source
    if start.parents:
        yield ("command", "parents", ""), ", ".join(sorted({one.id for one in start.parents}))
    yield from ((("recipe", one.path, ""), one.sha256[7:19]) for one in start.recipe)
    yield ("seeds", "seed", ""), str(start.seed)
    yield ("seeds", "ranks", ""), start.ranks
    yield ("seeds", "ids", ""), start.ids
    yield ("numbers", "deterministic", ""), start.determinism
    yield from ((("numbers", f"{one.name} (asked)", ""), one.value) for one in start.threads)
    for line in start.host:
        name, _, value = line.partition(" ")
        yield ("machine", name, ""), value
    yield ("machine", "repro-env", ""), start.tool


def _ended(end: End, partner: Mapping[str, str]) -> Iterator[_Said]:
    yield from ((("recipe", one.name, partner.get(one.file, one.file)), one.value) for one in end.parameters)
    if end.resumed:
        yield ("command", "resumed from", ""), ", ".join(f"{one.id or 'no run'} step {one.step}" for one in end.resumed)
    values: dict[str, list[str]] = {}
    for one in end.seeded:
        values.setdefault(f"{one.what} at {one.file}:{one.line}", []).append(one.value)
    yield from ((("seeds", what, ""), ", ".join(all_)) for what, all_ in values.items())
    yield from ((("seeds", hole, ""), "seeded by repro-env") for hole in end.holes)
    yield from _counted("seeds", end.entropy)
    yield from ((("numbers", one.name, ""), one.value) for one in end.effective)
    yield from _counted("numbers", end.operations)
    yield from ((("machine", f"rank {one.rank}", ""), f"of {one.size} {one.backend} {one.device}".rstrip()) for one in end.world)
    yield ("machine", "isolation", ""), end.outcome.isolation
    for means in end.outcome.means:
        name, _, value = means.partition(": ")
        yield ("machine", name, ""), value or "used"
    outcome = end.outcome
    yield ("end", "exit code", ""), str(outcome.exit_code)
    yield ("end", "signal", ""), str(outcome.signal or "none")
    yield ("end", "out of memory", ""), "yes" if outcome.out_of_memory else "no"


def _counted(part: Part, counts: Iterable[Count]) -> Iterator[_Said]:
    for one in counts:
        yield (part, f"{one.what} at {one.file}:{one.line}" if one.file else one.what, ""), f"{one.count} times"


def _left(end: End) -> Iterator[tuple[str, str]]:
    """Path -> what it is, of all that the command left or took away."""
    yield from ((one.path, one.sha256) for one in end.outputs)
    for line in end.others:
        if not _unread(line):
            path, arrow, target = line.partition(" -> ")
            yield (path, f"link to {target}") if arrow else (line.rpartition(" (")[0], line.rpartition(" (")[2])
    yield from ((path, "removed") for path in end.removed)


def _unread(line: str) -> bool:
    """Whether a line of `End.others` says that something of unknown content is there: that may not pass for the same."""
    return " -> " not in line and not line.endswith(_EMPTY)


def _numbers(one: Metric) -> tuple[object, ...]:
    return (one.count, one.last, one.least, one.most)
