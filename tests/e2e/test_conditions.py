"""The repetition of a run has the streams of the run, wherever `verify` is called; and what both runs did wrong is said."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from tests.e2e import parts

ASKING = """
import shutil, sys
with open("seen.txt", "w") as file:
    print(*(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)), shutil.get_terminal_size().columns, file=file)
print("epoch 1", flush=True)
print("a warning", file=sys.stderr)
print("epoch 2")
"""
OWN_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


def on_terminal(project: parts.Project, columns: int, *words: str) -> tuple[int, str]:
    """Run `repro-env WORDS` as the leader of a terminal's session. Returns the exit code, and what the terminal showed."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    line = [str(project.python), "-c", OWN_TERMINAL, str(parts.COMMAND), *words]
    env = {name: value for name, value in parts.environ(project.store).items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(line, cwd=project.directory, env=env, stdin=inner, stdout=inner, stderr=inner)
    os.close(inner)
    shown = b""
    with os.fdopen(outer, "rb", buffering=0) as terminal:
        while True:
            try:
                data = terminal.read(1 << 16)
            except OSError:  # the last process has closed it
                break
            if not data:
                break
            shown += data
    return process.wait(60), shown.decode(errors="replace")


def seen(project: parts.Project) -> str:
    directory = json.loads(project.run("runs", "show", "latest", "--json").out)["directory"]
    return (Path(directory) / "files/seen.txt").read_text()


@pytest.mark.parametrize("runner", ["embedded", "host"])
def test_a_run_on_a_terminal_is_repeated_on_one_of_the_same_width(small: parts.Project, runner: str) -> None:
    (small.directory / "ask.py").write_text(ASKING)
    code, shown = on_terminal(small, 123, "exec", "--runner", runner, "ask.py")
    assert code == 0, shown
    assert seen(small) == "True True True 123\n"
    again = json.loads(small.run("verify", "--runner", runner, "--json").out)
    assert again["level"] in ("bitwise", "equal except for"), again
    assert all(file["equal"] for file in again["files"]), again
    code, shown = on_terminal(small, 80, "verify", "--runner", runner)
    assert code == 0, shown
    assert "output differs" not in shown


def test_a_run_without_a_terminal_is_repeated_without_one(small: parts.Project) -> None:
    (small.directory / "ask.py").write_text(ASKING)
    small.run("exec", "ask.py")
    assert seen(small) == "False False False 80\n"
    code, shown = on_terminal(small, 100, "verify")
    assert code == 0, shown
    assert "output differs" not in shown


def test_one_file_for_both_streams_is_compared_with_its_order(small: parts.Project, tmp_path: Path) -> None:
    (small.directory / "ask.py").write_text(ASKING)
    with (tmp_path / "log").open("wb") as log:
        line = [str(parts.COMMAND), "exec", "-q", "ask.py"]
        subprocess.run(line, cwd=small.directory, env=parts.environ(small.store), stdout=log, stderr=log, check=True)
    files = json.loads(small.run("verify", "--json").out)["files"]
    assert [(file["name"], file["level"]) for file in files if file["kind"] == "console"] == [("console.log", "bitwise")]


def test_a_command_that_fails_in_both_runs_is_reported(small: parts.Project) -> None:
    (small.directory / "fail.py").write_text("open('r.txt', 'w').write('1')\nraise SystemExit('it diverged')\n")
    small.run("exec", "fail.py", code=1)
    assert "bitwise: the command failed in both runs (exit code 1); 1 result identical" in small.run("verify").out
    assert json.loads(small.run("verify", "--json").out)["failed"] is True
    assert "the command failed in both runs" in small.run("runs", "show", "latest").out


def test_arguments_with_line_ends_are_recorded_repeated_and_shown(small: parts.Project) -> None:
    script = "import sys\nopen('words.txt', 'w').write(repr(sys.argv))"
    small.run("exec", "-c", script, "a\tb\nc")
    assert json.loads(small.run("verify", "--json").out)["level"] == "bitwise"
    assert r"'a\tb\nc'" in small.run("runs", "show", "latest").out


def test_runs_that_only_print_are_compared_by_their_lines(small: parts.Project) -> None:
    names = []
    for loss in (1, 2, 2):
        small.run("exec", "-c", f"print('epoch 1'); print('loss', {loss})")
        names.append(json.loads(small.run("runs", "show", "latest", "--json").out)["directory"])
    first = small.run("runs", "compare", *names[:2], code=1).out
    assert "- line 2: loss 1" in first
    assert "+ line 2: loss 2" in first
    assert "neither run has outputs; they printed the same" in small.run("runs", "compare", *names[1:]).out


def test_seeds_that_run_at_a_time_have_the_terminal_of_the_first(small: parts.Project) -> None:
    values = "{'width': shutil.get_terminal_size().columns, 'drawn': random.random()}"
    script = f"import json, random, shutil; json.dump({values}, open('m.json', 'w'))"
    code, shown = on_terminal(small, 133, "sensitivity", "--seeds", "3", "-j", "2", "-c", script)
    assert code == 0, shown
    assert re.search(r"width +3 +133 +all equal", shown), shown
