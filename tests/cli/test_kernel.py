"""Options of a kernel, which are checked when it is installed: Jupyter shows no error of its start."""

from __future__ import annotations

import pytest

from repro_env.cli import kernel
from repro_env.schema.errors import UsageError


def test_options_of_exec_are_words_of_the_kernel() -> None:
    assert kernel._words("--seed 7 --env TOKEN --data '/my data:/data'") == [
        "--seed",
        "7",
        "--env",
        "TOKEN",
        "--data",
        "/my data:/data",
    ]
    assert kernel._words("") == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("train.py", "contains more than options"),
        ("--seed 7 -- train.py", "contains more than options"),
        ("--help", "contains more than options"),
        ("--seed x", "--seed must be an integer"),
        ("--unknown", "no such option"),
        ("'", "cannot be split"),
        ("--env TOKEN=secret", "every user can read it"),
        ("--runner host", "a kernel does not support the option --runner"),
        ("--on slurm", "a kernel does not support the option --on"),
        ("-m", "a kernel does not support the option -m"),
    ],
)
def test_other_words_are_refused(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        kernel._words(text)
