"""Jobs and logs. What kubectl prints is given here; tests/e2e/test_kubernetes.py has an API server and runs the pods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro_env.launch.engine import State
from repro_env.launch.kubernetes import client as module
from repro_env.launch.kubernetes.client import Kubernetes, current_namespace
from repro_env.runs.records import records
from repro_env.schema.errors import EngineError, RunError
from tests.launch.kubernetes.jobs import CONFIG, DIGEST, JOB, NODES, OTHER, RUN, pod, pods, render, run

RUNNING = {"phase": "Running", "containerStatuses": run(running={})}


def kubectl(directory: Path, text: str) -> dict[str, str]:
    """Write a script in place of kubectl, which notes its words in `words`. Returns the environment in which it is found."""
    (directory / "kubectl").write_text(f'#!/bin/sh\necho "$@" >> {directory}/words\n{text}\n')
    (directory / "kubectl").chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


@pytest.mark.parametrize("state", ["running", "terminated"])
def test_a_job_whose_node_started_another_image_is_deleted(tmp_path: Path, state: str) -> None:
    (tmp_path / RUN).mkdir()
    (tmp_path / RUN / "manifest.json").write_text(render())
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
    monkeypatch.setattr(module, "_PAUSE", 0.0)
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
    monkeypatch.setattr(module, "_PAUSE", 0.0)
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
        Kubernetes(tmp_path, environ, CONFIG).submit(render())


def test_a_job_whose_service_is_refused_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "answer").write_text('{"metadata": {"uid": "7"}}')
    environ = kubectl(
        tmp_path, f'case $* in create*services*) echo "no" >&2; exit 1;; create*) cat {tmp_path}/answer;; *) echo lab;; esac'
    )
    with pytest.raises(EngineError, match=r"refused the Service by which the nodes find each other: no"):
        Kubernetes(tmp_path, environ, CONFIG).submit(render(JOB, *NODES))
    assert (tmp_path / "words").read_text().splitlines()[-1].startswith("delete --context lab --raw")


def test_a_machine_without_kubectl_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="kubectl is not on this machine"):
        current_namespace({"PATH": str(tmp_path)})
