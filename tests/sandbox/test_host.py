"""The host runner: how a command ends, which paths are relocated, and what the command cannot change."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from repro_env.sandbox import host, kernel, landlock
from repro_env.sandbox.host import HostRunner
from repro_env.sandbox.image import Image
from repro_env.sandbox.workspace import collect
from repro_env.schema.environment import Variable
from repro_env.schema.errors import CommandMissingError, RunError
from repro_env.schema.run import ImageTree, Launch, Limits, Mount, Outcome, User
from tests.sandbox import launches


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """A launch of a source with one file in the store. The user's directories are next to it."""
    for name in ("snapshot/sub", "run/reports", "home", "project/data", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "snapshot" / "sub" / "code.py").write_text("code")
    (tmp_path / "outside" / "mine").write_text("mine")
    return launches.make(
        str(tmp_path / "project"),
        env=(Variable(name="PATH", value=os.environ["PATH"]), Variable(name="XDG_CACHE_HOME", value="/cache")),
        cwd=str(tmp_path / "project" / "sub"),
        reports=str(tmp_path / "run" / "reports"),
        user=User(uid=os.getuid(), gid=os.getgid(), name="ann", home=str(tmp_path / "home")),
    )


def start(launch: Launch, tmp_path: Path, *argv: str) -> Outcome:
    """Run a command."""
    image = Image(lambda _: tmp_path / "snapshot", merged=tmp_path, interpreter=sys.executable)
    return HostRunner(image).run(msgspec.structs.replace(launch, argv=argv), directory=tmp_path / "run")


def run(launch: Launch, tmp_path: Path, code: str) -> tuple[int, tuple[str, ...], list[str]]:
    """Run Python code. Returns (exit code, removed files, outputs)."""
    outcome = start(launch, tmp_path, sys.executable, "-c", code)
    files = tmp_path / "run" / "files"
    removed = collect(tmp_path / "run", tmp_path / "snapshot")
    assert {path.name for path in (tmp_path / "run").iterdir()} - {"outside"} == {"files", "reports"}
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
    (tmp_path / "outside" / "in").symlink_to("mine")
    mount = Mount(kind="data", source=str(tmp_path / "home"), target=f"{launch.workspace}/data/in")
    code = f"import os; os.rename('../data', '../old'); os.symlink({str(tmp_path / 'outside')!r}, '../data')"
    assert run(msgspec.structs.replace(launch, mounts=(mount,)), tmp_path, code)[0] == 0
    assert (tmp_path / "outside" / "in").is_symlink()


def test_a_command_that_replaces_its_directory_by_a_link_has_no_outputs(launch: Launch, tmp_path: Path) -> None:
    code = f"import os; os.rename('..', '../../gone'); os.symlink({str(tmp_path / 'outside')!r}, '../../project')"
    assert run(launch, tmp_path, code)[2] == []
    assert (tmp_path / "outside" / "mine").exists()


def test_the_outputs_of_a_killed_run_are_restored(launch: Launch, tmp_path: Path) -> None:
    code = f"""
import os, sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from repro_env.schema.run import Launch
from repro_env.sandbox.host import HostRunner
from repro_env.sandbox.image import Image
import msgspec
launch = msgspec.json.decode({msgspec.json.encode(launch)!r}, type=Launch)
words = (sys.executable, "-c", "import os, signal; open('out', 'w').write('out'); os.kill(os.getppid(), signal.SIGKILL)")
image = Image(lambda _: Path({str(tmp_path / "snapshot")!r}), merged=Path("/"), interpreter=sys.executable)
HostRunner(image).run(msgspec.structs.replace(launch, argv=words), directory=Path({str(tmp_path / "run")!r}))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    HostRunner.restore(tmp_path / "run", launch.run_id, launch.workspace)
    assert collect(tmp_path / "run", tmp_path / "snapshot") == ()
    assert [path.name for path in (tmp_path / "run" / "files").rglob("*") if path.is_file()] == ["out"]
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
        launch.reports: launch.reports,
    }
    original = msgspec.structs.replace(
        launch,
        argv=tuple(words),
        env=tuple(Variable(name=f"V{number:02}", value=word) for number, word in enumerate(words)),
        trees=(ImageTree(root="/opt/env", target=f"{workspace}/conda"),),
        reports=f"{workspace}/runs/x/reports",
    )
    relocated = host.relocate(original, Path("/root-of-run"), "/t")
    assert relocated.argv == tuple(words.values())
    values = {variable.name: variable.value for variable in relocated.env}
    assert [values[f"V{number:02}"] for number in range(len(words))] == list(words.values())
    assert (relocated.cwd, values["HOME"]) == (f"/root-of-run{workspace}/sub", f"/root-of-run{launch.user.home}")


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        ((sys.executable, "-c", "raise SystemExit(7)"), 7),
        ((sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), 137),
        # The command has the default handlers, although the runner handles these signals.
        ((sys.executable, "-c", "import os; os.kill(os.getpid(), 2)"), 130),
        (("/bin/sh", "-c", "kill -PIPE $$; exit 3"), 141),
    ],
)
def test_the_exit_code_is_that_of_the_command(launch: Launch, tmp_path: Path, argv: tuple[str, ...], code: int) -> None:
    assert start(launch, tmp_path, *argv).exit_code == code


RUN = """
import signal, sys
from pathlib import Path
import msgspec
from repro_env.schema.run import Launch
from repro_env.sandbox.host import HostRunner
from repro_env.sandbox.image import Image
before = signal.getsignal(signal.SIGTERM)
launch = msgspec.json.decode(sys.argv[1], type=Launch)
image = Image(lambda _: Path(sys.argv[2], "snapshot"), merged=Path("/"), interpreter=sys.executable)
outcome = HostRunner(image).run(launch, directory=Path(sys.argv[2], "run"))
print(outcome.exit_code, signal.getsignal(signal.SIGTERM) == before)
"""


def line(launch: Launch, tmp_path: Path, code: str) -> list[str]:
    """A command that runs Python code in a separate process, and prints its exit code."""
    launch = msgspec.structs.replace(launch, argv=(sys.executable, "-c", code))
    return [sys.executable, "-c", RUN, msgspec.json.encode(launch).decode(), str(tmp_path)]


def test_signals_reach_the_command_and_do_not_end_the_runner(launch: Launch, tmp_path: Path) -> None:
    code = """
