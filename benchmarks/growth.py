"""Growth: what a command costs as runs, files, outputs and data become more. Processor time of the command and its children.

    python benchmarks/growth.py [SERIES...]     all series, or some of: runs files outputs data jobs

Each series ends with a row that compares the cost of an item in the largest and in the next smaller size, less the start.
"""

from __future__ import annotations

import hashlib
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

import parts

sys.path.insert(0, str(parts.ROOT))

from repro_env.runs.records import ids, records
from repro_env.schema import codec
from repro_env.schema.run import End, Metric, Outcome, Output, Parent, SourceFact, Start

HOME = parts.BUILD / "growth"
LINEAR = 1.3
"""At most this many times as much for an item in the largest size as in the next smaller one."""
ERROR = 0.2
"""Seconds: a smaller difference is not measured reliably."""
OUTPUTS = 20
"""Of each run: checkpoints, logs, a table of metrics."""
JOBS = 64
_FIRST = datetime(2026, 7, 1, tzinfo=timezone.utc)
_WRITE = "import os, sys\nos.makedirs('out')\nfor number in range(int(sys.argv[1])):\n    open(f'out/{number:06}.txt', 'w').write(str(number))\n"


class Cost(NamedTuple):
    """A command at one size."""

    what: str
    size: int
    seconds: float


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
            env_names=(),
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
            outcome=Outcome(exit_code=0, signal=0, out_of_memory=False, isolation="embedded", methods=("root: overlay",)),
            outputs=tuple(outputs),
            special_files=(),
            removed=(),
            auto_seeded=("numpy default_rng at /home/ann/project/train.py:12",),
            start="sha256:" + hashlib.sha256(first).hexdigest(),
            metrics=tuple(
                Metric(name=name, file="metrics.csv", count=30, last=0.5, least=0.1, most=0.9) for name in ("loss", "acc", "lr")
            ),
        )
        (directory / "start.json").write_bytes(first)
        last = codec.pretty(end)
        (directory / "end.json").write_bytes(last)
        parent = (Parent(id=run_id, record="sha256:" + hashlib.sha256(last).hexdigest(), how="resumed"),)


def processor(words: Sequence[str | Path], env: Mapping[str, str], cwd: Path = parts.ROOT) -> float:
    """Seconds of processor time of a command and its children: what load does not change much."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    parts.run(words, env=env, cwd=cwd)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def project(name: str, files: int = 0) -> tuple[Path, dict[str, str]]:
    """A new project with a bare environment, `files` more files in it, and an empty store."""
    directory = parts.fresh(HOME / name / "project")
    directory.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / ".venv"], check=True)
    (directory / "train.py").write_text(_WRITE)
    (site,) = directory.glob(".venv/lib/python*/site-packages")
    spread(site / "assets", files)
    return directory, parts.environ(parts.fresh(HOME / name / "store"))


def spread(directory: Path, files: int) -> None:
    """Small files, 1,000 in each directory."""
    for number in range(files):
        if number % 1000 == 0:
            (directory / f"{number // 1000:04}").mkdir(parents=True)
        (directory / f"{number // 1000:04}" / f"{number:06}.txt").write_text(f"{number}\n")


def of_runs() -> list[Cost]:
    costs = []
    for count in (1_000, 10_000, 100_000):
        directory = parts.fresh(HOME / "runs")
        make(directory / "runs", count)
        env = parts.environ(parts.fresh(HOME / "runs-store"))
        weights = directory / "weights.ckpt"
        weights.write_text(f"{count // 2 + 9} 3")  # what `digest` hashes: an output of that run
        commands: dict[str, list[str | Path]] = {
            "`runs list`, the first time": ["runs", "list"],
            "`runs list` again": ["runs", "list"],
            "`runs show latest`": ["runs", "show"],
            "`lineage` of a weights file": ["lineage", weights],
        }
        for what, words in commands.items():
            costs.append(Cost(what, count, processor([parts.TOOL, *words, "--runs", directory / "runs"], env)))
    return costs


def of_files() -> list[Cost]:
    costs = []
    for count in (5_000, 50_000, 500_000):
        directory, env = project("files", count)
        commands = {
            "first `capture` of an environment's files": ["capture"],
            "`capture` again": ["capture"],
            "`rebuild`": ["rebuild"],
            "`rebuild` again": ["rebuild"],
            "`exec true`, the first time": ["exec", "true"],
            "`exec true` again": ["exec", "true"],
        }
        for what, words in commands.items():
            costs.append(Cost(what, count, processor([parts.TOOL, *words], env, directory)))
    return costs


def of_outputs() -> list[Cost]:
    directory, env = project("outputs")
    parts.run([parts.TOOL, "capture"], env=env, cwd=directory)
    parts.run([parts.TOOL, "exec", "true"], env=env, cwd=directory)
    costs = []
    for count in (1, 1_000, 10_000):
        costs.append(Cost("`exec` with outputs", count, processor([parts.TOOL, "exec", "train.py", str(count)], env, directory)))
        costs.append(Cost("`verify` of this run", count, processor([parts.TOOL, "verify"], env, directory)))
    return costs


def of_data() -> list[Cost]:
    costs = []
    for count in (2_000, 20_000, 200_000):
        directory, env = project("data")
        data = directory.parent / "files"
        spread(parts.fresh(data), count)
        words: list[str | Path] = [parts.TOOL, "exec", "true"]
        costs.append(
            Cost("`capture --data`", count, processor([parts.TOOL, "capture", "--data", f"{data}:/data"], env, directory))
        )
        costs.append(Cost("`exec` with this data, the first time", count, processor(words, env, directory)))
        costs.append(Cost("`exec` with this data again", count, processor(words, env, directory)))
    return costs


def of_jobs() -> list[Cost]:
    """Commands that start at the same time, with one store."""
    directory, env = project("jobs")
    parts.run([parts.TOOL, "capture"], env=env, cwd=directory)
    parts.run([parts.TOOL, "exec", "true"], env=env, cwd=directory)
    costs = []
    for count in (1, 8, JOBS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda _: parts.run([parts.TOOL, "exec", "true"], env=env, cwd=directory), range(count)))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        costs.append(Cost("`exec true` of jobs that start together", count, took))
    return costs


def rows(costs: Sequence[Cost]) -> list[parts.Row]:
    """A row for each command: its costs, and the growth from the next smaller size to the largest one."""
    made = []
    for what in dict.fromkeys(cost.what for cost in costs):
        first, middle, last = [cost for cost in costs if cost.what == what]
        before = max(middle.seconds - first.seconds, ERROR) / (middle.size - first.size)
        ratio = (last.seconds - middle.seconds) / (last.size - middle.size) / before
        ours = ", ".join(f"{cost.size:,}: {cost.seconds:.2f} s" for cost in (first, middle, last))
        made.append(parts.Row(what, ours, f"{1e6 * before:.1f} µs an item before", ratio, f"at most {LINEAR}", ratio <= LINEAR))
    return made


SERIES: dict[str, Callable[[], list[Cost]]] = {
    "runs": of_runs,
    "files": of_files,
    "outputs": of_outputs,
    "data": of_data,
    "jobs": of_jobs,
}

if __name__ == "__main__":
    made = []
    for name in sys.argv[1:] or SERIES:
        made += rows(SERIES[name]())
    parts.report(made)
    if len(sys.argv) == 1:
        print("written to", parts.write(made, "growth").relative_to(parts.ROOT))
