"""Manifests. tests/e2e/test_kubernetes.py runs their pods."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from repro_env.launch.engine import Resources
from repro_env.launch.kubernetes import ENGINE
from repro_env.launch.kubernetes.settings import KubernetesSettings, parse_claim
from repro_env.launch.settings import parse
from repro_env.schema.errors import UsageError
from repro_env.schema.run import Claim
from tests.fakes.kubernetes import validate
from tests.launch.kubernetes.jobs import JOB, NODES, RUN, render


def manifest(**changes: Any) -> dict[str, Any]:
    """The Job."""
    job: dict[str, Any] = json.loads(render(**changes))["items"][0]
    return job


@pytest.mark.parametrize(
    "changes", [{}, {"resources": Resources(), "settings": KubernetesSettings(namespace="default", user="cluster")}]
)
def test_the_manifest_has_the_strict_schema_of_every_supported_version(changes: dict[str, Any]) -> None:
    validate(manifest(**changes))


def test_several_nodes_are_an_indexed_job_with_a_service_and_a_shared_claim() -> None:
    job, service = json.loads(render(JOB, *NODES))["items"]
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
    job = manifest()
    job["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(ValueError, match="volumeMount"):
        validate(job)


def test_a_pod_has_no_rights_and_only_its_mounts_are_writable() -> None:
    spec = manifest()["spec"]["template"]["spec"]
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
    job = manifest()
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == JOB.image
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": str(8 << 30), "nvidia.com/gpu": "2"}
    assert spec["initContainers"][0]["resources"]["limits"] == {"cpu": "500m", "memory": str(8 << 30)}
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert spec["activeDeadlineSeconds"] > 3600
    assert job["spec"]["backoffLimit"] == 0
    assert job["metadata"]["namespace"] == "vision"


def test_kubernetes_replaces_no_variable_in_the_command() -> None:
    (container,) = manifest()["spec"]["template"]["spec"]["containers"]
    assert container["args"][-3:] == ["train.py", "$$(HOME)", "two\nlines"]


def test_values_of_the_user_are_only_in_the_secret() -> None:
    (container,) = manifest()["spec"]["template"]["spec"]["containers"]
    reference = {"secretKeyRef": {"name": JOB.name, "key": "WANDB_API_KEY"}}
    assert container["env"][0] == {"name": "WANDB_API_KEY", "valueFrom": reference}


def test_claims_are_mounted_at_their_paths_and_those_below_the_source_elsewhere() -> None:
    spec = manifest()["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert mounts["claim-0"] == {"name": "claim-0", "mountPath": "/data/imagenet", "subPath": "v2", "readOnly": True}
    assert mounts["claim-1"] == {"name": "claim-1", "mountPath": "/.repro-env/job-data/1", "readOnly": False}


def test_the_login_of_the_registry_is_for_the_node_and_for_the_run() -> None:
    spec = manifest()["spec"]["template"]["spec"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert {"name": "DOCKER_CONFIG", "value": "/.repro-env/login"} in spec["containers"][0]["env"]


def test_a_claim_is_a_name_and_a_path() -> None:
    assert parse_claim("data", "a.b-c/d e/f/", "/x/") == Claim(kind="data", name="a.b-c", path="d e/f", target="/x")


@pytest.mark.parametrize("source", ["./images", "/data", "Name", "a/../b", "a//b", ""])
def test_a_local_path_is_not_a_claim(source: str) -> None:
    with pytest.raises(UsageError, match="must be CLAIM"):
        parse_claim("data", source, "/x")


@pytest.mark.parametrize("word", ["namespace=A", "namespace=x/y", "gpu-product=a b", "registry-secret=-", "user=root"])
def test_names_that_kubernetes_refuses_are_refused_here(word: str) -> None:
    with pytest.raises(UsageError, match="has an invalid value"):
        parse(ENGINE, [word])


def test_a_pod_may_run_as_the_user_that_the_cluster_assigns() -> None:
    pod = manifest(settings=KubernetesSettings(namespace="default", user="cluster"))["spec"]["template"]["spec"]
    assert pod["securityContext"].keys() == {"runAsNonRoot", "fsGroupChangePolicy", "seccompProfile"}


TEMPLATE = """\
metadata: {labels: {kueue.x-k8s.io/queue-name: vision}}
spec:
  ttlSecondsAfterFinished: 60
  template:
    metadata: {annotations: {example.com/team: vision}}
    spec:
      serviceAccountName: training
      priorityClassName: low
      runtimeClassName: nvidia
      terminationGracePeriodSeconds: 30
      nodeSelector: {zone: a}
      tolerations: [{key: gpu, operator: Exists}]
      imagePullSecrets: [{name: registry}, {name: other}]
      volumes: [{name: scratch, emptyDir: {}}]
      containers:
      - name: run
        env: [{name: NCCL_DEBUG, value: INFO}]
        resources: {limits: {rdma/hca: 1, nvidia.com/mig-1g.5gb: 1}}
        volumeMounts: [{name: scratch, mountPath: /scratch}]
      - {name: exporter, image: registry.example.com/exporter}