import signal
numbers = [signal.SIGTERM, signal.SIGINT]
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
got = {signal.sigwait(numbers), signal.sigwait(numbers)}
raise SystemExit(5 if got == set(numbers) else 6)
"""
    with subprocess.Popen(line(launch, tmp_path, code), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=100)[0] == "5 True\n"


@pytest.mark.parametrize(("ignores", "code"), [(False, 143), (True, 137)])
def test_a_command_is_ended_by_its_time_limit(launch: Launch, tmp_path: Path, ignores: bool, code: int) -> None:
    script = f"import signal, time; signal.signal(15, signal.SIG_{'IGN' if ignores else 'DFL'}); time.sleep(1000)"
    limited = msgspec.structs.replace(launch, limits=Limits(seconds=2, grace=1))
    outcome = start(limited, tmp_path, sys.executable, "-c", script)
    assert (outcome.exit_code, outcome.timed_out, outcome.interrupted) == (code, True, 0)


def test_signals_that_the_caller_ignores_are_ignored_by_the_command(launch: Launch, tmp_path: Path) -> None:
    """As with nohup(1): the end of the session must not end the command."""
    code = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); raise SystemExit(7)"
    words = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *line(launch, tmp_path, code)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout == "7 True\n", done.stderr


def test_a_killed_runner_ends_the_command(launch: Launch, tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with subprocess.Popen(line(launch, tmp_path, code), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 100
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_error_for_a_command_that_cannot_start_has_the_reason(launch: Launch, tmp_path: Path) -> None:
    for word in ("no-such-command", str(tmp_path / "none")):
        with pytest.raises(CommandMissingError, match=word):
            start(launch, tmp_path, word)
        restart(tmp_path)
    (tmp_path / "plain").write_text("x")
    with pytest.raises(RunError, match="Permission denied"):
        start(launch, tmp_path, str(tmp_path / "plain"))
    restart(tmp_path)
    with pytest.raises(RunError, match="No such file"):
        start(msgspec.structs.replace(launch, cwd=str(tmp_path / "gone")), tmp_path, "true")


def restart(tmp_path: Path) -> None:
    """Make an empty run directory again."""
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run" / "reports").mkdir(parents=True)


def test_addresses_are_fixed_only_for_the_command(launch: Launch, tmp_path: Path) -> None:
    personality = "print(int(open('/proc/self/personality').read(), 16) >> 18 & 1, file=open('printed', 'w'))"
    before = kernel.personality()
    start(msgspec.structs.replace(launch, fixed_addresses=True), tmp_path, sys.executable, "-c", personality)
    assert (tmp_path / "run/files/sub/printed").read_text() == "1\n"
    assert kernel.personality() == before


def test_a_refusal_to_fix_addresses_is_recorded(launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(persona: int = 0) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(kernel, "personality", refuse)
    outcome = start(msgspec.structs.replace(launch, fixed_addresses=True), tmp_path, "true")
    assert (outcome.exit_code, outcome.methods[-1]) == (0, "addresses: random (Operation not permitted)")
