"""The host runner on a private copy: which paths are relocated, and what the command cannot change."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from repro_env.sandbox import externaloutputs as outside
from repro_env.sandbox.host import copyrunner, landlock
from repro_env.sandbox.host.copyrunner import HostCopyRunner
from repro_env.sandbox.workspace import harvest
from repro_env.schema.environment import Variable
from repro_env.schema.errors import CommandMissingError, DataError
from repro_env.schema.run import ImageTree, Launch, Mount, User
from tests.sandbox import launches


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """A launch of a source with one file in the store. The user's directories are next to it."""
    for name in ("snapshot/sub", "run/notes", "home", "project/data", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "snapshot" / "sub" / "code.py").write_text("code")
    (tmp_path / "outside" / "mine").write_text("mine")
    return launches.make(
        str(tmp_path / "project"),
        env=(Variable(name="PATH", value=os.environ["PATH"]), Variable(name="XDG_CACHE_HOME", value="/cache")),
        cwd=str(tmp_path / "project" / "sub"),
        notes=str(tmp_path / "run" / "notes"),
        user=User(uid=os.getuid(), gid=os.getgid(), name="ann", home=str(tmp_path / "home")),
    )


def run(launch: Launch, tmp_path: Path, code: str) -> tuple[int, tuple[str, ...], list[str]]:
    """Run Python code. Returns (exit code, removed files, outputs)."""
    runner = HostCopyRunner(tmp_path / "snapshot")
    outcome = runner.run(msgspec.structs.replace(launch, argv=(sys.executable, "-c", code)), directory=tmp_path / "run")
    files = tmp_path / "run" / "files"
    removed = runner.collect(Path(launch.workspace), tmp_path / "snapshot", files)
    assert {path.name for path in (tmp_path / "run").iterdir()} - {"outside"} == {"files", "notes"}
    outputs = [path.relative_to(files).as_posix() for path in files.rglob("*") if path.is_symlink() or not path.is_dir()]
    return outcome.exit_code, removed, sorted(outputs)


