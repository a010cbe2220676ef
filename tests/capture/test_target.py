"""Which Python is captured, why, and which others could have been meant."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from repro_env.capture.target import Target, choose, project_directories
from repro_env.model.errors import InterpreterError
from tests.capture.conftest import Git


def environment(folder: Path, settings: str = "home = /usr/bin\n") -> Path:
    """The look of a virtual environment: `choose` starts nothing."""
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (folder / "bin" / name).write_text("#!/bin/sh\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / "pyvenv.cfg").write_text(settings)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory two levels below the top of a git work tree, with a `pyproject.toml` above it, and `python3` on PATH."""
    environment(tmp_path / "system")
    source = tmp_path / "ann" / "mono" / "pkg" / "src"
    source.mkdir(parents=True)
    (source.parents[1] / ".git").mkdir()
    (source.parent / "pyproject.toml").touch()
    return source


def chosen(source: Path, **variables: str | Path) -> Target:
    home = next(path for path in source.parents if path.name == "ann")
    plain = {"PATH": f"{home.parent}/system/bin", "HOME": str(home)}
    return choose(None, {**plain, **{name: str(value) for name, value in variables.items()}}, source)


def test_the_first_environment_in_the_order_is_the_target_and_others_are_named(project: Path, tmp_path: Path) -> None:
    names = ("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT_ENVIRONMENT")
    variables = {name: environment(tmp_path / name) for name in names}
    venv = environment(project.parents[1] / ".venv")
    while variables:
        (name, path), *others = variables.items()
        found = chosen(project, CONDA_DEFAULT_ENV="training", **variables)
        assert (found.why, found.path, found.explicit, found.venv) == (f"${name}", path / "bin/python", True, path)
        assert [note.partition(" (")[0] for note in found.notes] == [
            *(f"${other}" for other, _ in others),
            ".venv of the project",
        ]
        del variables[name]
    found = chosen(project)
    assert (found.why, found.path, found.explicit, found.notes) == (".venv of the project", venv / "bin/python", False, ())
    found = choose(str(tmp_path / "system"), {"VIRTUAL_ENV": str(venv)}, project)
    assert (found.path, found.notes) == (tmp_path / "system/bin/python", ())
    venv.rename(venv.with_name("env"))
    assert chosen(project).path == tmp_path / "system/bin/python3"


def test_the_nearest_venv_is_taken_and_none_above_the_project(project: Path) -> None:
    above = environment(project.parents[2] / ".venv")
    assert chosen(project).why == "python3 on PATH"
    environment(project.parents[1] / ".venv")
    near = environment(project.parent / ".venv")
    assert chosen(project).path == near / "bin/python"
    assert chosen(above.parent / "mono").path == project.parents[1] / ".venv/bin/python"


def test_without_git_the_project_ends_at_its_outermost_pyproject(project: Path, tmp_path: Path) -> None:
    (project.parents[1] / ".git").rmdir()
    home = {"HOME": str(tmp_path / "ann")}
    assert project_directories(project, home) == (project, project.parent)
    (project.parents[1] / "pyproject.toml").touch()
    assert project_directories(project, home) == (project, project.parent, project.parents[1])
    (project.parents[2] / "pyproject.toml").touch()
    assert project_directories(project, home)[-1] == project.parents[1], "the home directory is no project"
    project.parents[1].chmod(0o777)
    assert project_directories(project, home)[-1] == project.parent, "anybody may have put an environment there"


def test_conda_base_gives_way_to_the_projects_venv_and_is_named(project: Path, tmp_path: Path) -> None:
    base = environment(tmp_path / "conda")
    variables: dict[str, str | Path] = {"CONDA_PREFIX": base, "CONDA_DEFAULT_ENV": "base"}
    path = f"{base}/bin:{tmp_path}/system/bin"
    assert chosen(project, PATH=path, **variables).why == "conda's base environment"
    venv = environment(project / ".venv")
    found = chosen(project, PATH=path, **variables)
    assert found.path == venv / "bin/python"
    (note,) = found.notes
    assert note.startswith(f"conda's base environment ({base}) is active")
    assert note.endswith(f"--python {base}")
    activated = f"{venv}/bin:{path}"
    assert chosen(project, PATH=activated, VIRTUAL_ENV=venv, **variables).notes == ()


