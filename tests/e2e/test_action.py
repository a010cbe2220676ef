"""The GitHub Action, without GitHub: its real `run:` lines on clones of a captured project, and what they leave to be read."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from repro_env.io.files import remove_tree
from tests.e2e import parts
from tests.e2e.parts import COMMAND, ROOT
from tests.fakes import actions
from tests.fakes.actions import Runner
from tests.fakes.authority import Authority
from tests.fakes.index import Index
from tests.registries import registry

PACKAGES = ("packaging==26.3", "mdurl==0.1.2")
TRAIN = """\
import json, pathlib, random, sys
import packaging
random.seed(0)
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out/metrics.json").write_text(json.dumps({"loss": random.random()}))
print(sys.argv[1:])
print("::error title=from the training::and not from us")
"""


class Captured(NamedTuple):
    repository: Path
    """A Git repository; `git clone` gives the code and repro/ without its blobs."""
    blobs: Path
    reference: str
    """In the registry that its repro/remote.json names."""
    spec_digest: str
    image_id: str
    wheels: Path
    ground: Path


def git(folder: Path, *words: str) -> None:
    user = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-c", "init.defaultBranch=main", "-c", "safe.directory=*"]
    subprocess.run(["git", *user, "-C", str(folder), *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Captured]:
    """Captured and pushed on one machine, whose directories are gone then."""
    ground = tmp_path_factory.mktemp("action")
    wheels, folder = ground / "wheels", ground / "ann" / "project"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "download", "-qq", "--no-deps", "--only-binary", ":all:", "-d", str(wheels), *PACKAGES], check=True)
    python = parts.venv(folder / ".venv", *wheels.glob("*.whl"), own_pip=False, pip=["--no-index", "--no-deps"])
    project = parts.project(folder, python, ground / "ann-store")
    (folder / "train.py").write_text(TRAIN)
    (folder / "requirements.txt").write_text("packaging==26.3\nmdurl==0.1.2\n")
    (folder / ".gitignore").write_text(".venv/\nruns/\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "Train")
    with Index(wheels) as index:
        env = {"PIP_INDEX_URL": "http://index.test/simple", "PIP_TRUSTED_HOST": "index.test", "PIP_PROXY": index.proxy}
        caches = {"PIP_CACHE_DIR": str(ground / "pip"), "UV_CACHE_DIR": str(ground / "uv"), "PIP_CONFIG_FILE": os.devnull}
        answer = project.capture(env={**env, **caches, "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""})
    assert answer["carried"] == []
    with registry(ground / "registry") as host:
        reference = f"{host}/team/train:1"
        project.run("push", reference)
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "Capture")
        (folder / "repro" / "blobs").rename(ground / "blobs")
        repository = ground / "repository"
        folder.rename(repository)
        remove_tree(project.store)
        yield Captured(
            repository, ground / "blobs", reference, answer["spec_digest"], answer["image_id"], wheels, ground
        )


@pytest.fixture
def runner(captured: Captured, tmp_path: Path) -> Iterator[Runner]:
    """A fresh machine with a fresh clone, and repro-env installed as the Action's own line does it."""
    workspace, temp = tmp_path / "work" / "project", tmp_path / "temp"
    git(tmp_path, "clone", "-q", str(captured.repository), str(workspace))
    assert not (workspace / "repro" / "blobs").exists()
    environ = actions.environ(tmp_path / "home", {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""})
    install(temp / "repro-env", environ)
    yield Runner(ROOT, workspace, temp, tmp_path / "cache", environ)
    remove_tree(tmp_path / "home")


