"""The root file system as a run sees it, in each way of making it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from repro_env.model.environment import Variable
from repro_env.model.run import Mount, Shown, User
from repro_env.run import filesystem
from repro_env.run.strategy import Strategy
from tests.fakes import rootfs
from tests.parts import need
from tests.run.conftest import REPOSITORY, Place, environ, open_place, python


@pytest.fixture(params=["disk", "memory", "links"])
def anyhow(request: pytest.FixtureRequest, place: Place) -> Place:
    """A place where the root is made in one given way."""
    place.strategy = Strategy(root=request.param, workspace="copy" if request.param == "links" else "overlay")
    return place


HOME = tuple(Variable(name=name, value=value) for name, value in (("HOME", "/home/ann"), ("PATH", f"{rootfs.PREFIX}/bin:/bin")))
MEANS = {"disk": "root: overlay", "memory": "root: overlay, upper side in memory", "links": "root: links"}


def test_the_record_names_the_means(anyhow: Place) -> None:
    assert anyhow.strategy
    means = anyhow.sh(":").outcome.means
    assert means[:2] == (MEANS[anyhow.strategy.root], f"workspace: {anyhow.strategy.workspace}")
    assert ("user: namespace" in means) == (anyhow.uid != 0)
    assert not any(one.startswith(("proc:", "sys:", "pts:")) for one in means)


def test_nothing_of_the_host_is_visible(anyhow: Place) -> None:
    ran = anyhow.sh("ls -A /; ls /srv /srv/captured; cat /proc/self/mountinfo")
    top, _, mounts = ran.stdout.partition("/srv:")
    made = {".repro-env", "bin", "dev", "etc", "home", "opt", "proc", "run", "srv", "sys", "tmp", "var"}
    of_python = Path(sys._base_executable).resolve().parts[1]  # type: ignore[attr-defined]
    assert made <= set(top.split()) <= made | {"lib", "lib64", "usr", of_python}
    roots = [line.split(" ")[3] for line in mounts.splitlines() if " - overlay " in line]
    assert set(roots) <= {"/", "/opt/env", "/tmp/of-the-image"}


def test_home_and_temporary_directories_are_writable_and_private_and_only_what_is_in_home_is_kept(anyhow: Place) -> None:
    script = 'for f in /home/ann /tmp /var/tmp /run /dev/shm; do echo hello > "$f/mine"; cat "$f/mine"; stat -c "%a" "$f"; done'
    ran = anyhow.sh(script)
    assert ran.stdout.split() == ["hello", "755", "hello", "1777", "hello", "1777", "hello", "755", "hello", "1777"]
    again = anyhow.sh('for f in /home/ann /tmp /var/tmp /run /dev/shm; do [ ! -e "$f/mine" ] || echo "$f"; done')
    assert again.stdout == ""
    assert ran.files == {}
    assert ran.outside == {"home/ann/mine": "hello\n"}
    assert {path.name for path in ran.folder.iterdir() if path.suffix != ".log"} == {"files", "outside"}


def test_a_file_of_the_image_is_shown_in_a_writable_home(anyhow: Place) -> None:
    shown = Shown(root="/opt/env/note", target="/home/ann/.keras/keras.json")
    ran = anyhow.sh("cd ~/.keras; cat keras.json; echo new > mine; cat mine", trees=(*anyhow.launch("sh").trees, shown), env=HOME)
    assert ran.stdout == "the environment\nnew\n"
    assert ran.files == {}


def test_a_repository_is_shown_read_only_and_is_not_an_output(anyhow: Place) -> None:
    made, objects = anyhow.root / "made", anyhow.root / "objects"
    (made / "objects").mkdir(parents=True)
    objects.mkdir()
    (made / "HEAD").write_text("ref: x\n")
    (objects / "pack").write_text("packed\n")
    target = "/srv/captured/project/.git"
    mounts = [
        Mount(kind="git", source=str(made), target=target),
        Mount(kind="git", source=str(objects), target=f"{target}/objects"),
    ]
    ran = anyhow.sh(
        "cat .git/HEAD .git/objects/pack; ! echo x > .git/HEAD; ! echo x > .git/objects/new; echo y > out", mounts=mounts
    )
    assert ran.stdout == "ref: x\npacked\n"
    assert ran.files == {"out": "y\n"}


def test_temporary_files_are_on_disk(anyhow: Place) -> None:
    ran = anyhow.sh("stat -f -c %T /tmp /dev/shm")
    assert ran.stdout.split()[1] == "tmpfs"
    if filesystem.kind(anyhow.runs) != "tmpfs":
        assert ran.stdout.split()[0] != "tmpfs"


def test_a_home_that_the_image_has_keeps_what_is_in_it(anyhow: Place) -> None:
    """The interpreter may lie in HOME."""
    user = User(uid=anyhow.uid, gid=anyhow.uid, name="x", home="/opt/env")
    ran = anyhow.sh("cat note; echo new > mine; cat mine bin/hello", user=user, cwd="/opt/env")
    assert ran.stdout.startswith("the environment\nnew\n#!/bin/sh")


def test_what_the_image_has_in_tmp_is_there(anyhow: Place) -> None:
    """An interpreter is carried at its own path, wherever that is."""
    ran = anyhow.sh(
        "cat /tmp/of-the-image/file; echo mine > /tmp/mine; cat /tmp/mine; stat -c %a /tmp; echo x > /tmp/of-the-image/file || :"
    )
    assert ran.stdout == "carried\nmine\n1777\n"


def test_the_environment_is_at_its_captured_prefix(anyhow: Place) -> None:
    ran = anyhow.sh(f"hello; cat {rootfs.PREFIX}/note; stat -c %F {rootfs.PREFIX}; cd {rootfs.PREFIX}/bin; pwd -P")
    assert ran.stdout.splitlines() == [
        f"hello from {rootfs.PREFIX}/bin/hello",
        "the environment",
        "directory",
        f"{rootfs.PREFIX}/bin",
    ]


def test_what_a_layer_removes_is_gone(anyhow: Place) -> None:
    assert anyhow.sh("ls -A /opt/only-below").stdout == ""


def test_the_image_in_the_store_stays_as_it_is(anyhow: Place) -> None:
    before = _state(anyhow.store / "layers")
    anyhow.sh(
        "echo evil > /opt/env/note || true; rm -f /etc/passwd || true; chmod 0777 /opt/env/bin/hello || true; echo x > /bin/cat || true"
    )
    assert _state(anyhow.store / "layers") == before


def _state(root: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in sorted(root.rglob("*")):
        facts = path.lstat()
        found[str(path)] = (facts.st_mode, facts.st_size, facts.st_mtime_ns)
    return found


def test_devices_are_those_that_programs_expect(anyhow: Place) -> None:
    ran = anyhow.python("""
