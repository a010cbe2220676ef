"""An API server of Kubernetes for tests: it refuses Jobs that do not have the schema, makes their pods, and serves states and logs.

What a kubelet does is a function that the test gives it. `run_in_docker` is one: it starts the containers of a pod in Docker, with the
mounts, the user and the read-only root that the pod asks for. The API server has no logins; everything else that is not
implemented is an error.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from repro_env.launch.kubernetes.manifest import INDEX

VERSIONS = ("1.29", "1.33", "1.37")
NODE = "gpu-node-7"
_PATH = re.compile(r"/(?:apis/batch|api)/v1/namespaces/([^/]+)/(jobs|pods|secrets|services)(?:/([^/]+))?(/log)?")


def validate(manifest: dict[str, Any]) -> None:
    """Raise `ValueError` for a field that one of these versions of Kubernetes does not know, or a wrong value."""
    import kubernetes_validate  # takes two seconds

    try:
        for version in VERSIONS:
            kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise ValueError(error.message) from None


class Cluster:
    """What the API server has. `kubelet` runs a pod, in a thread of its own, and writes its status."""

    def __init__(self, kubelet: Callable[[Cluster, dict[str, Any]], None]) -> None:
        self.kubelet = kubelet
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.secrets: dict[str, dict[str, Any]] = {}
        self.services: dict[str, dict[str, Any]] = {}
        self.logs: dict[tuple[str, str], Callable[[], bytes]] = {}
        """(pod, container) -> its log, with times."""
        self.threads: list[threading.Thread] = []

    def create(self, job: dict[str, Any]) -> None:
        name = job["metadata"]["name"]
        template, is_indexed = job["spec"]["template"], job["spec"].get("completionMode") == "Indexed"
        self.jobs[name] = job
        for index in range(job["spec"].get("completions", 1)):
            full = f"{name}-{index}-x7x7x" if is_indexed else f"{name}-x7x7x"
            pod = {
                "metadata": {**template["metadata"], "name": full, "creationTimestamp": _now()},
                "spec": {**template["spec"], "hostname": full.removesuffix("-x7x7x")},
                "status": {"phase": "Pending"},
            }
            if is_indexed:
                pod["metadata"]["annotations"] = {INDEX: str(index)}
            self.pods[full] = pod
            self.threads.append(threading.Thread(target=self._run, args=(name, pod)))
            self.threads[-1].start()

    def _run(self, name: str, pod: dict[str, Any]) -> None:
        try:
            self.kubelet(self, pod)
        except Exception:
            pod["status"]["phase"] = "Failed"  # the test ends, and pytest shows the error
            raise
        finally:
            self._ended(name, pod)

    def _ended(self, name: str, pod: dict[str, Any]) -> None:
        if pod["status"]["phase"] == "Failed" and name in self.jobs:  # backoffLimit is 0
            self.jobs[name]["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}
            self._stop(name)
        if "deletionTimestamp" in pod["metadata"]:
            del self.pods[pod["metadata"]["name"]]

    def delete(self, name: str) -> None:
        """Delete a job. Its pods stay until their containers have ended."""
        del self.jobs[name]
        self._stop(name)

    def _stop(self, name: str) -> None:
        for pod_name, pod in list(self.pods.items()):  # each pod has a thread, which may remove it
            if pod_name.startswith(f"{name}-") and pod["status"]["phase"] in ("Pending", "Running"):
                pod["metadata"]["deletionTimestamp"] = _now()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


@contextlib.contextmanager
def api_server(cluster: Cluster, directory: Path) -> Iterator[Path]:
    """Serve a cluster on loopback; yields the configuration of kubectl."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urllib.parse.urlsplit(self.path)
            if url.path == "/version":
                return self._answer(200, {"major": "1", "minor": "33", "gitVersion": "v1.33.0"})
            query = dict(urllib.parse.parse_qsl(url.query))
            _, kind, name, log = self._parts(url.path)
            if log:
                log_of = cluster.logs.get((name, query["container"]))
                if log_of is None:
                    return self._refuse(400, "BadRequest", f"container {query['container']} is waiting to start")
                since = query.get("sinceTime", "")[:19]
                lines = [line for line in log_of().splitlines(keepends=True) if line[:19].decode() >= since]
                return self._answer(200, b"".join(lines), "text/plain")
            objects = cluster.jobs if kind == "jobs" else cluster.pods
            if not name:
                label, _, value = query["labelSelector"].partition("=")
                found = [item for item in list(objects.values()) if item["metadata"]["labels"].get(label) == value]
                return self._answer(200, {"kind": "PodList", "apiVersion": "v1", "items": found})
            if name not in objects:
                return self._refuse(404, "NotFound", f'{kind} "{name}" not found')
            return self._answer(200, objects[name])

        def do_POST(self) -> None:
            namespace, kind, name, _ = self._parts(self.path)
            body = json.loads(self._body())
            assert (name, body["metadata"].get("namespace", namespace)) == ("", namespace)
            try:
                validate(body)
            except ValueError as error:
                return self._refuse(422, "Invalid", f"{kind} is invalid: {error}")
            if kind == "jobs" and body["metadata"]["name"] in cluster.jobs:
                return self._refuse(409, "AlreadyExists", "this job exists")
            body["metadata"]["uid"] = "7f3c"
            if kind in ("secrets", "services"):
                assert body["metadata"]["ownerReferences"][0]["uid"] == "7f3c"
                getattr(cluster, kind)[body["metadata"]["name"]] = body
            else:
                cluster.create(body)
            return self._answer(201, body)

        def do_DELETE(self) -> None:
            url = urllib.parse.urlsplit(self.path)
            _, kind, name, _ = self._parts(url.path)
            assert (kind, url.query) == ("jobs", "propagationPolicy=Background")
            if name not in cluster.jobs:
                return self._refuse(404, "NotFound", f'jobs.batch "{name}" not found')
            cluster.delete(name)
            return self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

        def _body(self) -> bytes:
            """The body, in chunks as Go sends one whose length it does not know."""
            assert self.headers["Transfer-Encoding"] == "chunked"
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

        def _parts(self, path: str) -> tuple[str, str, str, bool]:
            match = _PATH.fullmatch(path)
            assert match, self.path
            return match[1], match[2], match[3] or "", bool(match[4])

        def _refuse(self, code: int, reason: str, message: str) -> None:
            status = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "reason": reason,
                "message": message,
                "code": code,
            }
            self._answer(code, status)

        def _answer(self, code: int, content: Any, media_type: str = "application/json") -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    configuration = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "arn:lab/test",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "contexts": [{"name": "arn:lab/test", "context": {"cluster": "c", "user": "u", "namespace": "vision"}}],
        "users": [{"name": "u", "user": {}}],
    }
    path = directory / "kubeconfig"
    path.write_text(json.dumps(configuration))
    try:
        yield path
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for started in cluster.threads:
            started.join()