def install(folder: Path, environ: dict[str, str]) -> None:
    """What the Action's first step makes in a minute, so that it finds nothing to do: the command and the stamp of the lock file."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "repro-env").symlink_to(COMMAND)
    lock = parts.lock("tool").relative_to(ROOT)
    stamp = f"""
        stamp=$(python3 -c 'import sys; print(sys.version, sys.executable)' && cat {lock} lockfiles/venv.sh)
        printf '%s\\n' "$stamp $(pwd) $(cat pyproject.toml)" >"$0/stamp" """
    subprocess.run(["bash", "-c", stamp, str(folder)], cwd=ROOT, env=environ, check=True)


def change(runner: Runner, name: str, text: str) -> None:
    (runner.workspace / name).write_text(text)


@pytest.mark.index
def test_a_clone_without_blobs_is_green_and_its_next_job_finds_the_image_in_the_cache(captured: Captured, runner: Runner) -> None:
    pushed = captured.reference.replace(":1", ":2")
    job = runner.run(exec="train.py 'two words' \"$(touch /tmp/x)\" `id`", verify="true", push=pushed)
    assert job.good, job.log
    assert "['two words', '$(touch', '/tmp/x)', '`id`']" in job.log or "['two words', '$(touch /tmp/x)', '`id`']" in job.log
    name = captured.reference.rpartition(":")[0]
    assert (job.outputs["spec-digest"], job.outputs["image-id"]) == (captured.spec_digest, captured.image_id)
    assert re.fullmatch(rf"{name}@sha256:[0-9a-f]{{64}}", job.outputs["image-ref"])
    assert job.outputs["verdict"] == "bitwise"
    assert "<h3>repro-env: bitwise</h3>" in job.summary
    assert captured.image_id in job.summary
    assert job.commands == [], "what the training prints is no command to GitHub"
    assert (job.steps["Allow user namespaces"], job.steps["Save the store"]) == ("skipped", "success")
    remove_tree(Path(runner.environ["HOME"], ".cache"))
    (runner.workspace / "repro" / "remote.json").unlink()
    again = runner.run()
    assert again.good, again.log
    assert again.outputs["verdict"] == "rebuilt"
    assert again.steps["Save the store"] == "skipped", "it was there"


@pytest.mark.index
def test_what_is_missing_in_a_clone_is_said_with_what_to_do(captured: Captured, runner: Runner) -> None:
    (runner.workspace / "repro" / "remote.json").unlink()
    job = runner.run(cache="false")
    assert not job.good
    assert (job.outputs["verdict"], job.outputs["image-id"]) == ("error", captured.image_id)
    (command,) = job.commands
    assert command.name == "error"
    assert "the base is not there" in command.message
    assert "commit the remote.json that `repro-env push` writes there" in job.summary


@pytest.mark.index
def test_one_changed_package_is_red_at_its_file(captured: Captured, runner: Runner) -> None:
    change(runner, "requirements.txt", "packaging==26.2\nmdurl==0.1.2\n")
    job = runner.run(exec="train.py")
    assert not job.good
    assert job.outputs["verdict"] == "drifted"
    assert job.steps["Save the store"] == "skipped"
    assert len(job.commands) == 2, job.commands
    first, last = job.commands
    assert first.properties == {"file": "requirements.txt", "title": "repro-env: drifted"}
    assert "says what the project needs" in first.message
    assert "repro-env capture" in last.message
    assert "<td>requirements.txt</td>" in job.summary
    assert "['" not in job.log, "nothing ran"


HOSTILE = (
    "a\n::error title=theirs::x.py",
    "b##[error]theirs.py",
    "%0A::error title=theirs::c.py",
    "d,title=theirs::x.py",
    "</td></table><img src=x>|`e`.py",
    "\x1b]0;theirs\x07.py",
)


@pytest.mark.index
def test_names_of_a_repository_are_no_commands_and_no_markup(captured: Captured, runner: Runner) -> None:
    for name in HOSTILE:
        change(runner, name, "pass\n")
    job = runner.run()
    assert not job.good
    assert job.outputs["verdict"] == "drifted"
    assert {command.properties["title"] for command in job.commands} == {"repro-env: drifted"}
    assert {command.name for command in job.commands} == {"error"}
    assert len(job.commands) == len(HOSTILE) + 1
    assert {command.properties.get("file", "") for command in job.commands} >= {"d,title=theirs::x.py", "b##[error]theirs.py"}
    assert "<img" not in job.summary
    assert "&lt;/td&gt;&lt;/table&gt;&lt;img src=x&gt;|`e`.py" in job.summary
    assert "\n\n" not in job.summary.strip(), "an empty line ends the HTML, and Markdown begins"
    assert "\x1b" not in job.summary + job.log
    assert job.summary.count("<tr>") == len(HOSTILE) + 3


INPUTS = {
    "a dash first": {"spec": "--project"},
    "code": {"spec": "$(touch pwned)`touch pwned`; touch pwned"},
    "an output": {"spec": "x\nverdict=bitwise\n::set-output name=verdict::bitwise"},
    "an open quote": {"exec": "train.py 'x"},
    "an option alone": {"exec": "--network"},
    "no word": {"check": "perhaps"},
    "no name of an image": {"push": "--help", "check": "false"},
}


@pytest.mark.index
@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
def test_hostile_inputs_are_refused_as_values(inputs: dict[str, str], runner: Runner) -> None:
    before = sorted(runner.workspace.iterdir())
    job = runner.run(**inputs, cache="false")
    assert not job.good
    assert job.outputs["verdict"] == "error"
    assert job.outputs["image-ref"] == ""
    assert "Traceback" not in job.log
    assert {command.name for command in job.commands} <= {"error"}
    assert sorted(runner.workspace.iterdir()) == before
