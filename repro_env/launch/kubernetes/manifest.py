"""The manifest of a job: a `batch/v1` Job, and a Service if it has several nodes (decision 0050). Pure.

The first container fills the directory of the job (`delivery.targets.jobimage`). The second one is started from the spec's image by
digest, and its process is `repro-env exec --runner pod`, which checks the image's marker before it starts the user's command.
Nothing runs as root, and only the mounted directories are writable. With several nodes, the Job is an indexed one, whose pods share
the directory of runs on a claim, and find each other by the names that a headless Service gives them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from repro_env.launch.engine import TEMPLATE, PodJob, Resources, digest_of
from repro_env.launch.kubernetes.settings import PRODUCT, KubernetesSettings, shared_claim
from repro_env.launch.kubernetes.template import merge, parse
from repro_env.oci import paths
from repro_env.schema.errors import UsageError
from repro_env.schema.run import Claim

LABEL = "repro-env/run"
"""Label of the Job and of its pods, with the ID of the run."""
INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation of the pods of an indexed Job."""
PREPARE, RUN = "prepare", "run"
"""The containers."""
JOB, NODE, SHARED = "REPRO_ENV_JOB", "REPRO_ENV_NODE", "REPRO_ENV_SHARED"
"""Variables of the containers: namespace and name of the job, the node, and the directory that its pods share."""
_GPU = "nvidia.com/gpu"
_GRACE = 300
"""Seconds after SIGTERM in which the command can save its state, and the run is pushed."""
_SLACK = 3600
"""Seconds besides the time limit of the command: the node pulls the image, and the run is pushed."""
_KEPT = 7 * 24 * 3600
"""Seconds after its end at which Kubernetes deletes a job."""
_LOGIN = "/.repro-env/login"
_RUNS = f"{paths.JOB}/runs"
_MOUNTS = {"tmp": "/tmp", "vartmp": "/var/tmp", "home": paths.JOB_HOME}  # noqa: S108


def render(job: PodJob, resources: Resources, settings: KubernetesSettings, template: str = "") -> str:
    """Return the manifest as JSON: a List of the objects, the Job first. Raises `UsageError` for a value that it cannot have."""
    shared = shared_claim(settings, resources.nodes)
    site = parse(template)
    manifest = _job(job, resources, settings, shared, template)
    if site:
        manifest = merge(manifest, site, (job.workspace, paths.JOB, *job.protected))
    items = [manifest, *([_service(job, settings)] if shared else [])]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("the command or a path is not UTF-8, which Kubernetes requires", where=job.name) from None
    return text


