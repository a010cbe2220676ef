"""Every `docker run` and `docker build` line of the docs and of the command's own hints, run as it stands."""

from __future__ import annotations

import json
import os
import pty
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts
from tests.parts import need
from tests.sandbox import engines

IMAGE = f"repro-env-test-lines-{secrets.token_hex(4)}:v1"
STAGES: list[str] = []
"""Images without a name that the classic builder made on the way."""
DOCS = [parts.ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")]
DOCS += [*sorted((parts.ROOT / "docs").glob("*.md")), *sorted((parts.ROOT / "examples").rglob("*.md"))]
SOURCES = [*sorted((parts.ROOT / "repro_env").rglob("*.py")), *sorted((parts.ROOT / "templates").rglob("*.*"))]
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^(?:docker|podman) (?:run|build)\b.*", re.MULTILINE)
INLINE = re.compile(r"`(?:docker|podman) (?:run|build) [^`]+`")
HINT = re.compile(r"\b(?:docker|podman) (?:run|build)(?: (?:-[\w-]+|\{[\w.]+\}|[\w.]+)(?=[ ;\"\n]))+")
TRAIN = """
import getpass, json, os, sys, tempfile
import helper, packaging
with open(os.path.expanduser("~/settings"), "w"), tempfile.TemporaryFile():
    pass
try:
    import only_on_the_host
except ImportError:
    only_on_the_host = None
print(json.dumps({"uid": os.getuid(), "user": getpass.getuser(), "python": sys.executable, "cwd": os.getcwd(),
    "helper": helper.__file__, "packaging": packaging.__file__, "host": bool(only_on_the_host)}))
"""


def lines_of_docs() -> list[str]:
    return [line for path in DOCS for block in FENCE.findall(path.read_text()) for line in LINE.findall(block)]


def hints() -> list[str]:
    """What the command prints and writes: `{...}` stands for the name of an image."""
    return [line for path in SOURCES for line in HINT.findall(path.read_text())]


def named(line: str) -> str:
    """The line with the name of the test's image and without its comment, and nothing else changed."""
    line = re.sub(r"\s+#.*", "", line)
    line = re.sub(r"\{[\w.]+\}|registry\.example\.com/team/train:v1", IMAGE, line)
    place = r"(?<=--tag )train\b" if " build " in line else r"(?<= )train(?= python|$)"
    return re.sub(place, IMAGE, line)


@pytest.fixture(scope="module")
def project(small: parts.Project) -> Iterator[parts.Project]:
    """A project with its `.venv` and an editable install, captured; not below /tmp, which lines of the docs cover."""
    need(shutil.which("docker") and engines.answers(), "a Docker engine: apt-get install docker.io, and dockerd running")
    with tempfile.TemporaryDirectory(prefix="repro-env-test-", dir="/var/tmp") as made:
        directory = Path(made) / "project"
        python = parts.venv(directory / ".venv", "packaging==26.3", own_pip=False)
        (site,) = (directory / ".venv" / "lib").glob("python*/site-packages")
        (directory / "src").mkdir()
        (directory / "src" / "helper.py").touch()
        (directory / "train.py").write_text(TRAIN)
        (site / "project.pth").write_text(f"{directory}/src\n")  # as an editable install leaves it
        captured = parts.project(directory, python, small.store)
        captured.capture()
        captured.run("pack", "repro", directory.parent / "train.pack", "--all")
        shutil.rmtree(directory / "repro")
        (directory / "repro").mkdir()
        subprocess.run(["tar", "-xf", directory.parent / "train.pack", "-C", directory / "repro"], check=True)
        shutil.copytree(directory / "repro", directory / "train")
        (site / "only_on_the_host.py").touch()
        yield captured
        subprocess.run(["docker", "rmi", "--force", IMAGE, f"{IMAGE}-user"], capture_output=True, check=False)
        subprocess.run(["docker", "rmi", *reversed(STAGES)], capture_output=True, check=False)


def run(line: str, directory: Path) -> str:
    """Run a line in bash, in the project; with a terminal if it asks for one. What it printed."""
    env = {**os.environ, "DOCKER_BUILDKIT": "0"}
    if " -it " in line:
        return in_terminal(line, directory, env)
    done = subprocess.run(
        ["bash", "-ceu", line], cwd=directory, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def in_terminal(line: str, directory: Path, env: dict[str, str]) -> str:
    """Run a line that waits for input: end it at its prompt, as a user would with Ctrl-D."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(["bash", "-ceu", line], cwd=directory, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as started:
        os.close(theirs)
        printed = b""
        try:
            while chunk := os.read(ours, 4096):
                printed += chunk
                if printed.rstrip(b"\x1b[?2004h ").endswith((b">>>", b"#", b"$")):
                    os.write(ours, b"\x04")
        except OSError:  # the other end is closed
            pass
        finally:
            os.close(ours)
        assert started.wait(60) == 0, f"{line}\n{printed!r}"
    return printed.decode(errors="replace")


def check(line: str, printed: str, directory: Path) -> None:
    """What `train.py` has to find in any container."""
    answer = json.loads(printed.splitlines()[-1])
    user = re.search(r"--user (\S+)", line)
    uid = 0 if user is None else os.getuid() if "$" in user[1] else int(user[1].partition(":")[0])
    assert (answer["uid"], answer["user"], answer["host"]) == (uid, "user", False), line
    assert answer["python"].startswith("/opt/env/bin/python"), line
    assert answer["packaging"].startswith("/opt/env/lib/"), line
    assert answer["helper"] == f"{directory}/src/helper.py", line
    assert answer["cwd"] == ("/work" if "--workdir /work" in line else str(directory)), line


def test_no_docker_line_of_the_docs_is_outside_a_block() -> None:
    assert [(path.name, INLINE.findall(FENCE.sub("", path.read_text()))) for path in DOCS] == [(path.name, []) for path in DOCS]


def test_every_docker_line_of_the_docs_and_hints_runs(project: parts.Project) -> None:
    lines = [*map(named, [*lines_of_docs(), *hints()])]
    builds = [line for line in dict.fromkeys(lines) if " build " in line]
    others = [line for line in dict.fromkeys(lines) if line not in builds]
    assert len(builds) >= 2
    assert len(others) >= 7
    for line in builds:
        STAGES.extend(re.findall(r"^ ---> ([0-9a-f]{12})$", run(line, project.directory), re.MULTILINE))
    with ThreadPoolExecutor(3) as pool:
        printed = [*pool.map(lambda line: run(line, project.directory), others)]
    for line, text in zip(others, printed, strict=True):
        if "train.py" in line:
            check(line, text, project.directory)
    assert not (project.directory / "result.txt").exists()


def test_an_image_with_a_user_differs_from_the_promised_one_only_in_its_config(project: parts.Project) -> None:
    done = project.run("rebuild", "--output", f"docker:{IMAGE}-user", "--user", "1000:1000", "--json")
    answer: dict[str, Any] = json.loads(done.out)
    expected = json.loads((project.directory / "repro" / "spec.json").read_text())["expected"]["image_id"]
    assert answer["environment_image_id"] == expected != answer["image_id"]
    assert f"Python imports code from {project.directory}/src, which is not in the image: add --with-source" in done.err
    inspected = run(f"docker image inspect {IMAGE}-user", project.directory)
    assert json.loads(inspected)[0]["Id"] == answer["image_id"]
    line = f'docker run --rm --read-only --tmpfs /tmp --volume "$PWD:$PWD" --workdir "$PWD" {IMAGE}-user python train.py'
    check(f"{line} --user 1000", run(line, project.directory), project.directory)


def test_a_user_that_is_root_is_refused(project: parts.Project) -> None:
    done = project.run("rebuild", "--output", "oci:never", "--user", "0", code=2)
    assert "--user: must be a numeric user ID above 0" in parts.one_sentence(done)
    assert not (project.directory / "never").exists()
