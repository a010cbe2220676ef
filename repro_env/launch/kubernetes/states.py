"""The state of a job, from what the API of Kubernetes has of it and of its pods. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from repro_env.launch.engine import Phase, State
from repro_env.launch.kubernetes.manifest import INDEX, PREPARE, RUN
from repro_env.schema import redact
from repro_env.schema.errors import RunError

_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_STOPPED = 128 + 15
_IMAGE = (
    "the node cannot pull the image",
    "check that the nodes reach the registry, and name a Secret with its login with --job registry-secret=NAME; Kubernetes tries again",
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
        "request less with --gpus, --cpus or --memory, or another GPU with --job gpu-product=NAME; the job waits until a node can run it",
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
    states = {index_of(pod): _state_of(pod, digests, is_deleted=job is None) for pod in newest(pods)}
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


def newest(pods: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the newest pod of each node, sorted by node."""
    found: dict[int, Mapping[str, Any]] = {}
    for pod in sorted(pods, key=lambda item: str((item.get("metadata") or {}).get("creationTimestamp", ""))):
        found[index_of(pod)] = pod
    return [found[index] for index in sorted(found)]


def index_of(pod: Mapping[str, Any]) -> int:
    """Return the number of the node of a pod, from 0."""
    text = str(((pod.get("metadata") or {}).get("annotations") or {}).get(INDEX, ""))
    return int(text) if text.isdecimal() else 0


def is_indexed(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is one of several."""
    return INDEX in ((pod.get("metadata") or {}).get("annotations") or {})


def _state_of(pod: Mapping[str, Any], digests: frozenset[str], *, is_deleted: bool) -> State:
    """Return the state of a pod. `is_deleted`: its job is."""
    status = pod.get("status") or {}
    if wrong := _wrong_image(status, digests):
        return State(phase="running", text=wrong, hint=_WRONG_IMAGE, exit_code=RunError.exit_code)
    run, prepare = _container(status, "containerStatuses", RUN), _container(status, "initContainerStatuses", PREPARE)
    ended = _part(prepare if has_failed(pod) else run, "terminated")
    if status.get("reason") in _REASONS and status.get("phase") == "Failed":  # Evicted, DeadlineExceeded
        return _ended(status["reason"], status.get("message", ""), (ended or {}).get("exitCode") or 1)
    if ended is not None:
        code, reason = int(ended.get("exitCode", 1)), ended.get("reason", "")
        disrupted = next((item for item in status.get("conditions") or [] if item.get("type") == "DisruptionTarget"), None)
        if code and disrupted is not None and reason != "OOMKilled":
            return _ended("DisruptionTarget", disrupted.get("message", ""), code)
        if has_failed(pod):
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
    container = _container(status, "containerStatuses", RUN)
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


def has_failed(pod: Mapping[str, Any]) -> bool:
    """Whether the first container has ended with an error."""
    ended = _part(_container(pod.get("status") or {}, "initContainerStatuses", PREPARE), "terminated")
    return ended is not None and ended.get("exitCode") != 0
