"""The command `repro-env runs audit`: check that everything that runs recorded still exists, unchanged. It writes nothing.

What several runs share (an image, a source tree, data) is checked once, and its finding lists the IDs of all these runs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.compare.audit import checkpoints, parents
from repro_env.compare.audit import findings as rule
from repro_env.compare.audit.findings import BAD, Finding, State
from repro_env.compare.audit.shared import SharedParts
from repro_env.runs.records import annotation, checkpointstate, end, records
from repro_env.runs.records.records import Run, Unreadable
from repro_env.sandbox import outputs
from repro_env.sandbox.outputs import Contents
from repro_env.schema.errors import ReproEnvError, SpecVersionError
from repro_env.schema.progress import Tell
from repro_env.store.store import Store


class Audit(msgspec.Struct, frozen=True):
    runs: int
    checked: dict[str, int]
    """Part -> how many were checked; images, source trees and data that runs share count once."""
    findings: tuple[Finding, ...]

    @property
    def bad(self) -> int:
        return sum(finding.state in BAD for finding in self.findings)


def audit(runs: Path, words: Sequence[str], *, here: Path, store: Store, ask: bool, tell: Tell) -> Audit:
    """Check the runs that `words` name; without words, all runs of the directory.

    `ask`: ask servers whether they still have what a rebuild would download. Raises `RecordError` for a word that names no run.
    """
    all_runs, all_unreadable = records.listing(runs)
    chosen, unreadable = all_runs, all_unreadable
    if words:
        wanted = {records.find(runs, word) for word in words}
        chosen = [run for run in all_runs if run.directory in wanted]
        unreadable = [record for record in all_unreadable if record.directory in wanted]
    findings = [_describe_unreadable(record) for record in unreadable]
    checked: dict[str, int] = {"record": len(chosen) + len(unreadable)}
    with tell.progress(sum(map(_output_size, chosen)), "reading outputs") as advance:
        for run in chosen:
            run_findings, counts = _check_own_files(run)
            findings += run_findings
            for part, count in counts.items():
                checked[part] = checked.get(part, 0) + count
            advance(_output_size(run))
    checkpoint_findings, checked["checkpoint"] = checkpoints.check(chosen, all_runs, store)
    parent_findings, checked["parent"] = parents.check(chosen, all_runs, all_unreadable, store)
    findings += [*checkpoint_findings, *parent_findings]
    for shared in SharedParts(runs, here, store, ask=ask, tell=tell).check(chosen):
        findings += shared.findings()
        checked[shared.part] = len(shared)
    return Audit(len(chosen) + len(unreadable), checked, rule.sort_findings(findings))


def _output_size(run: Run) -> int:
    return sum(output.size for output in (*run.end.outputs, *run.end.trace)) if run.end is not None else 0


def _describe_unreadable(record: Unreadable) -> Finding:
    directory = record.directory
    is_link = directory.is_symlink() or (directory / "files").is_symlink()
    count = 0 if is_link else sum(len(names) for _, _, names in os.walk(directory / "files"))
    orphans = f"; {count} files in it have no record" if count else ""
    state: State = "changed"
    if isinstance(record.why, SpecVersionError):
        state = "unknown"
    elif not (directory / "start.json").exists():
        state = "gone"
    return Finding(part="record", state=state, what=directory.name, why=f"{record.why.what}{orphans}", runs=(directory.name,))


def _check_own_files(run: Run) -> tuple[list[Finding], dict[str, int]]:
    """Check what belongs to one run only: its record and the files in its directory."""
    findings = rule.check_record(run, records.digest(run.directory / "start.json"))
    try:
        annotation.of(run.directory)
    except SpecVersionError as error:
        findings.append(_describe_annotation(run, "unknown", error))
    except ReproEnvError as error:
        findings.append(_describe_annotation(run, "changed", error))
    if run.end is None:
        return findings, {}
    findings += rule.check_console(run, end.hash_console(run.directory))
    findings += rule.check_outputs(run, outputs.of_run(run.directory, run.end.outputs))
    for name, digest in ((checkpointstate.BEFORE, run.start.before), (checkpointstate.AFTER, run.end.after)):
        current = records.digest(run.directory / name)
        if digest is not None and current != digest:
            state: State = "changed" if current else "gone"
            why = f"{name} changed since the run" if current else f"{name} is missing"
            findings.append(Finding(part="record", state=state, what=name, why=why, runs=(run.start.id,)))
    has_trace = bool(run.end.trace) or (run.directory / records.TRACE).is_dir()
    findings += rule.check_trace(
        run, outputs.collect(run.directory / records.TRACE, recorded=run.end.trace) if has_trace else Contents((), ())
    )
    others = sum(not line.startswith("(") for line in run.end.others)
    return findings, {"output": len(run.end.outputs) + others, "trace": len(run.end.trace)}


def _describe_annotation(run: Run, state: State, error: ReproEnvError) -> Finding:
    name = Path(error.where).name
    return Finding(part="record", state=state, what=f"{annotation.SUBDIRECTORY}/{name}", why=error.what, runs=(run.start.id,))
