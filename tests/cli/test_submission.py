"""The options of `exec --on`, and those that the run on the node has."""

from __future__ import annotations

import os
from typing import Any

import pytest

from repro_env.cli import app, submission
from repro_env.schema.errors import UsageError


def node_words(*words: str) -> list[str]:
    context = app.parse("exec", words)
    return list(submission.node_words(context.params, context.command.params))


def test_the_run_on_the_node_has_the_options_of_exec_without_those_of_the_submission() -> None:
    words = node_words(
        *(
            "--on",
            "slurm",
            "--partition",
            "p",
            "--account",
            "a",
            "--time",
            "1",
            "--slurm-arg=--qos=q",
            "--print",
            "--wait",
            "--requeue",
        ),
        *(
            "--data",
            "a:/b",
            "--data",
            "c",
            "--trace",
            "--determinism",
            "strict",
            "--threads",
            "2",
            "--seed",
            "1",
            "--env",
            "A=secret",
        ),
        *("--gpus", "1", "--spec", "repro", "--note", "two words", "-m", "train"),
    )
    assert words == [
        *(
            "--data",
            "a:/b",
            "--data",
            "c",
            "--determinism",
            "strict",
            "--threads",
            "2",
            "--trace",
            "--note",
            "two words",
            "--requeue",
        )
    ]


def test_every_option_of_exec_reaches_the_node_or_is_named_here() -> None:
    """So a new option is not lost in jobs."""
    parsed = app.parse("exec", ["train.py"])
    samples: dict[str, Any] = {}
    for param in parsed.command.params:
        if param.expose_value:
            samples[param.name] = True if param.is_flag else ["x"] if param.multiple else "x"
    passed = set(submission.node_words(samples, parsed.command.params))
    missing = {param.opts[0] for param in parsed.command.params if param.name in samples and param.opts[0] not in passed}
    assert missing == {
        *("--on", "--partition", "--account", "--nodes", "--tasks-per-node", "--time", "--slurm-arg", "--print", "--wait"),
        *("--namespace", "--gpu-product", "--shared", "--registry-secret"),
        *("--spec", "--runs", "--run-id", "--seed", "--env", "--env-file", "--gpus", "-m", "-c"),
    }


@pytest.mark.parametrize(
    ("request_", "arguments", "gpus"),
    [
        (None, (), 0),
        (None, ("--gres=gpu:2",), "all"),
        (2, (), 2),
        (0, ("--gpus-per-node=1",), 0),
        ("all", ("--gres=gpu:a100:1",), "all"),
    ],
)
def test_a_run_gets_the_gpus_that_its_job_requests(request_: Any, arguments: tuple[str, ...], gpus: Any) -> None:
    assert submission.check_gpus(request_, arguments) == gpus


@pytest.mark.parametrize("request_", ["all", "0,1", "GPU-1"])
def test_gpus_of_a_job_are_not_requested_by_name(request_: str) -> None:
    with pytest.raises(UsageError, match="does not say how many GPUs"):
        submission.check_gpus(request_, ("--qos=high",))


@pytest.mark.parametrize(
    ("text", "expected"), [("1-12", "1-12"), ("30", "30"), ("1:00:00", "1:00:00"), ("1h30m", "90"), ("61s", "2")]
)
def test_time_limits_are_written_as_sbatch_reads_them(text: str, expected: str) -> None:
    assert submission.slurm_time(text) == expected


@pytest.mark.parametrize("option", [["--wait"], ["--print"], ["--partition", "x"], ["--slurm-arg=--qos=x"], ["--requeue"]])
def test_options_of_a_job_require_a_scheduler(option: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(UsageError, match=f"{option[0].partition('=')[0]} requires --on slurm"):
        app.run(["exec", *option, "train.py"])


def test_a_run_in_a_job_may_queue_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "SLURM_JOB_ID", "7")
    submission.check_alone(app.parse("exec", ["--requeue", "train.py"]).params)


def test_a_shell_is_not_submitted() -> None:
    with pytest.raises(UsageError, match="`shell` does not support the option --on"):
        app.run(["shell", "--on", "slurm"])


def test_options_of_kubernetes_are_not_for_slurm() -> None:
    with pytest.raises(UsageError, match="--namespace requires --on kubernetes"):
        app.run(["exec", "--on", "slurm", "--namespace", "x", "train.py"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "slurm", "--wait"], "does not support"),
        (["--partition", "x"], "requires --on"),
        (["--gpu-product", "x"], "requires --on kubernetes"),
    ],
)
def test_options_of_a_single_job_are_not_for_seeds(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        app.run(["sensitivity", "--seeds", "2", *words, "x"])
