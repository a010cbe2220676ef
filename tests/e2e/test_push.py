"""Pushed to a real registry through the installed command, and taken back where there is nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from repro_env.io.files import remove_tree
from tests.e2e.parts import Project, one_sentence
from tests.parts import need
from tests.registries import registry

NOWHERE = {"PIP_NO_INDEX": "1", "HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "PIP_RETRIES": "0"}
"""Nothing but loopback answers."""


class Pushed(NamedTuple):
    reference: str
    answer: dict[str, Any]
    project: Project


@pytest.fixture(scope="module")
def pushed(small: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pushed]:
    """The small project, in a registry of the module's own."""
    directory = tmp_path_factory.mktemp("registry")
    with registry(directory) as host:
        reference = f"{host}/team/small:1"
        answer = json.loads(small.run("push", reference, "--json").out)
        yield Pushed(reference, answer, small)
    (small.directory / "repro" / "remote.json").unlink()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Project]:
    directory = tmp_path / "nowhere"
    directory.mkdir()
    yield Project(directory, Path("/none"), tmp_path / "bare-store")
    remove_tree(tmp_path / "bare-store")


def test_a_bare_machine_needs_nothing_but_the_reference(pushed: Pushed, bare: Project) -> None:
    env = {**NOWHERE, "UV_CACHE_DIR": str(bare.directory / "no-uv")}
    # The environment itself is no place to take files from: the spec's prefix is there on this machine.
    away = pushed.project.directory / ".venv-away"
    (pushed.project.directory / ".venv").rename(away)
    try:
        done = bare.run("rebuild", "-v", pushed.reference, env=env)
    finally:
        away.rename(pushed.project.directory / ".venv")
    assert done.out.strip() == pushed.answer["image_id"]
    assert "is fetched complete from" in done.err
    assert f"next: repro-env exec --spec {pushed.reference} COMMAND" in done.err
    ran = bare.run("exec", "--spec", pushed.reference, "--", "hello.py", env=env)
    assert ran.out.startswith("hello from")
    assert (bare.directory / "runs" / "latest" / "files" / "made.txt").read_text() == "made"


def test_a_second_push_says_that_nothing_was_sent(pushed: Pushed) -> None:
    before = (pushed.project.directory / "repro" / "remote.json").read_bytes()
    done = pushed.project.run("push", pushed.reference)
    assert "nothing was sent" in done.err
    assert done.out.strip() == pushed.answer["image"]
    again = json.loads(pushed.project.run("push", pushed.reference, "--json").out)
    assert again == {**pushed.answer, "sent": 0, "blobs": 0}
    assert (pushed.project.directory / "repro" / "remote.json").read_bytes() == before


def test_other_tools_see_the_image_that_we_say(pushed: Pushed) -> None:
    need(shutil.which("skopeo"), "skopeo: apt-get install skopeo")
    words = ["skopeo", "inspect", "--tls-verify=false", f"docker://{pushed.reference}"]
    seen = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert seen["Digest"] == pushed.answer["image"].partition("@")[2]
    raw = json.loads(subprocess.run([*words, "--raw"], capture_output=True, text=True, check=True).stdout)
    assert raw["config"]["digest"] == pushed.answer["image_id"]


def test_a_pushed_spec_can_be_shown_and_packed(pushed: Pushed, bare: Project, tmp_path: Path) -> None:
    shown = bare.run("show", pushed.reference, "--json").out
    assert json.loads(shown)["spec_digest"] == pushed.answer["spec_digest"]
    packed = json.loads(bare.run("pack", pushed.reference, tmp_path / "a.tar", "--json").out)
    own = json.loads(pushed.project.run("pack", "repro", tmp_path / "b.tar", "--json").out)
    assert packed["sha256"] == own["sha256"]
    assert bare.run("diff", pushed.reference, tmp_path / "b.tar").code == 0


def test_an_invalid_reference_is_reported(pushed: Pushed, bare: Project) -> None:
    name = pushed.reference.rpartition(":")[0]
    assert "does not have this image" in one_sentence(bare.run("rebuild", f"{name}:other", code=10))
    assert "use a tag" in one_sentence(pushed.project.run("push", pushed.answer["image"], code=2))
    assert "https://" in one_sentence(pushed.project.run("push", f"https://{name}", code=2))


def test_remote_json_names_the_copies(pushed: Pushed) -> None:
    content = json.loads((pushed.project.directory / "repro" / "remote.json").read_text())
    name = pushed.reference.rpartition(":")[0]
    assert content == {
        "copies": [
            {
                "image": pushed.answer["image"].partition("@")[2],
                "repository": name,
                "spec": pushed.answer["spec"].partition("@")[2],
            }
        ],
        "schema": "repro-env/remote/1",
    }
    assert os.environ.get("HOME", "/root") not in json.dumps(content)
