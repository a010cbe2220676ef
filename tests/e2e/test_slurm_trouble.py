"""Jobs of a real Slurm with three nodes when things go wrong: lost nodes, a controller that is silent or forgets, early warnings."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.schema.errors import RunError
from tests.e2e import parts
from tests.e2e.cluster import Cluster
from tests.slurm import Slurm, slurm

NODES = ("node1", "node2", "node3")
STEPS = """\
import pathlib, sys, time
state = pathlib.Path("state.txt")
first = int(state.read_text()) if state.exists() else 0
print("starting at", first, flush=True)
if "save" in sys.argv:
    state.write_text(str(first + 1))
while not pathlib.Path("/data/go").exists():
    time.sleep(0.1)
pathlib.Path("weights.txt").write_text("complete")
"""


@pytest.fixture(scope="module")
def cluster(small: parts.Project, ground: Path) -> Iterator[Cluster[Slurm]]:
    project = parts.project(ground / "slurm-trouble", small.python, small.store)
    shutil.copytree(small.directory / "repro", project.directory / "repro", ignore=shutil.ignore_patterns("blobs"))
    shutil.copy(small.directory / "hello.py", project.directory)
    (project.directory / "steps.py").write_text(STEPS)
    root = Path(tempfile.mkdtemp(prefix="slurm-"))  # the path of a socket is short
    try:
        with slurm(root, NODES) as running:
            yield Cluster("slurm", running, project)
    finally:
        shutil.rmtree(root)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory whose file `go` lets the command end."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def _node3_starts_no_job(cluster: Cluster[Slurm]) -> Iterator[None]:
    fails = cluster.scheduler.configuration.parent / "fail-node3"
    fails.touch()
    yield
    fails.unlink()
    cluster.scheduler.ask("scancel", "--me")
    cluster.scheduler.ask("scontrol", "update", "NodeName=node3", "State=resume")


def words(data: Path, *options: str) -> tuple[str, ...]:
    return (*options, "--data", f"{data}:/data", "steps.py")


def logs(cluster: Cluster[Slurm], job: str, name: str = "stderr.log") -> str:
    (directory,) = cluster.directories(job)
    return (directory / name).read_text() if (directory / name).exists() else ""


def start_again(cluster: Cluster[Slurm], job: str) -> None:
    cluster.wait_for(lambda: "JobState=PENDING" in cluster.scheduler.show(job))
    cluster.scheduler.start_again(job)


def test_an_early_warning_is_handled_and_attempts_without_progress_end(cluster: Cluster[Slurm], data: Path) -> None:
    job = cluster.submit(*words(data, "--job=requeue", "--time", "60"))

    environ = {**os.environ, **cluster.scheduler.environ}

    def warn_until(state: str) -> None:
        def is_reached() -> bool:
            with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):  # it tries for a minute
                subprocess.run(
                    ("scancel", "--batch", "--signal=USR1", job), env=environ, capture_output=True, check=True, timeout=1
                )
            return state in cluster.scheduler.show(job)

        cluster.wait_for(is_reached)

    def script_runs() -> bool:  # Slurm calls a job running before its script has started
        (directory,) = cluster.directories(job)
        return (
            subprocess.run(["pgrep", "-f", f"exec .*--run-id {directory.name}"], capture_output=True, check=False).returncode == 0
        )

    cluster.wait_for(script_runs)
    for attempt in (1, 2):
        warn_until(f"Restarts={attempt}")
        start_again(cluster, job)
        cluster.wait_for(script_runs)
        assert "is not queued again" not in logs(cluster, job)
    warn_until("JobState=FAILED")
    message = f"job {job} is not queued again: 3 attempts reached the time limit, and no output and no checkpoint has changed"
    assert message in logs(cluster, job)


def test_a_time_that_is_not_longer_than_the_warning_is_refused(cluster: Cluster[Slurm]) -> None:
    refused = cluster.exec("--print", "--job=requeue", "--time", "2", "steps.py", code=2)
    assert "--time must be longer than the warning, which comes 120 seconds before the time limit" in refused.err
    assert "trap '' USR1" in cluster.exec("--print", "--job=requeue", "--time", "3", "steps.py").out


def test_an_array_that_is_larger_than_the_cluster_allows_is_refused(cluster: Cluster[Slurm]) -> None:
    seeds = ("--seeds", "1002", "--metric", "loss")
    refused = cluster.run("sensitivity", "--on", "slurm", *seeds, "steps.py", code=2)
    assert "--seeds 1002 is more than the 1001 tasks that an array job of this cluster can have (MaxArraySize)" in refused.err


@pytest.mark.usefixtures("_node3_starts_no_job")
def test_a_job_whose_node_fails_to_start_it_ends_the_wait_with_a_hint(cluster: Cluster[Slurm], data: Path) -> None:
    done = cluster.exec("--wait", *words(data, "--job=sbatch=--nodelist=node3"), code=RunError.exit_code)
    assert "pending (launch_failed_requeued_held)" in done.err
    assert "scontrol release" in done.err


def test_the_run_of_a_lost_node_ends_before_the_next_attempt_resumes_it(cluster: Cluster[Slurm], data: Path) -> None:
    lost = cluster.wait(*words(data, "--job=sbatch=--exclude=node3"), "save")
    assert lost.stdout is not None
    assert lost.stdout.readline() == "starting at 0\n"
    run = cluster.record()
    job, node = run["start"]["job"]["id"], run["start"]["job"]["node"]
    cluster.scheduler.lose(node)
    cluster.scheduler.ask("scontrol", "update", f"NodeName={node}", "State=down", "Reason=lost")
    cluster.wait_for(lambda: "Restarts=1" in cluster.scheduler.show(job))
    # An answer that the node gave before it was lost would put it back to service.
    cluster.scheduler.ask("scontrol", "update", f"NodeName={node}", "State=drain", "Reason=lost")
    start_again(cluster, job)
    short = run["start"]["id"][-8:]
    text = f"run {short}, the last attempt of job {job}, is still running on {node}; waiting up to 120 seconds for its end"
    cluster.wait_for(lambda: text in logs(cluster, job))
    found = subprocess.run(["pgrep", "-f", f"exec .*--run-id {run['start']['id']}"], capture_output=True, text=True, check=True)
    on_node = [pid for pid in found.stdout.split() if _node_of(int(pid)) == node]
    for pid in on_node:
        os.kill(int(pid), signal.SIGKILL)
    assert lost.stdout.readline() == "starting at 1\n"
    (data / "go").touch()
    _, stderr = lost.communicate(timeout=60)
    assert lost.returncode == 0, stderr
    resumed = cluster.record()
    assert (resumed["start"]["resume_of"], resumed["start"]["job"]["restarts"]) == (run["start"]["id"], 1)


def _node_of(pid: int) -> str:
    return next(
        (text[16:] for text in Path(f"/proc/{pid}/environ").read_text().split("\0") if text.startswith("SLURMD_NODENAME=")), ""
    )


def test_a_wait_goes_on_while_the_controller_is_silent_and_when_it_has_forgotten_the_job(
    cluster: Cluster[Slurm], data: Path
) -> None:
    silent = cluster.wait(*words(data, "--job=sbatch=--nodelist=node2"))
    forgotten = cluster.wait(*words(data, "--job=sbatch=--nodelist=node3"))
    held = cluster.submit("--job=sbatch=--hold", *words(data))
    assert "pending (JobHeldUser)" in cluster.run("runs", "list").out
    for process in (silent, forgotten):
        assert process.stdout is not None
        assert process.stdout.readline() == "starting at 0\n"
    cluster.scheduler.stop_controller(signal.SIGKILL)
    for node in NODES[1:]:
        cluster.scheduler.lose(node)  # otherwise they would stop jobs that the controller has forgotten
    for process in (silent, forgotten):
        assert process.stderr is not None
        while "waiting for the record of the run, which may still continue" not in (line := process.stderr.readline()):
            assert line
    cluster.scheduler.start_controller("-c")
    while "Slurm does not know the job any more" not in (line := forgotten.stderr.readline()):  # type: ignore[union-attr]
        assert line
    (data / "go").touch()
    for process in (silent, forgotten):
        process.communicate(timeout=60)
        assert process.returncode == 0
    (directory,) = cluster.directories(held)
    page = cluster.run("runs", "show", directory.name[-8:]).out
    assert "Slurm does not know the job any more; its last state was pending (JobHeldUser)" in page


def test_the_list_of_runs_asks_slurm_once(cluster: Cluster[Slurm], data: Path, tmp_path: Path) -> None:
    for _ in range(3):
        cluster.submit("--job=sbatch=--hold", *words(data))
    counted = tmp_path / "counted"
    for name in ("squeue", "scontrol", "sacct"):
        script = f'#!/bin/sh\necho {name} >>{counted}\nexec {shutil.which(name)} "$@"\n'
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    listed = cluster.run("runs", "list", "--json", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    states = [item["state"]["text"] for item in json.loads(listed.out)["jobs"]]
    assert states.count("pending (JobHeldUser)") == 3
    assert counted.read_text().split().count("squeue") == 1
    assert "scontrol" not in counted.read_text()