def run_in_docker(directory: Path, images: set[str], login: Path) -> Callable[[Cluster, dict[str, Any]], None]:
    """A kubelet. `directory`: of volumes, and of claims by their names. `images`: gets the IDs of what it has pulled.
    `login`: a configuration of Docker, which the nodes use if the pod names a Secret.
    """

    def kubelet(cluster: Cluster, pod: dict[str, Any]) -> None:
        name, spec, status = pod["metadata"]["name"], pod["spec"], pod["status"]
        volumes = {volume["name"]: _volume(directory, name, volume) for volume in spec["volumes"]}
        for key, kind in (("initContainerStatuses", "initContainers"), ("containerStatuses", "containers")):
            for container in spec[kind]:
                image = container["image"]
                config = ("--config", str(login)) if "imagePullSecrets" in spec else ()
                pulled = _docker(*config, "pull", "--quiet", image)
                if pulled.returncode:
                    waiting = {"reason": "ErrImagePull", "message": pulled.stderr.decode()}
                    status[key] = [{"name": container["name"], "state": {"waiting": waiting}}]
                    return
                images.add(_docker("inspect", "--format", "{{.Id}}", image).stdout.decode().strip())
                started = f"repro-env-test-{name}-{container['name']}"
                created = _docker("create", "--name", started, *_words(cluster, pod, container, volumes))
                assert not created.returncode, created.stderr
                _docker("start", started)
                cluster.logs[name, container["name"]] = lambda started=started: _log(started)  # type: ignore[misc]
                status["phase"] = "Running"
                status[key] = [{"name": container["name"], "imageID": image, "state": {"running": {"startedAt": _now()}}}]
                code = _wait(pod, started, spec["terminationGracePeriodSeconds"])
                text = _log(started)
                cluster.logs[name, container["name"]] = lambda text=text: text  # type: ignore[misc]
                _docker("rm", started)
                ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
                status[key] = [{"name": container["name"], "imageID": image, "state": {"terminated": ended}}]
                if code:
                    status["phase"] = "Failed"
                    return
        status["phase"] = "Succeeded"

    return kubelet


