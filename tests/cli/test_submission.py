"""The options of `exec --on`, and those that the run on the node has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from repro_env.api.submit import DECIDED
from repro_env.cli import app, submission
from repro_env.cli.ui.options import read
from repro_env.launch.engines import JobOptions
from repro_env.runs.start.request import RunOptions
from repro_env.schema.errors import UsageError
from tests.fakes import specs


def node_words(*words: str) -> list[str]:
    return list(read(RunOptions, app.parse("exec", words).params).words(DECIDED))


def test_the_run_on_the_node_has_the_options_of_exec_without_those_of_the_submission() -> None:
    words = node_words(
        *(
            "--on",
            "slurm",
            "--job",
            "partition=p",
            "--job-template",
            "site.sh",
            "--nodes",
            "2",
            "--time",
            "1",
            "--print",
            "--wait",
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
            "--no-defaults",
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
        )
    ]


def test_every_option_of_exec_reaches_the_node_or_is_named_here() -> None:
    """So a new option is not lost in jobs."""
    params = app.parse("exec", ["train.py"]).command.params
    samples: dict[str, Any] = {param.name: True if param.is_flag else ["x"] if param.multiple else "x" for param in params}
    passed = set(read(RunOptions, samples).words(DECIDED))
    missing = {param.opts[0] for param in params if param.expose_value and param.opts[0] not in passed}
    assert missing == {
        *("--on", "--job", "--job-template", "--nodes", "--time", "--print", "--wait", "--push"),
        *("--spec", "--runs", "--run-id", "--seed", "--env", "--env-file", "--gpus", "-m", "-c"),
    }


@pytest.mark.parametrize("option", [["--wait"], ["--print"], ["--job", "requeue"], ["--job-template=x"], ["--nodes", "2"]])
def test_options_of_a_job_require_a_scheduler(option: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(UsageError, match=f"{option[0].partition('=')[0]} requires --on"):
        app.run(["exec", *option, "train.py"])


def test_a_run_in_a_job_may_queue_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "SLURM_JOB_ID", "7")
    assert submission.check_alone(JobOptions(settings=["requeue"]))
    assert not submission.check_alone(JobOptions())


def test_a_shell_is_not_submitted() -> None:
    with pytest.raises(UsageError, match="`shell` does not support the option --on"):
        app.run(["shell", "--on", "slurm"])


def test_the_settings_of_an_engine_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["exec", "--on", "kubernetes", "--job", "help"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["namespace", "gpu-product", "registry-secret", "shared", "user"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "slurm", "--wait"], "does not support"),
        (["--on", "kubernetes"], "--on kubernetes does not support several runs in one job"),
        (["--on", "pbs"], "--on must be one of slurm, kubernetes"),
        (["--job", "partition=x"], "requires --on"),
    ],
)
def test_options_of_a_single_job_are_not_for_seeds(words: list[str], message: str, tmp_path: Path) -> None:
    specs.make(tmp_path, {})
    with pytest.raises(UsageError, match=message):
        app.run(["sensitivity", "--seeds", "2", *words, "--spec", str(tmp_path), "x"])
