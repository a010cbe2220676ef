"""The root file system as a run sees it, with each strategy."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from repro_env.schema.environment import Variable
from repro_env.schema.run import Mount, User
from tests.fakes import rootfs
from tests.parts import need
from tests.sandbox.conftest import REPOSITORY, Place, environ, open_place, python


@pytest.fixture
def any_root(place: Place) -> Place:
    """A place for each way to mount the root. The other two pairs of user and way are in tests/sandbox/test_runners.py."""
    place.overlay = place.uid != 0
    return place


HOME = tuple(Variable(name=name, value=value) for name, value in (("HOME", "/home/ann"), ("PATH", f"{rootfs.PREFIX}/bin:/bin")))


def test_no_files_of_the_host_are_visible(any_root: Place) -> None:
    result = any_root.sh("ls -A /; ls /srv /srv/captured; cat /proc/self/mountinfo")
    top, _, mounts = result.stdout.partition("/srv:")
    names = {".repro-env", "bin", "dev", "etc", "home", "opt", "proc", "run", "srv", "sys", "tmp", "var"}
    of_python = Path(sys._base_executable).resolve().parts[1]  # type: ignore[attr-defined]
    assert names <= set(top.split()) <= names | {"lib", "lib64", "usr", of_python}
    roots = [line.split(" ")[3] for line in mounts.splitlines() if " - overlay " in line]
    assert set(roots) <= {"/", "/opt/env", "/tmp/of-the-image"}


def test_home_and_temporary_directories_are_private_and_only_files_in_home_are_kept(any_root: Place) -> None:
    script = 'for f in /home/ann /tmp /var/tmp /run /dev/shm; do echo hello > "$f/mine"; cat "$f/mine"; stat -c "%a" "$f"; done'
    result = any_root.sh(script)
    assert result.stdout.split() == ["hello", "755", "hello", "1777", "hello", "1777", "hello", "755", "hello", "1777"]
    again = any_root.sh('for f in /home/ann /tmp /var/tmp /run /dev/shm; do [ ! -e "$f/mine" ] || echo "$f"; done')
    assert again.stdout == ""
    assert result.files == {}
    assert result.outside == {"home/ann/mine": "hello\n"}
    assert {path.name for path in result.directory.iterdir() if path.suffix != ".log"} == {"files", "outside"}


def test_files_of_the_image_in_the_home_directory_are_visible(any_root: Place) -> None:
    """The interpreter may be in HOME."""
    user = User(uid=any_root.uid, gid=any_root.uid, name="x", home="/opt/env")
    result = any_root.sh("cat note; echo new > mine; cat mine bin/hello", user=user, cwd="/opt/env")
    assert result.stdout.startswith("the environment\nnew\n#!/bin/sh")


def test_a_run_cannot_change_the_image_in_the_store(any_root: Place) -> None:
    before = _state(any_root.store / "layers")
    any_root.sh(
        "echo evil > /opt/env/note || true; rm -f /etc/passwd || true; chmod 0777 /opt/env/bin/hello || true; echo x > /bin/cat || true"
    )
    assert _state(any_root.store / "layers") == before


def _state(root: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in sorted(root.rglob("*")):
        facts = path.lstat()
        found[str(path)] = (facts.st_mode, facts.st_size, facts.st_mtime_ns)
    return found


def test_dev_has_the_usual_devices(any_root: Place) -> None:
    result = any_root.python("""
import os
print(sorted(os.listdir("/dev")))
assert os.read(os.open("/dev/urandom", os.O_RDONLY), 4) and os.read(os.open("/dev/zero", os.O_RDONLY), 4) == bytes(4)
os.write(os.open("/dev/null", os.O_WRONLY), b"x")
main, side = os.openpty()
print(os.ttyname(side))
try:
    os.mknod("/tmp/disk", 0o060600, os.makedev(254, 0)); print("made a device")
