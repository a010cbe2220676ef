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

from repro_env.io.files import sha256_of
from tests.e2e import parts
from tests.fakes import wheels as fake
from tests.fakes.index import Index, through

PACKAGES = ("packaging==26.3", "mdurl==0.1.2", "pip==26.3")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary", ":all:", "-d", str(directory)]
    subprocess.run([*pip, *PACKAGES], check=True)
    return directory


@pytest.fixture
def index(wheels: Path) -> Iterator[Index]:
    with Index(wheels) as index:
        yield index


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One project's directory for all tests, and next to it what each host's environment and capture were when they were new."""
    return tmp_path_factory.mktemp("mirrored")


def captured(kept: Path, index: Index, host: str) -> tuple[parts.Project, dict[str, Any]]:
    """The same directory each time: an environment installed from `host`, and its capture with a store of its own."""
    directory, new = kept / "project", kept / f"new-{host}"
    made = parts.project(directory, directory / ".venv" / "bin" / "python", kept / f"store-{host}")
    shutil.rmtree(directory)
    if not new.exists():
        env = through(index, host, kept / host)
        parts.venv(directory / ".venv", own_pip=False)
        words = [sys.executable, "-m", "pip", "--python", str(made.python), "install", "-qq", *PACKAGES]
        subprocess.run(words, check=True, env=parts.environ(kept, env))
        answer = made.capture(env=env)
        directory.rename(new)
        (kept / f"{host}.json").write_text(json.dumps(answer))
    shutil.copytree(new, directory, symlinks=True)
    return made, json.loads((kept / f"{host}.json").read_text())


def hints(project: parts.Project) -> list[dict[str, Any]]:
    content = json.loads((project.directory / "repro" / "spec.json").read_text())["hints"]["wheels"]
    assert isinstance(content, list)
    return content


@pytest.mark.index
@pytest.mark.soak
def test_two_mirrors_give_the_same_identity(kept: Path, index: Index) -> None:
    made, first = captured(kept, index, "mirror-a.test")
    assert {hint["index"] for hint in hints(made)} == {"http://mirror-a.test/simple"}
    two, second = captured(kept, index, "mirror-b.test")
    assert {hint["index"] for hint in hints(two)} == {"http://mirror-b.test/simple"}
    assert first["proven"] == second["proven"] == first["distributions"]
    assert first["bundled"] == second["bundled"] == []
    assert first["spec_digest"] == second["spec_digest"]
    assert first["image_id"] == second["image_id"]


@pytest.mark.index
def test_proof_reads_parts_of_wheels(tmp_path: Path, kept: Path, index: Index) -> None:
    made, _ = captured(kept, index, "mirror-a.test")
    index.asked.clear()
    made.elsewhere(tmp_path / "other").capture(env=through(index, "mirror-a.test", tmp_path / "empty"))
    files = [request for request in index.asked if request.path.startswith("/files/")]
    assert files
    assert all(file.range for file in files)


@pytest.mark.index
@pytest.mark.parametrize("how", [404, "wrong"])
def test_a_rebuild_names_the_wheel_whose_url_has_changed(tmp_path: Path, kept: Path, index: Index, how: int | str) -> None:
    """Environment and caches are gone, and the only index no longer gives the wheel: no image, and it says which."""
    made, answer = captured(kept, index, "mirror-a.test")
    shutil.rmtree(made.directory / ".venv")
    index.fail("packaging-26.3-py3-none-any.whl", how, times=1000)
    fresh = made.elsewhere(tmp_path / "fresh")
    env = through(index, "mirror-a.test", tmp_path / "empty")
    done = fresh.run("rebuild", code=11, env=env)
    assert "packaging" in parts.one_sentence(done)
    assert not done.out
    assert not list((tmp_path / "fresh" / "images").glob("*"))
    index._faults.clear()
    assert fresh.rebuild(env=env) == answer["image_id"], "once it is there again, the rebuild goes on"


@pytest.mark.index
def test_urls_are_hints(tmp_path: Path, kept: Path, index: Index) -> None:
    """Every URL of the spec is dead, and another index has files of the same name and sha256."""
    made, answer = captured(kept, index, "mirror-a.test")
    spec = made.directory / "repro" / "spec.json"
    assert "http://mirror-a.test/files/" in spec.read_text()
    spec.write_text(spec.read_text().replace("http://mirror-a.test/files/", "http://mirror-a.test/moved/"))
    shutil.rmtree(made.directory / ".venv")
    env = through(index, "mirror-c.test", tmp_path / "empty")
    assert made.elsewhere(tmp_path / "fresh").rebuild(env=env) == answer["image_id"]


def test_indexes_and_locked_files_of_uv_are_sources_without_any_setting_of_pip(ground: Path, tmp_path: Path) -> None:
    """A build with a local version on an index of its own, which wants a password; a wheel that only `uv.lock` names; one of nowhere."""
    with Index(tmp_path / "wheels", auth=("ann", "open-sesame-1")) as served:
        fake.make(served.directory, "fastlib", "2.13.0+cpu")
        locked = fake.make(tmp_path / "elsewhere", "pinned")
        fake.make(tmp_path / "elsewhere", "homemade", files={"homemade.py": b"LINE = 1\n" * 9000})
        locals_only = ("--no-index", "--find-links", served.directory, "--find-links", locked.parent)
        python = parts.venv(
            tmp_path / "project/.venv", "fastlib", "pinned", "homemade", own_pip=False, pip=tuple(map(str, locals_only))
        )
        locked = locked.rename(served.directory / locked.name)
        made = parts.project(tmp_path / "project", python, ground / "small-store")
        (made.directory / "pyproject.toml").write_text("""
            [[tool.uv.index]]
            name = "cpu-builds"
            url = "http://builds.test/simple"
            explicit = true
        """)
        (made.directory / "uv.lock").write_text(f"""
            version = 1
            [[package]]
            name = "pinned"
            version = "1.0"
            source = {{ registry = "http://builds.test/simple" }}
            wheels = [{{ url = "http://builds.test/files/{locked.name}", hash = "sha256:{sha256_of(locked)}" }}]
        """)
        variables = {"UV_INDEX_CPU_BUILDS_USERNAME": "ann", "UV_INDEX_CPU_BUILDS_PASSWORD": "open-sesame-1"}
        nothing = {**through(served, "builds.test", tmp_path), "PIP_INDEX_URL": (tmp_path / "empty").as_uri()}
        done = made.run("capture", "--json", env={**nothing, **variables})
        answer = json.loads(done.out)
        requests = [request.path for request in served.asked if request.path.startswith("/simple/") and request.status == 200]
    assert (answer["distributions"], answer["proven"]) == (3, 2)
    assert [bundled["name"] for bundled in answer["bundled"]] == ["homemade"]
    (homemade,) = (hint["sha256"].removeprefix("sha256:") for hint in hints(made) if hint["origin"] == "repacked")
    assert (made.directory / f"repro/blobs/{homemade}.gz").stat().st_size < 9000, "kept compressed"
    urls = {url for hint in hints(made) for url in hint["urls"]}
    assert urls == {f"http://builds.test/files/{name}" for name in ("fastlib-2.13.0%2Bcpu-py3-none-any.whl", locked.name)}
    assert sorted(set(requests)) == ["/simple/fastlib/", "/simple/pinned/"]
    written = b"".join(path.read_bytes() for path in (made.directory / "repro").rglob("*") if path.is_file())
    assert b"open-sesame-1" not in written + done.out.encode() + done.err.encode()


def test_dropped_connections_are_repeated_and_what_was_proven_is_kept(tmp_path: Path, ground: Path) -> None:
    """A reset without an answer, half of a page and half of a file; then an index that never answers for one package."""
    with Index(tmp_path / "index") as index:
        names = [f"demo{number}" for number in range(6)]
        made = [fake.make(index.directory, name) for name in names]
        python = parts.venv(
            tmp_path / "project" / ".venv", *names, pip=["--no-index", "--find-links", str(index.directory)], own_pip=False
        )
        project = parts.project(tmp_path / "project", python, tmp_path / "store")
        env = through(index, "mirror.test", tmp_path / "caches")
        index.fail("/simple/demo1/", "reset", times=3)  # pip tries twice
        index.fail("/simple/demo2/", "cut", times=2)
        index.fail(made[3].name, "cut", times=2)
        index.fail("/simple/demo4/", 503, times=3)
        index.fail("/simple/demo5/", 401, times=99)
        failed = project.run("capture", "--python", python, env=env, code=10)
        assert "5 of 6 packages are identified, and the next capture starts from there" in failed.err
        index.heal()
        before = len(index.asked)
        answer = json.loads(project.run("capture", "--python", python, "--json", env=env).out)
        assert answer["proven"] == 6
        assert {asked.path.split("/")[2].partition("-")[0] for asked in index.asked[before:]} == {"demo5"}
