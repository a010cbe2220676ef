"""A job of Kubernetes, through `kubectl`."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repro_env.io import process
from repro_env.launch.engine import Client, State, ask
from repro_env.launch.kubernetes.manifest import LABEL, PREPARE, RUN
from repro_env.launch.kubernetes.states import has_failed, index_of, is_indexed, newest, parse
from repro_env.schema import redact
from repro_env.schema.environment import Variable
from repro_env.schema.errors import EngineError, RunError

MANIFEST, STDOUT = "manifest.json", "stdout.log"
"""The files of a job, in its directory. Kubernetes does not separate stdout and stderr."""
_TIMEOUT = 60.0
_PAUSE = 2.0
"""Seconds between two questions for the log."""
_PURPOSES = {"Secret": ("with the values of --env", "--env"), "Service": ("by which the nodes find each other", "--nodes")}
"""Kind -> what it is for, and the option that needs it."""


class Kubernetes(Client):
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

    def prepare(self, script: str) -> str:
        """See `Client`."""
        (self._directory / MANIFEST).write_text(script, encoding="utf-8")
        metadata = json.loads(script)["items"][0]["metadata"]
        context = self._ask("config", "current-context").stdout.decode("utf-8", "replace").strip()
        return f"{context}/{metadata['namespace']}/{metadata['name']}"

    def submit(self, script: str) -> str:
        """See `Client`."""
        job = self.prepare(script)
        content, *others = json.loads(script)["items"]
        metadata = content["metadata"]
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
        """See `Client`. A job whose node started another image than the spec's is stopped, and has ended with the code of `RunError`."""
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
        """See `Client`."""
        done = self._raw("delete", job, f"/{job.rpartition('/')[2]}?propagationPolicy=Background")
        if done.code and "NotFound" not in _message(done):
            raise EngineError(f"Kubernetes did not delete the job: {_message(done)}", hint=f"delete it with `{self.stop(job)}`")

    def stop(self, job: str) -> str:
        """See `Client`."""
        _, namespace, name = job.rsplit("/", 2)
        return f"kubectl delete job -n {namespace} {name}"

    def logs(self, job: str) -> tuple[bytes, bytes]:
        """See `Client`. Everything is on stdout. It is asked for every two seconds, and kept in the job's directory.

        Each of several pods has a log of its own there, as ranks have in the directory of a run. What is kept of a pod that Kubernetes
        has removed stays.
        """
        if time.monotonic() < self._due:
            return b"", b""
        self._due = time.monotonic() + _PAUSE
        text = b""
        with contextlib.suppress(EngineError):
            for pod in newest(self._pods(job)):
                text += self._keep_new_lines(job, pod)
        return text, b""

    def _keep_new_lines(self, job: str, pod: Mapping[str, Any]) -> bytes:
        """Return what a pod has printed since the last call, and write it to the pod's log."""
        name = pod["metadata"]["name"]
        last = self._last.get(name, "")
        since = f"&sinceTime={urllib.parse.quote(last)}" if last else ""
        container = PREPARE if has_failed(pod) else RUN
        done = self._raw("get", job, f"/{name}/log?container={container}&timestamps=true{since}", kind="pods")
        if done.code:
            return b""
        lines = [line.partition(b" ")[::2] for line in done.stdout.splitlines(keepends=True)]
        new = [(stamp.decode("ascii", "replace"), text) for stamp, text in lines if stamp.decode("ascii", "replace") > last]
        if new:
            self._last[name] = new[-1][0]
        text = b"".join(text for _, text in new)
        path = self._directory / (f"ranks/{index_of(pod)}" if is_indexed(pod) else "") / STDOUT
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
        try:
            content = json.loads((self._directory / MANIFEST).read_text(encoding="utf-8"))["items"][0]
        except OSError:
            return frozenset((self._image_id,))
        (image,) = (item["image"] for item in content["spec"]["template"]["spec"]["containers"] if item["name"] == RUN)
        return frozenset((self._image_id, image.rpartition("@")[2]))

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
        return _kubectl(self._environ, *words, stdin=stdin)


def current_namespace(environ: Mapping[str, str]) -> str:
    """Return the namespace of kubectl's current context. Raises `EngineError`."""
    done = _kubectl(environ, "config", "view", "--minify", "--output", "jsonpath={.contexts[0].context.namespace}")
    return done.stdout.decode("utf-8", "replace").strip() or "default"


def _kubectl(environ: Mapping[str, str], *words: str, stdin: bytes = b"") -> process.Done:
    missing = "install it, and check with `kubectl get jobs` that it reaches the cluster"
    return ask(("kubectl", *words), environ, _TIMEOUT, stdin=stdin, missing=missing)


def _message(done: process.Done) -> str:
    """What kubectl said."""
    text = " ".join((done.stderr.strip() or done.stdout.strip()).decode("utf-8", "replace").split())
    return redact.line(text)[:1000] or f"exit code {done.code}"
