"""Runs that are jobs of Kubernetes, through the installed command and kubectl. The API server is a fake, which checks each object with
the schemas of Kubernetes; the pods run in Docker (tests/fakes/kubernetes.py), and the registry is a real one with a login."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e import parts
from tests.e2e.parts import Project, one_sentence
from tests.fakes.kubernetes import NODE, Cluster, api_server, run_in_docker, validate
from tests.parts import need
from tests.registries import registry
from tests.registry.logins import HASHED, login
from tests.sandbox.engines import docker

TRAIN = """\
import json, os, pathlib, random, signal, sys
print("starting", os.environ.get("TOKEN"), sys.argv[1:], os.getcwd(), sys.prefix, os.getuid(), flush=True)
marker = json.loads(pathlib.Path("/.repro-env/image.json").read_text())
pathlib.Path("weights.json").write_text(json.dumps([marker["spec"], [random.random() for _ in range(3)]]))
pathlib.Path("~/outside.txt").expanduser().write_text("kept")
for directory in sys.argv[2:]:
    print(sorted(os.listdir(directory)))
    pathlib.Path(directory, "state").write_text("saved")
try:
    pathlib.Path("/usr/lib/x").write_text("")
except OSError as error:
    print(error.strerror, flush=True)
if sys.argv[1] == "pause":
    signal.pause()
sys.exit(int(sys.argv[1]))
"""

RANKS = """\
import os, pathlib, socket, sys, time
rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
pathlib.Path(f"rank{rank}.txt").write_text(socket.gethostname())
pathlib.Path("~/own.txt").expanduser().write_text(str(rank))
print("rank", rank, "of", os.environ["PET_NNODES"], flush=True)
if rank == 0:
    with socket.create_server(("", address[1])) as server:
        pathlib.Path("met.txt").write_bytes(server.accept()[0].recv(100))
    time.sleep(600 * int(sys.argv[1]))
else:
    while True:
        try:
            socket.create_connection(address).sendall(b"rank 1 sees " + pathlib.Path("rank0.txt").read_bytes())
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    sys.exit(3 * int(sys.argv[1]))
"""


class Site(NamedTuple):
    project: Project
    cluster: Cluster
    host: str
    volumes: Path
    environ: dict[str, str]

    def run(self, *words: str, code: int | None = 0) -> parts.Done:
        return self.project.run(*words, code=code, env=self.environ)

    def record(self, run_id: str) -> dict[str, Any]:
        answer = json.loads(self.run("runs", "show", run_id, "--json").out)
        assert isinstance(answer, dict)
        return answer


@pytest.fixture(scope="module")
def unpushed(ground: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A captured project, a registry with a login, and a cluster with claims and a Secret."""
    need(shutil.which("kubectl") and shutil.which("docker"), "kubectl, docker: apt-get install kubernetes-client docker.io")
    docker()  # files of the pods belong to another user, which needs uid 0 too
    directory, images = tmp_path_factory.mktemp("kubernetes"), set[str]()
    (directory / "htpasswd").write_text(f"me:{HASHED}\n")
    path = ground / "a project in pods"
    project = parts.project(path, parts.venv(path / ".venv", own_pip=False), ground / "pods-store")
    (path / "train.py").write_text(TRAIN)
    (path / "ranks.py").write_text(RANKS)
    project.capture()
    auth = f"auth: {{htpasswd: {{realm: tests, path: {directory / 'htpasswd'}}}}}"
    for name in ("imagenet/v2/train", "checkpoints", "scratch", "registry"):
        (directory / name).mkdir(parents=True)
    for name in ("checkpoints", "scratch"):
        (directory / name).chmod(0o777)
    with registry(directory / "blobs", more=[auth]) as host:
        login(directory, host)
        (directory / "config.json").rename(directory / "registry" / ".dockerconfigjson")
        (directory / "registry" / "config.json").symlink_to(".dockerconfigjson")
        cluster = Cluster(run_in_docker(directory, images, directory / "registry"))
        with api_server(cluster, directory) as kubeconfig:
            environ = {"DOCKER_CONFIG": str(directory / "registry"), "KUBECONFIG": str(kubeconfig), "TOKEN": "a$(HOME)$$"}
            yield Site(project, cluster, host, directory, environ)
    subprocess.run(["docker", "rmi", "--force", *images], capture_output=True, check=True)


