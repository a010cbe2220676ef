"""The choice of the Python that is captured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from repro_env.environment.python.selection import Target, choose, project_directories
from repro_env.schema.errors import InterpreterError
from tests.environment.conftest import Git


def environment(directory: Path, settings: str = "home = /usr/bin\n") -> Path:
    """Create a directory that looks like a virtual environment, since `choose` does not start Python."""
    (directory / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (directory / "bin" / name).write_text("#!/bin/sh\n")
        (directory / "bin" / name).chmod(0o755)
    (directory / "pyvenv.cfg").write_text(settings)
    return directory


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a directory two levels below the top of a git work tree, with a `pyproject.toml` in its parent."""
    environment(tmp_path / "system")
    source = tmp_path / "ann" / "mono" / "pkg" / "src"
    source.mkdir(parents=True)
    (source.parents[1] / ".git").mkdir()
    (source.parent / "pyproject.toml").touch()
    return source


def choose_target(source: Path, **variables: str | Path) -> Target:
    home = next(path for path in source.parents if path.name == "ann")
    plain = {"PATH": f"{home.parent}/system/bin", "HOME": str(home)}
    return choose(None, {**plain, **{name: str(value) for name, value in variables.items()}}, source)


def test_the_first_existing_environment_is_chosen(project: Path, tmp_path: Path) -> None:
    names = ("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT_ENVIRONMENT")
    variables = {name: environment(tmp_path / name) for name in names}
    venv = environment(project.parents[1] / ".venv")
    while variables:
        name, path = next(iter(variables.items()))
        found = choose_target(project, CONDA_DEFAULT_ENV="training", **variables)
        assert (found.why, found.path, found.explicit, found.venv) == (f"${name}", path / "bin/python", True, path)
        del variables[name]
    found = choose_target(project)
    assert (found.why, found.path, found.explicit) == (".venv of the project", venv / "bin/python", False)
    found = choose(str(tmp_path / "system"), {"VIRTUAL_ENV": str(venv)}, project)
    assert found.path == tmp_path / "system/bin/python"
    venv.rename(venv.with_name("env"))
    assert choose_target(project).path == tmp_path / "system/bin/python3"


def test_the_nearest_venv_inside_the_project_is_chosen(project: Path) -> None:
    above = environment(project.parents[2] / ".venv")
    assert choose_target(project).why == "python3 on PATH"
    environment(project.parents[1] / ".venv")
    nearest = environment(project.parent / ".venv")
    assert choose_target(project).path == nearest / "bin/python"
    assert choose_target(above.parent / "mono").path == project.parents[1] / ".venv/bin/python"


def test_without_git_the_outermost_pyproject_is_the_root_of_the_project(project: Path, tmp_path: Path) -> None:
    (project.parents[1] / ".git").rmdir()
    home = {"HOME": str(tmp_path / "ann")}
    assert project_directories(project, home) == (project, project.parent)
    (project.parents[1] / "pyproject.toml").touch()
    assert project_directories(project, home) == (project, project.parent, project.parents[1])
    (project.parents[2] / "pyproject.toml").touch()
    assert project_directories(project, home)[-1] == project.parents[1], "the home directory counts as a project"
    project.parents[1].chmod(0o777)
    assert project_directories(project, home)[-1] == project.parent, "any user may have created an environment there"


def test_the_projects_venv_is_preferred_to_condas_base_environment(project: Path, tmp_path: Path) -> None:
    base = environment(tmp_path / "conda")
    variables: dict[str, str | Path] = {"CONDA_PREFIX": base, "CONDA_DEFAULT_ENV": "base"}
    path = f"{base}/bin:{tmp_path}/system/bin"
    assert choose_target(project, PATH=path, **variables).why == "conda's base environment"
    venv = environment(project / ".venv")
    assert choose_target(project, PATH=path, **variables).path == venv / "bin/python"


def test_a_relative_uv_environment_is_relative_to_the_workspace(project: Path) -> None:
    (project.parents[1] / "uv.lock").touch()
    synced = environment(project.parents[1] / "env")
    assert choose_target(project, UV_PROJECT_ENVIRONMENT="env").path == synced / "bin/python"
    (project.parents[1] / "uv.lock").unlink()
    (project.parent / "pyproject.toml").unlink()
    assert choose_target(project, UV_PROJECT_ENVIRONMENT="env").why == "python3 on PATH", "uv ignores it without a project"


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT_ENVIRONMENT"])
def test_a_variable_that_names_a_missing_environment_is_an_error(project: Path, variable: str) -> None:
    environment(project / ".venv")
    with pytest.raises(InterpreterError, match=rf"\${variable} \(.*/gone\): this path does not exist"):
        choose_target(project, **{variable: project / "gone"})


def test_a_broken_venv_is_an_error(project: Path) -> None:
    venv = environment(project / ".venv")
    for name in ("python", "python3"):
        (venv / "bin" / name).unlink()
        (venv / "bin" / name).symlink_to("/gone/python3")
    with pytest.raises(InterpreterError, match="is a symlink to /gone/python3, which does not exist"):
        choose_target(project)
    venv.rename(project / "old")
    (project / ".venv").symlink_to("/gone")
    with pytest.raises(InterpreterError, match=r"\.venv of the project .* symlink to /gone"):
        choose_target(project)
    (project / ".venv").unlink()
    (project / ".venv").write_text("a name for pyenv\n")
    assert choose_target(project).why == "python3 on PATH"


def test_a_venv_that_git_tracks_is_not_started(project: Path, git: Git) -> None:
    top = project.parents[1]
    (top / ".git").rmdir()
    git(top, "init", "-q")
    venv = environment(top / ".venv")
    assert choose_target(project).path == venv / "bin/python"
    git(top, "add", "-f", ".venv/bin/python")
    with pytest.raises(InterpreterError, match=r"\.venv of the project .* is part of the git repository") as caught:
        choose_target(project)
    assert caught.value.hint == f"if you trust it, name it: --python {venv}"
    (top / ".git/config").write_text("[core\n")
    with pytest.raises(InterpreterError, match="cannot be read"):
        choose_target(project)
    assert choose(str(venv), {}, project).path == venv / "bin/python"


def test_the_environment_of_repro_env_is_not_chosen(project: Path, tmp_path: Path) -> None:
    own = f"{sys.prefix}/bin"
    uvx = {"UV": "/usr/bin/uv", "PATH": f"{own}:{tmp_path}/system/bin"}
    assert choose_target(project, **uvx).path == tmp_path / "system/bin/python3"
    venv = environment(project / ".venv")
    added = environment(tmp_path / "cache", f"home = /usr/bin\nextends-environment = {venv}\n")
    assert choose_target(project, VIRTUAL_ENV=added, **uvx).path == venv / "bin/python"


def test_a_missing_python_is_an_error(project: Path) -> None:
    with pytest.raises(InterpreterError, match="no python3 on PATH"):
        choose_target(project, PATH="/nowhere")
