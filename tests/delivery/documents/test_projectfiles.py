"""The files of `repro-env init`: real checkers read them, real shells run them, and hostile names stay names."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from repro_env.delivery.documents.projectfiles import PATHS, Kind, Project, render
from repro_env.schema.errors import UsageError
from repro_env.version import __version__
from tests.delivery.documents.values import NASTY
from tests.fakes import actions

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(sys.executable).parent
ACTION = "OWNER/repro-env@" + "0" * 40
HOSTILE = (
    *NASTY.values(),
    "a'; touch pwned; '",
    '$(touch pwned) `touch pwned` ${HOME} $HOME "',
    "${{ secrets.TOKEN }}",
    "a }} ${{ '${{' }} ${{${{",
    "x: y #z",
    "-x",
    "--force",
    "!!python/object:x",
    "&a *a | > % @",
    '"\n'.strip() + "\\",
    "\\n\\\"\\u0022",
    "déjà vu 😀",
    "yes",
    "",
    "~",
    "$[[ inputs.x ]]",
    "{{ x }} {% raw %}",
    "]]>",
)  # fmt: skip
REFUSED = ("a\nb", "a\rb", "a\0b", "a\x1b[2Jb", "a\x85b", "a\u2028b", "a\u202eb", "a\x7fb", "half \ud800", "a\ufeffb")


def project(argument: str = "two words", directory: str = ".") -> Project:
    spec = "./repro" if directory == "." else f"{directory}/repro"
    command = shlex.join(["train.py", argument])
    return Project(name="train", directory=directory, spec=spec, python="/p/bin/python", command=command, action=ACTION)


def projects() -> list[Project]:
    """Each hostile text as an argument of the command and as a name of a directory."""
    names = [text for text in HOSTILE if text and "/" not in text]
    return [project(), *map(project, HOSTILE), *(project(directory=f"./{name}") for name in names)]


def parsed(kind: Kind, value: Project) -> Any:
    return yaml.safe_load(render(kind, value))


def words(value: Project) -> list[str]:
    return shlex.split(value.command)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a `repro-env` that prints its directory and its arguments, and fails for `ci`."""
    directory = tmp_path_factory.mktemp("programs")
    (directory / "repro-env").write_text('#!/bin/sh\npwd\nprintf \'%s\\0\' "$@"\n[ "$1" != ci ]\n')
    (directory / "repro-env").chmod(0o755)
    return directory


def calls(script: str, tmp_path: Path, programs: Path, name: str, code: int = 0) -> list[tuple[str, list[str]]]:
    """Each call of repro-env in a script: its directory relative to the repository, and its arguments."""
    (tmp_path / name / "runs").mkdir(parents=True, exist_ok=True)
    env = {"PATH": f"{programs}:/usr/bin:/bin", "CI_PROJECT_DIR": "/top", "CDPATH": "/"}
    done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    assert not list(tmp_path.rglob("pwned"))
    found = []
    for call in done.stdout.split(f"{tmp_path}")[1:]:
        directory, _, arguments = call.partition("\n")
        found.append((f".{directory}", arguments.split("\0")[:-1]))
    return found


def test_a_workflow_runs_the_command_in_the_directory() -> None:
    for value in projects():
        jobs = parsed("github", value)["jobs"]
        (check,) = (step for step in jobs["check"]["steps"] if step["uses"] == ACTION)
        action, report, due, _ = jobs["verify"]["steps"][1:]
        assert action["uses"] == ACTION
        inputs = {name: actions._text(text, {}) for name, text in action["with"].items()}
        assert shlex.split(inputs.pop("exec")) == words(value)
        assert inputs == {"working-directory": value.directory, "verify": "true"}
        assert actions._text(check["with"]["working-directory"], {}) == value.directory
        for step in (report, due):
            assert actions._text(step["working-directory"], {}) == value.directory
            assert "${{" not in step["run"]


def test_workflows_and_pipelines_keep_the_schemas_and_the_rules_of_security(tmp_path: Path) -> None:
    paths: dict[str, list[Path]] = {"github": [], "gitlab": []}
    (tmp_path / ".github" / "workflows").mkdir(parents=True)
    for number, value in enumerate(projects()):
        for kind, name in (("github", f".github/workflows/{number}.yml"), ("gitlab", f"{number}.yml")):
            (tmp_path / name).write_bytes(render(kind, value))  # type: ignore[arg-type]
            paths[kind].append(tmp_path / name)
    check, zizmor = PROGRAMS / "check-jsonschema", PROGRAMS / "zizmor"
    for command in (
        [check, "--builtin-schema", "vendor.github-workflows", *paths["github"]],
        [check, "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci", *paths["gitlab"]],
        [zizmor, "--offline", "--no-config", "--pedantic", "--strict-collection", *paths["github"]],
    ):
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_actions_of_a_workflow_are_those_that_we_use_ourselves() -> None:
    own = "".join(path.read_text() for path in (ROOT / ".github" / "workflows").iterdir())
    text = render("github", project()).decode()
    used = [line.partition("uses: ")[2] for line in text.splitlines() if "uses: actions/" in line]
    assert used
    assert [name for name in used if f"uses: {name}\n" not in own] == []
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    assert yaml.safe_load(text)["jobs"]["verify"]["steps"][1]["with"].keys() <= inputs.keys()