@pytest.fixture(scope="module")
def site(unpushed: Site) -> Site:
    refused = unpushed.run("exec", "--on", "kubernetes", "train.py", "0", code=3)
    assert "is not in a registry" in one_sentence(refused)
    assert "push it with `repro-env push" in refused.err
    unpushed.run("push", f"{unpushed.host}/team/digits:1")
    return unpushed


def test_a_run_in_a_pod_comes_home_with_its_outputs(site: Site) -> None:
    words = ("--data", "imagenet/v2:/data/imagenet", "--checkpoints", f"checkpoints:{site.project.directory}/ck")
    limits = ("--cpus", "1.5", "--memory", "2G", "--time", "10m", "--job", "registry-secret=registry")
    done = site.run(
        "exec", "--on", "kubernetes", "--wait", "--json", *limits, *words, "--env", "TOKEN", "train.py", "7", "ck", code=7
    )
    project = site.project.directory
    lines = done.out.splitlines()
    assert f"starting a$(HOME)$$ ['7', 'ck'] {project} {project}/.venv 1000" in lines
    assert lines[-2].startswith("repro-env: sent ") or "Read-only file system" in lines
    answer = json.loads(lines[-1])
    record = site.record(answer["run"]["start"]["id"])
    start, end = record["start"], record["end"]
    assert start["job"] == {
        "engine": "kubernetes",
        "id": answer["job"].partition("/test/")[2],
        "node": NODE,
        "restarts": 0,
        "template": None,
    }
    assert [(item["kind"], item["target"]) for item in start["data"]] == [
        ("data", "/data/imagenet"),
        ("checkpoints", f"{project}/ck"),
    ]
    assert (end["outcome"]["isolation"], end["outcome"]["exit_code"]) == ("pod", 7)
    assert (site.volumes / "checkpoints/state").read_text() == "saved"
    assert [output["path"] for output in end["outputs"]] == ["/home/repro-env/outside.txt", "weights.json"]
    here = json.loads(site.run("exec", "--json", "train.py", "0").out.splitlines()[-1])
    mine, theirs = ({output["path"]: output["sha256"] for output in item["outputs"]}["weights.json"] for item in (here, end))
    assert mine == theirs
    (shared,) = json.loads(site.run("runs", "list", "--from", f"{site.host}/team/digits", "--json").out)["runs"]
    assert (shared["id"], shared["ending"]) == (start["id"], "exit 7")
    assert "a$(HOME)" not in "".join(path.read_text() for path in Path(record["directory"]).rglob("*.json"))
    assert "a$(HOME)" not in "".join(
        path.read_text() for path in (project / "runs/.jobs").rglob("*.*") if path.name != "stdout.log"
    )


def test_a_job_that_is_deleted_saves_its_state_and_is_recorded(site: Site) -> None:
    done = site.run("exec", "--on", "kubernetes", "--json", "--job", "registry-secret=registry", "train.py", "pause")
    answer = json.loads(done.out)
    short = answer["run"][-8:]
    deadline = time.monotonic() + 90
    while "Read-only file system" not in site.run("runs", "logs", short, code=None).out:
        assert time.monotonic() < deadline, site.cluster.pods
        time.sleep(0.3)
    assert "running" in site.run("runs", "list").out
    stop = shlex.split(done.err.rpartition(", ")[2])
    assert stop[:5] == ["kubectl", "delete", "job", "-n", "vision"]
    path = f"/apis/batch/v1/namespaces/vision/jobs/{stop[-1]}?propagationPolicy=Background"  # as that command does
    subprocess.run(["kubectl", "delete", "--raw", path], env={**os.environ, **site.environ}, check=True, capture_output=True)
    while "interrupted by signal 15" not in (listed := site.run("runs", "list").out):
        assert time.monotonic() < deadline, listed
        time.sleep(0.3)
    assert {output["path"] for output in site.record(short)["end"]["outputs"]} >= {"weights.json"}
    assert not site.cluster.pods.keys() & {f"{stop[-1]}-x7x7x"}


PODS = [
    "--on",
    "kubernetes",
    "--wait",
    "--json",
    "--job",
    "registry-secret=registry",
    "--nodes",
    "2",
    "--job",
    "shared=scratch/lab",
]


