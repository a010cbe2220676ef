from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from repro_env.model.environment import Variable
from repro_env.model.errors import CommandMissingError, RunError
from repro_env.model.run import Launch, User
from repro_env.run import kernel
from repro_env.run.host import MEANS, HostRunner

DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """A launch in a source folder of its own, with an empty run folder beside."""
    for name in ("project", "snapshot", "files", "notes"):
        (tmp_path / name).mkdir()
    return Launch(
        run_id="x",
        spec=DIGEST,
        image=DIGEST,
        layers=(),
        prefix=str(tmp_path / "project" / ".venv"),
        trees=(),
        argv=("/bin/true",),
        env=(Variable(name="PATH", value=os.environ["PATH"]),),
        cwd=str(tmp_path / "project"),
        workspace=str(tmp_path / "project"),
        snapshot=DIGEST,
        mounts=(),
        tools="/tools",
        notes=str(tmp_path / "notes"),
        user=User(uid=os.getuid(), gid=os.getgid(), name="ann", home="/home/ann"),
        hostname="repro-env",
        network=False,
        seed=0,
    )


def script(launch: Launch, code: str) -> Launch:
    return msgspec.structs.replace(launch, argv=(sys.executable, "-c", code))


def run(launch: Launch, tmp_path: Path) -> tuple[int, tuple[str, ...]]:
    """(exit code, what is gone)."""
    runner = HostRunner(skip=[Path(launch.prefix), tmp_path / "project" / "runs"])
    outcome = runner.run(launch, folder=tmp_path)
    return outcome.exit_code, runner.collect(tmp_path / "project", tmp_path / "snapshot", tmp_path / "files")


def files(tmp_path: Path) -> list[str]:
    return sorted(
        path.relative_to(tmp_path / "files").as_posix()
        for path in (tmp_path / "files").rglob("*")
        if path.is_symlink() or not path.is_dir()
    )


def test_the_command_gets_its_variables_folder_and_nothing_else(launch: Launch, tmp_path: Path) -> None:
    code = "import os; open('out', 'w').write(repr((sorted(os.environ), os.getcwd())))"
    launch = msgspec.structs.replace(script(launch, code), env=(*launch.env, Variable(name="A", value="two\nlines")))
    assert run(launch, tmp_path)[0] == 0
    there = (tmp_path / "files" / "out").read_text()
    assert "'A', " in there
    assert "'HOME'" not in there
    assert str(tmp_path / "project") in there


def test_outputs_are_what_was_written(launch: Launch, tmp_path: Path) -> None:
    project, snapshot = tmp_path / "project", tmp_path / "snapshot"
    for name in ("kept", "changed", "again", "removed"):
        (project / name).write_text(name)
        (snapshot / name).write_text(name)
    for name in (".git", ".venv", "runs", "a/__pycache__"):
        (project / name).mkdir(parents=True)
    code = """
import os
open('changed', 'a').write('!')
open('again', 'w').write('again')
os.remove('removed')
os.makedirs('ck/1'); open('ck/1/w.pt', 'w').write('w')
os.symlink('ck/1', 'last')
os.mkfifo('pipe')
for folder in ('.git', '.venv', 'runs', 'a/__pycache__'):
    open(folder + '/x', 'w').write('x')
"""
    assert run(script(launch, code), tmp_path) == (0, ("removed",))
    assert files(tmp_path) == ["again", "changed", "ck/1/w.pt", "last"]
    assert (tmp_path / "files" / "last").readlink() == Path("ck/1")
    assert (tmp_path / "files" / "changed").read_text() == "changed!"


def test_a_change_that_keeps_size_and_time_is_an_output(launch: Launch, tmp_path: Path) -> None:
    for folder in ("project", "snapshot"):
        (tmp_path / folder / "f").write_text("aaaa")
    code = "import os; t = os.stat('f').st_mtime_ns; open('f', 'w').write('bbbb'); os.utime('f', ns=(t, t))"
    run(script(launch, code), tmp_path)
    assert files(tmp_path) == ["f"]


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_exit_code_is_the_commands(launch: Launch, tmp_path: Path, code: str, expected: int) -> None:
    assert run(script(launch, code), tmp_path)[0] == expected