"""


def test_a_template_is_merged_into_the_job() -> None:
    own, merged = manifest(), manifest(template=TEMPLATE)
    validate(merged)
    assert merged["metadata"]["labels"] == {**own["metadata"]["labels"], "kueue.x-k8s.io/queue-name": "vision"}
    assert merged["spec"]["ttlSecondsAfterFinished"] == 60
    pod, own_pod = (job["spec"]["template"]["spec"] for job in (merged, own))
    assert (pod["serviceAccountName"], pod["terminationGracePeriodSeconds"]) == ("training", 30)
    assert pod["nodeSelector"] == {**own_pod["nodeSelector"], "zone": "a"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}, {"name": "other"}]
    assert [container["name"] for container in pod["containers"]] == ["run", "exporter"]
    (run, _), (own_run,) = pod["containers"], own_pod["containers"]
    assert run["resources"]["limits"] == {**own_run["resources"]["limits"], "rdma/hca": 1, "nvidia.com/mig-1g.5gb": 1}
    assert run["volumeMounts"] == [*own_run["volumeMounts"], {"name": "scratch", "mountPath": "/scratch"}]
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in run["env"]
    digest = f"sha256:{hashlib.sha256(TEMPLATE.encode()).hexdigest()}"
    assert {"name": "REPRO_ENV_JOB_TEMPLATE", "value": digest} in run["env"]
    for key in ("command", "args", "image", "workingDir", "securityContext"):
        assert run[key] == own_run[key]


def test_parts_of_gpus_in_a_template_are_requested_gpus() -> None:
    assert ENGINE.requests_gpus(KubernetesSettings(), TEMPLATE)
    assert not ENGINE.requests_gpus(KubernetesSettings(), "metadata: {labels: {nvidia.com/x: y}}")


RUN_CONTAINER = "spec: {template: {spec: {containers: [{name: run, %s}]}}}"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (RUN_CONTAINER % "image: 'other:latest'", r"change spec.template.spec.containers\[run\].image"),
        (RUN_CONTAINER % "command: [sh]", r"change .*\.command"),
        (RUN_CONTAINER % "args: []", r"change .*\.args"),
        (RUN_CONTAINER % "resources: {limits: {memory: 1Gi}}", r"change .*limits.memory"),
        (RUN_CONTAINER % "resources: {limits: null}", r"change .*limits"),
        (RUN_CONTAINER % "securityContext: {readOnlyRootFilesystem: false}", "change .*readOnlyRootFilesystem"),
        (RUN_CONTAINER % "env: [{name: HOME, value: /root}]", r"change .*env\[HOME\].value"),
        (RUN_CONTAINER % "volumeMounts: [{name: x, mountPath: /tmp}]", r"change .*volumeMounts\[/tmp\].name"),
        (RUN_CONTAINER % "volumeMounts: [{name: x, mountPath: /home/ann/digits/src}]", "mount anything at /home/ann/digits/src"),
        (RUN_CONTAINER % "volumeMounts: [{name: x, mountPath: /home}]", "mount anything at /home"),
        (RUN_CONTAINER % "volumeMounts: [{name: x, mountPath: /opt/env/lib/}]", "mount anything at /opt/env/lib"),
        (RUN_CONTAINER % "volumeMounts: [{name: x, mountPath: /}]", "mount anything at "),
        ("spec: {completions: 3}", "set spec.completions"),
        ("spec: {backoffLimit: 3}", "change spec.backoffLimit"),
        ("spec: {template: {spec: {securityContext: {runAsUser: 0}}}}", "change .*runAsUser"),
        ("spec: {template: {spec: {containers: null}}}", "change spec.template.spec.containers"),
        ("spec: {template: {spec: {$patch: replace}}}", r"set spec.template.spec.\$patch"),
        ("metadata: {name: other}", "change metadata.name"),
        ("kind: Pod", "change kind"),
        ("containers: []", "not a part of a Job: it has containers at the top"),
        ("- a", "not a part of a Job: it has a list"),
        ("a: [", "not YAML"),
    ],
)
def test_a_template_cannot_change_what_makes_the_run_right(template: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        manifest(template=template)