import os
print(sorted(os.listdir("/dev")))
assert os.read(os.open("/dev/urandom", os.O_RDONLY), 4) and os.read(os.open("/dev/zero", os.O_RDONLY), 4) == bytes(4)
os.write(os.open("/dev/null", os.O_WRONLY), b"x")
main, other = os.openpty()
print(os.ttyname(other))
try:
    os.mknod("/tmp/disk", 0o060600, os.makedev(254, 0)); print("made a device")
except OSError: print("refused")
""")
    names, tty, device = ran.stdout.splitlines()
    assert names == str(
        ["fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"]
    ), ran.stderr
    assert tty == "/dev/pts/0"
    assert device == "refused"


def test_hardware_facts_can_be_read(anyhow: Place) -> None:
    ran = anyhow.sh("cat /sys/devices/system/cpu/online; ls /sys/fs/cgroup")
    cpus, _, groups = ran.stdout.partition("\n")
    assert cpus == Path("/sys/devices/system/cpu/online").read_text().strip()
    assert groups.split() == sorted(path.name for path in Path("/sys/fs/cgroup").iterdir())


def test_data_is_read_only_with_what_is_mounted_below_it(stores: Callable[[int], Path]) -> None:
    need(os.getuid() == 0, "uid 0, to mount something below data")
    with open_place(stores(0), 0) as place:
        data = place.root / "data"
        (data / "disk").mkdir(parents=True)
        setup = f'mount -t tmpfs none "{data}/disk"; echo deep > "{data}/disk/x"; exec "$@"'
        ran = place.sh(
            "cat /data/disk/x; echo y > /data/disk/x || echo refused; echo z > /data/z || echo refused",
            mounts=[Mount(kind="data", source=str(data), target="/data")],
            before=["unshare", "-m", "sh", "-ec", setup, "sh"],
        )
        assert ran.stdout == "deep\nrefused\nrefused\n"


def test_data_is_read_only(anyhow: Place) -> None:
    data = anyhow.root / "data, with: odd\\ name"
    (data / "deep").mkdir(parents=True)
    (data / "deep/file").write_text("numbers\n")
    one = anyhow.root / "one file"
    one.write_text("single\n")
    anyhow.own(data)
    anyhow.own(one)
    mounts = [
        Mount(kind="data", source=str(data), target="/data/set"),
        Mount(kind="data", source=str(one), target="/srv/captured/project/one.txt"),
        Mount(kind="data", source=str(data / "deep"), target="/srv/captured/project/package/deep"),
        Mount(kind="data", source=str(data / "deep"), target="/srv/captured/project/new/deep"),
    ]
    ran = anyhow.sh(
        "cat /data/set/deep/file one.txt package/deep/file new/deep/file;"
        "for f in /data/set/deep/file one.txt package/deep/file /data/set/new; do (echo x > $f) 2>/dev/null || echo refused; done",
        mounts=mounts,
    )
    assert ran.stdout == "numbers\nsingle\nnumbers\nnumbers\n" + "refused\n" * 4
    assert ran.files == {}
    assert ran.answer.removed == ()
    assert (data / "deep/file").read_text() == "numbers\n"
    assert not [path for path in (ran.folder / "files").rglob("*") if path.is_dir()]


def test_checkpoints_write_through_as_the_caller(anyhow: Place) -> None:
    keep = anyhow.root / "checkpoints"
    keep.mkdir()
    anyhow.own(keep)
    mount = Mount(kind="checkpoints", source=str(keep), target=str(keep))
    anyhow.sh(f"echo weights > {keep}/last", mounts=[mount])
    assert (keep / "last").read_text() == "weights\n"
    assert (keep / "last").stat().st_uid == anyhow.uid


def test_a_mount_on_the_workspaces_parent_and_below_another_mount(anyhow: Place) -> None:
    outer, within = anyhow.root / "outer", anyhow.root / "within"
    (outer / "place").mkdir(parents=True)
    within.mkdir()
    (within / "x").write_text("within\n")
    anyhow.own(outer)
    anyhow.own(within)
    mounts = [Mount(kind="data", source=str(within), target="/d/place"), Mount(kind="data", source=str(outer), target="/d")]
    assert anyhow.sh("cat /d/place/x", mounts=mounts).stdout == "within\n"


def test_data_without_a_place_for_it_is_refused_in_words(anyhow: Place) -> None:
    target = "/opt/env/note/below-a-file"
    ran = anyhow.sh(":", mounts=[Mount(kind="data", source=str(anyhow.runs), target=target)])
    assert ran.answer.error == "RunError"
    assert target in ran.answer.message


def test_sixty_layers(place: Place) -> None:
    place.layers += rootfs.thin(place.store, 60)
    place.own(place.store)
    ran = place.sh("ls /many")
    assert len(ran.stdout.split()) == 60
    assert ran.outcome.means[0] == "root: overlay"


@pytest.mark.parametrize("name", ["a b", "a,b", "a:b", "a\\b", "a'\"b", "ü=x", "%s"])
def test_odd_names_of_the_store_and_the_runs(image: Path, name: str) -> None:
    with open_place(image, os.getuid(), name) as place:
        _runs_in(place, image)


def _runs_in(place: Place, image: Path) -> None:
    place.store = place.root / "store"
    subprocess.run(["cp", "-a", str(image), str(place.store)], check=True)
    ran = place.sh("echo new > new; rm old.txt; cat /srv/captured/venv/note")
    assert (ran.outcome.exit_code, ran.outcome.means[:2]) == (0, ("root: overlay", "workspace: overlay"))
    assert (ran.files, ran.answer.removed) == ({"new": "new\n"}, ("old.txt",))


@pytest.mark.parametrize("workspace", ["/srv/captured/pro ject", "/srv/captured/a,b:c\\d", "/opt/env/inside", "/tmp/project"])
def test_odd_names_of_the_workspace(place: Place, workspace: str) -> None:
    ran = place.sh("pwd; echo new > new", workspace=workspace, cwd=workspace + "/package")
    assert ran.stdout == f"{workspace}/package\n"
    assert ran.files == {"package/new": "new\n"}


def test_the_merged_tree_is_made_once_and_shares_the_stores_files(place: Place) -> None:
    place.strategy = Strategy(root="links", workspace="copy")
    image = rootfs.digest(77)
    place.sh(":", image=image)
    tree = place.store / "merged" / image.removeprefix("sha256:")
    assert (tree / "opt/env/note").samefile(place.store / "layers" / rootfs.digest(2).removeprefix("sha256:") / "opt/env/note")
    made = tree.stat().st_ctime_ns
    place.sh(":", image=image)
    assert tree.stat().st_ctime_ns == made
    assert not [path for path in tree.rglob("*") if stat.S_ISCHR(path.lstat().st_mode)]


def test_a_merged_tree_that_was_left_half_made_is_made_again(place: Place) -> None:
    place.strategy = Strategy(root="links", workspace="copy")
    image = rootfs.digest(78)
    half = place.store / "merged" / f".{image.removeprefix('sha256:')}.0000"
    half.mkdir(parents=True)
    place.own(place.store / "merged")
    assert place.sh("hello", image=image).stdout
    assert not half.exists()


def test_read_only_without_the_newest_system_call(place: Place) -> None:
    """Kernels before 5.12 seal mount by mount."""
    script = """
import os
from repro_env.run import kernel, namespaces, rootfs
if not namespaces.can_mount():
    namespaces.enter_user()
namespaces.enter_mounts()
kernel.mount("tmpfs", "/mnt", "tmpfs", kernel.MS_NOSUID, "mode=0755")
os.mkdir("/mnt/with space"); os.mkdir("/mnt/a"); kernel.mount("tmpfs", "/mnt/with space", "tmpfs", kernel.MS_NOSUID)
kernel.bind("/mnt", "/srv")
rootfs.seal_one_by_one("/srv")
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
