"""The outputs of a run: files that it made, changed and removed in its project, and files that it wrote elsewhere."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import msgspec
import pytest

from repro_env.oci import paths as layout
from repro_env.sandbox import outputs, workspace
from repro_env.sandbox.workspace import OutputFilter
from repro_env.schema.environment import Variable
from repro_env.schema.errors import DiskError
from repro_env.schema.run import ImageTree, Member, Mount
from tests.fakes import rootfs
from tests.parts import need
from tests.sandbox import launches
from tests.sandbox.conftest import REPOSITORY, Place, environ
from tests.sandbox.driver import Answer


def test_the_source_is_visible_and_writable(place: Place) -> None:
    result = place.sh(
        "cat train.py link; ./run.sh || echo $?; echo two > out.txt; mkdir -p a/b; echo deep > a/b/c; stat -c %a train.py run.sh"
    )
    assert result.stdout == "print('training')\n" * 2 + "7\n644\n755\n"
    assert (result.files, result.answer.removed) == ({"a/b/c": "deep\n", "out.txt": "two\n"}, ())


def test_a_run_that_writes_nothing_has_no_outputs(place: Place) -> None:
    result = place.sh(":")
    assert list((result.directory / "files").iterdir()) == []
    assert sorted(path.name for path in result.directory.iterdir() if path.suffix != ".log") == ["files"]


@pytest.mark.parametrize(
    ("script", "files", "removed"),
    [
        ("rm old.txt", {}, ["old.txt"]),
        ("rm link", {}, ["link"]),
        ("rm -r package", {}, ["package/__init__.py", "package/deep/one.txt", "package/deep/two.txt"]),
        ("rm -r package; mkdir package; echo n > package/n", {"package/n": "n\n"},
         ["package/__init__.py", "package/deep/one.txt", "package/deep/two.txt"]),
        ("rm -r package; mkdir -p package/deep; echo 1 > package/deep/one.txt", {"package/deep/one.txt": "1\n"},
         ["package/__init__.py", "package/deep/two.txt"]),
        ("rm -r package; mkdir -p package/deep; echo one > package/deep/one.txt", {"package/deep/one.txt": "one\n"},
         ["package/__init__.py", "package/deep/two.txt"]),
        ("rm -r package; echo file > package", {"package": "file\n"},
         ["package/__init__.py", "package/deep/one.txt", "package/deep/two.txt"]),
        ("rm -r package/deep; ln -s / package/deep", {"package/deep": "-> /"}, ["package/deep/one.txt", "package/deep/two.txt"]),
        ("rm old.txt; mkdir old.txt; echo in > old.txt/x", {"old.txt/x": "in\n"}, ["old.txt"]),
        ("rm old.txt; echo old > old.txt", {"old.txt": "old\n"}, []),
        ("rm old.txt; echo changed > old.txt", {"old.txt": "changed\n"}, []),
        ("mv old.txt new.txt", {"new.txt": "old\n"}, ["old.txt"]),
        ("mv package/deep moved", {"moved/one.txt": "one\n", "moved/two.txt": "two\n"}, ["package/deep/one.txt", "package/deep/two.txt"]),
        ("mv train.py old.txt", {"old.txt": "print('training')\n"}, ["train.py"]),
        ("echo old > old.txt", {"old.txt": "old\n"}, []),  # the same bytes as before
        (": >> old.txt", {}, []),
        ("echo more >> old.txt", {"old.txt": "old\nmore\n"}, []),
        ("touch old.txt package/deep", {"old.txt": "old\n"}, []),
        ("chmod 600 old.txt", {}, []),
        ("chmod +x old.txt", {"old.txt": "old\n"}, []),
        ("chmod 555 package; chmod 000 package/deep", {}, []),
        ("ln -sf old.txt link", {"link": "-> old.txt"}, []),
        ("ln train.py hard", {"hard": "print('training')\n"}, []),
        ("echo x > package/deep/three; rm package/__init__.py", {"package/deep/three": "x\n"}, ["package/__init__.py"]),
    ],
)  # fmt: skip
def test_outputs_and_removed_files_are_found(place: Place, script: str, files: dict[str, str], removed: list[str]) -> None:
    result = place.sh(script)
    assert result.outcome.exit_code == 0, result.stderr
    assert (result.files, list(result.answer.removed)) == (files, removed)
    assert _kinds(result.directory / "files") <= {"file", "dir", "link"}
    assert not [path for path in (result.directory / "files").rglob("*") if path.is_dir() and not any(path.iterdir())]
    assert not _attributes(result.directory / "files")


def _kinds(root: Path) -> set[str]:
    return {
        "link" if path.is_symlink() else "dir" if path.is_dir() else "file" if path.is_file() else "other"
        for path in root.rglob("*")
    }


def _attributes(root: Path) -> list[str]:
    paths = [root, *root.rglob("*")]
    return [name for path in paths for name in os.listxattr(path, follow_symlinks=False) if "overlay" in name]


def test_an_output_has_no_set_group_id_bit(place: Place) -> None:
    result = place.sh("echo x > program; chmod 2755 program; chmod 4755 program || echo refused")
    assert result.stdout == "refused\n"
    assert stat.S_IMODE((result.directory / "files/program").stat().st_mode) == 0o755


def test_an_environment_inside_the_workspace_is_not_an_output(place: Place) -> None:
    prefix = "/srv/captured/project/.venv"
    place.layers = place.layers[:2]
    result = place.sh(
        f"cat {prefix}/note; ls -A; echo new > new", prefix=prefix, trees=(ImageTree(target=prefix, root=layout.ENVIRONMENT),)
    )
    assert result.stdout == "the environment\n.venv\nlink\nold.txt\npackage\nrun.sh\ntrain.py\n"
    assert (result.files, result.answer.removed) == ({"new": "new\n"}, ())
    assert sorted(path.name for path in (result.directory / "files").iterdir()) == ["new"]


def test_a_workspace_can_be_inside_the_environment(place: Place) -> None:
    result = place.sh(f"cat {rootfs.PREFIX}/note; echo new > new", workspace=f"{rootfs.PREFIX}/src", cwd=f"{rootfs.PREFIX}/src")
    assert result.stdout == "the environment\n"
    assert result.files == {"new": "new\n"}


def test_mounts_inside_the_workspace_are_not_outputs(place: Place) -> None:
    data = place.root / "data"
    data.mkdir()
    (data / "x").write_text("x\n")
    checkpoints = place.root / "checkpoints"
    checkpoints.mkdir()
    place.own(data)
    place.own(checkpoints)
    here = "/srv/captured/project"
    mounts = [
        Mount(kind="data", source=str(data), target=f"{here}/package"),
        Mount(kind="data", source=str(data), target=f"{here}/link"),
        Mount(kind="data", source=str(data / "x"), target=f"{here}/deeper/down/x"),
        Mount(kind="checkpoints", source=str(checkpoints), target=f"{here}/checkpoints"),
    ]
    result = place.sh("cat package/x link/x deeper/down/x; echo w > checkpoints/w; echo n > deeper/new", mounts=mounts)
    assert result.stdout == "x\nx\nx\n"
    assert (result.files, result.answer.removed) == ({"deeper/new": "n\n"}, ())
    assert sorted(str(path.relative_to(result.directory / "files")) for path in (result.directory / "files").rglob("*")) == [
        "deeper",
        "deeper/new",
    ]
    assert (checkpoints / "w").read_text() == "w\n"


@pytest.mark.parametrize("stacked", ["runs", "store"])
def test_an_image_of_links_is_used_where_overlay_is_refused(place: Place, stacked: str) -> None:
    """An overlay refuses another overlay as its upper layer, which most containers have, and two of them as its lower layer."""
    need(os.getuid() == 0, "uid 0, to mount file systems that overlay refuses")
    root = place.root
    setup = f'cd "{root}"; mkdir l u w; mount -t overlay none -o lowerdir=l,upperdir=u,workdir=w runs; chown {place.uid} runs'
    if stacked == "store":
        setup = (
            f'cd "{root}"; mkdir l u w u2 w2 one two; '
            f'mount -t overlay none -o "lowerdir={place.store},upperdir=u,workdir=w" one; '
            f"mount -t overlay none -o lowerdir=one,upperdir=u2,workdir=w2 two; chown {place.uid} two"
        )
        place.store = root / "two"
    script = f"echo new > new; rm old.txt; hello; cat {rootfs.PREFIX}/note; echo t > /tmp/t; echo home > /home/ann/x"
    command, directory, answer = place.command(place.launch("sh", "-ec", script), directory=place.runs / "run")
    show = f'cd "{directory}"; ls -A; cat files/new outside/home/ann/x'
    start = f'mkdir "{directory}"; chown {place.uid}:{place.uid} "{directory}"'
    line = ["unshare", "-m", "sh", "-ec", f'{setup}; {start}; cd "{REPOSITORY}"; "$@"; {show}', "sh", *command]
    done = subprocess.run(line, cwd=REPOSITORY, env=environ(), capture_output=True, text=True, check=False, timeout=300)
    result = msgspec.json.decode(answer.read_bytes() or b"{}", type=Answer)
    assert result.outcome, f"{result.message}\n{done.stderr}"
    assert result.outcome.methods[0] == "root: links"
    assert result.removed == ("old.txt",)
    shown = ["files", "outside", "stderr.log", "stdout.log", "new", "home"]
    assert done.stdout.splitlines() == [f"hello from {rootfs.PREFIX}/bin/hello", "the environment", *shown]


def test_a_source_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    need(os.getuid() == 0, "uid 0, to mount a small disk")
    small, snapshot = tmp_path / "small", tmp_path / "snapshot"
    for path in (small, snapshot):
        path.mkdir()
    (snapshot / "big").write_bytes(bytes(1 << 20))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], check=True)
    try:
        with pytest.raises(DiskError, match="not enough disk space"):
            workspace.prepare(launches.make("/project"), small, snapshot)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_the_outputs_of_a_killed_run_can_be_collected_later(tmp_path: Path) -> None:
    snapshot, directory = tmp_path / "snapshot", tmp_path / "run"
    (snapshot / "d").mkdir(parents=True)
    for name in ("d/same", "changed", "gone"):
        (snapshot / name).write_text(name)
    (tmp_path / "file").touch()
    directory.mkdir()
    mounts = (
        Mount(kind="data", source=str(tmp_path), target="/project/data/x"),
        Mount(kind="data", source=str(tmp_path / "file"), target="/project/d/file"),
    )
    workspace.prepare(launches.make("/project", mounts=mounts), directory, snapshot)
    files = directory / "files"
    assert (files / "data/x").is_dir()
    assert (files / "d/file").is_file()
    (files / "gone").unlink()
    (files / "changed").write_text("2")
    (files / "new").write_text("new")
    for removed in (("gone",), ()):
        assert workspace.collect(directory, snapshot) == removed
        assert sorted(path.name for path in directory.rglob("*")) == ["changed", "files", "new"]


def test_files_that_machines_wrote_outside_the_project_are_merged_and_those_that_differ_are_named(tmp_path: Path) -> None:
    directory, snapshot = tmp_path / "run", tmp_path / "snapshot"
    directory.mkdir()
    snapshot.mkdir()
    written = {
        "node1": {"own1": "1", "same": "s", "other": "1", "deep/a": "1"},
        "node2": {"own2": "2", "same": "s", "other": "2", "deep/b": "2"},
    }
    for node, found in written.items():
        launch = launches.make("/src/p", member=Member(rank=0, size=2, local_rank=0, node=node))
        workspace.prepare(launch, directory, snapshot)
        for name, text in found.items():
            path = directory / "hosts" / node / "outside/home/ann/results" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    assert workspace.collect(directory, snapshot) == ()
    contents = outputs.of_run(directory)
    names = ["deep/a", "deep/b", "other", "own1", "own2", "same"]
    assert [output.path for output in contents.outputs] == [f"/home/ann/results/{name}" for name in names]
    assert (directory / "outside/home/ann/results/other").read_text() == "1"
    assert contents.others == ("/home/ann/results/other of node2 (differs from the output with this path)",)
    assert not (directory / "hosts/node1").exists()


def test_a_copy_keeps_modes_times_and_links(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "d").mkdir(parents=True)
    (source / "d/x").write_bytes(os.urandom(3 << 20))
    (source / "d/x").chmod(0o755)
    os.utime(source / "d/x", ns=(1, 315532800_000_000_000))
    (source / "l").symlink_to("d/nowhere")
    target.mkdir()
    workspace.copy_tree(source, target)
    assert (target / "d/x").read_bytes() == (source / "d/x").read_bytes()
    assert (target / "d/x").stat().st_mode & 0o777 == 0o755
    assert (target / "d/x").stat().st_mtime_ns == 315532800_000_000_000
    assert (target / "l").readlink() == Path("d/nowhere")


def test_a_copy_keeps_holes(tmp_path: Path) -> None:
    path, copy = tmp_path / "x", tmp_path / "copy"
    with path.open("wb") as file:
        for position in (0, 3 << 20, (7 << 20) + 3):
            file.seek(position)
            file.write(b"data")
        file.truncate(8 << 20)
    workspace.copy_file(path, copy)
    assert copy.read_bytes() == path.read_bytes()
    assert copy.stat().st_blocks <= path.stat().st_blocks


def test_the_recorded_times_are_set_and_follow_no_symlink(tmp_path: Path) -> None:
    snapshot, directory, host = tmp_path / "snapshot", tmp_path / "run", tmp_path / "host"
    for path in (snapshot / "deep", directory, host):
        path.mkdir(parents=True)
    for path in (snapshot / "deep/a%b", snapshot / "b", host / "x"):
        path.write_text("x")
        os.utime(path, ns=(1, 1))
    (snapshot / "link").symlink_to(host)
    times = {"deep": -5 * 10**9, "deep/a%25b": 1_700_000_000_123_456_789, "link/x": 7, "../host/x": 7, "gone": 1}
    workspace.prepare(launches.make("/srv/project", times=times), directory, snapshot)
    assert (directory / "files/deep/a%b").stat().st_mtime_ns == times["deep/a%25b"]
    assert (directory / "files/deep").stat().st_mtime_ns == times["deep"]
    assert (host / "x").stat().st_mtime_ns == 1
    (directory / "files/b").write_text("y")
    os.utime(directory / "files/b", ns=(1, 1))
    assert workspace.collect(directory, snapshot) == ()
    assert [path.name for path in (directory / "files").rglob("*")] == ["b"]


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


def test_files_outside_the_project_are_kept(place: Place) -> None:
    cache = Variable(name="XDG_CACHE_HOME", value="/kept/away")
    result = place.python(WRITE, env=(*place.launch().env, cache))
    assert result.outcome.exit_code == 0, result.stderr
    assert result.files == {"inside.txt": "text"}
    assert result.outside == KEPT
    outside = result.directory / "outside"
    assert all(path.is_symlink() or path.is_file() or (path.is_dir() and any(path.iterdir())) for path in outside.rglob("*"))
    assert {path.lstat().st_uid for path in outside.rglob("*")} == {place.uid}
    assert not _attributes(outside)
    assert sorted(path.name for path in result.directory.iterdir()) == ["files", "outside", "stderr.log", "stdout.log"]


def test_files_outside_the_project_are_kept_in_a_container_with_a_read_only_image(docker_place: Place) -> None:
    script = "mkdir /home/ann/results ../out; echo text >/home/ann/results/x; echo text >../out/y; ! mkdir /scratch; ! echo text >/opt/x"
    result = docker_place.sh(script)
    assert result.outcome.exit_code == 0, result.stderr
    assert result.stderr.count("Read-only file system") == 2
    assert result.outside == {"home/ann/results/x": "text\n", "srv/captured/out/y": "text\n"}


def test_files_outside_the_project_are_kept_without_overlay(place: Place) -> None:
    place.overlay = False
    result = place.sh("mkdir /home/ann/results; echo text >/home/ann/results/x; echo x > /srv/captured/y; ! mkdir /opt/z")
    assert result.outside == {"home/ann/results/x": "text\n", "srv/captured/y": "x\n"}


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
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    workspace.prepare(launches.make("/srv/project"), tmp_path / "run", snapshot)
    assert workspace.collect(tmp_path / "run", snapshot) == ()
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or not path.is_dir()}
    assert found == {"away", "file", "set-uid", "closed/deep/file", "line\nend", "\udcff"}
    assert (root / "away").is_symlink()
    assert (root / "set-uid").stat().st_mode & 0o7777 == 0o755
    assert (secret / "key").read_text() == "of the host"
    recorded = outputs.of_run(tmp_path / "run")
    assert {output.path for output in recorded.outputs} == {"/set-uid", "/closed/deep/file"}
    assert len(recorded.others) == 4


FILTER = OutputFilter(workspace="/srv/project", mounted=("/srv/project",), kept=("/srv",), caches=("/home/ann/.cache",))


def test_temporary_files_are_kept_only_next_to_a_temporary_project_and_in_a_temporary_home() -> None:
    def skipped(*kept: str) -> list[str]:
        outputs = msgspec.structs.replace(FILTER, kept=kept)
        paths = ("/tmp", "/tmp/x", "/tmp/job", "/tmp/job/out", "/var/tmp/x", "/home/ann/.cache", "/home/ann/x")
        return [path for path in paths if outputs.skip(path)]

    assert skipped("/srv") == ["/tmp/x", "/tmp/job", "/tmp/job/out", "/var/tmp/x", "/home/ann/.cache"]
    assert skipped("/tmp/job") == ["/tmp/x", "/var/tmp/x", "/home/ann/.cache"]
    assert skipped("/srv", "/tmp/job") == ["/tmp/x", "/var/tmp/x", "/home/ann/.cache"]
    assert skipped("/tmp") == ["/var/tmp/x", "/home/ann/.cache"]


def test_outputs_replace_directories_and_links_without_leaving_the_project(tmp_path: Path) -> None:
    source, target, other = tmp_path / "source", tmp_path / "target", tmp_path / "other"
    for directory in (source / "link", target / "dir", other):
        directory.mkdir(parents=True)
    (source / "link/file").write_text("new")
    (source / "dir").write_text("a file now")
    (target / "dir/old").write_text("old")
    (target / "link").symlink_to(other)
    workspace.copy_over(source, target)
    assert list(other.iterdir()) == []
    assert (target / "link/file").read_text() == "new"
    assert (target / "dir").read_text() == "a file now"
    workspace.copy_over(tmp_path / "missing", target)
