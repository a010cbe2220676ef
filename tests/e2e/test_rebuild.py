"""A spec gives the image it names, wherever and however it is rebuilt; damage is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e import parts


def expected(project: parts.Project) -> str:
    content = json.loads((project.directory / "repro" / "spec.json").read_text())["expected"]["image_id"]
    assert isinstance(content, str)
    return content


@pytest.mark.parametrize(
    ("umask", "env"),
    [
        (0o022, {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "1"}),
        (0o077, {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"}),
    ],
)
def test_surroundings_do_not_matter(small: parts.Project, tmp_path: Path, umask: int, env: dict[str, str]) -> None:
    shutil.copytree(small.directory / "repro", tmp_path / "another place" / "repro")
    there = small.elsewhere(tmp_path / "store")
    assert there.rebuild(tmp_path / "another place" / "repro", env=env, umask=umask, cwd=tmp_path) == expected(small)


def test_stdout_is_only_the_image_id(small: parts.Project) -> None:
    assert small.run("rebuild").out == expected(small) + "\n"


def test_where_it_was_captured_nothing_is_downloaded(small: parts.Project, tmp_path: Path) -> None:
    """Every way out is a dead end; the live files and caches are enough."""
    dead = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    there = small.elsewhere(tmp_path / "store")
    there.capture("--output", tmp_path / "repro")
    assert (
        there.rebuild(tmp_path / "repro", env=dead)
        == json.loads((tmp_path / "repro" / "spec.json").read_text())["expected"]["image_id"]
    )


def test_without_the_live_environment_wheels_come_from_their_hints(small: parts.Project, ground: Path, tmp_path: Path) -> None:
    """The environment is gone and so are the caches: bytes come from URLs, checked by sha256."""
    directory = tmp_path / "project"
    python = parts.venv(directory / ".venv", "mdurl==0.1.2", own_pip=False)
    made = parts.project(directory, python, ground / "shared-store")
    made.capture()
    shutil.rmtree(directory / ".venv")
    caches = {
        "PIP_CACHE_DIR": str(tmp_path / "pip"),
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "XDG_CACHE_HOME": str(tmp_path / "xdg"),
    }
    assert made.elsewhere(tmp_path / "store").rebuild(env=caches) == expected(made)


def test_a_dry_run_changes_nothing(small: parts.Project, tmp_path: Path) -> None:
    done = small.elsewhere(tmp_path / "store").run("rebuild", "--dry-run")
    assert not list((tmp_path / "store").glob("layers/*"))
    assert done.err.strip()


def test_a_flipped_byte_in_a_blob_is_found(small: parts.Project, tmp_path: Path) -> None:
    shutil.copytree(small.directory / "repro", tmp_path / "repro")
    largest = max((tmp_path / "repro" / "blobs").glob("*[0-9a-f]*"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 0x01
    largest.write_bytes(data)
    there = small.elsewhere(tmp_path / "store")
    message = parts.one_sentence(there.run("rebuild", tmp_path / "repro", code=11))
    assert largest.name.partition(".")[0][:12] in message
    assert not list((tmp_path / "store" / "images").glob("*"))


def test_a_missing_blob_is_named(small: parts.Project, tmp_path: Path) -> None:
    shutil.copytree(small.directory / "repro", tmp_path / "repro")
    largest = max((tmp_path / "repro" / "blobs").glob("*[0-9a-f]*"), key=lambda path: path.stat().st_size)
    largest.unlink()
    message = parts.one_sentence(small.elsewhere(tmp_path / "store").run("rebuild", tmp_path / "repro", code=11))
    assert largest.name.partition(".")[0][:12] in message
