"""The entry point of the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = "import os; from repro_env.__main__ import undo_locale_coercion as undo; undo(); print(os.environ.get('LC_CTYPE'))"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, "None"), ({"LC_CTYPE": "C.UTF-8"}, "C.UTF-8"), ({"LC_ALL": "C"}, "None"), ({"LANG": "C.UTF-8"}, "None")],
)
def test_the_lc_ctype_that_python_sets_itself_is_removed(variables: dict[str, str], expected: str) -> None:
    """Without a locale, Python sets LC_CTYPE=C.UTF-8. A capture of it would change the UTF-8 mode in the image."""
    process = subprocess.run([sys.executable, "-c", CODE], env=variables, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == expected


def shell(words: str) -> subprocess.CompletedProcess[str]:
    tool = f"{sys.executable} -m repro_env"
    return subprocess.run(["/bin/sh", "-c", words.replace("TOOL", tool)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", ["TOOL --version >&-", "TOOL exec --help >&-", "TOOL sensitivity --help >&-"])
def test_a_closed_stdout_is_an_error(words: str) -> None:
    process = shell(words)
    assert process.returncode == 13
    assert "standard output is closed" in process.stderr
    assert "Traceback" not in process.stderr


def test_an_opened_file_does_not_replace_a_closed_stream() -> None:
    """Otherwise, the first file that is opened would be stdout, and the output of child processes would overwrite it."""
    code = "import os; from repro_env.__main__ import fill_closed_streams; fill_closed_streams()"
    code += "; os.write(9, b'%d' % (os.open('/', os.O_RDONLY) > 2))"
    process = shell(f'{sys.executable} -c "{code}" 9>&1 <&- >&- 2>&-')
    assert (process.stdout, process.returncode) == ("1", 0)


def test_bug_reports_and_os_errors_escape_control_characters() -> None:
    code = "import sys, repro_env.cli.app as app; app.run = lambda w: 1 / 0 if w[0] == 'a' else open('/nowhere/\\x9bx'); "
    code += "from repro_env.__main__ import main; main()"
    bug = subprocess.run([sys.executable, "-c", code, "a"], capture_output=True, text=True, check=False)
    assert bug.returncode == 70
    assert "ZeroDivisionError" in bug.stderr
    assert "this is a bug in repro-env" in bug.stderr
    gone = subprocess.run([sys.executable, "-c", code, "b"], capture_output=True, text=True, check=False)
    assert (gone.returncode, "Traceback" in gone.stderr) == (13, False)
    assert "/nowhere/\\x9bx: cannot be used: No such file or directory" in gone.stderr


def test_file_names_are_utf8_in_every_locale(tmp_path: Path) -> None:
    """Tested with ASCII. The code for ISO-8859-1 is the same."""
    (tmp_path / "größe.py").write_text("x = 1\n")
    code = "from repro_env.__main__ import restart_in_utf8; restart_in_utf8(); import os, sys; sys.stdout.buffer.write(os.listdir('.')[0].encode())"
    env = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    process = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, check=True)
    assert process.stdout.decode() == "größe.py"
