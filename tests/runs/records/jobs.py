"""Made-up records of submitted runs."""

from __future__ import annotations

from pathlib import Path

from repro_env.runs.records import ids, submissions
from repro_env.runs.records.submissions import Submission
from tests.runs.records.examples import start


def submitted(runs: Path, number: int, job: str = "12") -> str:
    run_id = ids.uuid7(number, number.to_bytes(10, "big"))
    directory = submissions.write(runs, Submission(engine="slurm", start=start(run_id)))
    if job:
        submissions.write_job(directory, job)
    return run_id