except OSError: print("refused")
""")
    names, tty, device = result.stdout.splitlines()
    assert names == str(
        ["fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"]
    ), result.stderr
    assert tty == "/dev/pts/0"
    assert device == "refused"


def test_sysfs_and_control_groups_can_be_read(any_root: Place) -> None:
    result = any_root.sh("cat /sys/devices/system/cpu/online; ls /sys/fs/cgroup")
    cpus, _, groups = result.stdout.partition("\n")
    assert cpus == Path("/sys/devices/system/cpu/online").read_text().strip()
    assert groups.split() == sorted(path.name for path in Path("/sys/fs/cgroup").iterdir())


def test_mounts_below_data_are_read_only(stores: Callable[[int], Path]) -> None:
    need(os.getuid() == 0, "uid 0, to mount something below data")
    with open_place(stores(0), 0) as place:
        data = place.root / "data"
        (data / "disk").mkdir(parents=True)
        setup = f'mount -t tmpfs none "{data}/disk"; echo deep > "{data}/disk/x"; exec "$@"'
        result = place.sh(
            "cat /data/disk/x; echo y > /data/disk/x || echo refused; echo z > /data/z || echo refused",
            mounts=[Mount(kind="data", source=str(data), target="/data")],
            before=["unshare", "-m", "sh", "-ec", setup, "sh"],
        )
        assert result.stdout == "deep\nrefused\nrefused\n"


def test_data_is_read_only(any_root: Place) -> None:
    data = any_root.root / "data, with: odd\\ name"
    (data / "deep").mkdir(parents=True)
    (data / "deep/file").write_text("numbers\n")
    single = any_root.root / "one file"
    single.write_text("single\n")
    any_root.own(data)
    any_root.own(single)
    mounts = [
        Mount(kind="data", source=str(data), target="/data/set"),
        Mount(kind="data", source=str(single), target="/srv/captured/project/one.txt"),
        Mount(kind="data", source=str(data / "deep"), target="/srv/captured/project/package/deep"),
        Mount(kind="data", source=str(data / "deep"), target="/srv/captured/project/new/deep"),
    ]
    result = any_root.sh(
        "cat /data/set/deep/file one.txt package/deep/file new/deep/file;"
        "for f in /data/set/deep/file one.txt package/deep/file /data/set/new; do (echo x > $f) 2>/dev/null || echo refused; done",
        mounts=mounts,
    )
    assert result.stdout == "numbers\nsingle\nnumbers\nnumbers\n" + "refused\n" * 4
    assert result.files == {}
    assert result.answer.removed == ()
    assert (data / "deep/file").read_text() == "numbers\n"
    assert not [path for path in (result.directory / "files").rglob("*") if path.is_dir()]


def test_a_mount_target_that_cannot_be_made_is_an_error(any_root: Place) -> None:
    target = "/opt/env/note/below-a-file"
    result = any_root.sh(":", mounts=[Mount(kind="data", source=str(any_root.runs), target=target)])
    assert result.answer.error == "RunError"
    assert target in result.answer.message


def test_an_image_can_have_sixty_layers(place: Place) -> None:
    place.layers += rootfs.thin(place.store, 60)
    place.own(place.store)
    result = place.sh("ls /many")
    assert len(result.stdout.split()) == 60
    assert result.outcome.methods[0] == "root: overlay"


@pytest.mark.parametrize("name", ["a b,c:d", "a\\b'\"c", "ü=%s"])
def test_the_store_and_the_runs_can_have_unusual_names(image: Path, name: str) -> None:
    with open_place(image, os.getuid(), name) as place:
        _runs_in(place, image)


def _runs_in(place: Place, image: Path) -> None:
    place.store = place.root / "store"
    subprocess.run(["cp", "-a", str(image), str(place.store)], check=True)
    result = place.sh("echo new > new; rm old.txt; cat /srv/captured/venv/note")
    assert (result.outcome.exit_code, result.outcome.methods[0]) == (0, "root: overlay")
    assert (result.files, result.answer.removed) == ({"new": "new\n"}, ("old.txt",))


@pytest.mark.parametrize("workspace", ["/srv/captured/a b,c:d\\e", "/opt/env/inside", "/tmp/project"])
def test_the_workspace_can_have_an_unusual_name(place: Place, workspace: str) -> None:
    result = place.sh("pwd; echo new > new", workspace=workspace, cwd=workspace + "/package")
    assert result.stdout == f"{workspace}/package\n"
    assert result.files == {"package/new": "new\n"}


def test_the_merged_tree_is_made_once_from_hard_links_to_the_store(place: Place) -> None:
    place.overlay = False
    image = rootfs.digest(77)
    place.sh(":", image=image)
    tree = place.store / "merged" / image.removeprefix("sha256:")
    assert (tree / "opt/env/note").samefile(place.store / "layers" / rootfs.digest(2).removeprefix("sha256:") / "opt/env/note")
    made = tree.stat().st_ctime_ns
    place.sh(":", image=image)
    assert tree.stat().st_ctime_ns == made
    assert not [path for path in tree.rglob("*") if stat.S_ISCHR(path.lstat().st_mode)]


def test_an_incomplete_merged_tree_is_made_again(place: Place) -> None:
    place.overlay = False
    image = rootfs.digest(78)
    half = place.store / "merged" / f".{image.removeprefix('sha256:')}.0000"
    half.mkdir(parents=True)
    place.own(place.store / "merged")
    assert place.sh("hello", image=image).stdout
    assert not half.exists()


def test_mounts_are_made_read_only_on_kernels_without_mount_setattr(place: Place) -> None:
    """Kernels before 5.12 can only change one mount at a time."""
    script = """
import os
from repro_env.sandbox import kernel; from repro_env.sandbox.embedded import namespaces, rootfs
if not namespaces.can_mount():
    namespaces.enter_user()
namespaces.enter_mounts()
kernel.mount("tmpfs", "/mnt", "tmpfs", kernel.MS_NOSUID, "mode=0755")
os.mkdir("/mnt/with space"); os.mkdir("/mnt/a"); kernel.mount("tmpfs", "/mnt/with space", "tmpfs", kernel.MS_NOSUID)
kernel.bind("/mnt", "/srv")
rootfs.seal_each_mount("/srv")
for path in ("/srv/x", "/srv/a/x", "/srv/with space/x"):
    try:
        open(path, "w"); print("written", path)
    except OSError as error:
        print(error.strerror)
open("/mnt/still", "w")
"""
    command = [*place.identity(), python(place.uid), "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY, env=environ())
    assert done.stdout.splitlines() == ["Read-only file system"] * 3, done.stderr
