"""Clusters with jobs of a project: what the tests of Slurm and of Grid Engine share."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tests.e2e import parts
from tests.gridengine import GridEngine
from tests.slurm import Slurm

TRAIN = """\
import json, os, pathlib, random, signal, sys, time
state = pathlib.Path("state.json")
is_first = not state.exists()
if "save" in sys.argv and is_first:
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
step, values = (0, []) if is_first else json.loads(state.read_text())
print("starting at", step, os.environ.get("TOKEN", ""), flush=True)
print("to stderr", file=sys.stderr, flush=True)
marker = json.loads(pathlib.Path("/.repro-env/image.json").read_text())
while step < int(sys.argv[1]):
    step, values = step + 1, [*values, random.Random(step).random()]
    pathlib.Path("new").write_text(json.dumps([step, values]))
    os.replace("new", state)
    time.sleep(float(sys.argv[2]))
    if "save" in sys.argv and is_first and step == int(sys.argv[1]) // 2:
        signal.pause()
pathlib.Path("~/outside.txt").expanduser().write_text("kept")
pathlib.Path("weights.json").write_text(json.dumps([marker["spec"], values]))
sys.exit(int(sys.argv[3]))
"""
"""Arguments: the number of steps, seconds for each, the exit code; with `save` it waits halfway for the warning of a time limit."""
Scheduler = TypeVar("Scheduler", Slurm, GridEngine)


@dataclass(frozen=True)
class Cluster(Generic[Scheduler]):
    engine: str
    scheduler: Scheduler
    project: parts.Project

    def run(self, *words: str | Path, code: int | None = 0, env: dict[str, str] | None = None, **options: Any) -> parts.Done:
        return self.project.run(*words, code=code, env={**self.scheduler.environ, **(env or {})}, **options)

    def exec(self, *words: str | Path, **options: Any) -> parts.Done:
        return self.run("exec", "--on", self.engine, *words, **options)

    def submit(self, *words: str, **options: Any) -> str:
        """Submit without waiting. Returns the ID of the job."""
        return str(json.loads(self.exec("--json", *words, **options).out)["job"])

    def wait(self, *words: str) -> subprocess.Popen[str]:
        """Submit, and wait for the end in the background."""
        return subprocess.Popen(
            [parts.COMMAND, "exec", "--on", self.engine, "--wait", *words],
            cwd=self.project.directory,
            env=parts.environ(self.project.store, self.scheduler.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def record(self, run_id: str = "latest") -> dict[str, Any]:
        answer = json.loads(self.run("runs", "show", run_id, "--json").out)
        assert isinstance(answer, dict)
        return answer

    def tagged(self, tag: str) -> list[dict[str, Any]]:
        """The runs with a tag, newest first."""
        runs = json.loads(self.run("runs", "list", "--tag", tag, "--json").out)["runs"]
        assert isinstance(runs, list)
        return runs

    def wait_for(self, condition: Callable[[], object], seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.scheduler.queue()
            time.sleep(0.1)

    def submissions(self) -> list[Path]:
        """The directories of the jobs."""
        return sorted((self.project.directory / "runs/.jobs").iterdir())

    def directories(self, job: str) -> list[Path]:
        """The directories of a job, one for each of its runs."""
        found = (self.project.directory / "runs/.jobs").glob("*/job.json")
        return [path.parent for path in found if json.loads(path.read_text())["id"] == job]


def stop_a_wait(cluster: Cluster[Any]) -> dict[str, Any]:
    """Stop the command that waits for a training of minutes, and check that the training ends too. Returns its record."""
    waiting = cluster.wait("train.py", "900", "0.2", "0")
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "starting at 0 \n"
    waiting.send_signal(signal.SIGTERM)
    _, stderr = waiting.communicate(timeout=100)
    assert waiting.returncode == 128 + signal.SIGTERM
    assert "(SIGTERM); waiting for its end" in stderr
    record = cluster.record()
    assert record["end"]["outcome"]["interrupted"] == signal.SIGTERM
    assert [output["path"] for output in record["end"]["outputs"]] == ["state.json"]
    assert "train.py 900" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return record


def check_resumed(first: dict[str, Any], second: dict[str, Any], uninterrupted: list[dict[str, Any]]) -> None:
    """Check that a training which its time limit has ended was resumed by its job to the same outputs."""
    assert first["end"]["outcome"]["interrupted"] == signal.SIGUSR1
    assert (second["start"]["resume_of"], second["start"]["job"]["restarts"]) == (first["start"]["id"], 1)
    assert second["end"]["outcome"]["exit_code"] == 0
    assert second["end"]["outputs"] == uninterrupted
