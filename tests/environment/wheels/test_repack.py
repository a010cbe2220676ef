"""A wheel made of the installed files becomes the installed files again, and always has the same bytes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from repro_env.environment.python import distributions, interpreter
from repro_env.environment.wheels.repack import Repacked, repack
from repro_env.oci import wheel
from repro_env.oci.entry import Entry
from repro_env.schema.environment import Layout
from repro_env.schema.errors import ArtifactError
from repro_env.store.packages.wheelfile import WheelContents, open_facts
from repro_env.store.store import Store
from tests.fakes import specs, wheels

POINTS = "[console_scripts]\ndemo = demo:main\n"
FILES = {
    "demo/__init__.py": b"def main(): print('demo')\n",
    "demo/tool.sh": b"#!/bin/sh\n",
    "demo/empty.py": b"",
    'demo/ä,"b".txt': b"csv",
    "demo-1.0.data/data/share/demo/data.txt": b"data",
    "demo-1.0.data/headers/demo.h": b"int x;",
    "demo-1.0.data/scripts/other": b"#!python\nprint('other')\n",
}


def installed(prefix: Path) -> distributions.InstalledDistribution:
    (found,) = distributions.scan(specs._facts(prefix).layout).distributions
    return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A prefix with one distribution of every kind of file."""
    path = wheels.make(tmp_path / "wheels", "demo", files=FILES, entry_points=POINTS, executable=frozenset({"demo/tool.sh"}))
    wheels.install(path, tmp_path / "venv", "demo")
    return tmp_path / "venv"


def made(prefix: Path, store: Store) -> Repacked:
    return repack(installed(prefix), wheels.layout(prefix), store=store)


def facts_of(repacked: Repacked) -> wheel.Facts:
    return open_facts(repacked.path, repacked.wheel.filename)


def becomes(repacked: Repacked, layout: Layout) -> dict[str, Entry]:
    """The installed form of the wheel, without generated files."""
    found = wheel.canonical(facts_of(repacked), layout, name="demo")
    made_anew = {path for path in found.literals if path.rpartition("/")[2] in ("RECORD", "INSTALLER")} | set(found.points)
    contents = WheelContents(repacked.path, found)
    for entry in found.entries:
        assert hashlib.sha256(b"".join(contents.chunks(entry))).hexdigest() == entry.sha256
    contents.close()
    return {entry.path: entry for entry in found.entries if entry.path not in made_anew}


def live(prefix: Path) -> dict[str, Entry]:
    found = {}
    for path in prefix.rglob("*"):
        name = path.relative_to(prefix).as_posix()
        if path.is_file() and not path.is_symlink() and path.name not in ("RECORD", "INSTALLER") and name != "bin/demo":
            data = path.read_bytes()
            found[name] = Entry(name, "file", os.access(path, os.X_OK), len(data), hashlib.sha256(data).hexdigest())
    return found


def test_a_repacked_wheel_becomes_the_installed_files(prefix: Path, store: Store) -> None:
    repacked = made(prefix, store)
    assert repacked.problems == ()
    assert becomes(repacked, wheels.layout(prefix)) == live(prefix)
    assert "bin/other" in live(prefix)
    assert repacked.wheel.filename == "demo-1.0-py3-none-any.whl"
    assert repacked.wheel.sha256 == "sha256:" + hashlib.sha256(repacked.path.read_bytes()).hexdigest()
    assert repacked.wheel.size == repacked.path.stat().st_size


def test_edited_files_are_repacked_as_they_are(prefix: Path, store: Store) -> None:
    site = prefix / "lib/python3.11/site-packages"
    (site / "demo/__init__.py").write_bytes(b"edited")
    (site / "demo/__init__.py").chmod(0o755)
    (prefix / "bin/other").write_bytes(b"#!/usr/bin/perl\n")
    repacked = made(prefix, store)
    assert becomes(repacked, wheels.layout(prefix)) == live(prefix)


def test_the_same_files_give_the_same_wheel(prefix: Path, store: Store, tmp_path: Path) -> None:
    repacked = made(prefix, store)
    os.utime(prefix / "lib/python3.11/site-packages/demo/empty.py", (1, 1))
    other = made(prefix, Store.open(tmp_path / "other"))
    assert other.wheel == repacked.wheel
    assert facts_of(other) == facts_of(repacked)
    assert made(prefix, store) == repacked
    with zipfile.ZipFile(repacked.path) as archive:
        names = [member.filename for member in archive.infolist()]
        assert names[:-1] == sorted(names[:-1], key=str.encode)
        assert names[-1] == "demo-1.0.dist-info/RECORD"
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}


