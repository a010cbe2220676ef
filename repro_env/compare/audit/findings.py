"""The findings of an audit, and the comparison of recorded files with current ones. Pure: the caller reads the files."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Literal, get_args

import msgspec

from repro_env.runs.records import ids
from repro_env.runs.records.checkpointstate import CheckpointFile
from repro_env.runs.records.records import Run
from repro_env.schema import redact
from repro_env.schema.codec import Frozen
from repro_env.schema.run import Output, Parent
from repro_env.schema.rundirectory import END, START

Part = Literal["record", "output", "trace", "checkpoint", "spec", "image", "code", "data", "parent"]
State = Literal["gone", "changed", "unrecorded", "unknown"]
"""`unrecorded`: it is among the outputs, but not in the record. `unknown`: it could not be compared."""
PARTS: tuple[Part, ...] = get_args(Part)
STATES: tuple[State, ...] = get_args(State)
BAD: tuple[State, ...] = ("gone", "changed", "unrecorded")

Answer = tuple[State, str] | None
"""A problem and its reason; None without a problem."""


class Finding(Frozen, frozen=True, kw_only=True):
    """Something that differs from the record of a run, or could not be checked."""

    part: Part
    state: State
    what: str
    """A path, a digest or a run."""
    why: str
    runs: tuple[str, ...]
    """The ids of the runs concerned; for a run with an unreadable record, the name of its directory."""


class Checks:
    """Checks of things that several runs may use. Each thing is checked once."""

    def __init__(self) -> None:
        self._checks: dict[tuple[Part, Hashable], tuple[str, Answer, list[str]]] = {}

    def check(self, part: Part, key: Hashable, what: str, run: Run, look: Callable[[], Answer]) -> None:
        """Call `look` if no run had this key before. `what`: the name of the thing."""
        if (part, key) not in self._checks:
            self._checks[part, key] = (what, look(), [])
        self._checks[part, key][2].append(run.start.id)

    def count(self, part: Part) -> int:
        return sum(key[0] == part for key in self._checks)

    def findings(self) -> Iterator[Finding]:
        for (part, _), (what, answer, runs) in self._checks.items():
            if answer is not None:
                state, why = answer
                runs = list(dict.fromkeys(runs))
                yield Finding(part=part, state=state, what=redact.line(what), why=redact.line(why), runs=tuple(runs))


def check_record(run: Run, start_digest: str) -> Iterator[Finding]:
    """Compare the two files of a record with each other. `start_digest`: the current `sha256:<hex>` of `start.json`."""
    if not run.directory.name.endswith(f"-{run.short}"):
        yield finding("record", "changed", START, f"the directory of another run holds run {run.short}", run)
    if run.end is None:
        why = "the run is still running" if run.state == "running" else "the run was interrupted, so its outputs were not hashed"
        yield finding("record", "unknown", END, why, run)
    elif run.end.id != run.start.id:
        yield finding("record", "changed", END, f"it belongs to run {ids.short(run.end.id)}", run)
    elif run.end.start is None:
        why = "the version that wrote the record did not store the sha256 of start.json"
        yield finding("record", "unknown", START, why, run)
    elif run.end.start != start_digest:
        yield finding("record", "changed", START, "its sha256 differs from the one in end.json", run)


def check_others(run: Run, recorded: Iterable[str], current: Iterable[str]) -> Iterator[Finding]:
    """Compare the outputs of a run that are not regular files (`End.others`) with the current ones."""
    others = set(recorded)
    problems = {line for line in others if line.startswith("(")}
    for line in sorted(others - problems - set(current)):
        yield finding("output", "gone", line, "it is missing or changed", run)
    for line in sorted(set(current) - others):
        yield finding("output", "unrecorded", line, "it is not in the record", run)
    for line in sorted(problems):
        yield finding("output", "unknown", "outputs", line.strip("()"), run)


def check_files(part: Part, run: Run, recorded: Iterable[Output], current: Iterable[Output]) -> Iterator[Finding]:
    """Compare recorded files of a run with the current ones."""
    unrecorded = {output.path: output for output in current}
    for output in recorded:
        if answer := check_file(output, unrecorded.pop(output.path, None)):
            state, why = answer
            yield finding(part, state, output.path, why, run)
    for path in sorted(unrecorded):
        yield finding(part, "unrecorded", path, "it is not in the record", run)


def explain_missing(findings: Iterable[Finding], why_left_out: Callable[[str], str]) -> Iterator[Finding]:
    """Replace the findings of missing outputs that were left out of a pulled run: they were not compared."""
    for found in findings:
        why = why_left_out(found.what) if found.state == "gone" else ""
        yield msgspec.structs.replace(found, state="unknown", why=why) if why else found


def check_file(was: Output | CheckpointFile, now: Output | CheckpointFile | None) -> Answer:
    """Compare a recorded file with the current one; None if it does not exist."""
    size = f"{was.size:,} bytes, {_short(was.sha256)}"
    if now is None:
        return "gone", size
    if (now.sha256, now.size) == (was.sha256, was.size):
        return None
    return "changed", f"was {size}; is {now.size:,} bytes" + (f", {_short(now.sha256)}" if now.sha256 else "")


def check_parent(parent: Parent, current: str | None, broken: str | None) -> Answer:
    """Check a run that another run started from.

    `current`: the `sha256:<hex>` of its `end.json`; empty if that file is missing, None if the run was not found.
    `broken`: why its record cannot be read.
    """
    if not parent.id:
        return "unknown", "it was not written by a recorded run"
    if current is None and broken is not None:
        return "changed", f"its record cannot be read: {broken}"
    if current is None:
        return "gone", f"this run started from it ({parent.how}), and it is not in any known directory of runs"
    if parent.record is None:
        return "unknown", "it had no end.json when this run started from it"
    if not current:
        return "gone", "its end.json is missing"
    return None if current == parent.record else ("changed", "its end.json changed since this run started from it")


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, the worst first, then by part, run and name."""
    return tuple(
        sorted(
            findings,
            key=lambda finding: (STATES.index(finding.state), PARTS.index(finding.part), finding.runs, finding.what),
        )
    )


def finding(part: Part, state: State, what: str, why: str, run: Run) -> Finding:
    return Finding(part=part, state=state, what=what, why=why, runs=(run.start.id,))


def _short(digest: str) -> str:
    return digest[:19] + "…"
