"""Kubernetes: a `batch/v1` Job, through `kubectl` (decision 0050).

The first container fills the directory of the job (`delivery.targets.jobimage`). The second one is started from the spec's image by
digest, and its process is `repro-env exec --runner pod`, which checks the image's marker before it starts the user's command.
Nothing runs as root, and only the mounted directories are writable. With several nodes, the Job is an indexed one, whose pods share
the directory of runs on a claim, and find each other by the names that a headless Service gives them.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from repro_env.delivery.targets.jobimage import MAIN, UNPACK
from repro_env.io import process
from repro_env.launch.engine import Engine, Phase, State, ask
from repro_env.oci import paths
from repro_env.schema import redact
from repro_env.schema.codec import Frozen
from repro_env.schema.environment import Variable
from repro_env.schema.errors import EngineError, RunError, UsageError
from repro_env.schema.run import Mount

MANIFEST, STDOUT = "job.yaml", "stdout.log"
"""The files of a job, in its directory. Kubernetes does not separate stdout and stderr."""
LABEL = "repro-env/run"
"""Label of the Job and of its pods, with the ID of the run."""
INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation of the pods of an indexed Job."""
GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
"""Label of nodes (NVIDIA GPU feature discovery)."""
GRACE = 300
"""Seconds after SIGTERM in which the command can save its state, and the run is pushed."""
SLACK = 3600
"""Seconds besides the time limit of the command: the node pulls the image, and the run is pushed."""
KEPT = 7 * 24 * 3600
"""Seconds after its end at which Kubernetes deletes a job."""
_PREPARE, _RUN = "prepare", "run"
"""The containers."""
_LOGIN = "/.repro-env/login"
_RUNS = f"{paths.JOB}/runs"
_MOUNTS = {"tmp": "/tmp", "vartmp": "/var/tmp", "home": paths.JOB_HOME}  # noqa: S108
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_CLAIM = re.compile(rf"{_OBJECT.pattern}(?:/(?!\.\.?(?:/|\Z))[^/]+)*")
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_TIMEOUT = 60.0
_PAUSE = 2.0
"""Seconds between two questions for the log."""
_STOPPED = 128 + 15
_PURPOSES = {"Secret": ("with the values of --env", "--env"), "Service": ("by which the nodes find each other", "--nodes")}
"""Kind -> what it is for, and the option that needs it."""


class Resources(Frozen, frozen=True, kw_only=True):
    """What a job requests from Kubernetes."""

    namespace: str
    nodes: int = 1
    gpus: int = 0
    """Of each node, like all others."""
    gpu_product: str | None = None
    cpus: float = 0
    memory: int = 0
    """Bytes."""
    seconds: int = 0
    """The time limit of the command."""
    registry_secret: str | None = None


class Job(Frozen, frozen=True, kw_only=True):
    """What a job does."""

    run_id: str
    name: str
    image: str
    """The spec's image: `host/name@sha256:…`."""
    job_image: str
    """The image that fills the directory of the job."""
    interpreter: str
    command: tuple[str, ...]
    """The words after `repro-env` in the pod, with the user's command."""
    workspace: str
    """The path of the source."""
    claims: tuple[Mount, ...]
    """`source`: the name of the claim, and a path in it."""
    shared: str = ""
    """The claim with the directory of runs that several nodes share, as in `claims`."""
    given: tuple[str, ...]
    """Names of variables whose values are in a Secret with the name of the job."""
    uid: int
    gid: int


def parse_claim(kind: str, source: str, target: str) -> Mount:
    """Return the mount of `--data CLAIM[/PATH]:DST`, or of `--checkpoints`. Raises `UsageError`."""
    source = source.rstrip("/")
    if not _CLAIM.fullmatch(source) or not target:
        hint = f"for example: --{kind} imagenet/v2:/data/imagenet, for the directory v2 of the claim imagenet"
        what = f"with --on kubernetes, --{kind} must be CLAIM[/PATH]:DST, with the name of a PersistentVolumeClaim"
        raise UsageError(f'{what} (got "{source}{":" * bool(target)}{target}")', hint=hint)
    return Mount(kind="data" if kind == "data" else "checkpoints", source=f"/{source}", target=target.rstrip("/"))


