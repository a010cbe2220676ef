"""What became of what runs recorded: pure comparisons of records with what was found. Nothing is taken for good unseen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

from repro_env.catalog import ids
from repro_env.catalog.outputs import Left
from repro_env.catalog.records import Run
from repro_env.model import redact
from repro_env.model.codec import Frozen
from repro_env.model.run import Output, Parent

Part = Literal["record", "output", "trace", "checkpoint", "spec", "image", "code", "recipe", "data", "parent"]
State = Literal["gone", "changed", "unrecorded", "unknown"]
"""`unrecorded`: it lies among the outputs, and no record names it. `unknown`: it could not be held against anything."""
STATES: tuple[State, ...] = get_args(State)
BAD: tuple[State, ...] = ("gone", "changed", "unrecorded")


Answer = tuple[State, str] | None
"""What is wrong, and why; None when nothing is."""
K = TypeVar("K")


class Finding(Frozen, frozen=True, kw_only=True):
    """Something that is not as a run recorded it, or could not be looked at."""

    part: Part
    state: State
    what: str
    """A path, a digest, a run."""
    why: str
    runs: tuple[str, ...]
    """Ids of the runs that it concerns; the folder's name of one whose record cannot be read."""


class Shared(Generic[K]):
    """Things that several runs name: each is looked at once."""

    def __init__(self, part: Part, name: Callable[[K], str], look: Callable[[K, Run], Answer]) -> None:
        self.part = part
        self._name = name
        self._look = look
        self._answers: dict[K, Answer] = {}
        self._runs: dict[K, list[str]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, key: K, run: Run) -> None:
        if key not in self._answers:
            self._answers[key] = self._look(key, run)
        self._runs.setdefault(key, []).append(run.start.id)

    def findings(self) -> Iterator[Finding]:
        for key, answer in self._answers.items():
            if answer is not None:
                state, why = answer
                what = redact.line(self._name(key))
                yield Finding(part=self.part, state=state, what=what, why=redact.line(why), runs=tuple(self._runs[key]))


def record(run: Run, started: str) -> list[Finding]:
    """The two halves of a record against each other. `started`: `sha256:<hex>` of `start.json` as it is now."""
    found = []
    if not run.folder.name.endswith(f"-{run.short}"):
        found.append(_one("record", "changed", "start.json", f"it is of run {run.short}, and the folder of another", run))
    if run.end is None:
        why = "it is still running" if run.state == "running" else "it was interrupted: its outputs were never hashed"
        found.append(_one("record", "unknown", "end.json", why, run))
        return found
    if run.end.id != run.start.id:
        found.append(_one("record", "changed", "end.json", f"it is of run {ids.short(run.end.id)}", run))
    elif run.end.start is None:
        why = "it was written by a version that did not note the sha256 of the start"
        found.append(_one("record", "unknown", "start.json", why, run))
    elif run.end.start != started:
        found.append(_one("record", "changed", "start.json", "its sha256 is not the one that the run's end names", run))
    return found


def outputs(run: Run, left: Left) -> list[Finding]:
    """What a run left against what lies in its files now."""
    if run.end is None:
        return []
    found = _files("output", run, run.end.outputs, left.outputs)
    then = {line for line in run.end.others if not line.startswith("(")}
    now = set(left.others)
    found += [_one("output", "gone", line, "it is not there, or no longer this", run) for line in sorted(then - now)]
    found += [_one("output", "unrecorded", line, "no record names it", run) for line in sorted(now - then)]
    problems = [line for line in run.end.others if line.startswith("(")]
    found += [_one("output", "unknown", "outputs", line.strip("()"), run) for line in problems]
    return found


def console(run: Run, now: Iterable[Output]) -> list[Finding]:
    """What a run printed against what its folder has of it."""
    return [] if run.end is None else _files("output", run, run.end.console, now)


def trace(run: Run, left: Left) -> list[Finding]:
    """A run's trace against its folder."""
    return [] if run.end is None else _files("trace", run, run.end.trace, left.outputs)


def _files(part: Part, run: Run, then: Iterable[Output], now: Iterable[Output]) -> list[Finding]:
    there = {one.path: one for one in now}
    found = []
    for one in then:
        other = there.pop(one.path, None)
        if other is None:
            found.append(_one(part, "gone", one.path, f"{one.size:,} bytes, {_short(one.sha256)}", run))
        elif (other.sha256, other.size) != (one.sha256, one.size):
            is_now = f"{other.size:,} bytes" + (f", {_short(other.sha256)}" if other.sha256 else "")
            why = f"was {one.size:,} bytes, {_short(one.sha256)}; is {is_now}"
            found.append(_one(part, "changed", one.path, why, run))
    found += [_one(part, "unrecorded", path, "no record names it", run) for path in sorted(there)]
    return found


class Claim(NamedTuple):
    """A file in a folder of checkpoints, as the last record of that folder has it."""

    path: str
    """On this machine."""
    sha256: str
    run: str
    """Id of the run that left it there, as far as records tell; else of the one that saw it last."""


def checkpoints(claims: Iterable[Claim], now: Mapping[str, str]) -> list[Finding]:
    """Files in folders of checkpoints against what is there: path -> `sha256:<hex>`. Others may lie there: the folder is the user's."""
    found = []
    for one in claims:
        if now.get(one.path) == one.sha256:
            continue
        state: State = "changed" if one.path in now else "gone"
        why = f"was {_short(one.sha256)}" + (f"; is {_short(now[one.path])}" if one.path in now else "")
        found.append(Finding(part="checkpoint", state=state, what=one.path, why=why, runs=(one.run,)))
    return found


def parents(run: Run, named: Sequence[Parent], ends: Mapping[str, str | None], broken: Mapping[str, str]) -> list[Finding]:
    """The runs that one came from. `ends`: id -> `sha256:<hex>` of its `end.json`, None where it has none.

    `broken`: short id -> why, of runs whose record cannot be read.
    """
    found = []
    for one in {(one.id, one.record): one for one in named}.values():
        what = f"run {ids.short(one.id)}"
        if not one.id:
            found.append(_one("parent", "unknown", one.path or "a checkpoint", "it was made outside of any run", run))
        elif one.id not in ends:
            why = broken.get(ids.short(one.id))
            if why is None:
                found.append(
                    _one("parent", "gone", what, f"this run came from it ({one.how}), and it is in no folder of runs here", run)
                )
            else:
                found.append(_one("parent", "changed", what, f"its record cannot be read: {why}", run))
        elif one.record is None:
            found.append(_one("parent", "unknown", what, "its end was not recorded when this run came from it", run))
        elif ends[one.id] is None:
            found.append(_one("parent", "gone", what, "its end.json is not there", run))
        elif ends[one.id] != one.record:
            found.append(_one("parent", "changed", what, "its end.json is not the one that this run came from", run))
    return found


def ordered(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first; then by part, run and name."""
    parts = get_args(Part)
    return tuple(sorted(found, key=lambda one: (STATES.index(one.state), parts.index(one.part), one.runs, one.what)))


def _one(part: Part, state: State, what: str, why: str, run: Run) -> Finding:
    return Finding(part=part, state=state, what=what, why=why, runs=(run.start.id,))


def _short(digest: str) -> str:
    return digest[:19] + "…"
