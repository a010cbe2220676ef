"""Trainings with torch as jobs of a real Slurm, compared with the same trainings on this machine."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts
from tests.sandbox.engines import docker
from tests.slurm import Slurm, slurm

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
SOURCES = (parts.ROOT / "examples/checkpoints/train.py", parts.ROOT / "tests/e2e/rows/ranks.py")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    root = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        with slurm(root) as running:
            yield running
    finally:
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def project(torch: parts.Project, ground: Path) -> parts.Project:
    made = parts.project(ground / "slurm-torch", torch.python, torch.store)
    shutil.copytree(torch.directory / "repro", made.directory / "repro", symlinks=True)
    for script in SOURCES:
        shutil.copy(script, made.directory)
    return made


def record(project: parts.Project, tag: str) -> list[dict[str, Any]]:
    """The runs with a tag, newest first."""
    runs = json.loads(project.run("runs", "list", "--tag", tag, "--json").out)["runs"]
    assert isinstance(runs, list)
    return runs


def weights(run: dict[str, Any]) -> dict[str, str]:
    return {output["path"]: output["sha256"] for output in run["end"]["outputs"] if output["path"].endswith(".pt")}


def test_two_ranks_train_to_the_same_bytes_here_in_docker_and_on_slurm(cluster: Slurm, project: parts.Project) -> None:
    """torchrun starts the ranks; on Slurm also srun, as two processes of `exec`."""
    docker()
    command = ("torchrun", "--nproc-per-node", "2", "ranks.py")
    project.run("exec", "--source", ".", "--tag", "here", *command)
    project.run("exec", "--source", ".", "--tag", "docker", "--runner", "docker", *command)
    job = ("--on", "slurm", "--wait")
    project.run("exec", "--source", ".", "--tag", "job", *job, *command, env=cluster.environ)
    tasks = ("--job", "tasks-per-node=2", "--job=sbatch=--overcommit", "ranks.py")
    project.run("exec", "--source", ".", "--tag", "tasks", *job, *tasks, env=cluster.environ)
    (here,), *others = (record(project, tag) for tag in ("here", "docker", "job", "tasks"))
    assert sorted(weights(here)) == ["rank0.pt", "rank1.pt"]
    for (other,) in others:
        assert weights(here) == weights(other)
        facts = [(rank["size"], rank["nodes"], rank["strategy"], rank["accumulation"]) for rank in other["end"]["ranks"]]
        assert facts == [(2, 1, "DDP", "1")] * 2
    assert [len(run["end"].get("processes", ())) for (run,) in others] == [0, 0, 2]


def test_a_training_that_its_time_limit_ends_resumes_to_the_uninterrupted_weights(cluster: Slurm, project: parts.Project) -> None:
    """The default run takes a few seconds; slowed down, it is at an arbitrary step when its time limit ends it."""
    train = project.directory / "train.py"
    text = train.read_text()
    assert text.count("            training.step()\n") == 1
    project.run("exec", "--source", ".", "--tag", "whole", "train.py")
    train.write_text(
        text.replace("            training.step()\n", "            training.step()\n            __import__('time').sleep(2)\n")
    )
    words = ("--on", "slurm", "--job=requeue", "--time", "1", "--job=sbatch=--signal=B:USR1@45", "--tag", "limited")
    answer = json.loads(project.run("exec", "--source", ".", *words, "--json", "train.py", env=cluster.environ).out)
    train.write_text(text)
    deadline = time.monotonic() + 360
    while "JobState=COMPLETED" not in (state := cluster.show(answer["job"])):
        assert time.monotonic() < deadline, state
        assert "JobState=FAILED" not in state, state
        if "JobState=PENDING Reason=BeginTime" in state:
            cluster.start_again(answer["job"])
        time.sleep(1)
    (whole,), attempts = record(project, "whole"), record(project, "limited")
    assert len(attempts) > 1
    assert [run["start"]["resume_of"] for run in attempts] == [*(run["start"]["id"] for run in attempts[1:]), None]
    assert {run["end"]["outcome"]["exit_code"] for run in attempts[1:]} == {128 + 10}
    assert attempts[0]["end"]["resumed"][0]["id"] == attempts[1]["start"]["id"]
    assert weights(attempts[0])["weights.pt"] == weights(whole)["weights.pt"]
