"""Many runs: `runs list`, `lineage` of a weights file: processor time of the command."""

from __future__ import annotations

import hashlib
import resource
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import parts

sys.path.insert(0, str(parts.ROOT))

from repro_env.runs.records import ids, records
from repro_env.schema import codec
from repro_env.schema.run import End, Metric, Outcome, Output, Parent, SourceFact, Start

FEW, MANY = 2_000, 10_000
OUTPUTS = 20
"""Of each run: checkpoints, logs, a table of metrics."""
_FIRST = datetime(2026, 7, 1, tzinfo=timezone.utc)


def digest(*words: object) -> str:
    return "sha256:" + hashlib.sha256(" ".join(map(str, words)).encode()).hexdigest()


def make(runs: Path, count: int) -> None:
    """Records as a project leaves them; every tenth run starts from the one before."""
    command = ("train.py", "--lr", "0.001", "--epochs", "30", "data=cifar10")
    parent: tuple[Parent, ...] = ()
    for number in range(count):
        when = _FIRST + timedelta(minutes=7 * number)
        random = hashlib.sha256(str(number).encode()).digest()
        run_id = ids.uuid7(int(when.timestamp() * 1000), random)
        directory = runs / records.name_of(when, command, run_id)
        (directory / "files").mkdir(parents=True)
        start = Start(
            schema="repro-env/run-start/1",
            id=run_id,
            started=when.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
            spec=digest("spec", number // 100),
            image=digest("image", number // 100),
            runner="embedded",
            command=(*command, f"seed={number % 7}"),
            cwd="/home/ann/project",
            seed=number % 7,
            source=SourceFact(path="/home/ann/project", digest=digest("source", number // 10), directory=None, differs=()),
            data=(),
            given=(),
            network=False,
            host=("os Debian GNU/Linux 12", "kernel 6.1", "cpu AMD EPYC (x86_64)", "cores 16", "memory 68719476736"),
            parents=parent if number % 10 == 9 else (),
        )
        first = codec.pretty(start)
        outputs = [Output(path=f"checkpoints/{step:02}.ckpt", sha256=digest(number, step), size=10**8) for step in range(OUTPUTS)]
        end = End(
            schema="repro-env/run-end/1",
            id=run_id,
            ended=when.strftime("%Y-%m-%dT%H:%M:59.000Z"),
            seconds=59.0,
            outcome=Outcome(exit_code=0, signal=0, out_of_memory=False, isolation="embedded", means=("root: overlay",)),
            outputs=tuple(outputs),
            others=(),
            removed=(),
            unseeded=("numpy default_rng at /home/ann/project/train.py:12",),
            start="sha256:" + hashlib.sha256(first).hexdigest(),
            metrics=tuple(
                Metric(name=name, file="metrics.csv", count=30, last=0.5, least=0.1, most=0.9) for name in ("loss", "acc", "lr")
            ),
        )
        (directory / "start.json").write_bytes(first)
        last = codec.pretty(end)
        (directory / "end.json").write_bytes(last)
        parent = (Parent(id=run_id, record="sha256:" + hashlib.sha256(last).hexdigest(), how="resumed"),)


def processor(words: Sequence[str | Path], env: Mapping[str, str]) -> float:
    """Seconds of processor time of one process: what load does not change much."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    parts.run(words, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(count: int, many: int) -> list[parts.Row]:
    directory = parts.fresh(parts.BUILD / "catalog")
    runs, store = directory / "runs", parts.fresh(parts.BUILD / "catalog-store")
    make(runs, many)
    env = parts.environ(store)
    weights = directory / "weights.ckpt"
    weights.write_text(f"{many // 2 + 9} 3")  # what `digest` hashes: an output of that run
    words = [parts.TOOL, "runs", "list", "--runs", runs]
    asked = [parts.TOOL, "lineage", weights, "--runs", runs]
    listed, found, nothing = parts.in_turn(
        count,
        lambda: processor(words, env),
        lambda: processor(asked, env),
        lambda: processor([parts.TOOL, "runs", "--help"], env),
    )
    shown, has_goal = f"{many:,} runs with {OUTPUTS} outputs each", many <= FEW
    return [
        parts.Row(
            f"`runs list` of {shown}, against one second",
            f"{listed:.2f} s of processor time (of it {nothing:.2f} s to start)",
            "1 s",
            listed,
            "at most 1.0" if has_goal else "none",
            listed <= 1.0 or not has_goal,
        ),
        parts.Row(
            f"`lineage` of a weights file among {shown}, against one second",
            f"{found:.2f} s of processor time",
            "1 s",
            found,
            "none",
            True,
        ),
    ]


if __name__ == "__main__":
    count = parts.arguments(__doc__).count
    made = [row for many in (FEW, MANY) for row in measure(count, many)]
    parts.report(made)
    print("written to", parts.write(made, "catalog").relative_to(parts.ROOT))
