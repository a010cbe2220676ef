"""The workspace and its harvest: files that the run made, changed and removed, with overlay and with a copy."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import msgspec
import pytest

from repro_env.oci import paths as layout
from repro_env.sandbox import workspace
from repro_env.sandbox.embedded.stage import Strategy
from repro_env.sandbox.workspace import MountPoint
from repro_env.schema.errors import DiskError
from repro_env.schema.run import ImageTree, Mount
from tests.fakes import rootfs
from tests.parts import need
from tests.sandbox.conftest import REPOSITORY, Place, environ
from tests.sandbox.driver import Answer


@pytest.fixture(params=["overlay", "copy"])
def any_workspace(request: pytest.FixtureRequest, place: Place) -> Place:
    place.strategy = Strategy(root="disk", workspace=request.param)
    return place


def test_the_source_is_visible_and_writable(any_workspace: Place) -> None:
    result = any_workspace.sh(
        "cat train.py link; ./run.sh || echo $?; echo two > out.txt; mkdir -p a/b; echo deep > a/b/c; stat -c %a train.py run.sh"
    )
    assert result.stdout == "print('training')\n" * 2 + "7\n644\n755\n"
    assert (result.files, result.answer.removed) == ({"a/b/c": "deep\n", "out.txt": "two\n"}, ())


def test_a_run_that_writes_nothing_has_no_outputs(any_workspace: Place) -> None:
    result = any_workspace.sh(":")
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
def test_outputs_and_removed_files_are_found(
    any_workspace: Place, script: str, files: dict[str, str], removed: list[str]
) -> None:
    result = any_workspace.sh(script)
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


def test_an_output_has_no_set_group_id_bit(any_workspace: Place) -> None:
    result = any_workspace.sh("echo x > program; chmod 2755 program; chmod 4755 program || echo refused")
    assert result.stdout == "refused\n"
    assert stat.S_IMODE((result.directory / "files/program").stat().st_mode) == 0o755


def test_an_environment_inside_the_workspace_is_not_an_output(any_workspace: Place) -> None:
    prefix = "/srv/captured/project/.venv"
    any_workspace.layers = any_workspace.layers[:2]
    result = any_workspace.sh(
        f"cat {prefix}/note; ls -A; echo new > new", prefix=prefix, trees=(ImageTree(target=prefix, root=layout.ENVIRONMENT),)
    )
    assert result.stdout == "the environment\n.venv\nlink\nold.txt\npackage\nrun.sh\ntrain.py\n"
    assert (result.files, result.answer.removed) == ({"new": "new\n"}, ())
    assert sorted(path.name for path in (result.directory / "files").iterdir()) == ["new"]


def test_a_workspace_can_be_inside_the_environment(any_workspace: Place) -> None:
    result = any_workspace.sh(
        f"cat {rootfs.PREFIX}/note; echo new > new", workspace=f"{rootfs.PREFIX}/src", cwd=f"{rootfs.PREFIX}/src"
    )
    assert result.stdout == "the environment\n"
    assert result.files == {"new": "new\n"}


def test_mounts_inside_the_workspace_are_not_outputs(any_workspace: Place) -> None:
    data = any_workspace.root / "data"
    data.mkdir()
    (data / "x").write_text("x\n")
    checkpoints = any_workspace.root / "checkpoints"
    checkpoints.mkdir()
    any_workspace.own(data)
    any_workspace.own(checkpoints)
    here = "/srv/captured/project"
    mounts = [
        Mount(kind="data", source=str(data), target=f"{here}/package"),
        Mount(kind="data", source=str(data), target=f"{here}/link"),
        Mount(kind="data", source=str(data / "x"), target=f"{here}/deeper/down/x"),
        Mount(kind="checkpoints", source=str(checkpoints), target=f"{here}/checkpoints"),
    ]
    result = any_workspace.sh("cat package/x link/x deeper/down/x; echo w > checkpoints/w; echo n > deeper/new", mounts=mounts)
    assert result.stdout == "x\nx\nx\n"
    assert (result.files, result.answer.removed) == ({"deeper/new": "n\n"}, ())
    assert sorted(str(path.relative_to(result.directory / "files")) for path in (result.directory / "files").rglob("*")) == [
        "deeper",
        "deeper/new",
    ]
    assert (checkpoints / "w").read_text() == "w\n"


def _answer(place: Place, script: str, *, setup: str, directory: Path) -> tuple[Answer, str]:
    """Run in a mount namespace that the shell script `setup` prepares as root. Returns the answer, and a list of the run's files."""
    need(os.getuid() == 0, "uid 0, to mount file systems that overlay refuses")
    command, made, answer = place.command(place.launch("sh", "-ec", script), directory=directory)
    wrapped = f'{setup}; mkdir -p "{made}"; chown -R {place.uid}:{place.uid} "{made.parent}"; "$@"; cd "{made}"; ls -A . files; cat files/new'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", wrapped, "sh", *command],
        cwd=REPOSITORY, env=environ() | {"TMPDIR": str(made.parent)}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert answer.stat().st_size, done.stderr
    return msgspec.json.decode(answer.read_bytes(), type=Answer), done.stdout


