"""Compare the records of runs with the files that exist now. Pure: the caller reads the files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

from repro_env.runs.records import ids
from repro_env.runs.records.records import Run
from repro_env.sandbox.outputs import Contents
from repro_env.schema import redact
from repro_env.schema.codec import Frozen
from repro_env.schema.run import Output, Parent

Part = Literal["record", "output", "trace", "checkpoint", "spec", "image", "code", "recipe", "data", "parent"]
State = Literal["gone", "changed", "unrecorded", "unknown"]
"""`unrecorded`: it is among the outputs, but not in the record. `unknown`: it could not be compared."""
STATES: tuple[State, ...] = get_args(State)
BAD: tuple[State, ...] = ("gone", "changed", "unrecorded")

Answer = tuple[State, str] | None
"""A problem and its reason; None without a problem."""
K = TypeVar("K")


class Finding(Frozen, frozen=True, kw_only=True):
    """Something that differs from the record of a run, or could not be checked."""

    part: Part
    state: State
    what: str
    """A path, a digest or a run."""
    why: str
    runs: tuple[str, ...]
    """The ids of the runs concerned; for a run with an unreadable record, the name of its directory."""


class Shared(Generic[K]):
    """Checks of things that several runs use. Each thing is checked once."""

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


def check_record(run: Run, start_digest: str) -> list[Finding]:
    """Compare the two files of a record with each other. `start_digest`: the current `sha256:<hex>` of `start.json`."""
    findings = []
    if not run.directory.name.endswith(f"-{run.short}"):
        findings.append(_finding("record", "changed", "start.json", f"the directory of another run holds run {run.short}", run))
    if run.end is None:
        why = "the run is still running" if run.state == "running" else "the run was interrupted, so its outputs were not hashed"
        findings.append(_finding("record", "unknown", "end.json", why, run))
        return findings
    if run.end.id != run.start.id:
        findings.append(_finding("record", "changed", "end.json", f"it belongs to run {ids.short(run.end.id)}", run))
    elif run.end.start is None:
        why = "the version that wrote the record did not store the sha256 of start.json"
        findings.append(_finding("record", "unknown", "start.json", why, run))
    elif run.end.start != start_digest:
        findings.append(_finding("record", "changed", "start.json", "its sha256 differs from the one in end.json", run))
    return findings


def check_outputs(run: Run, contents: Contents) -> list[Finding]:
    """Compare the recorded outputs of a run with its current files."""
    if run.end is None:
        return []
    findings = _compare_files("output", run, run.end.outputs, contents.outputs)
    recorded = {line for line in run.end.others if not line.startswith("(")}
    current = set(contents.others)
    findings += [_finding("output", "gone", line, "it is missing or changed", run) for line in sorted(recorded - current)]
    findings += [_finding("output", "unrecorded", line, "it is not in the record", run) for line in sorted(current - recorded)]
    problems = [line for line in run.end.others if line.startswith("(")]
    findings += [_finding("output", "unknown", "outputs", line.strip("()"), run) for line in problems]
    return findings


def check_console(run: Run, current: Iterable[Output]) -> list[Finding]:
    """Compare the recorded console output of a run with the current files."""
    return [] if run.end is None else _compare_files("output", run, run.end.console, current)


def check_trace(run: Run, contents: Contents) -> list[Finding]:
    """Compare the recorded trace of a run with its current files."""
    return [] if run.end is None else _compare_files("trace", run, run.end.trace, contents.outputs)


def _compare_files(part: Part, run: Run, recorded: Iterable[Output], current: Iterable[Output]) -> list[Finding]:
    unrecorded = {output.path: output for output in current}
    findings = []
    for output in recorded:
        now = unrecorded.pop(output.path, None)
        was = f"{output.size:,} bytes, {_short(output.sha256)}"
        if now is None:
            findings.append(_finding(part, "gone", output.path, was, run))
        elif (now.sha256, now.size) != (output.sha256, output.size):
            is_now = f"{now.size:,} bytes" + (f", {_short(now.sha256)}" if now.sha256 else "")
            findings.append(_finding(part, "changed", output.path, f"was {was}; is {is_now}", run))
    findings += [_finding(part, "unrecorded", path, "it is not in the record", run) for path in sorted(unrecorded)]
    return findings


class Claim(NamedTuple):
    """A file in a checkpoint directory, according to the latest record for that directory."""

    path: str
    """The path on this machine."""
    sha256: str
    run: str
    """The id of the run that wrote the file, if the records show it; otherwise of the last run that had the directory mounted."""


def check_checkpoints(claims: Iterable[Claim], current: Mapping[str, str]) -> list[Finding]:
    """Compare recorded files in checkpoint directories with the current ones: path -> `sha256:<hex>`.

    Unrecorded files are not a finding, because the directory belongs to the user.
    """
    findings = []
    for claim in claims:
        if current.get(claim.path) == claim.sha256:
            continue
        state: State = "changed" if claim.path in current else "gone"
        why = f"was {_short(claim.sha256)}" + (f"; is {_short(current[claim.path])}" if claim.path in current else "")
        findings.append(Finding(part="checkpoint", state=state, what=claim.path, why=why, runs=(claim.run,)))
    return findings


def check_parents(
    run: Run, parents: Sequence[Parent], ends: Mapping[str, str | None], broken: Mapping[str, str]
) -> list[Finding]:
    """Check the runs that a run started from. `ends`: id -> `sha256:<hex>` of `end.json`, or None if that file is missing.

    `broken`: short id -> reason, for runs with an unreadable record.
    """
    findings = []
    for parent in {(parent.id, parent.record): parent for parent in parents}.values():
        what = f"run {ids.short(parent.id)}"
        if not parent.id:
            why = "it was not written by a recorded run"
            findings.append(_finding("parent", "unknown", parent.path or "a checkpoint", why, run))
        elif parent.id not in ends:
            problem = broken.get(ids.short(parent.id))
            if problem is None:
                why = f"this run started from it ({parent.how}), and it is not in any known directory of runs"
                findings.append(_finding("parent", "gone", what, why, run))
            else:
                findings.append(_finding("parent", "changed", what, f"its record cannot be read: {problem}", run))
        elif parent.record is None:
            findings.append(_finding("parent", "unknown", what, "it had no end.json when this run started from it", run))
        elif ends[parent.id] is None:
            findings.append(_finding("parent", "gone", what, "its end.json is missing", run))
        elif ends[parent.id] != parent.record:
            findings.append(_finding("parent", "changed", what, "its end.json changed since this run started from it", run))
    return findings


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, the worst first, then by part, run and name."""
    parts = get_args(Part)
    return tuple(
        sorted(
            findings,
            key=lambda finding: (STATES.index(finding.state), parts.index(finding.part), finding.runs, finding.what),
        )
    )


def _finding(part: Part, state: State, what: str, why: str, run: Run) -> Finding:
    return Finding(part=part, state=state, what=what, why=why, runs=(run.start.id,))


def _short(digest: str) -> str:
    return digest[:19] + "…"