def parse_shared(value: str | None, nodes: int) -> str:
    """Return the claim of `--shared CLAIM[/PATH]` as a source of a mount; empty for one node. Raises `UsageError`."""
    if nodes == 1 and value is not None:
        raise UsageError("--shared requires --nodes", hint="a run on one node needs no shared directory: leave it out")
    if nodes == 1:
        return ""
    if value is None or not _CLAIM.fullmatch(value.rstrip("/")):
        hint = (
            "for example: --shared scratch/runs, for the directory runs of a claim that several nodes can write (ReadWriteMany)"
        )
        what = "the nodes of a job share the run on a PersistentVolumeClaim: --shared CLAIM[/PATH]"
        raise UsageError(f'{what} (got "{value}")' if value is not None else what, hint=hint)
    return f"/{value.rstrip('/')}"


def name_of(script: str, run_id: str) -> str:
    """Return the name of a job: that of the script, as far as Kubernetes allows it, and the ID of the run."""
    return "-".join(filter(None, (re.sub(r"[^a-z0-9]+", "-", script.lower()).strip("-")[:40].strip("-"), run_id)))


def mount_path(claim: Mount, number: int, workspace: str) -> str:
    """Return where the pod mounts a claim. What belongs below the source is a symbolic link there (`sandbox.pod`)."""
    return f"{paths.JOB}-data/{number}" if paths.is_below(claim.target, workspace) else claim.target


def render(job: Job, resources: Resources) -> str:
    """Return the manifest of a job as YAML. Raises `UsageError` for a value that it cannot have."""
    import yaml  # slow to import

    objects = [manifest(job, resources), *([_service(job, resources)] if job.shared else [])]
    objects = json.loads(json.dumps(objects))  # YAML refers to parts that are the same object
    text: str = yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=1000)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("the command or a path is not UTF-8, which Kubernetes requires", where=job.name) from None
    return text