def test_files_that_cannot_be_repacked_are_listed(prefix: Path, store: Store, tmp_path: Path) -> None:
    site = prefix / "lib/python3.11/site-packages"
    (site / "demo/empty.py").unlink()
    (site / "demo/tool.sh").unlink()
    (site / "demo/tool.sh").symlink_to("/bin/sh")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/data.txt").write_text("data")
    (prefix / "share/demo/data.txt").unlink()
    (prefix / "share/demo").rmdir()
    (prefix / "share/demo").symlink_to(tmp_path / "elsewhere")
    record = site / "demo-1.0.dist-info/RECORD"
    record.write_text(record.read_text() + "../../../../outside,,\n/etc/passwd,,\ndemo\\back,,\n")
    repacked = made(prefix, store)
    assert repacked.problems == (
        "../../../../outside: outside the environment",
        "/etc/passwd: outside the environment",
        "lib/python3.11/site-packages/demo/empty.py: missing",
        "lib/python3.11/site-packages/demo/tool.sh: not a file",
        "lib/python3.11/site-packages/demo\\back: a name that no wheel may have",
        "share/demo/data.txt: missing",
    )
    found = becomes(repacked, wheels.layout(prefix))
    assert found == {path: entry for path, entry in live(prefix).items() if not path.startswith("share")}


def test_the_file_name_has_the_last_tag_in_wheel(prefix: Path, store: Store) -> None:
    def named(*tags: str) -> str:
        dist = installed(prefix)
        facts = msgspec.structs.replace(dist.facts, tags=tags)
        return repack(msgspec.structs.replace(dist, facts=facts), wheels.layout(prefix), store=store).wheel.filename

    assert named("cp311-cp311-manylinux_2_17_x86_64", "cp311-cp311-linux_x86_64") == (
        "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
    )
    assert named("py2-none-any", "py3-none-any") == "demo-1.0-py3-none-any.whl"
    assert named("no tag") == "demo-1.0-py3-none-any.whl"
    assert named() == "demo-1.0-py3-none-any.whl"


def test_a_missing_wheel_metadata_file_is_generated(prefix: Path, store: Store) -> None:
    site = prefix / "lib/python3.11/site-packages"
    (site / "demo-1.0.dist-info/WHEEL").unlink()
    repacked = made(prefix, store)
    found = becomes(repacked, wheels.layout(prefix))
    assert found.keys() - live(prefix).keys() == {"lib/python3.11/site-packages/demo-1.0.dist-info/WHEEL"}


@pytest.mark.parametrize("why", ["site", "points", "data"])
def test_a_distribution_that_no_wheel_can_contain_is_rejected(prefix: Path, store: Store, why: str) -> None:
    layout = wheels.layout(prefix)
    site = prefix / "lib/python3.11/site-packages"
    if why == "site":
        layout = msgspec.structs.replace(layout, purelib="lib/python3.11/dist-packages")
    elif why == "points":
        (site / "demo-1.0.dist-info/entry_points.txt").write_text("[console_scripts]\n../x = demo:main\n")
    else:
        (site / "demo-1.0.data").mkdir()
        (site / "demo-1.0.data/x").write_text("x")
        record = site / "demo-1.0.dist-info/RECORD"
        record.write_text(record.read_text() + "demo-1.0.data/x,,\n")
    with pytest.raises(ArtifactError):
        repack(installed(prefix), layout, store=store)


def test_pip_installs_the_same_files_from_a_repacked_wheel(tmp_path: Path, store: Store) -> None:
    """A real venv, installed by pip, repacked and installed again elsewhere, has equal files."""
    path = wheels.make(tmp_path / "wheels", "demo", files=FILES, entry_points=POINTS, executable=frozenset({"demo/tool.sh"}))
    first = _venv(tmp_path / "first", path)
    facts = interpreter.interpret(str(tmp_path / "first"), {})
    (dist,) = distributions.scan(facts.layout).distributions
    repacked = repack(dist, facts.layout, store=store)
    (tmp_path / "again").mkdir()
    copy = tmp_path / "again" / repacked.wheel.filename
    copy.write_bytes(repacked.path.read_bytes())
    assert _venv(tmp_path / "second", copy) == first
    assert wheel.canonical(open_facts(copy, copy.name), facts.layout, name="demo").points


def _venv(directory: Path, path: Path) -> dict[str, bytes]:
    """The files that pip installs in a new venv, without its own metadata, and with the first venv's path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    before = {path for path in directory.rglob("*") if path.is_file()}
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(directory),
        "install",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--quiet",
    ]
    subprocess.run([*pip, str(path)], check=True, env=os.environ | {"PIP_CONFIG_FILE": os.devnull})
    first = str(directory.with_name("first")).encode()  # scripts are bundled byte for byte, including their first line
    own = ("RECORD", "REQUESTED", "direct_url.json")
    return {
        path.relative_to(directory).as_posix(): path.read_bytes().replace(str(directory).encode(), first)
        for path in directory.rglob("*")
        if path.is_file() and path not in before and path.name not in own
    }
