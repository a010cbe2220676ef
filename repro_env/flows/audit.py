"""The story of `repro-env runs audit`: every record against what is there now. Reads; writes nothing.

What several runs share (an image, a source tree, data) is looked at once and named once, with all their ids.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.catalog import annotation, outputs, records
from repro_env.catalog import audit as rule
from repro_env.catalog.audit import BAD, Finding, State
from repro_env.catalog.outputs import Left
from repro_env.catalog.records import Run, Unreadable
from repro_env.flows import auditcheckpoints, auditparents, before, ended
from repro_env.flows.auditshared import World
from repro_env.model.errors import ReproEnvError, SpecVersionError
from repro_env.model.talk import Tell
from repro_env.store.store import Store


class Audit(msgspec.Struct, frozen=True):
    runs: int
    checked: dict[str, int]
    """Part -> how many of it were held against a record: each image, source tree and data set once."""
    findings: tuple[Finding, ...]

    @property
    def bad(self) -> int:
        return sum(one.state in BAD for one in self.findings)


def audit(runs: Path, words: Sequence[str], *, here: Path, store: Store, ask: bool, tell: Tell) -> Audit:
    """Hold runs against what is there; all of the folder without `words`.

    `ask`: ask servers whether they still have what a rebuild would fetch. Raises `RecordError` for a word that names no run.
    """
    there, broken = records.listing(runs)
    if words:
        wanted = {records.find(runs, word) for word in words}
        chosen, bad = [run for run in there if run.folder in wanted], [one for one in broken if one.folder in wanted]
    else:
        chosen, bad = there, broken
    findings = [_unreadable(one) for one in bad]
    checked: dict[str, int] = {"record": len(chosen) + len(bad)}
    sizes = sum(one.size for run in chosen if run.end is not None for one in (*run.end.outputs, *run.end.trace))
    with tell.progress(sizes, "reading outputs") as advance:
        for run in chosen:
            mine, count = _own(run)
            findings += mine
            for part, many in count.items():
                checked[part] = checked.get(part, 0) + many
            advance(sum(one.size for one in (*run.end.outputs, *run.end.trace)) if run.end is not None else 0)
    lost, checked["checkpoint"] = auditcheckpoints.looked(chosen, there, store)
    came, checked["parent"] = auditparents.looked(chosen, there, broken, store)
    findings += [*lost, *came]
    for each in World(runs, here, store, ask=ask, tell=tell).shared(chosen):
        findings += each.findings()
        checked[each.part] = len(each)
    return Audit(len(chosen) + len(bad), checked, rule.ordered(findings))


def _unreadable(one: Unreadable) -> Finding:
    linked = one.folder.is_symlink() or (one.folder / "files").is_symlink()
    files = 0 if linked else sum(len(names) for _, _, names in os.walk(one.folder / "files"))
    orphans = f"; {files} files in it have no record" if files else ""
    state: State = "changed"
    if isinstance(one.why, SpecVersionError):
        state = "unknown"
    elif not (one.folder / "start.json").exists():
        state = "gone"
    return Finding(part="record", state=state, what=one.folder.name, why=f"{one.why.what}{orphans}", runs=(one.folder.name,))


def _own(run: Run) -> tuple[list[Finding], dict[str, int]]:
    """What belongs to one run alone: its record and its files."""
    found = rule.record(run, records.digest(run.folder / "start.json"))
    try:
        annotation.of(run.folder)
    except SpecVersionError as error:
        found.append(_said(run, "unknown", error))
    except ReproEnvError as error:
        found.append(_said(run, "changed", error))
    if run.end is None:
        return found, {}
    found += rule.console(run, ended.console_of(run.folder))
    found += rule.outputs(run, outputs.of_run(run.folder, run.end.outputs))
    for name, digest in ((before.BEFORE, run.start.before), (before.AFTER, run.end.after)):
        now = records.digest(run.folder / name)
        if digest is not None and now != digest:
            what = f"{name} is not the one that the record means" if now else f"{name} is not there"
            found.append(Finding(part="record", state="changed" if now else "gone", what=name, why=what, runs=(run.start.id,)))
    has_trace = bool(run.end.trace) or (run.folder / records.TRACE).is_dir()
    found += rule.trace(run, outputs.collect(run.folder / records.TRACE, run.end.trace) if has_trace else Left((), ()))
    others = sum(not line.startswith("(") for line in run.end.others)
    return found, {"output": len(run.end.outputs) + others, "trace": len(run.end.trace)}


def _said(run: Run, state: State, error: ReproEnvError) -> Finding:
    where = Path(error.where).name
    return Finding(part="record", state=state, what=f"{annotation.FOLDER}/{where}", why=error.what, runs=(run.start.id,))
