"""Which Python the installed command captures, and that `check` and the host runner use the same one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e import parts


@pytest.fixture(scope="module")
def monorepo(ground: Path) -> parts.Project:
    """A project's subdirectory below the top of a git work tree, which has a `.venv` that nobody activated."""
    top = ground / "monorepo"
    python = parts.venv(top / ".venv", own_pip=False)
    (top / ".git").mkdir()
    (top / "pyproject.toml").write_text('[project]\nname = "mono"\nversion = "1"\n')
    made = parts.project(top / "training" / "src", python, ground / "small-store")
    (made.directory / "train.py").write_text("import sys\nprint(sys.prefix)\n")
    return made


def test_an_unactivated_venv_above_is_captured_checked_and_run(monorepo: parts.Project, tmp_path: Path) -> None:
    venv = monorepo.python.parents[1]
    other = parts.venv(tmp_path / "other", own_pip=False).parents[1]
    # Conda's base environment is active, as in most shells of its users; `python` would be its Python.
    base = {"CONDA_PREFIX": str(other), "CONDA_DEFAULT_ENV": "base", "PATH": f"{other}/bin:/usr/bin:/bin"}
    done = monorepo.run("capture", "--json", env=base)
    assert done.err.splitlines()[0] == f"python  {monorepo.python} (.venv of the project)"
    assert json.loads(done.out)["python"] == {"path": str(monorepo.python), "why": ".venv of the project"}

    active = {"VIRTUAL_ENV": str(other)}
    monorepo.run("check", env=active)
    assert monorepo.run("exec", "--runner", "host", "train.py", env=active).out.strip() == str(venv)

    named = monorepo.run("capture", "--data", "/gone", env=active, code=17).err.splitlines()  # which is found out later
    assert named[0] == f"python  {other}/bin/python ($VIRTUAL_ENV)"


def test_a_broken_environment_is_an_error_and_the_next_is_not_tried(monorepo: parts.Project) -> None:
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT_ENVIRONMENT"):
        failed = monorepo.run("capture", code=6, env={variable: "/gone/env"})
        assert f"${variable} (/gone/env): this path does not exist" in failed.err
    near = monorepo.directory / ".venv" / "bin"
    near.mkdir(parents=True)
    (near / "python").symlink_to("/gone/python3")
    failed = monorepo.run("capture", code=6)
    assert f".venv of the project ({near.parent}): the environment is broken: python is a symlink to /gone/python3" in failed.err


def test_the_environment_of_the_command_is_refused_unless_it_is_named(ground: Path) -> None:
    directory = ground / "only-requirements"
    directory.mkdir()
    made = parts.Project(directory, parts.COMMAND.with_name("python3"), ground / "small-store")
    (directory / "requirements.txt").write_text("package-that-is-not-installed>=2\n")
    path = {"PATH": f"{parts.COMMAND.parent}:/usr/bin:/bin"}
    refused = made.run("capture", env=path, code=6).err
    assert f"{made.python}: this is the environment of repro-env itself" in refused
    assert "--python ENV" in refused
    assert not (directory / "repro").exists()

    active = {"VIRTUAL_ENV": str(made.python.parents[1])}
    for words, env in (("--python", str(made.python)), path), ((), active):
        named = made.run("capture", *words, "--data", "/gone", env=env, code=17).err  # which is found out later
        assert named.splitlines()[0].endswith("; repro-env is installed in it)")


def test_a_python_on_path_is_refused_if_it_lacks_what_the_project_requires(ground: Path, tmp_path: Path) -> None:
    python = parts.venv(tmp_path / "found", own_pip=False)
    made = parts.project(tmp_path / "project", python, ground / "small-store")
    (made.directory / "requirements.txt").write_text("package-that-is-not-installed>=2\n")
    refused = made.run("capture", env={"PATH": f"{python.parent}:/usr/bin:/bin"}, code=6).err
    assert "lacks what the project requires: package-that-is-not-installed>=2 (requirements.txt)" in refused
    assert "does not have: package-that-is-not-installed>=2 (requirements.txt)" in made.run("capture", "--python", python).out

    (made.directory / "repro").rename(tmp_path / "repro")
    python.unlink()
    gone = parts.Project(tmp_path, python, ground / "small-store")
    check = gone.run("check", "repro", env={"PATH": f"{parts.COMMAND.parent}:/usr/bin:/bin"}, code=None)
    assert "--python ENV" in check.err
    assert str(parts.COMMAND.parent) not in check.err