def test_two_names_of_one_environment_do_not_disagree(project: Path, tmp_path: Path) -> None:
    venv = environment(tmp_path / "kept-elsewhere")
    (project / ".venv").symlink_to(venv)
    assert chosen(project, VIRTUAL_ENV=venv).notes == ()


def test_a_relative_uv_environment_starts_at_the_workspace(project: Path) -> None:
    (project.parents[1] / "uv.lock").touch()
    synced = environment(project.parents[1] / "env")
    assert chosen(project, UV_PROJECT_ENVIRONMENT="env").path == synced / "bin/python"
    (project.parents[1] / "uv.lock").unlink()
    (project.parent / "pyproject.toml").unlink()
    assert chosen(project, UV_PROJECT_ENVIRONMENT="env").why == "python3 on PATH", "uv ignores it without a project"


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT_ENVIRONMENT"])
def test_a_variable_that_leads_nowhere_is_an_error(project: Path, variable: str) -> None:
    environment(project / ".venv")
    with pytest.raises(InterpreterError, match=rf"\${variable} \(.*/gone\): there is no such file or directory"):
        chosen(project, **{variable: project / "gone"})


def test_a_broken_venv_is_an_error_and_not_skipped(project: Path) -> None:
    venv = environment(project / ".venv")
    for name in ("python", "python3"):
        (venv / "bin" / name).unlink()
        (venv / "bin" / name).symlink_to("/gone/python3")
    with pytest.raises(InterpreterError, match="points to /gone/python3, which is gone"):
        chosen(project)
    venv.rename(project / "old")
    (project / ".venv").symlink_to("/gone")
    with pytest.raises(InterpreterError, match=r"\.venv of the project .* symlink to /gone"):
        chosen(project)
    (project / ".venv").unlink()
    (project / ".venv").write_text("a name for pyenv\n")
    assert chosen(project).why == "python3 on PATH"


def test_a_venv_that_came_with_a_clone_is_not_started(project: Path, git: Git) -> None:
    top = project.parents[1]
    (top / ".git").rmdir()
    git(top, "init", "-q")
    venv = environment(top / ".venv")
    assert chosen(project).path == venv / "bin/python"
    git(top, "add", "-f", ".venv/bin/python")
    with pytest.raises(InterpreterError, match=r"\.venv of the project .* is a part of the git repository") as caught:
        chosen(project)
    assert caught.value.hint == f"if you trust it, name it: --python {venv}"
    (top / ".git/config").write_text("[core\n")
    with pytest.raises(InterpreterError, match="cannot be read"):
        chosen(project)
    assert choose(str(venv), {}, project).path == venv / "bin/python"


def test_the_environment_of_the_tool_is_not_the_target(project: Path, tmp_path: Path) -> None:
    own = f"{sys.prefix}/bin"
    uvx = {"UV": "/usr/bin/uv", "PATH": f"{own}:{tmp_path}/system/bin"}
    found = chosen(project, **uvx)
    assert found.path == tmp_path / "system/bin/python3"
    assert "repro-env's own" in found.notes[0]
    venv = environment(project / ".venv")
    added = environment(tmp_path / "cache", f"home = /usr/bin\nextends-environment = {venv}\n")
    found = chosen(project, VIRTUAL_ENV=added, **uvx)
    assert (found.path, len(found.notes)) == (venv / "bin/python", 1)


def test_no_python_anywhere(project: Path) -> None:
    with pytest.raises(InterpreterError, match="no python3 on PATH"):
        chosen(project, PATH="/nowhere")
