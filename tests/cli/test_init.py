"""`repro-env init`: what is listed, printed, written and never replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from repro_env.cli import app
from repro_env.delivery.builder import remote
from repro_env.delivery.documents.projectfiles import PATHS
from repro_env.schema.errors import UsageError
from tests.api.families import made
from tests.fakes import specs

COMMIT = "OWNER/repro-env@" + "0" * 40


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Git repository with a captured project in a subdirectory, which is the current directory."""
    root = tmp_path / "repository"
    (root / ".git").mkdir(parents=True)
    specs.make(root / "sub dir" / "repro", {})
    monkeypatch.chdir(root / "sub dir")
    return root


def call(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert app.run(["init", *words]) == 0
    return capsys.readouterr().out


def written(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and "repro" not in path.parent.parts)


def test_without_an_option_the_files_are_listed_and_none_is_written(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = written(root)
    lines = call(capsys).splitlines()
    assert [line.split()[0] for line in lines] == ["OPTION", *(f"--{kind}" for kind in PATHS)]
    for line, path in zip(lines[1:], PATHS.values(), strict=True):
        assert str(root / path) in line
    assert "--github requires --exec WORDS, because" in lines[1]
    assert lines[3].endswith("--pre-commit requires --action OWNER/NAME@COMMIT")
    (root / ".gitlab-ci.yml").write_text("test: {script: [make]}\n")
    answer = json.loads(call(capsys, "--json", "--exec", "train.py", "--action", COMMIT))
    assert answer["command"] == "train.py"
    assert [file["state"] for file in answer["files"]][:3] == ["new", "differs", "new"]
    assert written(root) == sorted([*before, ".gitlab-ci.yml"])


def test_the_chosen_files_are_written_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--github", "--gitlab", "--pre-commit", "--slurm", "--exec", "train.py 'a b'", "--action", COMMIT)
    before = written(root)
    printed = call(capsys, "--dry-run", *words)
    assert written(root) == before
    out = call(capsys, *words)
    assert all(f"{root / PATHS[kind]}: written" in out for kind in PATHS if kind != "devcontainer")
    assert written(root) == sorted([*before, *(path for kind, path in PATHS.items() if kind != "devcontainer")])
    assert printed == "".join((root / path).read_text() for kind, path in PATHS.items() if kind != "devcontainer")
    action = yaml.safe_load((root / PATHS["github"]).read_text())["jobs"]["verify"]["steps"][1]
    assert action["with"] == {"working-directory": "./sub dir", "exec": "train.py 'a b'", "verify": "true"}
    assert call(capsys, *words).count(": not changed\n") == 4


def test_a_file_that_differs_is_replaced_only_with_force(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / ".pre-commit-config.yaml").write_text("repos: []\n")
    words = ("--gitlab", "--pre-commit", "--exec", "train.py", "--action", COMMIT)
    with pytest.raises(UsageError, match="this file exists and differs") as caught:
        app.run(["init", *words])
    assert caught.value.where == str(root / ".pre-commit-config.yaml")
    assert (root / ".pre-commit-config.yaml").read_text() == "repos: []\n"
    assert not (root / ".gitlab-ci.yml").exists(), "all files are compared before the first is written"
    call(capsys, "--force", *words)
    assert "repro-env-check" in (root / ".pre-commit-config.yaml").read_text()


def test_the_command_of_the_newest_successful_run_is_used(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="--slurm requires --exec WORDS"):
        app.run(["init", "--slurm"])
    made(root / "sub dir" / "runs", 1, {"w.pt": "first"})
    made(root / "sub dir" / "runs", 2, {}, over=False)
    assert call(capsys, "--slurm", "--dry-run").endswith("\ncd './sub dir' && exec repro-env exec train.py\n")


@pytest.mark.parametrize("words", ["train.py 'x", "--sed 7 train.py", "--seed 7", " "])
def test_words_that_exec_does_not_take_are_refused(root: Path, words: str) -> None:
    with pytest.raises(UsageError):
        app.run(["init", "--slurm", "--exec", words])
    with pytest.raises(UsageError, match="must not contain --runs"):
        app.run(["init", "--slurm", "--exec", "--runs ../runs train.py"])
    assert not (root / PATHS["slurm"]).exists()


def test_a_devcontainer_uses_the_pushed_image(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="neither a Dockerfile nor"):
        app.run(["init", "--devcontainer"])
    digest = f"sha256:{'0' * 64}"
    remote.add(root / "sub dir" / "repro", remote.Copy(repository="r.example.com/team/train", image=digest, spec=digest))
    assert json.loads(call(capsys, "--devcontainer", "--dry-run"))["image"] == f"r.example.com/team/train@{digest}"


def test_nothing_is_written_outside_of_the_repository(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (root / ".github").symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError, match="leads out of the repository"):
        app.run(["init", "--github", "--exec", "train.py", "--action", COMMIT])
    assert not list((tmp_path / "outside").iterdir())


def test_a_project_without_git_gets_the_files_next_to_its_spec(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / ".git").rmdir()
    assert app.run(["init", "--slurm", "--exec", "train.py"]) == 0
    assert (root / "sub dir" / PATHS["slurm"]).is_file()
    assert "next: repro-env capture" in capsys.readouterr().err
