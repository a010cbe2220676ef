"""The entry point, before any command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAYS = "import os; from repro_env.__main__ import uncoerced; uncoerced(); print(os.environ.get('LC_CTYPE'))"


@pytest.mark.parametrize(
    ("given", "left"),
    [({}, "None"), ({"LC_CTYPE": "C.UTF-8"}, "C.UTF-8"), ({"LC_ALL": "C"}, "None"), ({"LANG": "C.UTF-8"}, "None")],
)
def test_what_our_own_python_sets_is_not_the_users(given: dict[str, str], left: str) -> None:
    """With no locale at all, Python puts LC_CTYPE=C.UTF-8 into its own environment: captured, it would change UTF-8 mode in the image."""
    done = subprocess.run([sys.executable, "-c", SAYS], env=given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == left


def shell(words: str) -> subprocess.CompletedProcess[str]:
    tool = f"{sys.executable} -m repro_env"
    return subprocess.run(["/bin/sh", "-c", words.replace("TOOL", tool)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", ["TOOL --version >&-", "TOOL exec --help >&-", "TOOL sensitivity --help >&-"])
def test_an_answer_to_a_closed_stdout_is_a_failure_told(words: str) -> None:
    done = shell(words)
    assert done.returncode == 13
    assert "standard output: is closed" in done.stderr
    assert "Traceback" not in done.stderr


def test_streams_that_are_closed_are_not_taken_by_files() -> None:
    """A file that is opened first would be stdout, and whatever a child prints would go into it."""
    code = "import os; from repro_env.__main__ import occupied; occupied(); os.write(9, b'%d' % (os.open('/', os.O_RDONLY) > 2))"
    done = shell(f'{sys.executable} -c "{code}" 9>&1 <&- >&- 2>&-')
    assert (done.stdout, done.returncode) == ("1", 0)


def test_the_report_of_a_bug_escapes_control_characters() -> None:
    code = "import sys, repro_env.cli.quick as q; q.run = lambda w: 1 / 0 if w[0] == 'a' else open('/nowhere/\\x9bx'); "
    code += "from repro_env.__main__ import main; main()"
    bug = subprocess.run([sys.executable, "-c", code, "a"], capture_output=True, text=True, check=False)
    assert bug.returncode == 70
    assert "ZeroDivisionError" in bug.stderr
    assert "this is a bug in repro-env" in bug.stderr
    gone = subprocess.run([sys.executable, "-c", code, "b"], capture_output=True, text=True, check=False)
    assert (gone.returncode, "Traceback" in gone.stderr) == (13, False)
    assert "/nowhere/\\x9bx: cannot be used: No such file or directory" in gone.stderr


def test_names_of_files_are_utf8_in_every_locale(tmp_path: Path) -> None:
    """A character set of ASCII here; ISO-8859-1 takes the same way."""
    (tmp_path / "größe.py").write_text("x = 1\n")
    code = (
        "from repro_env.__main__ import in_utf8; in_utf8(); import os, sys; sys.stdout.buffer.write(os.listdir('.')[0].encode())"
    )
    env = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.decode() == "größe.py"
