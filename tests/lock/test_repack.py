"""A wheel made of the installed files becomes the installed files again, and has the same bytes each time."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from repro_env.capture import distributions, python
from repro_env.image import wheel
from repro_env.image.entry import Entry
from repro_env.lock.repack import Repacked, repack
from repro_env.model.environment import Layout
from repro_env.model.errors import ArtifactError
from repro_env.store.store import Store
from repro_env.store.wheelfile import WheelContents, open_facts
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


def becomes(one: Repacked, layout: Layout) -> dict[str, Entry]:
    """What the wheel becomes, without what is made anew."""
    found = wheel.canonical(one.facts, layout, name="demo")
    made_anew = {path for path in found.literals if path.rpartition("/")[2] in ("RECORD", "INSTALLER")} | set(found.points)
    contents = WheelContents(one.path, found)
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


def test_it_becomes_the_installed_files(prefix: Path, store: Store) -> None:
    one = made(prefix, store)
    assert one.problems == ()
    assert becomes(one, wheels.layout(prefix)) == live(prefix)
    assert "bin/other" in live(prefix)
    assert one.wheel.filename == "demo-1.0-py3-none-any.whl"
    assert one.wheel.sha256 == "sha256:" + hashlib.sha256(one.path.read_bytes()).hexdigest()
    assert one.wheel.size == one.path.stat().st_size


def test_files_are_taken_as_they_are_now(prefix: Path, store: Store) -> None:
    site = prefix / "lib/python3.11/site-packages"
    (site / "demo/__init__.py").write_bytes(b"edited")
    (site / "demo/__init__.py").chmod(0o755)
    (prefix / "bin/other").write_bytes(b"#!/usr/bin/perl\n")
    one = made(prefix, store)
    assert becomes(one, wheels.layout(prefix)) == live(prefix)


def test_the_same_bytes_each_time(prefix: Path, store: Store, tmp_path: Path) -> None:
    one = made(prefix, store)
    os.utime(prefix / "lib/python3.11/site-packages/demo/empty.py", (1, 1))
    other = made(prefix, Store.open(tmp_path / "other"))
    assert other.wheel == one.wheel
    assert other.facts == one.facts
    assert made(prefix, store) == one
    with zipfile.ZipFile(one.path) as archive:
        names = [member.filename for member in archive.infolist()]
        assert names[:-1] == sorted(names[:-1], key=str.encode)
        assert names[-1] == "demo-1.0.dist-info/RECORD"
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}


def test_what_cannot_be_taken_is_named(prefix: Path, store: Store, tmp_path: Path) -> None:
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
    one = made(prefix, store)
    assert one.problems == (
        "../../../../outside: outside the environment",
        "/etc/passwd: outside the environment",
        "lib/python3.11/site-packages/demo/empty.py: missing",
        "lib/python3.11/site-packages/demo/tool.sh: not a file",
        "lib/python3.11/site-packages/demo\\back: a name that no wheel may have",
        "share/demo/data.txt: missing",
    )
    found = becomes(one, wheels.layout(prefix))
    assert found == {path: entry for path, entry in live(prefix).items() if not path.startswith("share")}


def test_tags_are_those_of_wheel(prefix: Path, store: Store) -> None:
    def named(*tags: str) -> str:
        dist = installed(prefix)
        facts = msgspec.structs.replace(dist.facts, tags=tags)
        return repack(msgspec.structs.replace(dist, facts=facts), wheels.layout(prefix), store=store).wheel.filename

    assert named("cp311-cp311-manylinux_2_17_x86_64", "cp311-cp311-manylinux2014_x86_64") == (
        "demo-1.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    )
    assert named("py2-none-any", "py3-none-any") == "demo-1.0-py2.py3-none-any.whl"
    assert named("cp311-cp311-a", "py3-none-any") == "demo-1.0-cp311-cp311-a.whl"
    assert named("no tag") == "demo-1.0-py3-none-any.whl"
    assert named() == "demo-1.0-py3-none-any.whl"


def test_a_missing_wheel_file_is_made(prefix: Path, store: Store) -> None:
    site = prefix / "lib/python3.11/site-packages"
    (site / "demo-1.0.dist-info/WHEEL").unlink()
    one = made(prefix, store)
    found = becomes(one, wheels.layout(prefix))
    assert found.keys() - live(prefix).keys() == {"lib/python3.11/site-packages/demo-1.0.dist-info/WHEEL"}


@pytest.mark.parametrize("why", ["site", "points", "data"])
def test_what_no_wheel_can_hold(prefix: Path, store: Store, why: str) -> None:
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


def test_pip_makes_the_same_environment_of_it(tmp_path: Path, store: Store) -> None:
    """A real venv, pip's own installation, repacked and installed again elsewhere: equal file for file."""
    path = wheels.make(tmp_path / "wheels", "demo", files=FILES, entry_points=POINTS, executable=frozenset({"demo/tool.sh"}))
    first = _venv(tmp_path / "first", path)
    facts = python.interpret(str(tmp_path / "first"), {})
    (dist,) = distributions.scan(facts.layout).distributions
    one = repack(dist, facts.layout, store=store)
    (tmp_path / "again").mkdir()
    copy = tmp_path / "again" / one.wheel.filename
    copy.write_bytes(one.path.read_bytes())
    assert _venv(tmp_path / "second", copy) == first
    assert wheel.canonical(open_facts(copy, copy.name), facts.layout, name="demo").points


def _venv(folder: Path, path: Path) -> dict[str, bytes]:
    """What pip puts into a new venv; without what it writes for itself, and with the first venv's path for its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    before = {one for one in folder.rglob("*") if one.is_file()}
    pip = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--no-index", "--no-deps", "--no-compile", "--quiet"]
    subprocess.run([*pip, str(path)], check=True, env=os.environ | {"PIP_CONFIG_FILE": os.devnull})
    first = str(folder.with_name("first")).encode()  # scripts are carried byte for byte, their first line too
    own = ("RECORD", "REQUESTED", "direct_url.json")
    return {
        one.relative_to(folder).as_posix(): one.read_bytes().replace(str(folder).encode(), first)
        for one in folder.rglob("*")
        if one.is_file() and one not in before and one.name not in own
    }
