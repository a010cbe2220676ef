"""An index is where bytes may be had, and no part of what an environment is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts
from tests.e2e.mirror import Mirror, serve

PACKAGES = ("packaging==26.3", "mdurl==0.1.2")


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirror]:
    wheels = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary", ":all:", "-d", str(wheels)]
    subprocess.run([*pip, *PACKAGES, "pip==26.3"], check=True)
    with serve(wheels) as found:
        yield found


def nowhere(tmp_path: Path) -> dict[str, str]:
    """No cache of pip's or uv's knows the wheels."""
    return {"PIP_CACHE_DIR": str(tmp_path / "pip"), "UV_CACHE_DIR": str(tmp_path / "uv"), "XDG_CACHE_HOME": str(tmp_path / "xdg")}


def captured(tmp_path: Path, mirror: Mirror, host: str) -> tuple[parts.Project, dict[str, Any]]:
    """The same folder each time: an environment installed from `host`, and its capture with a store of its own."""
    folder = tmp_path / "project"
    shutil.rmtree(folder, ignore_errors=True)
    env = {**mirror.environ(host), **nowhere(tmp_path / host)}
    python = parts.venv(folder / ".venv")
    words = ["-m", "pip", "install", "-qq", "--upgrade", *PACKAGES, "pip==26.3"]
    subprocess.run([python, *words], check=True, env=parts.environ(tmp_path, env))
    made = parts.project(folder, python, tmp_path / f"store-{host}")
    return made, made.capture(env=env)


def hints(project: parts.Project) -> list[dict[str, Any]]:
    found = json.loads((project.folder / "repro" / "spec.json").read_text())["hints"]["wheels"]
    assert isinstance(found, list)
    return found


def test_two_mirrors_one_identity(tmp_path: Path, mirror: Mirror) -> None:
    one, first = captured(tmp_path, mirror, "mirror-a.test")
    assert {hint["index"] for hint in hints(one)} == {"http://mirror-a.test/simple/"}
    two, second = captured(tmp_path, mirror, "mirror-b.test")
    assert {hint["index"] for hint in hints(two)} == {"http://mirror-b.test/simple/"}
    assert first["proven"] == second["proven"] == first["distributions"] == 3
    assert first["carried"] == second["carried"] == []
    assert first["spec_digest"] == second["spec_digest"]
    assert first["image_id"] == second["image_id"]


def test_proving_reads_parts_of_the_wheels(tmp_path: Path, mirror: Mirror) -> None:
    """pip's own install reads whole files; the capture after it asks for ranges."""
    mirror.asked.clear()
    made, _ = captured(tmp_path, mirror, "mirror-a.test")
    assert len([url for url in mirror.asked if "packaging" in url]) > 2
    del made


@pytest.mark.parametrize(
    ("answer", "says"),
    [((404, b"gone"), "404"), ((200, b"other bytes, not a wheel at all"), "packaging")],
    ids=["404", "other bytes"],
)
def test_a_url_that_is_not_what_it_was(tmp_path: Path, mirror: Mirror, answer: tuple[int, bytes], says: str) -> None:
    """Environment and caches are gone, and the only index no longer gives the wheel: no image, and it says which."""
    made, _ = captured(tmp_path, mirror, "mirror-a.test")
    shutil.rmtree(made.folder / ".venv")
    (name,) = (path.name for path in mirror.wheels.glob("packaging-*"))
    mirror.answers[name] = answer
    fresh = made.elsewhere(tmp_path / "fresh")
    env = {**mirror.environ("mirror-a.test"), **nowhere(tmp_path / "empty")}
    try:
        done = fresh.run("rebuild", code=None, env=env)
        assert done.code in (10, 11)
        assert says in parts.one_sentence(done)
        assert "packaging" in done.err
        assert not done.out
        assert not list((tmp_path / "fresh" / "images").glob("*"))
    finally:
        mirror.answers.clear()
    assert fresh.rebuild(env=env), "and once it is there again, the rebuild goes on"


def test_urls_are_hints(tmp_path: Path, mirror: Mirror) -> None:
    """Every URL of the spec is dead, and another index has files of the same name and sha256."""
    made, answer = captured(tmp_path, mirror, "mirror-a.test")
    spec = made.folder / "repro" / "spec.json"
    spec.write_text(spec.read_text().replace("http://mirror-a.test/files/", "http://mirror-a.test/moved/"))
    shutil.rmtree(made.folder / ".venv")
    env = {**mirror.environ("mirror-c.test"), **nowhere(tmp_path / "empty")}
    assert made.elsewhere(tmp_path / "fresh").rebuild(env=env) == answer["image_id"]