def test_a_refused_upper_layer_falls_back_to_memory_and_copy(place: Place) -> None:
    """An overlay refuses another overlay as its upper layer, which most containers have."""
    root = place.root
    setup = f'cd "{root}"; mkdir l u w; mount -t overlay none -o lowerdir=l,upperdir=u,workdir=w runs; cd "{REPOSITORY}"'
    answer, listing = _answer(
        place, "echo new > new; rm old.txt; echo t > /tmp/t; cat /tmp/t", setup=setup, directory=place.runs / "run"
    )
    assert answer.outcome, answer.message
    assert answer.outcome.means[:2] == ("root: overlay, upper layer in memory", "workspace: copy")
    assert answer.removed == ("old.txt",)
    assert listing == "t\n.:\nfiles\nstderr.log\nstdout.log\n\nfiles:\nnew\nnew\n"


def test_refused_overlay_falls_back_to_hard_links_and_copy(place: Place) -> None:
    """Two overlays can be stacked. A store on the second cannot be a lower layer of a third (FILESYSTEM_MAX_STACK_DEPTH)."""
    root = place.root
    setup = (
        f'cd "{root}"; mkdir l u w u2 w2 one two; '
        f'mount -t overlay none -o "lowerdir={place.store},upperdir=u,workdir=w" one; '
        f'mount -t overlay none -o lowerdir=one,upperdir=u2,workdir=w2 two; chown {place.uid}:{place.uid} two; cd "{REPOSITORY}"'
    )
    place.store = root / "two"
    script = f"echo new > new; rm old.txt; hello; cat {rootfs.PREFIX}/note"
    answer, listing = _answer(place, script, setup=setup, directory=root / "two/runs/run")
    assert answer.outcome, answer.message
    assert answer.outcome.means[:2] == ("root: links", "workspace: copy")
    assert answer.removed == ("old.txt",)
    assert (
        listing
        == f"hello from {rootfs.PREFIX}/bin/hello\nthe environment\n.:\nfiles\nstderr.log\nstdout.log\n\nfiles:\nnew\nnew\n"
    )


def test_a_workspace_that_does_not_fit_is_an_error(image: Path, tmp_path: Path) -> None:
    need(os.getuid() == 0, "uid 0, to mount a small disk")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], check=True)
    try:
        snapshot = tmp_path / "snapshot"
        snapshot.mkdir()
        (snapshot / "big").write_bytes(bytes(1 << 20))
        (small / "files").mkdir()
        with pytest.raises(DiskError, match="not enough disk space"):
            workspace.CopiedWorkspace(snapshot, small / "files", needed=()).prepare()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_the_outputs_of_a_killed_run_can_be_harvested_later(tmp_path: Path) -> None:
    snapshot, upper = tmp_path / "snapshot", tmp_path / "run/files"
    (snapshot / "d").mkdir(parents=True)
    (snapshot / "d/same").write_text("same")
    (snapshot / "changed").write_text("1")
    (snapshot / "gone").write_text("gone")
    upper.mkdir(parents=True)
    workspace.CopiedWorkspace(snapshot, upper, needed=[MountPoint("data/x", True), MountPoint("d/file", False)]).prepare()
    assert (upper / "data/x").is_dir()
    assert (upper / "d/file").is_file()
    (upper / "gone").unlink()
    (upper / "changed").write_text("2")
    (upper / "new").write_text("new")
    assert workspace.harvest(upper, snapshot) == ("gone",)
    assert sorted(path.name for path in upper.rglob("*")) == ["changed", "new"]
    assert workspace.harvest(upper, snapshot) == ()
    assert sorted(path.name for path in upper.rglob("*")) == ["changed", "new"]


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
