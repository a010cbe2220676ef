"""Runs that are jobs of a real Grid Engine (tests/gridengine.py), through the installed command. The login machine is this one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from repro_env.schema.errors import RunError
from tests.e2e import parts
from tests.e2e.ranks import RANKS
from tests.gridengine import NODE, GridEngine, gridengine

TRAIN = """\
import json, os, pathlib, random, signal, sys, time
state = pathlib.Path("state.json")
is_first = not state.exists()
if "save" in sys.argv and is_first:
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
step, values = (0, []) if is_first else json.loads(state.read_text())
print("starting at", step, os.environ.get("TOKEN", ""), flush=True)
print("to stderr", file=sys.stderr, flush=True)
while step < int(sys.argv[1]):
    step, values = step + 1, [*values, random.Random(step).random()]
    pathlib.Path("new").write_text(json.dumps([step, values]))
    os.replace("new", state)
    time.sleep(float(sys.argv[2]))
    if "save" in sys.argv and is_first and step == 5:
        signal.pause()
pathlib.Path("weights.json").write_text(json.dumps(values))
sys.exit(int(sys.argv[3]))
"""


class Cluster(NamedTuple):
    cell: GridEngine
    project: parts.Project

    def run(self, *words: str | Path, code: int | None = 0, env: dict[str, str] | None = None, **options: Any) -> parts.Done:
        return self.project.run(*words, code=code, env={**self.cell.environ, **(env or {})}, **options)

    def exec(self, *words: str | Path, **options: Any) -> parts.Done:
        return self.run("exec", "--on", "gridengine", *words, **options)

    def submit(self, *words: str, **options: Any) -> tuple[str, str]:
        """Submit without waiting. Returns the ID of the job and of the run."""
        answer = json.loads(self.exec("--json", *words, **options).out)
        return str(answer["job"]), str(answer["run"])

    def record(self, run_id: str = "latest") -> dict[str, Any]:
        answer = json.loads(self.run("runs", "show", run_id, "--json").out)
        assert isinstance(answer, dict)
        return answer

    def wait_for(self, condition: Callable[[], object], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.cell.ask("qstat", "-f")
            time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(small: parts.Project) -> Iterator[Cluster]:
    (small.directory / "train.py").write_text(TRAIN)
    root = Path(tempfile.mkdtemp(prefix="gridengine-"))
    try:
        with gridengine(root) as cell:
            yield Cluster(cell, small)
    finally:
        shutil.rmtree(root)


def test_a_job_runs_in_the_image_on_the_node_and_its_output_comes_home(cluster: Cluster) -> None:
    words = ("--wait", "--json", "--cpus", "2", "--gpus", "none", "--time", "5m")
    done = cluster.exec(*words, "train.py", "2", "0", "99", code=99)  # with which Grid Engine would queue a job again
    assert done.out.startswith("starting at 0 \n")
    assert "to stderr\n" in done.err
    assert "SGE_" not in done.err
    answer = json.loads(done.out.splitlines()[-1])
    record = cluster.record(answer["run"]["start"]["id"])
    job = {name: record["start"]["job"][name] for name in ("engine", "id", "node", "restarts")}
    assert job == {"engine": "gridengine", "id": answer["job"], "node": NODE, "restarts": 0}
    assert record["start"]["host"][0] == "os Node of a test cluster"
    assert record["end"]["outcome"]["isolation"] == "embedded"
    assert (record["end"]["outcome"]["exit_code"], record["end"]["outcome"]["interrupted"]) == (99, 0)
    page = cluster.run("runs", "show", record["start"]["id"]).out
    assert f"gridengine {answer['job']} on {NODE}" in page
    logs = cluster.run("runs", "logs", record["start"]["id"])
    assert (logs.out, "to stderr\n" in logs.err) == ("starting at 0 \n", True)
    assert "granted_pe   smp" in cluster.cell.ask("qacct", "-j", answer["job"])


def test_a_run_of_a_job_is_verified_on_this_machine(cluster: Cluster) -> None:
    cluster.exec("--wait", "train.py", "2", "0", "0")
    verified = cluster.run("verify", "latest", "--json")
    assert json.loads(verified.out)["level"] == "bitwise"


def test_a_waiting_job_says_why_and_its_deletion_is_its_end(cluster: Cluster) -> None:
    job, run_id = cluster.submit("--job", "queue=all.q", "--gpus", "3", "train.py", "1", "0", "0")
    cluster.wait_for(lambda: "cannot run" in cluster.run("runs", "list").out)
    short = run_id[-8:]
    page = cluster.run("runs", "show", short).out
    assert f"gridengine {job}\nstate     pending (" in page
    assert f"qdel {job}" in cluster.run("runs", "rm", short, code=19).err
    cluster.cell.ask("qdel", job)
    assert "Grid Engine does not know the job any more; its last state was pending (" in cluster.run("runs", "show", short).out
    cluster.run("runs", "rm", short)


def test_a_stopped_wait_cancels_the_job_and_its_command_can_save(cluster: Cluster) -> None:
    waiting = subprocess.Popen(
        [parts.COMMAND, "exec", "--on", "gridengine", "--wait", "train.py", "900", "0.2", "0"],
        cwd=cluster.project.directory,
        env=parts.environ(cluster.project.store, cluster.cell.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
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


def test_a_job_whose_node_lacks_the_store_or_the_runs_ends_with_the_reason(cluster: Cluster) -> None:
    store = cluster.cell.hidden / "store"
    shutil.copytree(cluster.project.store, store, symlinks=True)
    elsewhere = cluster._replace(project=cluster.project.elsewhere(store))
    done = elsewhere.exec("--wait", "train.py", "1", "0", "0", code=RunError.exit_code)
    assert f"{store} is not on the node" in done.err
    runs = cluster.cell.hidden / "runs"
    done = cluster.exec("--wait", "--runs", runs, "train.py", "1", "0", "0", code=RunError.exit_code)
    assert f"could not start (can't open output file \"{runs}" in done.err
    assert "qmod -cj" in done.err


def test_a_refused_job_leaves_nothing(cluster: Cluster) -> None:
    before = sorted((cluster.project.directory / "runs/.jobs").iterdir())
    done = cluster.exec("--job", "queue=nowhere", "train.py", code=20)
    assert 'Grid Engine refused the job: Job was rejected because job requests unknown queue "nowhere"' in done.err
    assert sorted((cluster.project.directory / "runs/.jobs").iterdir()) == before


def test_variables_are_passed_only_if_everybody_may_read_them(cluster: Cluster) -> None:
    refused = cluster.exec("--env", "TOKEN=quite-a-secret-1", "train.py", "1", "0", "0", code=2)
    assert "all users of the cluster can read the variables of a job" in refused.err
    words = ("--wait", "--job", "show-variables", "--env", "TOKEN=quite-a-secret-1")
    assert cluster.exec(*words, "train.py", "1", "0", "0").out == "starting at 0 quite-a-secret-1\n"


def test_the_processes_of_a_job_share_one_run(cluster: Cluster) -> None:
    (cluster.project.directory / "ranks.py").write_text(RANKS)
    cluster.exec("--job", "tasks-per-node=2", "--wait", "ranks.py", "3", code=3)
    record = cluster.record()
    assert [process["exit_code"] for process in record["end"]["processes"]] == [0, 3]
    assert record["start"]["job"]["engine"] == "gridengine"


def test_a_job_that_ends_before_its_time_limit_is_queued_again_and_resumes(cluster: Cluster) -> None:
    cluster.run("exec", "train.py", "10", "0", "0")
    uninterrupted = cluster.record()["end"]["outputs"]
    words = ("--job", "requeue", "--time", "125s", "--tag", "limited")
    job, run_id = cluster.submit(*words, "train.py", "10", "0", "0", "save")
    cluster.wait_for(lambda: len(json.loads(cluster.run("runs", "list", "--tag", "limited", "--json").out)["runs"]) == 2)
    cluster.wait_for(lambda: job not in cluster.cell.ask("qstat"))
    second, first = json.loads(cluster.run("runs", "list", "--tag", "limited", "--json").out)["runs"]
    assert (first["start"]["id"], first["end"]["outcome"]["interrupted"]) == (run_id, signal.SIGUSR1)
    assert (second["start"]["resume_of"], second["start"]["job"]["restarts"]) == (run_id, 1)
    assert second["end"]["outputs"] == uninterrupted
    assert not os.path.lexists(cluster.project.directory / "runs/.jobs" / run_id / "requeue")
