"""What a run writes outside its project: kept by absolute path, as root and as a plain user, in every runner."""

from __future__ import annotations

import pytest

from repro_env.model.environment import Variable
from repro_env.run.strategy import Strategy
from tests.run.conftest import Place
from tests.run.test_runners import contained, docker  # noqa: F401

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