def manifest(job: Job, resources: Resources) -> dict[str, Any]:
    """Return the manifest of a job. Raises `UsageError` for an invalid name or path."""
    _check(job, resources)
    wanted = {
        "cpu": f"{round(resources.cpus * 1000)}m" if resources.cpus else "",
        "memory": str(resources.memory or ""),
        GPU: str(resources.gpus or ""),
    }
    limits = {name: value for name, value in wanted.items() if value}
    secured = {
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    variables = _variables(job, resources)
    given = [{"name": name, "valueFrom": {"secretKeyRef": {"name": job.name, "key": name}}} for name in job.given]
    python = [job.interpreter, "-I", "-S", "-B", "-c"]
    own = [{"name": "job", "mountPath": paths.JOB}]
    volumes: list[dict[str, Any]] = [{"name": "job", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    inner: list[dict[str, Any]] = [{"name": "job", "mountPath": job.workspace, "subPath": "workspace"}]
    inner += [{"name": "job", "mountPath": path, "subPath": name} for name, path in _MOUNTS.items()]
    if job.shared:
        claim_name, _, root = job.shared[1:].partition("/")
        volumes.append({"name": "shared", "persistentVolumeClaim": {"claimName": claim_name}})
        own.append({"name": "shared", "mountPath": _RUNS, **({"subPath": root} if root else {})})
        pods = "/".join(filter(None, (root, paths.JOB_SHARED, job.run_id)))
        inner[0] = {"name": "shared", "mountPath": job.workspace, "subPath": f"{pods}/workspace"}
        inner[-1] = {"name": "shared", "mountPath": paths.JOB_HOME, "subPathExpr": f"{pods}/home-$(RANK)"}
    mounts = [*own, *inner, {"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108
    for number, claim in enumerate(job.claims):
        name, _, path = claim.source[1:].partition("/")
        mount = {"name": f"claim-{number}", "mountPath": mount_path(claim, number, job.workspace), "readOnly": claim.read_only}
        mounts.append({**mount, **({"subPath": path} if path else {})})
        source = {"claimName": name, "readOnly": claim.read_only}
        volumes.append({"name": f"claim-{number}", "persistentVolumeClaim": source})
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": job.uid,
            "runAsGroup": job.gid,
            "fsGroup": job.gid,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if resources.seconds:
        pod["activeDeadlineSeconds"] = resources.seconds + SLACK
    if job.shared:
        pod["subdomain"] = _service_name(job)
    if resources.gpu_product:
        pod["nodeSelector"] = {PRODUCT: resources.gpu_product}
    if resources.registry_secret:
        pod["imagePullSecrets"] = [{"name": resources.registry_secret}]
        mounts.append({"name": "login", "mountPath": _LOGIN, "readOnly": True})
        items = [{"key": ".dockerconfigjson", "path": "config.json"}]  # as docker keeps it
        volumes.append({"name": "login", "secret": {"secretName": resources.registry_secret, "items": items}})
    prepare = {
        "name": _PREPARE,
        "image": job.job_image,
        "command": [*python, UNPACK],
        "env": variables,
        **secured,
        "resources": {"limits": {name: value for name, value in limits.items() if name != GPU}},
        "volumeMounts": own,
    }
    run = {
        "name": _RUN,
        "image": job.image,
        "command": [*python, MAIN],
        "args": [word.replace("$", "$$") for word in job.command],  # Kubernetes replaces $(NAME)
        "workingDir": "/",
        "env": [*given, *variables],
        **secured,
        "resources": {"limits": limits},
        "volumeMounts": mounts,
    }
    metadata = _metadata(job, resources)
    labels = metadata["labels"]
    indexed = {"completionMode": "Indexed", "completions": resources.nodes, "parallelism": resources.nodes} if job.shared else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            **indexed,
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": KEPT,
            "template": {
                "metadata": {"labels": labels},
                "spec": {**pod, "initContainers": [prepare], "containers": [run], "volumes": volumes},
            },
        },
    }


def _metadata(job: Job, resources: Resources, name: str = "") -> dict[str, Any]:
    labels = {LABEL: job.run_id, "app.kubernetes.io/managed-by": "repro-env"}
    return {"name": name or job.name, "namespace": resources.namespace, "labels": labels}


def _service(job: Job, resources: Resources) -> dict[str, Any]:
    """The Service that gives each pod a name, `JOB-INDEX.SERVICE`, also before its containers are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, resources, _service_name(job)),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LABEL: job.run_id}},
    }


def _service_name(job: Job) -> str:
    """Unlike those of jobs, names of Services must begin with a letter."""
    return f"run-{job.name.rpartition('-')[2]}"


def _check(job: Job, resources: Resources) -> None:
    for option, value, pattern, hint in (
        ("--namespace", resources.namespace, _OBJECT, "`kubectl get namespaces` lists them"),
        ("--registry-secret", resources.registry_secret, _OBJECT, "`kubectl get secrets` lists them"),
        ("--gpu-product", resources.gpu_product, _LABEL_VALUE, f"`kubectl get nodes -L {PRODUCT}` lists them"),
    ):
        if value is not None and not pattern.fullmatch(value):
            raise UsageError(f'{option} has an invalid value (got "{value}")', hint=hint)
    for path in (job.workspace, *(claim.target for claim in job.claims)):
        if ":" in path:
            raise UsageError("this path has a colon, which Kubernetes does not allow in mounts", where=path, hint="rename it")


def _variables(job: Job, resources: Resources) -> list[dict[str, Any]]:
    """The variables of both containers. Nothing in them has a `$`, which Kubernetes would replace."""
    values = {
        "HOME": paths.JOB_HOME,
        "REPRO_ENV_STORE": f"{paths.JOB}/store",
        "REPRO_ENV_JOB": f"{resources.namespace}/{job.name}",
        **({"DOCKER_CONFIG": _LOGIN} if resources.registry_secret else {}),
        **({"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"} if resources.gpus else {}),
    }
    fields = {"REPRO_ENV_NODE": "spec.nodeName"}
    if job.shared:
        values |= {"WORLD_SIZE": str(resources.nodes), "LOCAL_RANK": "0", "MASTER_ADDR": f"{job.name}-0.{_service_name(job)}"}
        values["REPRO_ENV_SHARED"] = f"{_RUNS}/{paths.JOB_SHARED}/{job.run_id}"
        fields["RANK"] = f"metadata.annotations['{INDEX}']"
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
    ]


class Kubernetes(Engine):
    """A job of Kubernetes, by its ID `CONTEXT/NAMESPACE/NAME`, through `kubectl`."""

    def __init__(self, directory: Path, environ: Mapping[str, str], image_id: str, *, variables: Sequence[Variable] = ()) -> None:
        """`directory`: of the job's files. `environ`: of kubectl. `image_id`: of the spec. `variables`: of a job that is submitted."""
        self._directory = directory
        self._environ = environ
        self._image_id = image_id
        self._variables = variables
        self._last: dict[str, str] = {}
        """Pod -> the time of the last line of its log."""
        self._due = 0.0

    def submit(self, manifest: str) -> str:
        """See `Engine`. Writes the manifest to the job's directory first."""
        import yaml  # slow to import

        (self._directory / MANIFEST).write_text(manifest, encoding="utf-8")
        content, *others = yaml.safe_load_all(manifest)
        metadata = content["metadata"]
        context = self._ask("config", "current-context").stdout.decode("utf-8", "replace").strip()
        job = f"{context}/{metadata['namespace']}/{metadata['name']}"
        done = self._raw("create", job, "", stdin=json.dumps(content).encode())
        if done.code:
            hint = "check the options, and your permissions with `kubectl auth can-i create jobs`"
            raise EngineError(f"Kubernetes refused the job: {_message(done)}", hint=hint)
        if self._variables:  # the pods wait for it
            values = {variable.name: variable.value for variable in self._variables}
            labelled = {"name": metadata["name"], "labels": {LABEL: self._run_id}}
            others.append({"apiVersion": "v1", "kind": "Secret", "metadata": labelled, "stringData": values})
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": metadata["name"],
            "uid": json.loads(done.stdout)["metadata"]["uid"],
        }
        for other in others:
            other["metadata"]["ownerReferences"] = [owner]  # Kubernetes deletes it with the job
            self._send(job, other)
        return job

    def _send(self, job: str, item: dict[str, Any]) -> None:
        """Create what belongs to a job. If it is refused, the job is deleted."""
        kind = item["kind"].lower() + "s"
        done = self._raw("create", job, "", kind=kind, stdin=json.dumps(item).encode())
        if done.code:
            self.cancel(job)
            what, option = _PURPOSES[item["kind"]]
            hint = f"leave out {option}, or check your permissions with `kubectl auth can-i create {kind}`"
            raise EngineError(f"Kubernetes refused the {item['kind']} {what}: {_message(done)}", hint=hint)

    def state(self, job: str) -> State:
        """See `Engine`. A job whose node started another image than the spec's is stopped, and has ended with the code of `RunError`."""
        try:
            state = parse(self._get(job, "jobs"), self._pods(job), self._digests)
        except EngineError as error:
            return State(phase="unknown", text=error.what)
        if state.exit_code == RunError.exit_code and state.phase == "running":
            try:
                self.cancel(job)
            except EngineError as error:
                return State(phase="ended", text=f"{state.text}; {error.what}", hint=error.hint, exit_code=state.exit_code)
            return State(phase="ended", text=state.text, hint=state.hint, exit_code=state.exit_code)
        if state.phase == "ended":
            self._due = 0.0
        return state

    def cancel(self, job: str) -> None:
        """See `Engine`."""
        done = self._raw("delete", job, f"/{job.rpartition('/')[2]}?propagationPolicy=Background")
        if done.code and "NotFound" not in _message(done):
            raise EngineError(f"Kubernetes did not delete the job: {_message(done)}", hint=f"delete it with `{self.stop(job)}`")

    def stop(self, job: str) -> str:
        """See `Engine`."""
        _, namespace, name = job.rsplit("/", 2)
        return f"kubectl delete job -n {namespace} {name}"

    def logs(self, job: str) -> tuple[bytes, bytes]:
        """See `Engine`. Everything is on stdout. It is asked for every two seconds, and kept in the job's directory.

        Each of several pods has a log of its own there, as ranks have in the directory of a run. What is kept of a pod that Kubernetes
        has removed stays.
        """
        if time.monotonic() < self._due:
            return b"", b""
        self._due = time.monotonic() + _PAUSE
        text = b""
        with contextlib.suppress(EngineError):
            for pod in _newest(self._pods(job)):
                text += self._keep_new_lines(job, pod)
        return text, b""

    def _keep_new_lines(self, job: str, pod: Mapping[str, Any]) -> bytes:
        """Return what a pod has printed since the last call, and write it to the pod's log."""
        name = pod["metadata"]["name"]
        last = self._last.get(name, "")
        since = f"&sinceTime={urllib.parse.quote(last)}" if last else ""
        container = _PREPARE if _has_failed(pod) else _RUN
        done = self._raw("get", job, f"/{name}/log?container={container}&timestamps=true{since}", kind="pods")
        if done.code:
            return b""
        lines = [line.partition(b" ")[::2] for line in done.stdout.splitlines(keepends=True)]
        new = [(stamp.decode("ascii", "replace"), text) for stamp, text in lines if stamp.decode("ascii", "replace") > last]
        if new:
            self._last[name] = new[-1][0]
        text = b"".join(text for _, text in new)
        path = self._directory / (f"ranks/{_index(pod)}" if _is_indexed(pod) else "") / STDOUT
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab" if last else "wb") as file:
            file.write(text)
        return text

    @property
    def _run_id(self) -> str:
        return self._directory.name

    @property
    def _digests(self) -> frozenset[str]:
        """What a node may report as the ID of the spec's image: of its manifest, as in our manifest of the job, or of its config."""
        import yaml  # slow to import

        try:
            content = next(yaml.safe_load_all((self._directory / MANIFEST).read_text(encoding="utf-8")))
        except OSError:
            return frozenset((self._image_id,))
        return frozenset((self._image_id, content["spec"]["template"]["spec"]["containers"][0]["image"].rpartition("@")[2]))

    def _pods(self, job: str) -> list[dict[str, Any]]:
        """Return the pods of a job. Raises `EngineError`."""
        selector = urllib.parse.quote(f"{LABEL}={self._run_id}")
        return (self._get(job, "pods", f"?labelSelector={selector}") or {}).get("items") or []

    def _get(self, job: str, kind: str, path: str = "") -> dict[str, Any] | None:
        """Return an object of the API; None if it does not exist. Raises `EngineError`."""
        done = self._raw("get", job, path or f"/{job.rpartition('/')[2]}", kind=kind)
        if done.code and "NotFound" in _message(done):
            return None
        try:
            answer = json.loads(done.stdout) if not done.code else None
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            hint = "check `kubectl get jobs`, and the context that it uses"
            raise EngineError(f"Kubernetes did not answer: {_message(done)}", hint=hint)
        return answer

    def _raw(self, verb: str, job: str, path: str, *, kind: str = "jobs", stdin: bytes = b"") -> process.Done:
        """Send a request to the API. `path`: below the objects of a kind in the job's namespace."""
        context, namespace, _ = job.rsplit("/", 2)
        group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        url = f"{group}/namespaces/{namespace}/{kind}{path}"
        words = [verb, *(["--context", context] if context else []), "--raw", url]
        return self._ask(*words, *(["-f", "-"] if stdin else []), stdin=stdin)

    def _ask(self, *words: str, stdin: bytes = b"") -> process.Done:
        missing = "install it, and check with `kubectl get jobs` that it reaches the cluster"
        return ask(("kubectl", *words), self._environ, _TIMEOUT, stdin=stdin, missing=missing)


def current_namespace(environ: Mapping[str, str]) -> str:
    """Return the namespace of kubectl's current context. Raises `EngineError`."""
    engine = Kubernetes(Path(), environ, "")
    done = engine._ask("config", "view", "--minify", "--output", "jsonpath={.contexts[0].context.namespace}")  # noqa: SLF001
    return done.stdout.decode("utf-8", "replace").strip() or "default"


_IMAGE = (
    "the node cannot pull the image",
    "check that the nodes reach the registry, and name a Secret with its login with --registry-secret; Kubernetes tries again",
)
_CONTAINER = (
    "the node cannot start the container",
    "check the names of the Secret and of the claims; `kubectl describe pod` has more",
)
_REASONS = {
    "ErrImagePull": _IMAGE,
    "ImagePullBackOff": _IMAGE,
    "InvalidImageName": _IMAGE,
    "ErrImageNeverPull": _IMAGE,
    "CreateContainerConfigError": _CONTAINER,
    "CreateContainerError": _CONTAINER,
    "RunContainerError": _CONTAINER,
    "StartError": _CONTAINER,
    "Unschedulable": (
        "no node can run the pod",
        "request less with --gpus, --cpus or --memory, or another --gpu-product; the job waits until a node can run it",
    ),
    "OOMKilled": ("the container was killed because its memory was exhausted", "request more with --memory"),
    "Evicted": (
        "the node evicted the pod",
        "request the memory that the run needs with --memory, or write less to the disk of the node",
    ),
    "DeadlineExceeded": ("the pod was stopped at its time limit", "request more time with --time"),
    "DisruptionTarget": (
        "the pod was preempted, or its node was drained",
        "submit the run again; what it wrote to a --checkpoints claim is still there",
    ),
}
"""Reasons of Kubernetes -> a sentence, and a hint."""


def parse(job: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]], digests: frozenset[str]) -> State:
    """Return the state of a job, from what the API has of it and of its pods. Pure.

    `digests`: what a node may report as the image of the command. A wrong image is the phase `running` with an exit code.
    """
    conditions = {item.get("type"): item for item in ((job or {}).get("status") or {}).get("conditions") or []}
    failed = conditions.get("Failed")
    if not pods:
        if failed is not None:
            return _ended(failed.get("reason", ""), failed.get("message", ""), 1)
        if job is None:
            return State(
                phase="ended", text="Kubernetes does not know the job any more", hint="it was deleted, or it is older than a week"
            )
        return State(phase="pending", text="no pod yet")
    states = {_index(pod): _state_of(pod, digests, is_deleted=job is None) for pod in _newest(pods)}
    nodes = int(((job or {}).get("spec") or {}).get("completions") or 1)
    return _combine(states, is_over=len(states) >= nodes or failed is not None or job is None)


