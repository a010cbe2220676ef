"""What a run writes outside its project: kept by absolute path, as root and as a plain user, in every runner."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from repro_env.catalog import outputs
from repro_env.model.environment import Variable
from repro_env.model.run import Lost
from repro_env.run import layer, outside
from repro_env.run.outside import Bound, Rules, Source
from repro_env.run.strategy import Strategy
from tests.fakes import rootfs
from tests.run.conftest import Place
from tests.run.test_runners import contained, docker

__all__ = ["contained", "docker"]

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
with open("/opt/env/note", "a"): pass             # opened and not changed
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
    ran = place.python(WRITE, env=(*place.launch().env, cache))
    assert ran.outcome.exit_code == 0, ran.stderr
    assert ran.files == {"inside.txt": "text"}
    assert ran.outside == KEPT
    kinds = {path for path in (ran.folder / "outside").rglob("*") if not path.is_symlink() and not path.is_file()}
    assert all(path.is_dir() for path in kinds)
    assert not (ran.folder / "outside/scratch/empty").exists()
    assert {path.lstat().st_uid for path in (ran.folder / "outside").rglob("*")} == {place.uid}
    assert sorted(path.name for path in ran.folder.iterdir()) == ["files", "outside", "stderr.log", "stdout.log"]
    assert ran.answer.lost is None


@pytest.mark.parametrize("root", ["disk", "memory"])
def test_what_is_written_outside_the_project_is_kept(place: Place, root: str) -> None:
    place.strategy = Strategy(root=root, workspace="overlay")
    check(place)


def test_what_is_written_in_a_container_is_kept(contained: Place) -> None:
    check(contained)


def test_what_can_be_written_without_overlay_is_kept(place: Place) -> None:
    place.strategy = Strategy(root="links", workspace="copy")
    ran = place.sh("mkdir /home/ann/results; echo text >/home/ann/results/x; ! mkdir /scratch")
    assert ran.outside == {"home/ann/results/x": "text\n"}


CHANGE = """
import os
assert open("../data/x").read() == "data" and os.listdir("../empty") == []
for path in ("../data/x", "../data/deep/y"): open(path, "r+").close()   # opened and not changed
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
    ran = place.python(CHANGE, siblings=digest)
    assert ran.outcome.exit_code == 0, ran.stderr
    made = {"data/deep/y": "deep and more", "data/new/z": "z", "empty/made": "made"}
    assert ran.outside == {f"srv/captured/{name}": text for name, text in made.items()}
    assert (tree / "data/deep/y").read_text() == "deep"
    assert not (tree / "empty/made").exists()
    assert not list(place.store.glob("merged/*/srv/captured/data")), "other runs do not see them"


@pytest.mark.parametrize("root", ["disk", "memory", "links"])
def test_a_run_sees_a_copy_of_siblings_and_leaves_what_it_changes(place: Place, root: str) -> None:
    place.strategy = Strategy(root=root, workspace="copy" if root == "links" else "overlay")
    check_siblings(place)


def test_a_container_sees_a_copy_of_siblings_and_leaves_what_it_changes(contained: Place) -> None:
    check_siblings(contained)


RULES = Rules(mounted=("/srv/project", "/etc/passwd"), kept=("/srv", "/home/ann"), caches=("/home/ann/.cache",))


def kept(folder: Path, *, bound: Bound = outside.DEFAULT, image: Path | None = None) -> tuple[set[str], Lost | None]:
    """What is kept of an upper side that is the run's `outside` itself."""
    lost = outside.keep(folder, [Source("/", folder / "outside")], RULES, [image] if image else [], bound)
    below = folder / "outside"
    return {str(path.relative_to(below)) for path in below.rglob("*") if path.is_symlink() or not path.is_dir()}, lost


def test_the_smallest_files_are_kept_up_to_the_bound_and_the_others_are_named(tmp_path: Path) -> None:
    for number in range(4):
        path = tmp_path / f"outside/data/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 10 ** (4 - number))
    with (tmp_path / "outside/sparse").open("wb") as file:
        file.truncate(1 << 40)
    found, lost = kept(tmp_path, bound=Bound(size=1200))
    assert found == {"data/3", "data/2", "data/1"}
    assert lost is not None
    assert (lost.files, lost.size) == (2, 10_000 + (1 << 40))
    assert lost.largest == ("/sparse (1099511627776 bytes, over the bound)", "/data/0 (10000 bytes, over the bound)")
    found, lost = kept(tmp_path, bound=Bound(files=1))
    assert found == {"data/3"}
    assert lost is not None
    assert lost.files == 2


def test_what_a_hostile_run_leaves_is_never_followed_or_opened(tmp_path: Path) -> None:
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
    found, lost = kept(tmp_path / "run")
    assert found == {"away", "file", "set-uid", "closed/deep/file", "line\nend", "\udcff"}
    assert lost is None
    assert (root / "away").is_symlink()
    assert (root / "set-uid").stat().st_mode & 0o7777 == 0o755
    assert (secret / "key").read_text() == "of the host"
    left = outputs.of_run(tmp_path / "run")
    assert {output.path for output in left.outputs} == {"/set-uid", "/closed/deep/file"}
    assert len(left.others) == 4


def test_temporary_files_are_kept_only_beside_a_project_that_is_one_and_in_a_home_directory_that_is_one() -> None:
    def skipped(*kept: str) -> list[str]:
        rules = msgspec.structs.replace(RULES, kept=kept)
        paths = ("/tmp", "/tmp/x", "/tmp/job", "/tmp/job/out", "/var/tmp/x", "/home/ann/.cache", "/home/ann/x")
        return [path for path in paths if rules.skip(path)]

    assert skipped("/srv") == ["/tmp/x", "/tmp/job", "/tmp/job/out", "/var/tmp/x", "/home/ann/.cache"]
    assert skipped("/tmp/job") == ["/tmp/x", "/var/tmp/x", "/home/ann/.cache"]
    assert skipped("/srv", "/tmp/job") == ["/tmp/x", "/var/tmp/x", "/home/ann/.cache"]
    assert skipped("/tmp") == ["/var/tmp/x", "/home/ann/.cache"]


def test_the_engine_is_asked_for_few_archives_and_none_with_a_mount_in_it() -> None:
    changes = {
        "/srv": 1,
        "/srv/project": 1,
        "/srv/out": 1,
        "/srv/out/deep": 1,
        "/srv/out/deep/w.pt": 1,
        "/opt": 0,
        "/opt/x": 1,
        "/opt/emptied": 0,
        "/etc": 0,
        "/etc/passwd": 0,
        "/home": 0,
        "/home/ann": 0,
        "/home/ann/.cache": 1,
        "/home/ann/.cache/hub": 1,
        "/tmp/left": 1,
    }
    assert list(layer.trees(changes, RULES)) == ["/opt/emptied", "/opt/x", "/srv/out"]


def test_a_bound_of_a_container_is_kept_too(contained: Place) -> None:
    contained.bound = Bound(size=100)
    ran = contained.sh("mkdir /scratch; echo small >/scratch/a; echo >/scratch/b; cp /bin/sh /scratch/large")
    assert ran.outcome.exit_code == 0, ran.stderr
    assert ran.outside == {"scratch/a": "small\n", "scratch/b": "\n"}
    assert ran.answer.lost is not None
    assert ran.answer.lost.files == 1
    assert ran.answer.lost.largest[0].startswith("/scratch/large (")