def test_a_pipeline_runs_the_command_and_reports_in_the_directory(tmp_path: Path, programs: Path) -> None:
    (programs / "bin").mkdir(exist_ok=True)
    (programs / "bin" / "repro-env").unlink(missing_ok=True)
    (programs / "bin" / "repro-env").symlink_to(programs / "repro-env")
    junit = ["--junit", "/top/repro-env-junit.xml"]
    for value in projects():
        jobs = parsed("gitlab", value)
        first, second, install, change = jobs[".repro-env"]["before_script"]
        assert (first, second) == ("venv=$(mktemp -d)", 'python3 -m venv "$venv"')
        assert install == f'"$venv/bin/pip" install --quiet repro-env=={__version__}'
        start = [f"venv={programs}", change]
        check = calls("\n".join([*start, *jobs["repro-env-check"]["script"]]), tmp_path, programs, value.directory, 1)
        place = value.directory if value.directory != "." else "."
        assert check == [(place, ["ci", *junit])]
        verify = calls("\n".join([*start, *jobs["repro-env-verify"]["script"]]), tmp_path, programs, value.directory, 1)
        (ci, ci_words), (site, site_words) = verify
        assert (ci, site) == (place, place)
        assert ci_words[:-1] == ["ci", *junit, "--verify", "--exec"]
        assert shlex.split(ci_words[-1]) == words(value)
        assert site_words == ["report", "/top/repro-env-site"]


def test_a_script_for_sbatch_runs_the_command_in_the_directory(tmp_path: Path, programs: Path) -> None:
    for value in projects():
        script = render("slurm", value).decode()
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        output = 'exec >"../repro-env-$SLURM_JOB_ID.out" 2>&1 || exit\n'
        assert output in script
        found = calls(script.replace(output, ""), tmp_path, programs, value.directory)
        assert found == [(value.directory, ["exec", *words(value)])]
        lines = script.splitlines()
        assert lines[0] == "#!/bin/bash"
        assert [line for line in lines if line.startswith("#SBATCH")] == [
            "#SBATCH --job-name=repro-env",
            "#SBATCH --output=/dev/null",
        ]
        assert len(lines) == 7


def test_a_devcontainer_has_the_pushed_image_or_else_the_dockerfile() -> None:
    for value in projects():
        value = msgspec.structs.replace(value, name=value.directory)
        if "${" in value.directory + value.command:
            with pytest.raises(UsageError, match="cannot contain"):
                render("devcontainer", value)
            continue
        build = json.loads(render("devcontainer", value))
        vscode = {"extensions": ["ms-python.python"], "settings": {"python.defaultInterpreterPath": "/p/bin/python"}}
        context = f"../{value.spec.removeprefix('./')}"
        assert build == {
            "name": value.directory,
            "build": {"dockerfile": f"{context}/Dockerfile", "context": context},
            "customizations": {"vscode": vscode},
        }
    image = f"registry.example.com/team/train@sha256:{'0' * 64}"
    pushed = json.loads(render("devcontainer", msgspec.structs.replace(project(), image=image, has_dockerfile=False)))
    assert pushed["image"] == image
    assert "build" not in pushed
    with pytest.raises(UsageError, match="neither a Dockerfile nor"):
        render("devcontainer", msgspec.structs.replace(project(), has_dockerfile=False))


def test_pre_commit_uses_the_hook_of_this_repository() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"] == "repro-env check --project"
    assert (hook["language"], hook["pass_filenames"], hook["always_run"]) == ("python", False, True)
    for value in projects():
        (repository,) = parsed("pre-commit", value)["repos"]
        assert repository["repo"] == "https://github.com/OWNER/repro-env"
        assert repository["rev"] == "0" * 40
        assert repository["hooks"] == [{"id": hook["id"], "args": [value.spec]}]


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("text", REFUSED)
def test_a_name_that_is_not_printable_is_refused(kind: Kind, text: str) -> None:
    for value in (project(text), project(directory=f"./{text}")):
        with pytest.raises(UsageError, match="cannot contain this name or command"):
            render(kind, value)


@pytest.mark.parametrize(
    "text", ["", "OWNER", "OWNER/x", "OWNER/x@", "a/b@c d", "a/b@c\nx: y", "a/b@${{ x }}", "-a/b@c", "a/b/c@d", "a/b@c #"]
)
def test_an_action_that_is_not_a_repository_with_a_commit_is_refused(text: str) -> None:
    for kind in ("github", "pre-commit"):
        with pytest.raises(UsageError, match="requires --action OWNER/NAME@COMMIT"):
            render(kind, msgspec.structs.replace(project(), action=text))


def test_a_command_is_required_where_one_runs() -> None:
    value = msgspec.structs.replace(project(), command="")
    for kind in ("github", "gitlab", "slurm"):
        with pytest.raises(UsageError, match=f"--{kind} requires --exec WORDS"):
            render(kind, value)
    assert render("pre-commit", value)
    assert render("devcontainer", value)