RUN = """
import signal, sys
from pathlib import Path
import msgspec
from repro_env.model.run import Launch
from repro_env.run.host import HostRunner
before = signal.getsignal(signal.SIGTERM)
outcome = HostRunner(skip=[]).run(msgspec.json.decode(sys.argv[1], type=Launch), folder=Path(sys.argv[2]))
print(outcome.exit_code, signal.getsignal(signal.SIGTERM) == before)
"""


def test_a_signal_to_us_reaches_the_command_and_we_live_to_record(launch: Launch, tmp_path: Path) -> None:
    code = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
open('ready', 'w').close()
signal.sigwait([signal.SIGTERM])
raise SystemExit(5)
"""
    command = [sys.executable, "-c", RUN, msgspec.json.encode(script(launch, code)).decode(), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "project" / "ready").exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)  # the terminal's: ours to ignore
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=100)[0] == "5 True\n"


def test_the_command_can_be_stopped_by_ctrl_c(launch: Launch, tmp_path: Path) -> None:
    """Signals are not ignored on its side."""
    code = "import signal, os; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler; os.kill(os.getpid(), 2)"
    assert run(script(launch, code), tmp_path)[0] == 130


def test_what_the_caller_ignores_the_command_ignores(launch: Launch, tmp_path: Path) -> None:
    """As under nohup(1): the end of a session must not be the end of the command."""
    code = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); raise SystemExit(7)"
    words = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", sys.executable, "-c", RUN]
    command = [*words, msgspec.json.encode(script(launch, code)).decode(), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout == "7 True\n", done.stderr


def test_sigpipe_ends_the_command_as_in_a_shell(launch: Launch, tmp_path: Path) -> None:
    launch = msgspec.structs.replace(launch, argv=("/bin/sh", "-c", "kill -PIPE $$; exit 3"))
    assert run(launch, tmp_path)[0] == 141


def test_a_missing_command_has_the_shells_code(launch: Launch, tmp_path: Path) -> None:
    for word in ("no-such-command", str(tmp_path / "none")):
        with pytest.raises(CommandMissingError, match=word):
            run(msgspec.structs.replace(launch, argv=(word,)), tmp_path)


def test_a_command_that_cannot_be_started_says_why(launch: Launch, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    with pytest.raises(RunError, match="Permission denied"):
        run(msgspec.structs.replace(launch, argv=(str(plain),)), tmp_path)
    with pytest.raises(RunError, match="No such file"):
        run(msgspec.structs.replace(launch, cwd=str(tmp_path / "gone")), tmp_path)


PERSONALITY = "print(int(open('/proc/self/personality').read(), 16) >> 18 & 1)"


def test_addresses_are_fixed_for_the_command_alone(launch: Launch, tmp_path: Path) -> None:
    code = f"import sys; sys.stdout = open('said', 'w'); {PERSONALITY}; print(list({{object() for _ in range(99)}}))"
    own = kernel.personality()
    said = []
    for _ in range(2):
        wanted = msgspec.structs.replace(script(launch, code), fixed_addresses=True)
        assert HostRunner(skip=[]).run(wanted, folder=tmp_path).means == (MEANS,)
        said.append((tmp_path / "project" / "said").read_text())
    assert said[0] == said[1], "the order of a set of objects"
    assert said[0].startswith("1\n")
    assert kernel.personality() == own


def test_a_refusal_to_fix_addresses_is_a_note(launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(persona: int = 0) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(kernel, "personality", refused)
    outcome = HostRunner(skip=[]).run(msgspec.structs.replace(launch, fixed_addresses=True), folder=tmp_path)
    assert (outcome.exit_code, outcome.means) == (0, (MEANS, "addresses: random (Operation not permitted)"))
