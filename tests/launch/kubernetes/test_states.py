"""States, from what the API has of a job and its pods."""

from __future__ import annotations

from typing import Any

import pytest

from repro_env.launch.engine import State
from repro_env.launch.kubernetes import states as module
from repro_env.launch.kubernetes.states import parse
from repro_env.schema.errors import RunError
from tests.launch.kubernetes.jobs import CONFIG, DIGEST, OTHER, pod, pods, prepare, run

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
            hint=module._REASONS["Unschedulable"][1],
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
        State(phase="pending", text='the node cannot pull the image (ImagePullBackOff): Back-off "x"', hint=module._IMAGE[1]),
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
            hint=module._REASONS["Evicted"][1],
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
            hint=module._REASONS["DisruptionTarget"][1],
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


@pytest.mark.parametrize("image", [f"x/y@{OTHER}", OTHER, OTHER.removeprefix("sha256:"), f"docker-pullable://x@{OTHER}"])
def test_a_wrong_image_is_found_in_every_form_of_its_id(image: str) -> None:
    item = {"name": "run", "imageID": image, "state": {"running": {}}}
    found = parse({}, [pod(containerStatuses=[item])], frozenset((DIGEST,)))
    assert (found.phase, found.exit_code) == ("running", RunError.exit_code)
