"""Manifests, states and logs. What kubectl prints is given here; tests/e2e/test_kubernetes.py has an API server and runs the pods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import msgspec
import pytest
import yaml

from repro_env.launch import kubernetes
from repro_env.launch.engine import State
from repro_env.launch.kubernetes import Job, Kubernetes, Resources, name_of, parse, parse_claim, render
from repro_env.runs.records import records
from repro_env.schema.errors import EngineError, RunError, UsageError
from repro_env.schema.run import Mount
from tests.fakes.kubernetes import validate

RUN = "0197c1d2-0000-7000-8000-00000000abcd"
DIGEST, OTHER, CONFIG = (f"sha256:{letter * 64}" for letter in "dec")
JOB = Job(
    run_id=RUN,
    name="train-0000abcd",
    image=f"registry.example.com/team/digits@{DIGEST}",
    job_image=f"registry.example.com/team/digits@{OTHER}",
    interpreter="/usr/bin/python3.11",
    command=("exec", "--gpus", "2", "--", "train.py", "$(HOME)", "two\nlines"),
    workspace="/home/ann/digits",
    claims=(parse_claim("data", "imagenet/v2", "/data/imagenet"), parse_claim("checkpoints", "runs", "/home/ann/digits/ck")),
    given=("WANDB_API_KEY",),
    uid=1000,
    gid=100,
)
ALL = Resources(
    namespace="vision",
    gpus=2,
    gpu_product="NVIDIA-H100-80GB-HBM3",
    cpus=0.5,
    memory=8 << 30,
    seconds=3600,
    registry_secret="registry",
)


NODES = (msgspec.structs.replace(JOB, shared="/scratch/lab"), msgspec.structs.replace(ALL, nodes=2))
"""A job with two nodes."""


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "train-0000abcd-x7x7x", "creationTimestamp": "2026-11-28T01:00:00Z"}, "status": status}


def pods(*statuses: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of an indexed Job."""
    return [
        {
            "metadata": {
                "name": f"train-{index}",
                "creationTimestamp": "2026-11-28T01:00:00Z",
                "annotations": {kubernetes.INDEX: str(index)},
            },
            "status": status,
        }
        for index, status in enumerate(statuses)
    ]


def run(image: str = DIGEST, **state: Any) -> list[dict[str, Any]]:
    return [{"name": "run", "imageID": f"registry.example.com/team/digits@{image}", "state": state}]


def prepare(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "prepare", "state": state}]


@pytest.mark.parametrize("resources", [ALL, Resources(namespace="default")])
def test_the_manifest_has_the_strict_schema_of_every_supported_version(resources: Resources) -> None:
    validate(yaml.safe_load(render(JOB, resources)))


def test_several_nodes_are_an_indexed_job_with_a_service_and_a_shared_claim() -> None:
    job, service = yaml.safe_load_all(render(*NODES))
    validate(job)
    validate(service)
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (2, 2)
    spec = job["spec"]["template"]["spec"]
    assert spec["subdomain"] == service["metadata"]["name"] == "run-0000abcd"
    assert service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    shared = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "shared"]
    assert shared == [
        {"name": "shared", "mountPath": "/.repro-env/job/runs", "subPath": "lab"},
        {"name": "shared", "mountPath": JOB.workspace, "subPath": f"lab/.pods/{RUN}/workspace"},
        {"name": "shared", "mountPath": "/home/repro-env", "subPathExpr": f"lab/.pods/{RUN}/home-$(RANK)"},
    ]
    assert shared[0] in spec["initContainers"][0]["volumeMounts"]
    environ = {variable["name"]: variable.get("value") for variable in spec["containers"][0]["env"]}
    assert {"WORLD_SIZE": "2", "MASTER_ADDR": "train-0000abcd-0.run-0000abcd"}.items() <= environ.items()


