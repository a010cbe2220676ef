"""The reports on why a process failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guest.scripts import SEEDS


def failures(directory: Path, code: str) -> list[tuple[str, str]]:
    """(kind, what) of each failure in the reports of a script."""
    (directory / "script.py").write_text(code)
    reports = directory / "reports"
    reports.unlink(missing_ok=True)
    env = {"PATH": f"{directory}/bin", "PYTHONPATH": str(SEEDS), "REPRO_ENV_SEED": "1", "REPRO_ENV_REPORTS": str(reports)}
    done = subprocess.run([sys.executable, "script.py"], cwd=directory, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    lines = [json.loads(line) for line in reports.read_text().splitlines()] if reports.exists() else []
    assert not [note for note in lines if "problem" in note]
    return [(note["failure"], note["what"]) for note in lines if "failure" in note]


@pytest.mark.parametrize(
    ("code", "facts"),
    [
        ("open('data/x.csv')", [("path", "{here}/data/x.csv"), ("open", "{here}/data/x.csv")]),
        ("try: open('/gone/x')\nexcept OSError: raise RuntimeError('cannot load')", [("path", "/gone/x"), ("open", "/gone/x")]),
        ("try: open('/gone/x')\nexcept OSError: raise SystemExit(1)", [("open", "/gone/x")]),
        ("import sys\ntry: import gone\nexcept ImportError: sys.exit('no gone')", [("module", "gone")]),
        ("import os, sys\ntry: os.listdir('/gone')\nexcept OSError: sys.exit(1)", [("path", "/gone")]),
        ("import no_such.module", [("module", "no_such")]),
        ("import subprocess\nsubprocess.run(['no-such', 'x'])", [("program", "no-such")]),
        ("import socket\nraise ConnectionError('no') from socket.gaierror(-3, 'x')", [("host", "")]),
        ("import errno, os\nraise OSError(errno.EROFS, os.strerror(errno.EROFS), '/data/x')", [("read-only", "/data/x")]),
        (
            "import os\nos.mkdir('sub')\nos.chdir('sub')\nopen('x')",
            [("path", "{here}/sub/x"), ("path", "{here}/x"), ("open", "{here}/sub/x")],
        ),
        ("try: open('/gone/x')\nexcept OSError: pass\nraise ValueError('/gone/y does not exist')", [("open", "/gone/x")]),
        ("try: open('made')\nexcept OSError: open('made', 'w')\nraise ValueError", []),
        (
            "import pathlib\nfor name in 'xyx':\n try: pathlib.Path('/gone', name).read_text()\n except OSError: pass\nraise SystemExit(1)",
            [("open", "/gone/y"), ("open", "/gone/x")],
        ),
    ],
)
def test_the_cause_of_a_failure_is_noted_from_the_exceptions(tmp_path: Path, code: str, facts: list[tuple[str, str]]) -> None:
    assert failures(tmp_path, code) == [(kind, what.format(here=tmp_path)) for kind, what in facts]


def test_open_behaves_as_without_the_hook(tmp_path: Path) -> None:
    code = """
import builtins, copy, inspect, io, pickle
assert open is io.open is builtins.open and pickle.loads(pickle.dumps(open)) is open and copy.copy(open) is open
class Reader: opener = open
assert Reader().opener(__file__).read() and str(inspect.signature(open)).startswith("(file, mode='r'")
for number in range(100):
    try: open("/gone/%d" % number)
    except FileNotFoundError as error: assert error.filename == "/gone/%d" % number
raise SystemExit(1)
"""
    assert failures(tmp_path, code) == [("open", f"/gone/{number}") for number in range(68, 100)]
