from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from repro_env.sandbox import kernel
from repro_env.sandbox.host.runner import MEANS, HostRunner
from repro_env.schema.environment import Variable
from repro_env.schema.errors import CommandMissingError, RunError
from repro_env.schema.run import Launch
from tests.sandbox import launches


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """A launch in a new source directory, with an empty run directory next to it."""
    for name in ("project", "snapshot", "files", "notes"):
        (tmp_path / name).mkdir()
    return launches.make(str(tmp_path / "project"), notes=str(tmp_path / "notes"))


def script(launch: Launch, code: str) -> Launch:
    return msgspec.structs.replace(launch, argv=(sys.executable, "-c", code))


def run(launch: Launch, tmp_path: Path) -> tuple[int, tuple[str, ...]]:
    """Run a launch. Returns (exit code, removed files)."""
    runner = HostRunner(skip=[Path(launch.prefix), tmp_path / "project" / "runs"].__contains__)
    outcome = runner.run(launch, directory=tmp_path)
    return outcome.exit_code, runner.collect(tmp_path / "project", tmp_path / "snapshot", tmp_path / "files")


def files(tmp_path: Path) -> list[str]:
    return sorted(
        path.relative_to(tmp_path / "files").as_posix()
        for path in (tmp_path / "files").rglob("*")
        if path.is_symlink() or not path.is_dir()
    )


def test_the_command_gets_only_its_own_variables_and_directory(launch: Launch, tmp_path: Path) -> None:
    code = "import os; open('out', 'w').write(repr((sorted(os.environ), os.getcwd())))"
    launch = msgspec.structs.replace(script(launch, code), env=(*launch.env, Variable(name="A", value="two\nlines")))
    assert run(launch, tmp_path)[0] == 0
    output = (tmp_path / "files" / "out").read_text()
    assert "'A', " in output
    assert "'HOME'" not in output
    assert str(tmp_path / "project") in output


def test_outputs_are_the_files_that_were_written(launch: Launch, tmp_path: Path) -> None:
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
for directory in ('.git', '.venv', 'runs', 'a/__pycache__'):
    open(directory + '/x', 'w').write('x')
"""
    assert run(script(launch, code), tmp_path) == (0, ("removed",))
    assert files(tmp_path) == ["again", "changed", "ck/1/w.pt", "last"]
    assert (tmp_path / "files" / "last").readlink() == Path("ck/1")
    assert (tmp_path / "files" / "changed").read_text() == "changed!"


def test_a_change_that_keeps_size_and_time_is_an_output(launch: Launch, tmp_path: Path) -> None:
    for directory in ("project", "snapshot"):
        (tmp_path / directory / "f").write_text("aaaa")
    code = "import os; t = os.stat('f').st_mtime_ns; open('f', 'w').write('bbbb'); os.utime('f', ns=(t, t))"
    run(script(launch, code), tmp_path)
    assert files(tmp_path) == ["f"]


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_exit_code_is_that_of_the_command(launch: Launch, tmp_path: Path, code: str, expected: int) -> None:
    assert run(script(launch, code), tmp_path)[0] == expected


RUN = """
import signal, sys
from pathlib import Path
import msgspec
from repro_env.schema.run import Launch
from repro_env.sandbox.host.runner import HostRunner
before = signal.getsignal(signal.SIGTERM)
outcome = HostRunner(skip=[].__contains__).run(msgspec.json.decode(sys.argv[1], type=Launch), directory=Path(sys.argv[2]))
print(outcome.exit_code, signal.getsignal(signal.SIGTERM) == before)
"""


def test_a_signal_reaches_the_command_and_does_not_end_the_runner(launch: Launch, tmp_path: Path) -> None:
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
        process.send_signal(signal.SIGINT)  # the terminal would send it to the command too, so the runner ignores it
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=100)[0] == "5 True\n"


def test_the_command_can_be_stopped_by_ctrl_c(launch: Launch, tmp_path: Path) -> None:
    """The command has the default handlers, although the runner ignores Ctrl-C."""
    code = "import signal, os; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler; os.kill(os.getpid(), 2)"
    assert run(script(launch, code), tmp_path)[0] == 130


def test_signals_that_the_caller_ignores_are_ignored_by_the_command(launch: Launch, tmp_path: Path) -> None:
    """As with nohup(1): the end of the session must not end the command."""
    code = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); raise SystemExit(7)"
    words = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", sys.executable, "-c", RUN]
    command = [*words, msgspec.json.encode(script(launch, code)).decode(), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout == "7 True\n", done.stderr


def test_sigpipe_ends_the_command_as_in_a_shell(launch: Launch, tmp_path: Path) -> None:
    launch = msgspec.structs.replace(launch, argv=("/bin/sh", "-c", "kill -PIPE $$; exit 3"))
    assert run(launch, tmp_path)[0] == 141


def test_a_missing_command_is_an_error(launch: Launch, tmp_path: Path) -> None:
    for word in ("no-such-command", str(tmp_path / "none")):
        with pytest.raises(CommandMissingError, match=word):
            run(msgspec.structs.replace(launch, argv=(word,)), tmp_path)


def test_the_error_for_a_command_that_cannot_start_has_the_reason(launch: Launch, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    with pytest.raises(RunError, match="Permission denied"):
        run(msgspec.structs.replace(launch, argv=(str(plain),)), tmp_path)
    with pytest.raises(RunError, match="No such file"):
        run(msgspec.structs.replace(launch, cwd=str(tmp_path / "gone")), tmp_path)


PERSONALITY = "print(int(open('/proc/self/personality').read(), 16) >> 18 & 1)"


def test_addresses_are_fixed_only_for_the_command(launch: Launch, tmp_path: Path) -> None:
    code = f"import sys; sys.stdout = open('printed', 'w'); {PERSONALITY}; print(list({{object() for _ in range(99)}}))"
    before = kernel.personality()
    outputs = []
    for _ in range(2):
        fixed = msgspec.structs.replace(script(launch, code), fixed_addresses=True)
        assert HostRunner(skip=[].__contains__).run(fixed, directory=tmp_path).means == (MEANS,)
        outputs.append((tmp_path / "project" / "printed").read_text())
    assert outputs[0] == outputs[1], "the order of a set of objects differs"
    assert outputs[0].startswith("1\n")
    assert kernel.personality() == before


def test_a_refusal_to_fix_addresses_is_recorded(launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(persona: int = 0) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(kernel, "personality", refuse)
    outcome = HostRunner(skip=[].__contains__).run(msgspec.structs.replace(launch, fixed_addresses=True), directory=tmp_path)
    assert (outcome.exit_code, outcome.means) == (0, (MEANS, "addresses: random (Operation not permitted)"))
