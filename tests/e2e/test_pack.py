"""A packed spec on a machine that has no network at all, and through the installed command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.io.files import remove_tree
from repro_env.store.specs import files as spec_files
from tests.e2e import parts
from tests.e2e.parts import COMMAND, Done, Project, environ, one_sentence
from tests.parts import need

ALONE = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--map-current-user", "--net")
"""In a network namespace with no interface that is up, loopback included."""


@pytest.fixture(scope="module")
def packed(small: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of the small project in one file."""
    path = tmp_path_factory.mktemp("packed") / "all.tar"
    answer = json.loads(small.run("pack", "repro", path, "--all", "--json").out)
    assert answer["complete"]
    assert answer["size"] == path.stat().st_size
    return path


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Project]:
    """A directory with nothing in it, and an empty store."""
    directory = tmp_path / "nowhere"
    directory.mkdir()
    yield Project(directory, Path("/none"), tmp_path / "bare-store")
    remove_tree(tmp_path / "bare-store")


def alone(project: Project, *words: str | Path) -> Done:
    """`repro-env WORDS` with no network, and without pip's configuration: it may name an index on this machine's disk."""
    works = shutil.which("unshare") and not subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode
    need(works, "unshare --net: network namespaces are refused here")
    nowhere = {
        "UV_CACHE_DIR": str(project.directory / "no-uv"),
        "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
    }
    ended = subprocess.run(
        [*ALONE, COMMAND, *map(str, words)],
        cwd=project.directory,
        env=environ(project.store, nowhere),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Done(ended.returncode, ended.stdout, ended.stderr)


def test_a_pack_rebuilds_and_runs_without_any_network(small: Project, packed: Path, bare: Project) -> None:
    wanted = small.rebuild()
    assert subprocess.run([*ALONE, "cat", "/proc/net/route"], capture_output=True, text=True, check=False).stdout.count("\n") <= 1
    done = alone(bare, "rebuild", packed)
    assert (done.code, done.out.strip()) == (0, wanted), done.err
    again = alone(bare, "exec", "--spec", packed, "--", "hello.py")
    assert again.code == 0, again.err
    assert again.out.startswith("hello from")
    assert alone(bare, "exec", "--runner", "charliecloud", "--spec", packed, "--", "hello.py").out == again.out
    network = next(line for line in alone(bare, "doctor").out.splitlines() if " network " in line)
    assert network.startswith("absent")
    runs = bare.directory / "runs"
    assert (runs / "latest" / "files" / "made.txt").read_text() == "made"


def test_a_pack_without_all_wheels_reports_the_missing_network(small: Project, bare: Project, tmp_path: Path) -> None:
    small.run("pack", "repro", tmp_path / "less.tar")
    done = alone(bare, "rebuild", tmp_path / "less.tar")
    assert done.code in (10, 11), done.err
    assert "cannot be downloaded" in one_sentence(done)


def test_a_pack_of_the_same_spec_is_the_same_file(small: Project, packed: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(small.directory / "repro", clone)
    small.run("pack", clone, tmp_path / "again.tar", "--all", env={"TZ": "Asia/Tokyo", "LC_ALL": "C"}, umask=0o077)
    assert (tmp_path / "again.tar").read_bytes() == packed.read_bytes()


def test_every_file_that_capture_writes_is_packed(small: Project) -> None:
    written = {path.name for path in (small.directory / "repro").iterdir()}
    assert written - set(spec_files.FILES) == {"blobs"}


def test_a_damaged_pack_is_refused(packed: Path, bare: Project, tmp_path: Path) -> None:
    data = bytearray(packed.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.tar").write_bytes(data)
    assert "bad.tar" in one_sentence(bare.run("rebuild", tmp_path / "bad.tar", code=11))


def test_pack_refuses_a_directory_as_its_file(small: Project, tmp_path: Path) -> None:
    assert "is a directory" in one_sentence(small.run("pack", "repro", tmp_path, code=2))
    assert "missing argument" in small.run("pack", "repro", code=2).err
    assert parts.digests(tmp_path) == {}
