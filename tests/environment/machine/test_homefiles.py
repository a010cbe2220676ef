from __future__ import annotations

import os
from pathlib import Path

import pytest

from repro_env.environment.machine import homefiles, lists
from repro_env.environment.machine.homefiles import look

ALL = frozenset({"keras", "matplotlib", "accelerate", "torch"})


def put(home: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(home: Path, installed: frozenset[str] = ALL, without: str = "/nowhere", **environ: str) -> dict[str, str]:
    result = look(installed, {"HOME": str(home), **environ}, without=Path(without))
    assert [file.name for file in result.files] == sorted(result.data)
    return {path: data.decode() for path, data in result.data.items()}


def test_configuration_files_of_installed_libraries_are_found(tmp_path: Path) -> None:
    texts = {
        ".keras/keras.json": "k",
        ".config/matplotlib/matplotlibrc": "m",
        ".config/matplotlib/stylelib/a.mplstyle": "s",
        ".cache/huggingface/accelerate/default_config.yaml": "a",
        ".nccl.conf": "n",
    }
    put(tmp_path, **texts)
    put(tmp_path, **{".theanorc": "t", ".keras/datasets/mnist.npz": "x", ".pdbrc": "p", ".netrc": "password"})
    assert found(tmp_path) == texts
    assert found(tmp_path, frozenset({"keras"})) == {".keras/keras.json": "k"}
    assert found(tmp_path, frozenset()) == {}
    assert found(tmp_path, without=str(tmp_path)) == {}


def test_a_variable_sets_the_directory_and_runs_see_the_file_at_the_default_path(tmp_path: Path) -> None:
    put(tmp_path, **{"h/.keras/keras.json": "no", "k/keras.json": "yes", "rc": "file", "x/matplotlib/matplotlibrc": "xdg"})
    home = tmp_path / "h"
    assert found(home, KERAS_HOME=str(tmp_path / "k")) == {".keras/keras.json": "yes"}
    assert found(home, frozenset({"keras"}), KERAS_HOME=str(tmp_path / "gone")) == {}
    assert found(home, frozenset({"matplotlib"}), MATPLOTLIBRC=str(tmp_path / "rc")) == {
        ".config/matplotlib/matplotlibrc": "file"
    }
    assert found(home, frozenset({"matplotlib"}), XDG_CONFIG_HOME=str(tmp_path / "x")) == {
        ".config/matplotlib/matplotlibrc": "xdg"
    }
    assert found(home, frozenset({"keras"}), KERAS_HOME="relative") == {}
    assert look(ALL, {}, without=tmp_path).data == {}


def test_a_file_that_cannot_be_captured_is_a_problem_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homefiles, "LARGEST", 100)
    put(
        tmp_path,
        **{
            ".keras/keras.json": "x" * 101,
            ".cache/huggingface/accelerate/default_config.yaml": "token: hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
        },
    )
    (tmp_path / ".nccl.conf").symlink_to("elsewhere")
    put(tmp_path, elsewhere="NCCL_ALGO=Ring")
    (tmp_path / ".config" / "matplotlib").mkdir(parents=True)
    os.mkfifo(tmp_path / ".config" / "matplotlib" / "matplotlibrc")
    result = look(ALL, {"HOME": str(tmp_path)}, without=Path("/nowhere"))
    assert result.data == {".nccl.conf": b"NCCL_ALGO=Ring"}
    assert len(result.problems) == 2
    assert all(f"(pass it with exec --data {tmp_path}/" in line for line in result.problems)
    assert "AbCdEf" not in " ".join(result.problems)


def test_every_configuration_is_below_the_home_directory() -> None:
    for configuration in lists.sections("homefiles"):
        directories = configuration["directories"].split()
        assert directories[-1].startswith("~")
        assert all(directory.startswith(("$", "~")) for directory in directories)
        assert configuration["distributions"] == configuration["distributions"].lower()