def _job(job: PodJob, resources: Resources, settings: KubernetesSettings, shared: Claim | None, template: str) -> dict[str, Any]:
    from repro_env.delivery.targets.jobimage import MAIN, UNPACK  # slow to import: every run asks whether it is in a job

    _check(job)
    wanted = {
        "cpu": f"{round(resources.cpus * 1000)}m" if resources.cpus else "",
        "memory": str(resources.memory or ""),
        _GPU: str(resources.gpus or ""),
    }
    limits = {name: value for name, value in wanted.items() if value}
    secured = {
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    variables = _variables(job, resources, settings, shared, template)
    given = [{"name": name, "valueFrom": {"secretKeyRef": {"name": job.name, "key": name}}} for name in job.given]
    python = [job.interpreter, "-I", "-S", "-B", "-c"]
    own = [{"name": "job", "mountPath": paths.JOB}]
    volumes: list[dict[str, Any]] = [{"name": "job", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    inner: list[dict[str, Any]] = [{"name": "job", "mountPath": job.workspace, "subPath": "workspace"}]
    inner += [{"name": "job", "mountPath": path, "subPath": name} for name, path in _MOUNTS.items()]
    if shared:
        volumes.append({"name": "shared", "persistentVolumeClaim": {"claimName": shared.name}})
        own.append({"name": "shared", "mountPath": _RUNS, **({"subPath": shared.path} if shared.path else {})})
        pods = "/".join(filter(None, (shared.path, paths.JOB_SHARED, job.run_id)))
        inner[0] = {"name": "shared", "mountPath": job.workspace, "subPath": f"{pods}/workspace"}
        inner[-1] = {"name": "shared", "mountPath": paths.JOB_HOME, "subPathExpr": f"{pods}/home-$(RANK)"}
    mounts = [*own, *inner, {"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108
    for number, claim in enumerate(job.claims):
        mount = {
            "name": f"claim-{number}",
            "mountPath": job.mount_path(claim, number, job.workspace),
            "readOnly": claim.read_only,
        }
        mounts.append({**mount, **({"subPath": claim.path} if claim.path else {})})
        source = {"claimName": claim.name, "readOnly": claim.read_only}
        volumes.append({"name": f"claim-{number}", "persistentVolumeClaim": source})
    users = {"runAsUser": job.uid, "runAsGroup": job.gid, "fsGroup": job.gid} if settings.user == "caller" else {}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE,
        "securityContext": {
            "runAsNonRoot": True,
            **users,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if resources.seconds:
        pod["activeDeadlineSeconds"] = resources.seconds + _SLACK
    if shared:
        pod["subdomain"] = _service_name(job)
    if settings.gpu_product:
        pod["nodeSelector"] = {PRODUCT: settings.gpu_product}
    if settings.registry_secret:
        pod["imagePullSecrets"] = [{"name": settings.registry_secret}]
        mounts.append({"name": "login", "mountPath": _LOGIN, "readOnly": True})
        items = [{"key": ".dockerconfigjson", "path": "config.json"}]  # as docker keeps it
        volumes.append({"name": "login", "secret": {"secretName": settings.registry_secret, "items": items}})
    prepare = {
        "name": PREPARE,
        "image": job.job_image,
        "command": [*python, UNPACK],
        "env": variables,
        **secured,
        "resources": {"limits": {name: value for name, value in limits.items() if name != _GPU}},
        "volumeMounts": own,
    }
    run = {
        "name": RUN,
        "image": job.image,
        "command": [*python, MAIN],
        "args": [word.replace("$", "$$") for word in job.command],  # Kubernetes replaces $(NAME)
        "workingDir": "/",
        "env": [*given, *variables],
        **secured,
        "resources": {"limits": limits},
        "volumeMounts": mounts,
    }
    metadata = _metadata(job, settings)
    labels = metadata["labels"]
    indexed = {"completionMode": "Indexed", "completions": resources.nodes, "parallelism": resources.nodes} if shared else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            **indexed,
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": _KEPT,
            "template": {
                "metadata": {"labels": labels},
                "spec": {**pod, "initContainers": [prepare], "containers": [run], "volumes": volumes},
            },
        },
    }


def requests_gpus(template: str) -> bool:
    """Return whether a template requests GPUs, such as parts of them (`nvidia.com/mig-1g.5gb`), for the container of the command."""
    return f"{_GPU.partition('/')[0]}/" in json.dumps(_limits(parse(template)))


def _limits(site: Mapping[str, Any]) -> list[Any]:
    pod = ((site.get("spec") or {}).get("template") or {}).get("spec") or {}
    return [container.get("resources") for container in pod.get("containers") or [] if container.get("name") == RUN]


def _metadata(job: PodJob, settings: KubernetesSettings, name: str = "") -> dict[str, Any]:
    labels = {LABEL: job.run_id, "app.kubernetes.io/managed-by": "repro-env"}
    return {"name": name or job.name, "namespace": settings.namespace, "labels": labels}


def _service(job: PodJob, settings: KubernetesSettings) -> dict[str, Any]:
    """The Service that gives each pod a name, `JOB-INDEX.SERVICE`, also before its containers are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, settings, _service_name(job)),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LABEL: job.run_id}},
    }


def _service_name(job: PodJob) -> str:
    """Unlike those of jobs, names of Services must begin with a letter."""
    return f"run-{job.name.rpartition('-')[2]}"


def _check(job: PodJob) -> None:
    for path in (job.workspace, *(claim.target for claim in job.claims)):
        if ":" in path:
            raise UsageError("this path has a colon, which Kubernetes does not allow in mounts", where=path, hint="rename it")


def _variables(
    job: PodJob, resources: Resources, settings: KubernetesSettings, shared: Claim | None, template: str
) -> list[dict[str, Any]]:
    """The variables of both containers. Nothing in them has a `$`, which Kubernetes would replace."""
    values = {
        "HOME": paths.JOB_HOME,
        "REPRO_ENV_STORE": f"{paths.JOB}/store",
        JOB: f"{settings.namespace}/{job.name}",
        **({"DOCKER_CONFIG": _LOGIN} if settings.registry_secret else {}),
        **({"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"} if resources.gpus or requests_gpus(template) else {}),
        **({TEMPLATE: digest} if (digest := digest_of(template)) else {}),
    }
    fields = {NODE: "spec.nodeName"}
    if shared:
        values |= {"WORLD_SIZE": str(resources.nodes), "LOCAL_RANK": "0", "MASTER_ADDR": f"{job.name}-0.{_service_name(job)}"}
        values[SHARED] = f"{_RUNS}/{paths.JOB_SHARED}/{job.run_id}"
        fields["RANK"] = f"metadata.annotations['{INDEX}']"
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
    ]
