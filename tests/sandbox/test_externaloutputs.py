"""Files that a run writes outside its project are kept by absolute path, for root and plain users, in all runners."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from repro_env.sandbox import externaloutputs, outputs
from repro_env.sandbox.embedded.stage import Strategy
from repro_env.sandbox.externaloutputs import Bound, Rules, Source
from repro_env.schema.environment import Variable
from repro_env.schema.run import Lost
from tests.fakes import rootfs
from tests.sandbox.conftest import Place
from tests.sandbox.test_runners import docker, docker_place

__all__ = ["docker", "docker_place"]

WRITE = """
import os, socket
def write(path, text="text"):
    path = os.path.expanduser(path)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as file: file.write(text)
write("inside.txt")
write("../out/w.pt", "weights")
write("~/results/x")
write("/scratch/me/y")
write("/scratch/me/deep/er/z")
write("/opt/x")
with open("/opt/env/note", "a"): pass             # open_for_runner and not changed
with open("/opt/env/bin/plain", "a") as file: file.write("more")
os.symlink("/etc/shadow", "/scratch/link")
os.symlink("../../..", os.path.expanduser("~/results/up"))
os.mkfifo("/scratch/pipe")
os.mkfifo(os.path.expanduser("~/results/pipe"))
socket.socket(socket.AF_UNIX).bind("/scratch/socket")
os.makedirs("/scratch/empty/one")
write("/scratch/closed/file")
os.chmod("/scratch/closed/file", 0o400)
os.chmod("/scratch/closed", 0o500)
for path in ("/tmp/left", "/var/tmp/left", "/run/left", "/dev/shm/left", "~/.cache/hub/left", "/kept/away/left"):
    write(path)
write("/scratch/__pycache__/left.pyc")
"""
KEPT = {
    "home/ann/results/up": "-> ../../..",
    "home/ann/results/x": "text",
    "opt/env/bin/plain": "text\nmore",
    "opt/x": "text",
    "scratch/closed/file": "text",
    "scratch/link": "-> /etc/shadow",
    "scratch/me/deep/er/z": "text",
    "scratch/me/y": "text",
    "srv/captured/out/w.pt": "weights",
}


def check(place: Place) -> None:
    cache = Variable(name="XDG_CACHE_HOME", value="/kept/away")
    result = place.python(WRITE, env=(*place.launch().env, cache))
    assert result.outcome.exit_code == 0, result.stderr
    assert result.files == {"inside.txt": "text"}
    assert result.outside == KEPT
    kinds = {path for path in (result.directory / "outside").rglob("*") if not path.is_symlink() and not path.is_file()}
    assert all(path.is_dir() for path in kinds)
    assert not (result.directory / "outside/scratch/empty").exists()
    assert {path.lstat().st_uid for path in (result.directory / "outside").rglob("*")} == {place.uid}
    assert sorted(path.name for path in result.directory.iterdir()) == ["files", "outside", "stderr.log", "stdout.log"]
    assert result.answer.lost is None


@pytest.mark.parametrize("root", ["disk", "memory"])
def test_files_outside_the_project_are_kept(place: Place, root: str) -> None:
    place.strategy = Strategy(root=root, workspace="overlay")
    check(place)


def test_files_outside_the_project_are_kept_in_a_container_with_a_read_only_image(docker_place: Place) -> None:
    script = "mkdir /home/ann/results ../out; echo text >/home/ann/results/x; echo text >../out/y; ! mkdir /scratch; ! echo text >/opt/x"
    result = docker_place.sh(script)
    assert result.outcome.exit_code == 0, result.stderr
    assert result.stderr.count("Read-only file system") == 2
    assert result.outside == {"home/ann/results/x": "text\n", "srv/captured/out/y": "text\n"}


def test_files_outside_the_project_are_kept_without_overlay(place: Place) -> None:
    place.strategy = Strategy(root="links", workspace="copy")
    result = place.sh("mkdir /home/ann/results; echo text >/home/ann/results/x; ! mkdir /scratch")
    assert result.outside == {"home/ann/results/x": "text\n"}


CHANGE = """
import os
assert open("../data/x").read() == "data" and os.listdir("../empty") == []
for path in ("../data/x", "../data/deep/y"): open(path, "r+").close()   # open_for_runner and not changed
open("../data/deep/y", "a").write(" and more")
open("../empty/made", "w").write("made")
os.mkdir("../data/new")
open("../data/new/z", "w").write("z")
os.remove("../data/removed")
"""


def check_siblings(place: Place) -> None:
    digest = rootfs.digest(1001)
    tree = place.store / "layers" / digest.removeprefix("sha256:") / "srv/captured"
    for name, text in (("data/x", "data"), ("data/deep/y", "deep"), ("data/removed", "")):
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tree / "empty").mkdir(exist_ok=True)
    place.own(place.store / "layers" / digest.removeprefix("sha256:"))
    result = place.python(CHANGE, siblings=digest)
    assert result.outcome.exit_code == 0, result.stderr
    made = {"data/deep/y": "deep and more", "data/new/z": "z", "empty/made": "made"}
    assert result.outside == {f"srv/captured/{name}": text for name, text in made.items()}
    assert (tree / "data/deep/y").read_text() == "deep"
    assert not (tree / "empty/made").exists()
    assert not list(place.store.glob("merged/*/srv/captured/data")), "other runs must not see them"


@pytest.mark.parametrize("root", ["disk", "memory", "links"])
def test_a_run_gets_a_copy_of_siblings_and_its_changes_are_kept(place: Place, root: str) -> None:
    place.strategy = Strategy(root=root, workspace="copy" if root == "links" else "overlay")
    check_siblings(place)


def test_a_container_gets_a_copy_of_siblings_and_its_changes_are_kept(docker_place: Place) -> None:
    check_siblings(docker_place)


RULES = Rules(mounted=("/srv/project", "/etc/passwd"), kept=("/srv", "/home/ann"), caches=("/home/ann/.cache",))


def keep(directory: Path, *, bound: Bound = externaloutputs.DEFAULT, image: Path | None = None) -> tuple[set[str], Lost | None]:
    """Keep an upper layer that is the run's `outside` itself. Returns the kept paths and the lost files."""
    lost = externaloutputs.keep(directory, [Source("/", directory / "outside")], RULES, [image] if image else [], bound)
    below = directory / "outside"
    return {str(path.relative_to(below)) for path in below.rglob("*") if path.is_symlink() or not path.is_dir()}, lost


