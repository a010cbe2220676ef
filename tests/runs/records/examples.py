"""Made-up records of runs."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from repro_env.runs.records import ids, records
from repro_env.schema.run import End, Outcome, Output, SourceFact, Start

DIGEST = "sha256:" + "0" * 64


def start(run_id: str) -> Start:
    return Start(
        schema="repro-env/run-start/1",
        id=run_id,
        started="2026-07-01T10:15:30.000Z",
        spec=DIGEST,
        image=DIGEST,
        runner="host",
        command=("train.py",),
        cwd="/home/ann/project",
        seed=0,
        source=SourceFact(path="/home/ann/project", digest=DIGEST, directory="/home/ann/project", differs=()),
        data=(),
        env_names=(),
        network=False,
        host=(),
    )


def end(run_id: str) -> End:
    return End(
        schema="repro-env/run-end/1",
        id=run_id,
        ended="2026-07-01T10:15:31.000Z",
        seconds=1.0,
        outcome=Outcome(exit_code=0, signal=0, out_of_memory=False, isolation="none", methods=()),
        outputs=(Output(path="a", sha256=DIGEST, size=1),),
        special_files=(),
        removed=(),
        auto_seeded=(),
    )


def recorded(runs: Path, number: int, *, word: str = "train.py", over: bool = True) -> Path:
    """Record a run. `number` is the millisecond in its id and the second in its name; `over`: whether it has ended."""
    run_id = ids.uuid7(number, number.to_bytes(10, "big"))
    started = datetime(2026, 7, 1, 10, 15, number % 60, tzinfo=timezone.utc)
    recording = records.begin(runs, records.name_of(started, [word], run_id))
    recording.start(start(run_id))
    if over:
        recording.finish(end(run_id))
    else:
        recording.close()
    return recording.directory