def _combine(states: Mapping[int, State], *, is_over: bool) -> State:
    """Return the state of a job from those of its pods. `is_over`: Kubernetes makes no more pods.

    If a pod fails, Kubernetes stops the others, so the reason is in the first one that was not stopped.
    """
    if len(states) == 1 and is_over:
        return next(iter(states.values()))
    wrong = next((state for state in states.values() if state.exit_code is not None and state.phase == "running"), None)
    if wrong is not None:
        return wrong
    named = {f"pod {index}: {state.text}": state for index, state in states.items()}
    if is_over and all(state.phase == "ended" for state in states.values()):
        failed = [text for text, state in named.items() if state.exit_code]
        by_itself = [text for text in failed if named[text].exit_code != _STOPPED]
        text = next(iter((*by_itself, *failed, *named)))
        return msgspec.structs.replace(named[text], text=text if failed else named[text].text)
    waiting = next((text for text, state in named.items() if state.phase == "pending"), None)
    if waiting is not None or not is_over:
        found = named.get(waiting or "")
        return State(phase="pending", text=waiting or "not all pods yet", hint=found.hint if found else "")
    return State(phase="running", text="running")


def _newest(pods: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the newest pod of each node, sorted by node."""
    found: dict[int, Mapping[str, Any]] = {}
    for pod in sorted(pods, key=lambda item: str((item.get("metadata") or {}).get("creationTimestamp", ""))):
        found[_index(pod)] = pod
    return [found[index] for index in sorted(found)]


def _index(pod: Mapping[str, Any]) -> int:
    """Return the number of the node of a pod, from 0."""
    text = str(((pod.get("metadata") or {}).get("annotations") or {}).get(INDEX, ""))
    return int(text) if text.isdecimal() else 0


def _is_indexed(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is one of several."""
    return INDEX in ((pod.get("metadata") or {}).get("annotations") or {})


def _state_of(pod: Mapping[str, Any], digests: frozenset[str], *, is_deleted: bool) -> State:
    """Return the state of a pod. `is_deleted`: its job is."""
    status = pod.get("status") or {}
    if wrong := _wrong_image(status, digests):
        return State(phase="running", text=wrong, hint=_WRONG_IMAGE, exit_code=RunError.exit_code)
    run, prepare = _container(status, "containerStatuses", _RUN), _container(status, "initContainerStatuses", _PREPARE)
    ended = _part(prepare if _has_failed(pod) else run, "terminated")
    if status.get("reason") in _REASONS and status.get("phase") == "Failed":  # Evicted, DeadlineExceeded
        return _ended(status["reason"], status.get("message", ""), (ended or {}).get("exitCode") or 1)
    if ended is not None:
        code, reason = int(ended.get("exitCode", 1)), ended.get("reason", "")
        disrupted = next((item for item in status.get("conditions") or [] if item.get("type") == "DisruptionTarget"), None)
        if code and disrupted is not None and reason != "OOMKilled":
            return _ended("DisruptionTarget", disrupted.get("message", ""), code)
        if _has_failed(pod):
            reason = f"the files of the job could not be unpacked ({reason})"
        return _ended("" if reason in ("Completed", "Error") else reason, ended.get("message", ""), code)
    if status.get("phase") in ("Failed", "Succeeded"):
        return _ended(status.get("reason", ""), status.get("message", ""), 0 if status["phase"] == "Succeeded" else 1)
    for container in (prepare, run):
        waiting = _part(container, "waiting") or {}
        if waiting.get("reason") in _REASONS:
            return _state("pending", waiting["reason"], waiting.get("message", ""))
    for item in status.get("conditions") or []:
        if item.get("type") == "PodScheduled" and item.get("status") == "False":
            return _state("pending", item.get("reason", ""), item.get("message", ""))
    leaving = ", terminating" if (pod.get("metadata") or {}).get("deletionTimestamp") else ""
    if _part(run, "running") is not None:
        return State(phase="running", text=f"running{leaving}")
    return State(phase="running" if is_deleted else "pending", text=f"starting{leaving}")


_WRONG_IMAGE = "a proxy or an admission rule of the cluster replaced the image: ask its administrator"


def _wrong_image(status: Mapping[str, Any], digests: frozenset[str]) -> str:
    """Return a sentence if the node has started another image for the command; empty if not, or if it is not known yet."""
    container = _container(status, "containerStatuses", _RUN)
    found = _DIGEST.findall(str(container.get("imageID", "")))
    has_started = any(_part(container, phase) is not None for phase in ("running", "terminated"))
    if not found or not has_started or f"sha256:{found[-1]}" in digests:
        return ""
    return f"the node started the image sha256:{found[-1]}, not that of the spec, {' or '.join(sorted(digests))}"


def _ended(reason: str, message: str, code: int) -> State:
    return _state("ended", reason, message, code)


def _state(phase: Phase, reason: str, message: str, code: int | None = None) -> State:
    sentence, hint = _REASONS.get(reason, ("", ""))
    text = f"{sentence} ({reason})" if sentence else reason
    text = ": ".join(filter(None, (text, redact.line(" ".join(message.split())))))
    return State(phase=phase, text=text or ("ended" if code is None else f"exit {code}"), hint=hint, exit_code=code)


def _container(status: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    return next((item for item in status.get(kind) or [] if item.get("name") == name), {})


def _part(container: Mapping[str, Any], phase: str) -> Mapping[str, Any] | None:
    """Return the state of a container, if it is in this phase."""
    found = (container.get("state") or {}).get(phase)
    return found if isinstance(found, dict) else None


def _has_failed(pod: Mapping[str, Any]) -> bool:
    """Whether the first container has ended with an error."""
    ended = _part(_container(pod.get("status") or {}, "initContainerStatuses", _PREPARE), "terminated")
    return ended is not None and ended.get("exitCode") != 0


def _message(done: process.Done) -> str:
    """What kubectl said."""
    text = " ".join((done.stderr.strip() or done.stdout.strip()).decode("utf-8", "replace").split())
    return redact.line(text)[:1000] or f"exit code {done.code}"