def test_a_wrong_field_of_the_manifest_is_found_by_the_schema() -> None:
    manifest = yaml.safe_load(render(JOB, ALL))
    manifest["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="volumeMount"):
        validate(manifest)


def test_a_pod_has_no_rights_and_only_its_mounts_are_writable() -> None:
    spec = yaml.safe_load(render(JOB, ALL))["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (1000, 100)
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in spec["volumes"]


def test_the_command_runs_in_the_image_of_the_spec_with_the_requested_resources() -> None:
    manifest = yaml.safe_load(render(JOB, ALL))
    spec = manifest["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == JOB.image
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": str(8 << 30), "nvidia.com/gpu": "2"}
    assert spec["initContainers"][0]["resources"]["limits"] == {"cpu": "500m", "memory": str(8 << 30)}
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert spec["activeDeadlineSeconds"] > 3600
    assert manifest["spec"]["backoffLimit"] == 0
    assert manifest["metadata"]["namespace"] == "vision"


def test_kubernetes_replaces_no_variable_in_the_command() -> None:
    (container,) = yaml.safe_load(render(JOB, ALL))["spec"]["template"]["spec"]["containers"]
    assert container["args"][-3:] == ["train.py", "$$(HOME)", "two\nlines"]


def test_values_of_the_user_are_only_in_the_secret() -> None:
    (container,) = yaml.safe_load(render(JOB, ALL))["spec"]["template"]["spec"]["containers"]
    reference = {"secretKeyRef": {"name": JOB.name, "key": "WANDB_API_KEY"}}
    assert container["env"][0] == {"name": "WANDB_API_KEY", "valueFrom": reference}


def test_claims_are_mounted_at_their_paths_and_those_below_the_source_elsewhere() -> None:
    spec = yaml.safe_load(render(JOB, ALL))["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert mounts["claim-0"] == {"name": "claim-0", "mountPath": "/data/imagenet", "subPath": "v2", "readOnly": True}
    assert mounts["claim-1"] == {"name": "claim-1", "mountPath": "/.repro-env/job-data/1", "readOnly": False}


def test_the_login_of_the_registry_is_for_the_node_and_for_the_run() -> None:
    spec = yaml.safe_load(render(JOB, ALL))["spec"]["template"]["spec"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert {"name": "DOCKER_CONFIG", "value": "/.repro-env/login"} in spec["containers"][0]["env"]


def test_a_claim_is_a_name_and_a_path() -> None:
    assert parse_claim("data", "a.b-c/d e/f/", "/x/") == Mount(kind="data", source="/a.b-c/d e/f", target="/x")


@pytest.mark.parametrize("source", ["./images", "/data", "Name", "a/../b", "a//b", ""])
def test_a_local_path_is_not_a_claim(source: str) -> None:
    with pytest.raises(UsageError, match="must be CLAIM"):
        parse_claim("data", source, "/x")


@pytest.mark.parametrize(
    ("script", "expected"), [("train", "train-ab12"), ("My_Model.v2", "my-model-v2-ab12"), ("-", "ab12"), ("ü" * 80, "ab12")]
)
def test_jobs_have_names_that_kubernetes_accepts(script: str, expected: str) -> None:
    assert name_of(script, "ab12") == expected


@pytest.mark.parametrize(
    "resources",
    [
        Resources(namespace="A"),
        Resources(namespace="x/y"),
        Resources(namespace="x", gpu_product="a b"),
        Resources(namespace="x", registry_secret="-"),
    ],
)
def test_names_that_kubernetes_refuses_are_refused_here(resources: Resources) -> None:
    with pytest.raises(UsageError, match="has an invalid value"):
        render(JOB, resources)


STATES: list[tuple[str, dict[str, Any] | None, list[dict[str, Any]], State]] = [
    ("created", {}, [], State(phase="pending", text="no pod yet")),
    (
        "forgotten",
        None,
        [],
        State(phase="ended", text="Kubernetes does not know the job any more", hint="it was deleted, or it is older than a week"),
    ),
    (
        "quota",
        {"status": {"conditions": [{"type": "Failed", "reason": "BackoffLimitExceeded", "message": "exceeded quota"}]}},
        [],
        State(phase="ended", text="BackoffLimitExceeded: exceeded quota", exit_code=1),
    ),
    ("running", {}, [pod(phase="Running", containerStatuses=run(running={}))], State(phase="running", text="running")),
    (
        "unschedulable",
        {},
        [
            pod(
                phase="Pending",
                conditions=[
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
                ],
            )
        ],
        State(
            phase="pending",
            text="no node can run the pod (Unschedulable): 0/3 nodes are available",
            hint=kubernetes._REASONS["Unschedulable"][1],
        ),
    ),
    (
        "image",
        {},
        [
            pod(
                phase="Pending",
                initContainerStatuses=prepare(waiting={"reason": "ImagePullBackOff", "message": 'Back-off\n "x"'}),
            )
        ],
        State(phase="pending", text='the node cannot pull the image (ImagePullBackOff): Back-off "x"', hint=kubernetes._IMAGE[1]),
    ),
    (
        "out of memory",
        {},
        [pod(phase="Failed", containerStatuses=run(terminated={"exitCode": 137, "reason": "OOMKilled"}))],
        State(
            phase="ended",
            text="the container was killed because its memory was exhausted (OOMKilled)",
            hint="request more with --memory",
            exit_code=137,
        ),
    ),
    (
        "evicted",
        {},
        [pod(phase="Failed", reason="Evicted", message="The node was low on resource: ephemeral-storage.")],
        State(
            phase="ended",
            text="the node evicted the pod (Evicted): The node was low on resource: ephemeral-storage.",
            hint=kubernetes._REASONS["Evicted"][1],
            exit_code=1,
        ),
    ),
    (
        "deadline",
        {},
        [pod(phase="Failed", reason="DeadlineExceeded", containerStatuses=run(terminated={"exitCode": 143, "reason": "Error"}))],
        State(
            phase="ended",
            text="the pod was stopped at its time limit (DeadlineExceeded)",
            hint="request more time with --time",
            exit_code=143,
        ),
    ),
    (
        "preempted",
        {},
        [
            pod(
                phase="Failed",
                conditions=[{"type": "DisruptionTarget", "status": "True", "message": "preempted by a pod"}],
                containerStatuses=run(terminated={"exitCode": 143, "reason": "Error"}),
            )
        ],
        State(
            phase="ended",
            text="the pod was preempted, or its node was drained (DisruptionTarget): preempted by a pod",
            hint=kubernetes._REASONS["DisruptionTarget"][1],
            exit_code=143,
        ),
    ),
    (
        "unpacking",
        {},
        [pod(phase="Failed", initContainerStatuses=prepare(terminated={"exitCode": 14, "reason": "Error"}))],
        State(phase="ended", text="the files of the job could not be unpacked (Error)", exit_code=14),
    ),
    (
        "failed",
        {},
        [pod(phase="Failed", containerStatuses=run(terminated={"exitCode": 3, "reason": "Error"}))],
        State(phase="ended", text="exit 3", exit_code=3),
    ),
    (
        "done, by the ID of the config",
        {},
        [pod(phase="Succeeded", containerStatuses=run(CONFIG, terminated={"exitCode": 0, "reason": "Completed"}))],
        State(phase="ended", text="exit 0", exit_code=0),
    ),
    (
        "leaving",
        None,
        [
            {
                "metadata": {"deletionTimestamp": "2026-11-28T01:00:00Z"},
                "status": {"phase": "Running", "containerStatuses": run(running={})},
            }
        ],
        State(phase="running", text="running, terminating"),
    ),
]


@pytest.mark.parametrize(("job", "pods", "expected"), [case[1:] for case in STATES], ids=[case[0] for case in STATES])
def test_states_say_what_happened_and_what_to_do(job: dict[str, Any] | None, pods: list[dict[str, Any]], expected: State) -> None:
    assert parse(job, pods, frozenset((DIGEST, CONFIG))) == expected


RUNNING = {"phase": "Running", "containerStatuses": run(running={})}
DONE = {"phase": "Succeeded", "containerStatuses": run(terminated={"exitCode": 0, "reason": "Completed"})}
STOPPED, FAILED = (
    {"phase": "Failed", "containerStatuses": run(terminated={"exitCode": code, "reason": "Error"})} for code in (143, 3)
)
WAITING = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
WRONG = {"phase": "Running", "containerStatuses": run(OTHER, running={})}


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((RUNNING,), ("pending", "not all pods yet", None)),
        ((RUNNING, WAITING), ("pending", "pod 1: no node can run the pod (Unschedulable)", None)),
        ((RUNNING, RUNNING), ("running", "running", None)),
        ((DONE, RUNNING), ("running", "running", None)),
        ((DONE, DONE), ("ended", "exit 0", 0)),
        ((STOPPED, FAILED), ("ended", "pod 1: exit 3", 3)),
        ((STOPPED, STOPPED), ("ended", "pod 0: exit 143", 143)),
        ((WRONG, WAITING), ("running", "the node started the image", RunError.exit_code)),
    ],
)
def test_the_state_of_a_job_with_several_nodes_is_that_of_the_pod_that_decides(
    statuses: tuple[dict[str, Any], ...], expected: tuple[str, str, int | None]
) -> None:
    found = parse({"spec": {"completions": 2}}, pods(*statuses), frozenset((DIGEST,)))
    assert (found.phase, found.exit_code) == (expected[0], expected[2])
    assert found.text.startswith(expected[1])


def test_a_failed_job_has_ended_when_kubernetes_has_removed_the_other_pods() -> None:
    job = {"spec": {"completions": 3}, "status": {"conditions": [{"type": "Failed", "reason": "BackoffLimitExceeded"}]}}
    assert parse(job, pods(STOPPED, FAILED), frozenset((DIGEST,))).exit_code == 3
    assert parse(job, pods(RUNNING, FAILED), frozenset((DIGEST,))).phase == "running"


def kubectl(directory: Path, text: str) -> dict[str, str]:
    """Write a script in place of kubectl, which notes its words in `words`. Returns the environment in which it is found."""
    (directory / "kubectl").write_text(f'#!/bin/sh\necho "$@" >> {directory}/words\n{text}\n')
    (directory / "kubectl").chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


@pytest.mark.parametrize("image", [f"x/y@{OTHER}", OTHER, OTHER.removeprefix("sha256:"), f"docker-pullable://x@{OTHER}"])
def test_a_wrong_image_is_found_in_every_form_of_its_id(image: str) -> None:
    item = {"name": "run", "imageID": image, "state": {"running": {}}}
    found = parse({}, [pod(containerStatuses=[item])], frozenset((DIGEST,)))
    assert (found.phase, found.exit_code) == ("running", RunError.exit_code)


@pytest.mark.parametrize("state", ["running", "terminated"])
def test_a_job_whose_node_started_another_image_is_deleted(tmp_path: Path, state: str) -> None:
    (tmp_path / RUN).mkdir()
    (tmp_path / RUN / "job.yaml").write_text(render(JOB, ALL))
    items = {"items": [pod(phase="Running", containerStatuses=run(OTHER, **{state: {"exitCode": 0}}))]}
    environ = kubectl(tmp_path, f"case $* in *pods*) echo '{json.dumps(items)}';; *) echo '{{}}';; esac")
    found = Kubernetes(tmp_path / RUN, environ, CONFIG).state("lab/x/vision/train-0000abcd")
    assert (found.phase, found.exit_code) == ("ended", RunError.exit_code)
    assert all(digest in found.text for digest in (DIGEST, OTHER, CONFIG))
    deleted = "delete --context lab/x --raw /apis/batch/v1/namespaces/vision/jobs/train-0000abcd?propagationPolicy=Background"
    assert (tmp_path / "words").read_text().splitlines()[-1] == deleted


def test_a_cluster_that_does_not_answer_is_an_unknown_state(tmp_path: Path) -> None:
    environ = kubectl(tmp_path, "echo 'Unable to connect to the server: EOF' >&2; exit 1")
    found = Kubernetes(tmp_path, environ, CONFIG).state("/default/x")
    assert found == State(phase="unknown", text="Kubernetes did not answer: Unable to connect to the server: EOF")


def test_a_log_is_read_from_where_it_was_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "_PAUSE", 0.0)
    lines = [f"2026-11-28T01:00:0{number}.5Z line {number}\n" for number in range(3)]
    (tmp_path / "log").write_text("".join(lines[:2]))
    answer = json.dumps({"items": [pod(phase="Running", containerStatuses=run(running={}))]})
    environ = kubectl(tmp_path, f"case $* in */log\\?*) cat {tmp_path}/log;; *) echo '{answer}';; esac")
    engine = Kubernetes(tmp_path, environ, CONFIG)
    assert engine.logs("/default/x") == (b"line 0\nline 1\n", b"")
    (tmp_path / "log").write_text("".join(lines[1:]))
    assert engine.logs("/default/x") == (b"line 2\n", b"")
    assert (tmp_path / "stdout.log").read_text() == "line 0\nline 1\nline 2\n"
    assert "sinceTime=2026-11-28T01%3A00%3A01.5Z" in (tmp_path / "words").read_text().splitlines()[-1]


def test_the_logs_of_all_pods_are_read_each_from_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "_PAUSE", 0.0)
    answer = json.dumps({"items": pods(RUNNING, RUNNING)})
    logs = "".join(f"*/train-{number}/log*) cat {tmp_path}/log-{number};; " for number in (0, 1))
    environ = kubectl(tmp_path, f"case $* in {logs} *) echo '{answer}';; esac")
    (tmp_path / "log-0").write_text("2026-11-28T01:00:09Z rank 0\n")
    (tmp_path / "log-1").write_text("2026-11-28T01:00:01Z rank 1\n")
    engine = Kubernetes(tmp_path, environ, CONFIG)
    assert engine.logs("/default/x") == (b"rank 0\nrank 1\n", b"")
    (tmp_path / "log-1").write_text("2026-11-28T01:00:01Z rank 1\n2026-11-28T01:00:02Z more\n")
    assert engine.logs("/default/x") == (b"more\n", b"")
    environ = kubectl(tmp_path, f"case $* in {logs} *) echo '{json.dumps({'items': pods(RUNNING)})}';; esac")
    assert Kubernetes(tmp_path, environ, CONFIG).logs("/default/x") == (b"rank 0\n", b""), "Kubernetes has removed pod 1"
    assert [path.read_text() for path in records.logs(tmp_path) if path.exists()] == ["rank 0\n", "rank 1\nmore\n"]


@pytest.mark.parametrize("answer", ["exit 1", "echo '{\"items\": []}'"])
def test_a_log_is_kept_when_the_cluster_does_not_answer_or_has_removed_the_pod(tmp_path: Path, answer: str) -> None:
    (tmp_path / "stdout.log").write_text("kept\n")
    assert Kubernetes(tmp_path, kubectl(tmp_path, answer), CONFIG).logs("/default/x") == (b"", b"")
    assert (tmp_path / "stdout.log").read_text() == "kept\n"


def test_a_refused_job_is_an_error_and_leaves_no_secret(tmp_path: Path) -> None:
    environ = kubectl(tmp_path, 'case $* in create*) echo "Error from server (Forbidden): no" >&2; exit 1;; esac')
    with pytest.raises(EngineError, match=r"Kubernetes refused the job: Error from server \(Forbidden\): no"):
        Kubernetes(tmp_path, environ, CONFIG).submit(render(JOB, ALL))


def test_a_job_whose_service_is_refused_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "answer").write_text('{"metadata": {"uid": "7"}}')
    environ = kubectl(
        tmp_path, f'case $* in create*services*) echo "no" >&2; exit 1;; create*) cat {tmp_path}/answer;; *) echo lab;; esac'
    )
    with pytest.raises(EngineError, match=r"refused the Service by which the nodes find each other: no"):
        Kubernetes(tmp_path, environ, CONFIG).submit(render(*NODES))
    assert (tmp_path / "words").read_text().splitlines()[-1].startswith("delete --context lab --raw")


def test_a_machine_without_kubectl_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="kubectl is not on this machine"):
        kubernetes.current_namespace({"PATH": str(tmp_path)})
