"""Settings of engines, from words and from the project's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.launch import engines, settings
from repro_env.launch.kubernetes import ENGINE as KUBERNETES
from repro_env.launch.slurm import ENGINE as SLURM
from repro_env.launch.slurm.settings import SlurmSettings
from repro_env.schema.errors import UsageError


def test_words_are_settings_and_the_last_value_of_a_key_is_used() -> None:
    words = ["partition=cpu", "partition=gpu", "tasks-per-node=4", "requeue", "sbatch=--qos=high", "sbatch=--hold"]
    found = settings.parse(SLURM, words)
    assert found == SlurmSettings(partition="gpu", tasks_per_node=4, requeue=True, sbatch=("--qos=high", "--hold"))
    assert (found.requeues, found.processes_per_node) == (True, 4)


def test_a_setting_that_an_engine_does_not_have_is_an_error_with_those_that_it_has() -> None:
    with pytest.raises(UsageError, match="kubernetes has no setting of this name") as raised:
        settings.parse(KUBERNETES, ["partition=gpu"])
    assert raised.value.where == "--job partition"
    assert "namespace, gpu-product, registry-secret, shared, user" in raised.value.hint


@pytest.mark.parametrize("word", ["requeue=maybe", "tasks-per-node=x", "tasks-per-node", "partition="])
def test_a_value_of_another_type_is_refused_with_what_the_setting_does(word: str) -> None:
    with pytest.raises(UsageError, match="this setting has an invalid value") as raised:
        settings.parse(SLURM, [word])
    assert raised.value.hint == dict(settings.explain(SLURM))[word.partition("=")[0]]


def test_every_setting_of_every_engine_has_a_description_and_a_default() -> None:
    for name in engines.NAMES:
        engine = engines.get(name)
        assert engine.name == name
        assert all(text.endswith(".") for _, text in settings.explain(engine))
        engine.settings()


def test_the_project_has_defaults_which_words_replace(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.repro-env.jobs.slurm]\npartition = "gpu"\nsbatch = ["--qos=high"]\ntemplate = "site.sh"\n'
    )
    (tmp_path / "src").mkdir()
    found, path = settings.defaults("slurm", tmp_path / "src")
    assert path == tmp_path / "pyproject.toml"
    assert found.pop("template") == "site.sh"
    assert settings.parse(SLURM, ["partition=cpu"], found) == SlurmSettings(partition="cpu", sbatch=("--qos=high",))
    assert settings.defaults("kubernetes", tmp_path) == ({}, path)


@pytest.mark.parametrize("text", ["[tool.repro-env.jobs]\nslurm = 1\n", "[", "[tool]\nrepro-env = []\n"])
def test_a_configuration_that_cannot_be_read_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=r"tool.repro-env.jobs.slurm cannot be read"):
        settings.defaults("slurm", tmp_path)


def test_a_wrong_default_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        settings.parse(SLURM, [], {"partitions": "gpu"}, "/p/pyproject.toml")
    assert raised.value.where == "/p/pyproject.toml: partitions"
