"""The command `repro-env runs audit`: check that everything that runs recorded still exists, unchanged. It writes nothing.

What several runs share (an image, a source tree, data) is checked once, and its finding lists the IDs of all these runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.compare.audit.auditor import Auditor
from repro_env.compare.audit.findings import BAD, Finding
from repro_env.compare.audit.shared import SharedParts
from repro_env.runs.records import records
from repro_env.runs.records.records import Run
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
    auditor = Auditor(all_runs, all_unreadable, SharedParts(runs, here, store, ask=ask, tell=tell), store)
    for record in unreadable:
        auditor.check_unreadable(record)
    with tell.progress(sum(map(_output_size, chosen)), "checking runs") as advance:
        for run in chosen:
            auditor.check(run)
            advance(_output_size(run))
    return Audit(len(chosen) + len(unreadable), auditor.checked, auditor.findings)


def _output_size(run: Run) -> int:
    return sum(output.size for output in (*run.end.outputs, *run.end.trace)) if run.end is not None else 0