def test_the_command_sees_the_copy_and_leaves_only_outputs(launch: Launch, tmp_path: Path) -> None:
    data = Mount(kind="data", source=str(tmp_path / "outside"), target=f"{launch.workspace}/data/in")
    sibling = Mount(kind="data", source=str(tmp_path / "outside"), target=str(tmp_path / "outside"))
    code = f"""
import os, pathlib, tempfile
assert open("code.py").read() == open("../../outside/mine").read().replace("mine", "code")
assert open("../data/in/mine").read() == "mine"
assert os.environ["HOME"] != {launch.user.home!r} and not os.listdir(os.path.expanduser("~"))
assert "XDG_CACHE_HOME" not in os.environ and os.getcwd() == os.environ["PWD"]
pathlib.Path("~/x").expanduser().write_text("x"); tempfile.mkstemp()
open("out", "w").write("out"); open("../../sibling", "w").write("sibling")
os.remove("code.py")
"""
    done = run(msgspec.structs.replace(launch, mounts=(sibling, data)), tmp_path, code)
    assert done == (0, ("sub/code.py",), ["sub/out"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "outside", "project", "run", "snapshot"]
    assert not list((tmp_path / "project").rglob("out"))
    kept = Path(f"{tmp_path}/run/outside{tmp_path}")
    assert sorted(path.relative_to(kept).as_posix() for path in kept.rglob("*")) == ["home", "home/x", "sibling"]


@pytest.mark.skipif(not landlock.is_available(), reason="this kernel has no Landlock (Linux 5.19)")
def test_the_command_cannot_write_outside_the_copy(launch: Launch, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (tmp_path / "project" / "data").mkdir(exist_ok=True)
    code = f"""
import os, socket, subprocess
mine, new, empty = {str(outside / "mine")!r}, {str(outside / "new")!r}, {str(tmp_path / "project" / "data")!r}
os.symlink(os.path.dirname(mine), "link")
for change in (
    lambda: open(mine, "w"),
    lambda: open(mine, "r+"),
    lambda: os.truncate(mine, 0),
    lambda: os.remove(mine),
    lambda: os.rename(mine, "here"),
    lambda: os.rename("code.py", mine),
    lambda: os.link(mine, "here"),
    lambda: os.symlink("/", new),
    lambda: os.mkdir(new),
    lambda: os.mkfifo(new),
    lambda: socket.socket(socket.AF_UNIX).bind(new),
    lambda: os.rmdir(empty),
    lambda: subprocess.run(["sh", "-c", 'echo > "$0"', mine], check=True),
    lambda: open("../../outside/mine", "w"),
    lambda: open("link/mine", "w"),
):
    try:
        change()
    except (OSError, subprocess.CalledProcessError):
        continue
    raise SystemExit("a change succeeded")
"""
    mount = Mount(kind="data", source=str(outside), target=str(outside))
    assert run(msgspec.structs.replace(launch, mounts=(mount,)), tmp_path, code)[0] == 0
    assert ([path.name for path in outside.iterdir()], (outside / "mine").read_text()) == (["mine"], "mine")
    assert (tmp_path / "project" / "data").is_dir()


def test_a_checkpoint_directory_can_be_written(launch: Launch, tmp_path: Path) -> None:
    mount = Mount(kind="checkpoints", source=str(tmp_path / "outside"), target=f"{launch.workspace}/ck")
    assert run(msgspec.structs.replace(launch, mounts=(mount,)), tmp_path, "open('../ck/mine', 'a').write('!')") == (0, (), [])
    assert (tmp_path / "outside" / "mine").read_text() == "mine!"


def test_symlinks_of_the_source_or_the_command_are_not_followed(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "snapshot" / "data").symlink_to(tmp_path / "outside")
    mount = Mount(kind="data", source=str(tmp_path / "home"), target=f"{launch.workspace}/data/mine")
    with pytest.raises(DataError, match="leads through a symbolic link of the source"):
        HostCopyRunner(tmp_path / "snapshot").run(msgspec.structs.replace(launch, mounts=(mount,)), directory=tmp_path / "home")
    (tmp_path / "snapshot" / "data").unlink()
    (tmp_path / "outside" / "in").symlink_to("mine")
    mount = Mount(kind="data", source=str(tmp_path / "home"), target=f"{launch.workspace}/data/in")
    code = f"import os; os.rename('../data', '../old'); os.symlink({str(tmp_path / 'outside')!r}, '../data')"
    assert run(msgspec.structs.replace(launch, mounts=(mount,)), tmp_path, code)[0] == 0
    assert (tmp_path / "outside" / "in").is_symlink()


def test_a_command_that_replaces_its_directory_by_a_link_has_no_outputs(launch: Launch, tmp_path: Path) -> None:
    code = f"import os; os.rename('..', '../../gone'); os.symlink({str(tmp_path / 'outside')!r}, '../../project')"
    assert run(launch, tmp_path, code)[2] == []
    assert (tmp_path / "outside" / "mine").exists()


def test_a_missing_program_leaves_no_scratch_directory(launch: Launch, tmp_path: Path) -> None:
    with pytest.raises(CommandMissingError):
        HostCopyRunner(tmp_path / "snapshot").run(
            msgspec.structs.replace(launch, argv=("nothing-here",)), directory=tmp_path / "run"
        )
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".copied", "files", "notes"]


def test_the_outputs_of_a_killed_run_are_restored(launch: Launch, tmp_path: Path) -> None:
    code = f"""
import os, sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from repro_env.schema.run import Launch
from repro_env.sandbox.host.copyrunner import HostCopyRunner
import msgspec
launch = msgspec.json.decode({msgspec.json.encode(launch)!r}, type=Launch)
words = (sys.executable, "-c", "import os, signal; open('out', 'w').write('out'); os.kill(os.getppid(), signal.SIGKILL)")
HostCopyRunner(Path({str(tmp_path / "snapshot")!r})).run(msgspec.structs.replace(launch, argv=words), directory=Path({str(tmp_path / "run")!r}))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    copyrunner.restore(tmp_path / "run", launch.workspace)
    assert harvest(tmp_path / "run" / "files", tmp_path / "snapshot") == ()
    assert [path.name for path in (tmp_path / "run" / "files").rglob("*") if path.is_file()] == ["out"]
    outside.settle(tmp_path / "run")
    assert not (tmp_path / "run" / "outside").exists()


def test_arguments_and_variables_are_relocated_to_the_copy_except_paths_of_the_environment(launch: Launch) -> None:
    workspace = launch.workspace
    words = {
        workspace: f"/root-of-run{workspace}",
        f"{workspace}/a.py": f"/root-of-run{workspace}/a.py",
        f"--out={workspace}/out": f"--out=/root-of-run{workspace}/out",
        f"{workspace}/src:/usr/lib:{workspace}": f"/root-of-run{workspace}/src:/usr/lib:/root-of-run{workspace}",
        f"{workspace}/.venv/bin/python": f"{workspace}/.venv/bin/python",
        f"{workspace}/.venvs/x": f"/root-of-run{workspace}/.venvs/x",
        f"{workspace}/conda/lib": f"{workspace}/conda/lib",
        f"{workspace}-2/a": f"{workspace}-2/a",
        f"/mnt{workspace}": f"/mnt{workspace}",
        launch.notes: launch.notes,
    }
    original = msgspec.structs.replace(
        launch,
        argv=tuple(words),
        env=tuple(Variable(name=f"V{number:02}", value=word) for number, word in enumerate(words)),
        trees=(ImageTree(root="/opt/env", target=f"{workspace}/conda"),),
        notes=f"{workspace}/runs/x/notes",
    )
    relocated = copyrunner.relocate(original, Path("/root-of-run"), Path("/t"))
    assert relocated.argv == tuple(words.values())
    values = {variable.name: variable.value for variable in relocated.env}
    assert [values[f"V{number:02}"] for number in range(len(words))] == list(words.values())
    assert (relocated.cwd, values["HOME"]) == (f"/root-of-run{workspace}/sub", f"/root-of-run{launch.user.home}")