def test_the_smallest_files_are_kept_up_to_the_bound_and_the_others_are_listed(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / f"outside/data/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 10 ** (4 - number))
    with (tmp_path / "outside/sparse").open("wb") as file:
        file.truncate(1 << 40)
    found, lost = keep(tmp_path, bound=Bound(size=1200))
    assert found == {"data/3", "data/2", "data/1"}
    assert lost is not None
    assert (lost.files, lost.size) == (2, 10_000 + (1 << 40))
    assert lost.largest == ("/sparse (1099511627776 bytes, over the bound)", "/data/0 (10000 bytes, over the bound)")
    found, lost = keep(tmp_path, bound=Bound(files=1))
    assert found == {"data/3"}
    assert lost is not None
    assert lost.files == 2


def test_links_and_special_files_of_a_hostile_run_are_never_followed_or_opened(tmp_path: Path) -> None:
    secret = tmp_path / "host"
    secret.mkdir()
    (secret / "key").write_text("of the host")
    root = tmp_path / "run/outside"
    root.mkdir(parents=True)
    (root / "away").symlink_to(secret)
    (root / "file").symlink_to(secret / "key")
    os.mkfifo(root / "pipe")
    (root / "set-uid").touch()
    (root / "set-uid").chmod(0o6755)
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text("ours")
    (root / "closed/deep").mkdir(parents=True)
    (root / "closed/deep/file").touch()
    (root / "closed").chmod(0)
    (root / "line\nend").touch()
    os.close(os.open(os.fsencode(root) + b"/\xff", os.O_CREAT))
    found, lost = keep(tmp_path / "run")
    assert found == {"away", "file", "set-uid", "closed/deep/file", "line\nend", "\udcff"}
    assert lost is None
    assert (root / "away").is_symlink()
    assert (root / "set-uid").stat().st_mode & 0o7777 == 0o755
    assert (secret / "key").read_text() == "of the host"
    recorded = outputs.of_run(tmp_path / "run")
    assert {output.path for output in recorded.outputs} == {"/set-uid", "/closed/deep/file"}
    assert len(recorded.others) == 4


def test_temporary_files_are_kept_only_next_to_a_temporary_project_and_in_a_temporary_home() -> None:
    def skipped(*kept: str) -> list[str]:
        rules = msgspec.structs.replace(RULES, kept=kept)
        paths = ("/tmp", "/tmp/x", "/tmp/job", "/tmp/job/out", "/var/tmp/x", "/home/ann/.cache", "/home/ann/x")
        return [path for path in paths if rules.skip(path)]

    assert skipped("/srv") == ["/tmp/x", "/tmp/job", "/tmp/job/out", "/var/tmp/x", "/home/ann/.cache"]
    assert skipped("/tmp/job") == ["/tmp/x", "/var/tmp/x", "/home/ann/.cache"]
    assert skipped("/srv", "/tmp/job") == ["/tmp/x", "/var/tmp/x", "/home/ann/.cache"]
    assert skipped("/tmp") == ["/var/tmp/x", "/home/ann/.cache"]


def test_the_bound_applies_to_containers(docker_place: Place) -> None:
    docker_place.bound = Bound(size=100)
    result = docker_place.sh("mkdir ../out; echo small >../out/a; echo >../out/b; cp /bin/sh ../out/large")
    assert result.outcome.exit_code == 0, result.stderr
    assert result.outside == {"srv/captured/out/a": "small\n", "srv/captured/out/b": "\n"}
    assert result.answer.lost is not None
    assert result.answer.lost.files == 1
    assert result.answer.lost.largest[0].startswith("/srv/captured/out/large (")