def _volume(directory: Path, pod: str, volume: dict[str, Any]) -> Path | None:
    path = directory / pod / str(volume["name"])
    if "persistentVolumeClaim" in volume:
        path = directory / str(volume["persistentVolumeClaim"]["claimName"])
        assert path.is_dir()
        return path
    if "secret" in volume:
        (item,) = volume["secret"]["items"]
        path.mkdir(parents=True)
        (path / item["path"]).write_bytes((directory / volume["secret"]["secretName"] / item["key"]).read_bytes())
        return path
    if volume["emptyDir"].get("medium") == "Memory":
        return None
    path.mkdir(parents=True)
    path.chmod(0o777)
    return path


def _words(cluster: Cluster, pod: dict[str, Any], container: dict[str, Any], volumes: dict[str, Path | None]) -> Iterator[str]:
    """The words of `docker create`."""
    user, rights = pod["spec"]["securityContext"], container["securityContext"]
    assert user["runAsNonRoot"]
    assert user["runAsUser"] != 0
    assert rights["readOnlyRootFilesystem"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    yield from ("--user", f"{user['runAsUser']}:{user['runAsGroup']}", "--read-only", "--cap-drop", "ALL")
    yield from ("--security-opt", "no-new-privileges", "--network", "host", "--hostname", pod["spec"]["hostname"])
    if "subdomain" in pod["spec"]:  # the pods of a headless Service are on this machine
        name = pod["spec"]["subdomain"]
        service = _wait_for(cluster.services, name)
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert service["spec"]["clusterIP"] == "None"
        yield from ("--add-host", f"{pod['spec']['hostname'].rpartition('-')[0]}-0.{name}:127.0.0.1")
    values = {variable["name"]: _value(cluster, pod, variable) for variable in container["env"]}
    for variable, value in values.items():
        yield from ("--env", f"{variable}={value}")
    for mount in container["volumeMounts"]:
        volume = volumes[mount["name"]]
        if volume is None:
            yield from ("--tmpfs", mount["mountPath"])
            continue
        inner = re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], mount.get("subPathExpr", ""))
        path = volume / (mount.get("subPath") or inner)
        with contextlib.suppress(FileExistsError):  # as the kubelet does, with the mode of the volume; each pod has a thread
            path.mkdir()
            path.chmod(0o777)
        yield from ("--volume", f"{path}:{mount['mountPath']}{':ro' * mount.get('readOnly', False)}")
    first, *others = map(_expand, (*container["command"], *container.get("args", ())))
    yield from ("--entrypoint", first, "--workdir", container.get("workingDir", "/"), container["image"], *others)


def _value(cluster: Cluster, pod: dict[str, Any], variable: dict[str, Any]) -> str:
    """The value of a variable."""
    if "value" in variable:
        return _expand(variable["value"])
    if "fieldRef" in variable["valueFrom"]:
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        return NODE if path == "spec.nodeName" else str(pod["metadata"]["annotations"][path.split("'")[1]])
    reference = variable["valueFrom"]["secretKeyRef"]
    return str(_wait_for(cluster.secrets, reference["name"])["stringData"][reference["key"]])


def _wait_for(objects: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """An object that is made after its Job, which owns it: the kubelet waits for a Secret, and a name is resolved when it is used."""
    while name not in objects:
        time.sleep(0.05)
    return objects[name]


def _expand(text: str) -> str:
    """What the kubelet does with `$$`. A reference to a variable is an error here: repro-env means every text literally."""
    assert not re.search(r"(?<!\$)(?:\$\$)*\$\(", text), text
    return text.replace("$$", "$")


def _wait(pod: dict[str, Any], container: str, grace: int) -> int:
    """Wait for the end of a container; when its pod is deleted, stop it."""
    waiting = subprocess.Popen(["docker", "wait", container], stdout=subprocess.PIPE)
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return int(waiting.communicate(timeout=0.2)[0])
        if "deletionTimestamp" in pod["metadata"]:
            _docker("stop", "--time", str(grace), container)


def _log(container: str) -> bytes:
    """The log of a container as the API server has it: stdout and stderr together, each line with its time."""
    done = _docker("logs", "--timestamps", container, together=True)
    return b"".join(sorted(done.stdout.splitlines(keepends=True)))


def _docker(*words: str, together: bool = False) -> subprocess.CompletedProcess[bytes]:
    stderr = subprocess.STDOUT if together else subprocess.PIPE
    return subprocess.run(["docker", *words], stdout=subprocess.PIPE, stderr=stderr, check=False)
