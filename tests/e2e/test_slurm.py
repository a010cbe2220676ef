"""Runs that are jobs of a real Slurm (tests/slurm.py), through the installed command. The login machine is this one."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repro_env.schema.errors import RunError
from tests.e2e import parts
from tests.e2e.cluster import TRAIN, Cluster, check_resumed, stop_a_wait
from tests.e2e.ranks import RANKS
from tests.slurm import NODE, Slurm, slurm


@pytest.fixture(scope="module")
def cluster(ground: Path) -> Iterator[Cluster[Slurm]]:
    """A cluster and a captured project, whose path has characters that `#SBATCH` lines treat in a special way."""
    directory = ground / "slurm project, 100%j"
    project = parts.project(directory, parts.venv(directory / ".venv", own_pip=False), ground / "slurm-store")
    (directory / "train.py").write_text(TRAIN)
    project.capture("--exclude", "large.bin")
    project.rebuild()
    root = Path(tempfile.mkdtemp(prefix="slurm-"))  # the path of a socket is short
    try:
        with slurm(root) as running:
            yield Cluster("slurm", running, project)
    finally:
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def limited(cluster: Cluster[Slurm]) -> str:
    """A job that its time limit will end while the other tests run: Slurm looks every 30 seconds."""
    warning = "--job=sbatch=--signal=B:USR1@55"
    return cluster.submit("--job=requeue", "--time", "1", warning, "--tag", "limited", "train.py", "40", "0", "0", "save")


def test_a_job_runs_with_the_container_program_of_the_cluster(cluster: Cluster[Slurm], limited: str) -> None:
    done = cluster.exec("--wait", "--json", "--runner", "charliecloud", "train.py", "1", "0", "0")
    run = json.loads(done.out.splitlines()[-1])["run"]
    assert run["start"]["job"]["node"] == NODE
    assert run["end"]["outcome"]["isolation"] == "charliecloud"
    done = cluster.exec("--runner", "docker", "train.py", code=2)
    assert "--on slurm does not support --runner docker" in done.err


def test_a_job_runs_in_the_image_on_the_node_and_its_output_comes_home(cluster: Cluster[Slurm], limited: str) -> None:
    catalog = "../slurm catalog"
    (cluster.project.directory / catalog).mkdir()
    words = ("--wait", "--json", "--time", "5", "--push", catalog)
    done = cluster.exec(*words, "train.py", "2", "0", "7", code=7)
    assert done.out.startswith("starting at 0 \n")
    assert "to stderr\n" in done.err
    assert "SLURM_" not in done.err
    assert "HYDRA_" not in done.err  # set by Slurm 24.11
    answer = json.loads(done.out.splitlines()[-1])
    record = cluster.record(answer["run"]["start"]["id"])
    assert record["start"]["job"] == {"engine": "slurm", "id": answer["job"], "node": NODE, "restarts": 0, "template": None}
    assert record["start"]["host"][0] == "os Node of a test cluster"
    assert record["end"]["outcome"]["isolation"] == "embedded"
    assert (record["end"]["outcome"]["exit_code"], record["end"]["outcome"]["interrupted"]) == (7, 0)
    weights = json.loads((Path(record["directory"]) / "files/weights.json").read_text())
    assert weights[0] == record["start"]["spec"]
    (pushed,) = json.loads(cluster.run("runs", "list", "--from", catalog, "--json").out)["runs"]
    assert (pushed["id"], pushed["ending"]) == (record["start"]["id"], "exit 7")
    here = cluster.run("exec", "train.py", "2", "0", "0")
    assert here.out == "starting at 0 \n"
    local = cluster.record()
    assert (local["start"]["job"], local["start"]["host"] == record["start"]["host"]) == (None, False)
    assert local["end"]["outputs"] == record["end"]["outputs"]


def test_a_waiting_job_keeps_its_code_and_its_state_is_shown(cluster: Cluster[Slurm]) -> None:
    job = cluster.submit(
        "--job=sbatch=--hold", "--env", "TOKEN=quite-a-secret-1", "--seed", "random", "--", "train.py", "1", "0", "0"
    )
    (directory,) = cluster.directories(job)
    run_id = directory.name
    listed = cluster.run("runs", "list").out.splitlines()
    assert any(line.startswith(run_id[-8:]) and "pending (JobHeldUser)" in line for line in listed)
    page = cluster.run("runs", "show", run_id[-8:]).out
    assert f"job       slurm {job}\nstate     pending (JobHeldUser)\n" in page
    refused = cluster.run("runs", "rm", run_id[-8:], code=19)
    assert f"scancel {job}" in refused.err
    assert not [path for path in directory.iterdir() if b"quite-a-secret" in path.read_bytes()]
    train = cluster.project.directory / "train.py"
    train.write_text("raise SystemExit('not the submitted code')\n")
    try:
        cluster.scheduler.ask("scontrol", "release", job)
        cluster.wait_for(lambda: "JobState=COMPLETED" in cluster.scheduler.show(job))
    finally:
        train.write_text(TRAIN)
    record = cluster.record(run_id[-8:])
    assert record["end"]["outcome"]["exit_code"] == 0
    assert record["start"]["seed"] == json.loads((directory / "submission.json").read_text())["start"]["seed"]
    logs = cluster.run("runs", "logs", run_id[-8:])
    assert logs.out.startswith("starting at 0 <redacted>")
    cluster.run("runs", "rm", run_id[-8:])
    assert not directory.exists()


def test_runs_with_several_seeds_are_the_tasks_of_one_job(cluster: Cluster[Slurm]) -> None:
    code = "import json, os; json.dump({'seed': int(os.environ['REPRO_ENV_SEED'])}, open('metrics.json', 'w'))"
    words = ("sensitivity", "--seeds", "3", "--seed", "4294967294", "--metric", "seed", "--json")
    done = cluster.run(*words, "--on", "slurm", "--time", "5", "-c", code)
    found = json.loads(done.out)
    assert [run["seed"] for run in found["runs"]] == [4294967294, 4294967295, 0]
    assert found["metrics"][0]["spread"]["values"] == [
        {"seed": seed, "value": float(seed)} for seed in (0, 4294967294, 4294967295)
    ]
    records = [cluster.record(run["id"]) for run in found["runs"]]
    assert {record["start"]["job"]["node"] for record in records} == {NODE}
    (job,) = {_job_of(cluster, record["start"]["id"]) for record in records}
    assert f"3 runs were submitted as the array job {job}\n" in done.err


def _job_of(cluster: Cluster[Slurm], run_id: str) -> str:
    job = json.loads((cluster.project.directory / "runs/.jobs" / run_id / "job.json").read_text())["id"]
    assert isinstance(job, str)
    return job.partition("_")[0]


def test_the_tasks_of_a_step_share_one_run(cluster: Cluster[Slurm]) -> None:
    (cluster.project.directory / "ranks.py").write_text(RANKS)
    job = ("srun", "--ntasks", "2", "--overcommit", str(parts.COMMAND), "exec", "ranks.py", "0")
    environ = parts.environ(cluster.project.store, cluster.scheduler.environ)
    subprocess.run(job, cwd=cluster.project.directory, env=environ, check=True, timeout=200)
    step = cluster.record()
    words = ("--job", "tasks-per-node=2", "--job=sbatch=--overcommit", "--time", "5", "--wait", "--json")
    done = cluster.exec(*words, "ranks.py", "3", code=3)
    task = cluster.record(json.loads(done.out.splitlines()[-1])["run"]["start"]["id"])
    for record, codes in ((step, [0, 0]), (task, [0, 3])):
        assert [(process["node"], process["exit_code"]) for process in record["end"]["processes"]] == [
            (NODE, code) for code in codes
        ]
        assert record["start"]["job"]["node"] == NODE
    assert step["end"]["outputs"] == task["end"]["outputs"]
    refused = cluster.exec("--nodes", "2", "ranks.py", "0", code=2)
    assert "are on 2 machines, and cannot reach each other without a network" in refused.err


def test_a_printed_script_is_not_submitted_and_can_be_submitted_as_it_is(cluster: Cluster[Slurm], tmp_path: Path) -> None:
    site, script = tmp_path / "site.sh", tmp_path / "job.sh"
    site.write_text("#SBATCH --nice=7\nexport SITE=x\necho the site is ready\n")
    words = ("--job=sbatch=--time-min=1", "--job-template", str(site), "--time", "3", "--trace", "train.py", "1", "0", "0")
    done = cluster.exec("--print", *words)
    assert "#SBATCH --time-min=1\n#SBATCH --nice=7\nexport SITE=x\n" in done.out
    assert [word for word in ("--no-defaults", "--gpus none", "--trace", "--spec") if f" {word} " not in done.out] == [], (
        done.out.splitlines()[-3:]
    )
    assert done.out.endswith(" -- train.py 1 0 0\n")
    script.write_text(done.out)
    queued = cluster.scheduler.ask("squeue", "--noheader", "--format=%o")
    job = cluster.scheduler.ask("sbatch", "--parsable", str(script)).strip()
    run_id = re.search(r"--run-id (\S+)", done.out)
    assert run_id is not None
    assert run_id[1] not in queued
    cluster.wait_for(lambda: "JobState=COMPLETED" in cluster.scheduler.show(job))
    record = cluster.record(run_id[1][-8:])
    template = f"sha256:{hashlib.sha256(site.read_bytes()).hexdigest()}"
    assert record["start"]["job"] == {"engine": "slurm", "id": job, "node": NODE, "restarts": 0, "template": template}
    submission = json.loads((cluster.project.directory / "runs/.jobs" / run_id[1] / "submission.json").read_text())
    assert (submission["template"], submission["settings"]) == (template, {"sbatch": ["--time-min=1"]})
    assert cluster.run("runs", "logs", run_id[1][-8:]).out.startswith("starting at 0")
    assert "the site is ready\n" in (cluster.project.directory / "runs/.jobs" / run_id[1] / "stdout.log").read_text()


def test_the_script_that_init_writes_is_a_job(cluster: Cluster[Slurm]) -> None:
    script = cluster.project.directory / "repro-env.sbatch"
    cluster.run("init", "--slurm", "--exec", "train.py 1 0 7")
    before = cluster.record()
    path = f"{parts.COMMAND.parent}:{os.environ['PATH']}"
    environ = {**parts.environ(cluster.project.store, cluster.scheduler.environ), "PATH": path}
    submit = ["sbatch", "--parsable", script.name]
    done = subprocess.run(submit, cwd=script.parent, env=environ, capture_output=True, text=True, check=True)
    job = done.stdout.strip()
    cluster.wait_for(lambda: "JobState=FAILED" in cluster.scheduler.show(job))
    script.unlink()
    record = cluster.record()
    assert record["start"]["id"] != before["start"]["id"]
    assert record["start"]["job"]["id"] == job
    assert record["end"]["outcome"]["exit_code"] == 7
    output = script.parent.parent / f"repro-env-{job}.out"
    assert output.read_text().startswith("repro-env: ")
    assert "\nstarting at 0 \n" in output.read_text()


def test_gpus_are_those_of_each_node(cluster: Cluster[Slurm]) -> None:
    done = cluster.exec("--print", "--gpus", "2", "--nodes", "2", "--network", "train.py")
    assert "#SBATCH --gpus-per-node=2\n" in done.out
    assert "exec --gpus all " in done.out, "each process has those that Slurm gives to its node"


def test_a_stopped_wait_cancels_the_job_and_leaves_nothing(cluster: Cluster[Slurm]) -> None:
    record = stop_a_wait(cluster)
    assert record["directory"] not in Path("/proc/self/mountinfo").read_text()
    assert not (Path(record["directory"]) / ".scratch").exists()


def test_a_node_without_the_store_or_the_runs_ends_the_job_before_the_command(cluster: Cluster[Slurm]) -> None:
    store = cluster.scheduler.hidden / "store"
    shutil.copytree(cluster.project.store, store, symlinks=True, copy_function=os.link)
    elsewhere = replace(cluster, project=cluster.project.elsewhere(store))
    done = elsewhere.exec("--wait", "train.py", "1", "0", "0", code=RunError.exit_code)
    assert f"{store} is not on the node {NODE}" in done.err
    assert "starting" not in done.out
    runs = cluster.scheduler.hidden / "runs"
    done = cluster.exec("--wait", "--runs", runs, "train.py", "1", "0", "0", code=RunError.exit_code)
    assert "the node cannot open the job's output files" in done.err
    listed = cluster.run("runs", "list", "--runs", runs).out
    assert "did not start: failed" in listed


def test_a_refused_job_leaves_nothing(cluster: Cluster[Slurm]) -> None:
    before = cluster.submissions()
    done = cluster.exec("--job", "partition=nowhere", "train.py", code=20)
    assert "Slurm refused the job: Batch job submission failed: Invalid partition" in done.err
    assert cluster.submissions() == before


@pytest.fixture(scope="module")
def uninterrupted(cluster: Cluster[Slurm]) -> list[dict[str, Any]]:
    """The outputs of the training that is not stopped."""
    cluster.run("exec", "train.py", "40", "0", "0")
    outputs = cluster.record()["end"]["outputs"]
    assert isinstance(outputs, list)
    return outputs


def test_a_killed_run_is_resumed_with_its_outputs(cluster: Cluster[Slurm], uninterrupted: list[dict[str, Any]]) -> None:
    job = cluster.submit("train.py", "40", "0.1", "0")
    cluster.wait_for(lambda: any("starting" in path.read_text() for path in cluster.directories(job)[0].glob("stdout.log")))
    time.sleep(0.5)
    (directory,) = cluster.directories(job)
    found = subprocess.run(["pgrep", "-f", f"exec .*--run-id {directory.name}"], capture_output=True, text=True, check=True)
    for process in found.stdout.split():
        os.kill(int(process), signal.SIGKILL)
    cluster.wait_for(lambda: "JobState=FAILED" in cluster.scheduler.show(job))
    killed = cluster.record()
    assert (killed["state"], killed["end"]) == ("interrupted", None)
    done = cluster.exec("--wait", "--resume", "latest", "train.py", "40", "0", "0")
    assert "without the record" not in done.err
    assert not done.out.startswith("starting at 0")
    resumed = cluster.record()
    assert resumed["start"]["resume_of"] == killed["start"]["id"]
    assert resumed["end"]["outputs"] == uninterrupted


def test_a_training_that_its_time_limit_ends_resumes_by_itself_to_the_same_bytes(
    cluster: Cluster[Slurm], limited: str, uninterrupted: list[dict[str, Any]]
) -> None:
    cluster.wait_for(lambda: "Restarts=1" in cluster.scheduler.show(limited))
    cluster.wait_for(lambda: "JobState=PENDING" in cluster.scheduler.show(limited))
    (directory,) = cluster.directories(limited)
    listed = cluster.run("runs", "list", "--tag", "limited").out
    assert "interrupted by signal 10, exit 3, queued again: pending" in listed
    cluster.scheduler.start_again(limited)
    cluster.wait_for(lambda: "JobState=COMPLETED" in cluster.scheduler.show(limited))
    second, first = cluster.tagged("limited")
    assert first["start"]["id"] == directory.name
    check_resumed(first, second, uninterrupted)
    assert "bitwise" in cluster.run("verify", second["start"]["id"]).out
    assert os.path.isdir(directory)  # noqa: PTH112
