"""The workspace and its harvest: what the run made, changed and removed, by overlay and by copy alike."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import msgspec
import pytest

from repro_env.image import layout
from repro_env.model.errors import DiskError
from repro_env.model.run import Mount, Shown
from repro_env.run import workspace
from repro_env.run.strategy import Strategy
from repro_env.run.workspace import Point
from tests.fakes import rootfs
from tests.parts import need
from tests.run.conftest import REPOSITORY, Place, environ
from tests.run.driver import Answer


@pytest.fixture(params=["overlay", "copy"])
def either(request: pytest.FixtureRequest, place: Place) -> Place:
    place.strategy = Strategy(root="disk", workspace=request.param)
    return place


def test_the_source_is_there_and_can_be_written(either: Place) -> None:
    ran = either.sh(
        "cat train.py link; ./run.sh || echo $?; echo two > out.txt; mkdir -p a/b; echo deep > a/b/c; stat -c %a train.py run.sh"
    )
    assert ran.stdout == "print('training')\n" * 2 + "7\n644\n755\n"
    assert (ran.files, ran.answer.removed) == ({"a/b/c": "deep\n", "out.txt": "two\n"}, ())


def test_a_run_that_writes_nothing_leaves_nothing(either: Place) -> None:
    ran = either.sh(":")
    assert list((ran.folder / "files").iterdir()) == []
    assert sorted(path.name for path in ran.folder.iterdir() if path.suffix != ".log") == ["files"]


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
        ("echo old > old.txt", {"old.txt": "old\n"}, []),  # an earlier run on the host left the same bytes there
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
def test_changes_and_removals(either: Place, script: str, files: dict[str, str], removed: list[str]) -> None:
    ran = either.sh(script)
    assert ran.outcome.exit_code == 0, ran.stderr
    assert (ran.files, list(ran.answer.removed)) == (files, removed)
    assert _kinds(ran.folder / "files") <= {"file", "dir", "link"}
    assert not [path for path in (ran.folder / "files").rglob("*") if path.is_dir() and not any(path.iterdir())]
    assert not _attributes(ran.folder / "files")


def _kinds(root: Path) -> set[str]:
    return {
        "link" if path.is_symlink() else "dir" if path.is_dir() else "file" if path.is_file() else "other"
        for path in root.rglob("*")
    }


def _attributes(root: Path) -> list[str]:
    paths = [root, *root.rglob("*")]
    return [name for path in paths for name in os.listxattr(path, follow_symlinks=False) if "overlay" in name]


def test_an_output_has_no_set_group_id_bit(either: Place) -> None:
    ran = either.sh("echo x > program; chmod 2755 program; chmod 4755 program || echo refused")
    assert ran.stdout == "refused\n"
    assert stat.S_IMODE((ran.folder / "files/program").stat().st_mode) == 0o755


def test_an_environment_inside_the_workspace_is_no_output(either: Place) -> None:
    prefix = "/srv/captured/project/.venv"
    either.layers = either.layers[:2]
    ran = either.sh(
        f"cat {prefix}/note; ls -A; echo new > new", prefix=prefix, trees=(Shown(target=prefix, root=layout.ENVIRONMENT),)
    )
    assert ran.stdout == "the environment\n.venv\nlink\nold.txt\npackage\nrun.sh\ntrain.py\n"
    assert (ran.files, ran.answer.removed) == ({"new": "new\n"}, ())
    assert sorted(path.name for path in (ran.folder / "files").iterdir()) == ["new"]


def test_a_workspace_inside_the_environment(either: Place) -> None:
    ran = either.sh(f"cat {rootfs.PREFIX}/note; echo new > new", workspace=f"{rootfs.PREFIX}/src", cwd=f"{rootfs.PREFIX}/src")
    assert ran.stdout == "the environment\n"
    assert ran.files == {"new": "new\n"}


def test_mounts_inside_the_workspace_are_no_outputs(either: Place) -> None:
    data = either.root / "data"
    data.mkdir()
    (data / "x").write_text("x\n")
    keep = either.root / "keep"
    keep.mkdir()
    either.own(data)
    either.own(keep)
    here = "/srv/captured/project"
    mounts = [
        Mount(kind="data", source=str(data), target=f"{here}/package"),
        Mount(kind="data", source=str(data), target=f"{here}/link"),
        Mount(kind="data", source=str(data / "x"), target=f"{here}/deeper/down/x"),
        Mount(kind="checkpoints", source=str(keep), target=f"{here}/checkpoints"),
    ]
    ran = either.sh("cat package/x link/x deeper/down/x; echo w > checkpoints/w; echo n > deeper/new", mounts=mounts)
    assert ran.stdout == "x\nx\nx\n"
    assert (ran.files, ran.answer.removed) == ({"deeper/new": "n\n"}, ())
    assert sorted(str(path.relative_to(ran.folder / "files")) for path in (ran.folder / "files").rglob("*")) == [
        "deeper",
        "deeper/new",
    ]
    assert (keep / "w").read_text() == "w\n"


def _answer(place: Place, script: str, *, setup: str, folder: Path) -> tuple[Answer, str]:
    """Run in a mount namespace that `setup` (a shell script) prepares as root. Returns the answer, and what the run left."""
    need(os.getuid() == 0, "uid 0, to mount what overlay refuses")
    command, made, answer = place.command(place.launch("sh", "-ec", script), folder=folder)
    wrapped = f'{setup}; mkdir -p "{made}"; chown -R {place.uid}:{place.uid} "{made.parent}"; "$@"; cd "{made}"; ls -A . files; cat files/new'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", wrapped, "sh", *command],
        cwd=REPOSITORY, env=environ() | {"TMPDIR": str(made.parent)}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert answer.stat().st_size, done.stderr
    return msgspec.json.decode(answer.read_bytes(), type=Answer), done.stdout


def test_overlay_refused_for_the_upper_side_falls_back_by_itself(place: Place) -> None:
    """An overlay does not take another overlay as its upper side: so it is inside most containers."""
    root = place.root
    setup = f'cd "{root}"; mkdir l u w; mount -t overlay none -o lowerdir=l,upperdir=u,workdir=w runs; cd "{REPOSITORY}"'
    said, left = _answer(place, "echo new > new; rm old.txt; echo t > /tmp/t; cat /tmp/t", setup=setup, folder=place.runs / "run")
    assert said.outcome, said.message
    assert said.outcome.means[:2] == ("root: overlay, upper side in memory", "workspace: copy")
    assert said.removed == ("old.txt",)
    assert left == "t\n.:\nfiles\nstderr.log\nstdout.log\n\nfiles:\nnew\nnew\n"


def test_overlay_refused_altogether_falls_back_by_itself(place: Place) -> None:
    """Overlays stack two deep; a store that lies on the second cannot be a lower side of a third (FILESYSTEM_MAX_STACK_DEPTH)."""
    root = place.root
    setup = (
        f'cd "{root}"; mkdir l u w u2 w2 one two; '
        f'mount -t overlay none -o "lowerdir={place.store},upperdir=u,workdir=w" one; '
        f'mount -t overlay none -o lowerdir=one,upperdir=u2,workdir=w2 two; chown {place.uid}:{place.uid} two; cd "{REPOSITORY}"'
    )
    place.store = root / "two"
    script = f"echo new > new; rm old.txt; hello; cat {rootfs.PREFIX}/note"
    said, left = _answer(place, script, setup=setup, folder=root / "two/runs/run")
    assert said.outcome, said.message
    assert said.outcome.means[:2] == ("root: links", "workspace: copy")
    assert said.removed == ("old.txt",)
    assert (
        left == f"hello from {rootfs.PREFIX}/bin/hello\nthe environment\n.:\nfiles\nstderr.log\nstdout.log\n\nfiles:\nnew\nnew\n"
    )


def test_a_workspace_that_does_not_fit_fails_and_says_so(image: Path, tmp_path: Path) -> None:
    need(os.getuid() == 0, "uid 0, to mount a small disk")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], check=True)
    try:
        snapshot = tmp_path / "snapshot"
        snapshot.mkdir()
        (snapshot / "big").write_bytes(bytes(1 << 20))
        (small / "files").mkdir()
        with pytest.raises(DiskError, match="no room"):
            workspace.CopiedWorkspace(snapshot, small / "files", needed=()).prepare()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_killed_copy_can_be_harvested_later(tmp_path: Path) -> None:
    snapshot, upper = tmp_path / "snapshot", tmp_path / "run/files"
    (snapshot / "d").mkdir(parents=True)
    (snapshot / "d/same").write_text("same")
    (snapshot / "changed").write_text("1")
    (snapshot / "gone").write_text("gone")
    upper.mkdir(parents=True)
    workspace.CopiedWorkspace(snapshot, upper, needed=[Point("data/x", True), Point("d/file", False)]).prepare()
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
