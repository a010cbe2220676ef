"""The table of runners: each name has a row and a class, and the help names all."""

from __future__ import annotations

from typing import get_args

import pytest

from repro_env.sandbox.runners import runner_class
from repro_env.schema.runners import CHOICES, DEFAULT, HELP, TRAITS, RunnerName


@pytest.mark.parametrize("name", get_args(RunnerName))
def test_each_runner_has_traits_a_class_and_a_line_in_the_help(name: RunnerName) -> None:
    traits = TRAITS[name]
    assert runner_class(name).name == name
    assert f"{name}{' (default)' * (name == DEFAULT)}: {traits.text}" in HELP.split(". ")
    # The image in the store is what a root of its own, and the Slurm job on another node, are made from.
    assert traits.needs_image >= (traits.has_own_root or traits.starts_in_jobs or traits.keeps_images)
    assert traits.is_live <= (not traits.needs_image)


def test_users_choose_all_runners_but_the_one_that_needs_a_container_around_repro_env() -> None:
    assert CHOICES == ("embedded", "docker", "charliecloud", "apptainer", "host")