def test_the_pods_of_several_nodes_share_a_run_that_comes_home(site: Site) -> None:
    answer = json.loads(site.run("exec", *PODS, "ranks.py", "0").out.splitlines()[-1])
    record = site.record(answer["run"]["start"]["id"])
    job = answer["job"].rpartition("/")[2]
    assert [process["node"] for process in record["end"]["processes"]] == [f"{job}-0", f"{job}-1"]
    outputs = [output["path"] for output in record["end"]["outputs"]]
    assert outputs == ["/home/repro-env/own.txt", "met.txt", "rank0.txt", "rank1.txt"]
    assert record["end"]["special_files"] == [f"/home/repro-env/own.txt of {job}-1 (differs from the output with this path)"]
    run = Path(record["directory"])
    assert (run / "files/met.txt").read_text() == f"rank 1 sees {job}-0"
    assert [(run / "ranks" / rank / "stdout.log").read_text() for rank in "01"] == ["rank 0 of 2\n", "rank 1 of 2\n"]
    shared = site.volumes / "scratch/lab"
    assert [path.name for path in shared.glob("2*")] == [run.name], "the claim keeps the run too"
    assert not [*shared.glob(".p*/*")]


def test_a_node_that_fails_ends_the_others_and_its_exit_code_is_that_of_the_run(site: Site) -> None:
    done = site.run("exec", *PODS, "ranks.py", "1", code=3)
    assert "rank 1 of 2" in done.out
    record = site.record(json.loads(done.out.splitlines()[-1])["run"]["start"]["id"])
    assert [process["exit_code"] for process in record["end"]["processes"]] == [128 + 15, 3]
    assert (Path(record["directory"]) / "ranks/0/stdout.log").read_text() == "rank 0 of 2\n"


TEMPLATE = """\
metadata: {labels: {kueue.x-k8s.io/queue-name: vision}}
spec:
  template:
    spec:
      priorityClassName: low
      tolerations: [{key: gpu, operator: Exists}]
"""


def test_a_printed_job_is_not_submitted_and_can_be_applied_as_it_is(site: Site, tmp_path: Path) -> None:
    before = dict(site.cluster.jobs)
    (tmp_path / "site.yaml").write_text(TEMPLATE)
    words = ("--job", "registry-secret=registry", "--job", "namespace=vision", "--job-template", str(tmp_path / "site.yaml"))
    done = site.run("exec", "--on", "kubernetes", "--print", *words, "train.py", "0")
    (manifest,) = json.loads(done.out)["items"]
    validate(manifest)
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith(f"{site.host}/team/digits@sha256:")
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "vision"
    assert manifest["spec"]["template"]["spec"]["priorityClassName"] == "low"
    assert site.cluster.jobs == before
    path, run_id = "/apis/batch/v1/namespaces/vision/jobs", manifest["metadata"]["labels"]["repro-env/run"]
    applied = ("kubectl", "create", "--raw", path, "-f", "-")  # as `kubectl create` does with each object
    data = json.dumps(manifest).encode()
    subprocess.run(applied, input=data, env={**os.environ, **site.environ}, check=True, capture_output=True)
    deadline = time.monotonic() + 120
    while "exit 0" not in (
        listed := next((line for line in site.run("runs", "list").out.splitlines() if run_id[-8:] in line), "")
    ):
        assert time.monotonic() < deadline, listed
        time.sleep(0.5)
    template = f"sha256:{hashlib.sha256(TEMPLATE.encode()).hexdigest()}"
    assert site.record(run_id[-8:])["start"]["job"]["template"] == template


def test_code_with_a_secret_is_not_sent(site: Site) -> None:
    path = site.project.directory / "settings.py"
    path.write_text("KEY = 'ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3fG5'\n")
    try:
        refused = site.run("exec", "--on", "kubernetes", "--print", "train.py", "0", code=7)
    finally:
        path.unlink()
    assert "1 file contains a secret, so nothing was written or sent" in refused.err


def test_what_a_pod_cannot_have_is_refused_before_it_is_submitted(site: Site) -> None:
    for words, text in (
        (("--resume", "latest"), "pods do not have the runs of this machine"),
        (("--data", f"imagenet:{site.project.directory}"), "would hide"),
        (("--push", "."), "only to a registry"),
        (("--nodes", "2"), "share the run on a PersistentVolumeClaim: --job shared=CLAIM"),
        (("--nodes", "2", "--job", "shared=./x"), 'got "./x"'),
        (("--job", "shared=scratch"), "--job shared requires --nodes"),
    ):
        assert text in one_sentence(site.run("exec", "--on", "kubernetes", *words, "train.py", "0", code=2))
