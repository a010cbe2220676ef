"""Runs that are jobs of a real Grid Engine (tests/gridengine.py), through the installed command. The login machine is this one."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from repro_env.schema.errors import RunError
from tests.e2e import parts
from tests.e2e.cluster import TRAIN, Cluster, check_resumed, stop_a_wait
from tests.e2e.ranks import RANKS
from tests.gridengine import NODE, GridEngine, gridengine


@pytest.fixture(scope="module")
def cluster(small: parts.Project) -> Iterator[Cluster[GridEngine]]:
    (small.directory / "train.py").write_text(TRAIN)
    root = Path(tempfile.mkdtemp(prefix="gridengine-"))
    try:
        with gridengine(root) as cell:
            yield Cluster("gridengine", cell, small)
    finally:
        shutil.rmtree(root)


def test_a_job_runs_in_the_image_on_the_node_and_its_output_comes_home(cluster: Cluster[GridEngine]) -> None:
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
    verified = json.loads(cluster.run("verify", "latest", "--json").out)  # on this machine
    assert (verified["level"], verified["failed"]) == ("bitwise", True)
    assert "granted_pe   smp" in cluster.scheduler.ask("qacct", "-j", answer["job"])


def test_a_waiting_job_says_why_and_its_deletion_is_its_end(cluster: Cluster[GridEngine]) -> None:
    job = cluster.submit("--job", "queue=all.q", "--gpus", "3", "train.py", "1", "0", "0")
    cluster.wait_for(lambda: "cannot run" in cluster.run("runs", "list").out)
    short = cluster.directories(job)[0].name[-8:]
    page = cluster.run("runs", "show", short).out
    assert f"gridengine {job}\nstate     pending (" in page
    assert f"qdel {job}" in cluster.run("runs", "rm", short, code=19).err
    cluster.scheduler.ask("qdel", job)
    assert "Grid Engine does not know the job any more; its last state was pending (" in cluster.run("runs", "show", short).out
    cluster.run("runs", "rm", short)


def test_a_stopped_wait_cancels_the_job_and_its_command_can_save(cluster: Cluster[GridEngine]) -> None:
    stop_a_wait(cluster)


def test_a_job_whose_node_lacks_the_store_or_the_runs_ends_with_the_reason(cluster: Cluster[GridEngine]) -> None:
    store = cluster.scheduler.hidden / "store"
    shutil.copytree(cluster.project.store, store, symlinks=True, copy_function=os.link)
    elsewhere = replace(cluster, project=cluster.project.elsewhere(store))
    done = elsewhere.exec("--wait", "train.py", "1", "0", "0", code=RunError.exit_code)
    assert f"{store} is not on the node" in done.err
    runs = cluster.scheduler.hidden / "runs"
    done = cluster.exec("--wait", "--runs", runs, "train.py", "1", "0", "0", code=RunError.exit_code)
    assert f"could not start (can't open output file \"{runs}" in done.err
    assert "qmod -cj" in done.err


def test_a_refused_job_leaves_nothing(cluster: Cluster[GridEngine]) -> None:
    before = cluster.submissions()
    done = cluster.exec("--job", "queue=nowhere", "train.py", code=20)
    assert 'Grid Engine refused the job: Job was rejected because job requests unknown queue "nowhere"' in done.err
    assert cluster.submissions() == before


def test_variables_are_passed_only_if_everybody_may_read_them(cluster: Cluster[GridEngine]) -> None:
    refused = cluster.exec("--env", "TOKEN=quite-a-secret-1", "train.py", "1", "0", "0", code=2)
    assert "all users of the cluster can read the variables of a job" in refused.err
    words = ("--wait", "--job", "show-variables", "--env", "TOKEN=quite-a-secret-1")
    assert cluster.exec(*words, "train.py", "1", "0", "0").out == "starting at 0 quite-a-secret-1\n"


def test_the_processes_of_a_job_share_one_run(cluster: Cluster[GridEngine]) -> None:
    (cluster.project.directory / "ranks.py").write_text(RANKS)
    cluster.exec("--job", "tasks-per-node=2", "--wait", "ranks.py", "3", code=3)
    record = cluster.record()
    assert [process["exit_code"] for process in record["end"]["processes"]] == [0, 3]
    assert record["start"]["job"]["engine"] == "gridengine"


def test_a_job_that_ends_before_its_time_limit_is_queued_again_and_resumes(cluster: Cluster[GridEngine]) -> None:
    cluster.run("exec", "train.py", "10", "0", "0")
    uninterrupted = cluster.record()["end"]["outputs"]
    words = ("--job", "requeue", "--time", "125s", "--tag", "limited")
    job = cluster.submit(*words, "train.py", "10", "0", "0", "save")
    cluster.wait_for(lambda: len(cluster.tagged("limited")) == 2)
    cluster.wait_for(lambda: job not in [line.split()[0] for line in cluster.scheduler.ask("qstat").splitlines()])
    second, first = cluster.tagged("limited")
    assert first["start"]["id"] == cluster.directories(job)[0].name
    check_resumed(first, second, uninterrupted)
    assert not os.path.lexists(cluster.directories(job)[0] / "requeue")
