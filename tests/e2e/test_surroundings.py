"""What a program asks of its surroundings, through the command: variables, configuration in the home directory, git."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts

CODE = """\
import json, os, subprocess, sys
def git(*words):
    done = subprocess.run(["git", *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "fails"
home = {}
for directory, _, names in os.walk(os.path.expanduser("~")):
    for name in names:
        path = os.path.join(directory, name)
        home[os.path.relpath(path, os.path.expanduser("~"))] = open(path).read()
print(json.dumps({
    "variables": {name: os.environ[name] for name in sys.argv[1:] if name in os.environ},
    "home": home,
    "describe": git("describe", "--tags", "--dirty", "--long"),
    "status": git("status", "--porcelain", "--untracked-files=no"),
    "clean": subprocess.run(["git", "diff-index", "--quiet", "HEAD"]).returncode == 0,
    "head": git("rev-parse", "HEAD"),
    "config": git("config", "--list"),
    "visible": sorted(os.listdir(".git")) if os.path.isdir(".git") else [],
    "writable": os.access(".git/objects", os.W_OK) if os.path.isdir(".git") else False,
}))
open("result.txt", "w").write("done")
"""
KERAS = '{"backend": "torch"}'
CAPTURED = {
    "KERAS_BACKEND": "torch",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
    "ACCELERATE_MIXED_PRECISION": "bf16",
    "PL_GLOBAL_SEED": "3",
    "TORCHDYNAMO_DISABLE": "1",
    "TRITON_INTERPRET": "1",
    "SCIPY_ARRAY_API": "1",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "MY_FLAG": "yes",
}
OTHERS = {"TF_VAR_dbpw": "hunter2x", "CODE_READS": "1", "SOME_SERVICE_KEY": "k-123456"}


def git(directory: Path, *words: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *settings, *words], cwd=directory, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def made(ground: Path) -> parts.Project:
    """A repository with a tag, a venv with a library that reads the home directory, and a captured `repro/` that is committed."""
    directory = ground / "surroundings" / "project"
    python = parts.venv(directory / ".venv", own_pip=False)
    (site,) = (directory / ".venv" / "lib").glob("python*/site-packages")
    (site / "keras-0.0.1.dist-info").mkdir()
    (site / "keras-0.0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: keras\nVersion: 0.0.1\n")
    home = directory.parent / "home"
    for path, text in ((".keras/keras.json", KERAS), (".config/matplotlib/matplotlibrc", "lines.linewidth: 9\n")):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    (directory / "ask.py").write_text(CODE + "os.environ.get('CODE_READS')\n")
    (directory / ".gitignore").write_text(".venv/\nrepro/blobs/\nruns/\n")
    git(directory, "init", "--quiet")
    git(directory, "remote", "add", "origin", "https://me:hidden-word-9@example.org/x.git")
    git(directory, "config", "filter.evil.clean", f"touch {directory.parent}/ran")
    git(directory, "add", ".")
    git(directory, "commit", "--quiet", "-m", "one")
    git(directory, "tag", "v1.0")
    return parts.project(directory, python, ground / "shared-store")


@pytest.fixture(scope="module")
def captured(made: parts.Project) -> dict[str, Any]:
    env = {"HOME": str(made.directory.parent / "home"), "PIP_NO_INDEX": "1", **CAPTURED, **OTHERS}
    words = ("capture", "--python", made.python, "--with", "git", "--env", "MY_FLAG")
    out = made.run(*words, env=env).out
    git(made.directory, "add", ".")
    git(made.directory, "commit", "--quiet", "-m", "two")
    made.rebuild()
    return {"out": out, "spec": json.loads((made.directory / "repro" / "spec.json").read_text())}


def facts_of_a_run(project: parts.Project, *words: str, env: dict[str, str]) -> tuple[dict[str, Any], str]:
    done = project.run("exec", "-v", *words, "ask.py", *CAPTURED, *OTHERS, env=env)
    answer = json.loads(done.out)
    assert isinstance(answer, dict)
    return answer, done.err


def test_variables_that_change_numbers_are_captured_and_the_others_named(captured: dict[str, Any]) -> None:
    held = captured["spec"]["observed"]["variables"]
    assert {entry["name"]: entry["value"] for entry in held["replayed"]}.items() >= CAPTURED.items()
    assert held["added"] == ["MY_FLAG"]
    assert {"TF_VAR_dbpw", "CODE_READS"} <= set(captured["spec"]["observed"]["variables"]["named"])
    assert "left out as secrets: SOME_SERVICE_KEY (exec --env NAME" in captured["out"]
    assert "hunter2x" not in captured["out"] + json.dumps(captured["spec"])


def test_a_run_has_what_was_captured_of_its_surroundings(made: parts.Project, captured: dict[str, Any], tmp_path: Path) -> None:
    other = {"HOME": str(tmp_path), "KERAS_BACKEND": "jax", "MY_FLAG": "no", "TORCH_LOGS": "dynamo", "OMP_NUM_THREADS": "3"}
    result, output = facts_of_a_run(made, env=other)
    assert result["variables"] == CAPTURED
    unused = re.search(r"ignored, because the run takes these variables from the spec: (.*) \(to use yours: --env NAME", output)
    assert unused
    # More can be set on the machine that runs the tests.
    assert set(other) - {"HOME"} <= set(unused[1].split(", "))
    assert result["home"] == {".keras/keras.json": KERAS}
    assert "~/.keras/keras.json" in captured["out"]
    assert result["head"] == git(made.directory, "rev-parse", "HEAD").strip()
    assert result["clean"]
    assert (result["describe"], result["status"]) == (f"v1.0-1-g{result['head'][:7]}", "")
    assert "origin" not in result["config"]
    assert "evil" not in result["config"]
    assert not {"hooks", "logs", "FETCH_HEAD"} & set(result["visible"])
    assert not result["writable"] or os.geteuid() == 0
    assert not (made.directory.parent / "ran").exists()
    (run,) = (made.directory / "runs").glob("2*")
    assert [path.name for path in (run / "files").iterdir()] == ["result.txt"]


def test_git_in_a_run_reports_an_edit_as_dirty_and_a_frozen_run_names_what_is_missing(
    made: parts.Project, captured: dict[str, Any], tmp_path: Path
) -> None:
    assert captured
    (made.directory / ".gitignore").write_text(".venv/\nrepro/blobs/\nruns/\n*.tmp\n")
    try:
        result, _ = facts_of_a_run(made, env={"HOME": str(tmp_path)})
        assert result["describe"].endswith("-dirty")
        assert result["status"] == "M .gitignore"
    finally:
        git(made.directory, "checkout", "--quiet", ".gitignore")
    result, output = facts_of_a_run(made, "--frozen", env={"HOME": str(tmp_path)})
    assert (result["describe"], result["visible"]) == ("fails", [])
    assert "git in the run does not see the repository: the run uses the captured source" in output


def test_the_host_runner_has_the_same_variables_and_names_what_else_passes(made: parts.Project, captured: dict[str, Any]) -> None:
    assert captured
    home = {"HOME": str(made.directory.parent / "home"), "PIP_NO_INDEX": "1"}
    result, output = facts_of_a_run(made, "--runner", "host", env={**home, "KERAS_BACKEND": "jax", "CODE_READS": "1"})
    assert result["variables"] == {**CAPTURED, "CODE_READS": "1"}
    assert "ignored, because the run takes these variables from the spec: KERAS_BACKEND (" in output
    assert "variables that the command gets from the host, but not in runs in the image: " in output
    assert "CODE_READS" in json.loads(made.run("runs", "show", "latest", "--json").out)["start"]["host_env"]


def test_capture_refuses_a_secret_variable(made: parts.Project) -> None:
    words = ("capture", "--python", made.python, "--env", "SOME_SERVICE_KEY")
    assert "looks like a secret" in parts.one_sentence(made.run(*words, env={"SOME_SERVICE_KEY": "k-123456"}, code=2))
