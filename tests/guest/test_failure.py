"""The notes on why a process failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guest.test_seeds import SEEDS


def failures(directory: Path, code: str, *, exit_code: int = 1) -> list[tuple[str, str]]:
    """(kind, what) of each failure in the notes of a script."""
    (directory / "script.py").write_text(code)
    notes = directory / "notes"
    notes.unlink(missing_ok=True)
    env = {"PATH": f"{directory}/bin", "PYTHONPATH": str(SEEDS), "REPRO_ENV_SEED": "1", "REPRO_ENV_NOTES": str(notes)}
    done = subprocess.run([sys.executable, "script.py"], cwd=directory, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == exit_code, done.stderr
    lines = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    assert not [note for note in lines if "problem" in note]
    return [(note["failure"], note["what"]) for note in lines if "failure" in note]


@pytest.mark.parametrize(
    ("code", "facts"),
    [
        ("open('data/x.csv')", [("path", "{here}/data/x.csv")]),
        ("try: open('/gone/x')\nexcept OSError: raise RuntimeError('cannot load')", [("path", "/gone/x")]),
        ("raise ValueError(\"unable to open file (name = '../gone.h5', errno = 2)\")", [("path", "{above}/gone.h5")]),
        ("raise RuntimeError('/gone/y does not exist, /usr does; see https://example.org/z')", [("path", "/gone/y")]),
        ("assert not 1, 'no file at data/gone.json, see https://example.org/y/z'", [("path", "{here}/data/gone.json")]),
        ("import no_such.module", [("module", "no_such")]),
        ("import subprocess\nsubprocess.run(['no-such', 'x'])", [("program", "no-such")]),
        ("import subprocess\nsubprocess.run('no-such x', shell=True, check=True)", [("program", "no-such")]),
        # The messages of torch.compile, of PyTorch's C++ extensions and of Triton.
        (
            "raise ValueError(\"No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')\")",
            [("program", "g++")],
        ),
        ("raise RuntimeError('Ninja is required to load C++ extensions (pip install ninja to get it)')", [("program", "ninja")]),
        (
            "raise RuntimeError('c++ -MMD -o x.so\\n/bin/sh: 1: c++: not found\\nninja: build stopped')",
            [("program", "c++"), ("program", "ninja")],
        ),
        ("raise OSError('CUDA_HOME environment variable is not set.')", [("program", "nvcc")]),
        ("raise RuntimeError('Failed to find C compiler.')", [("program", "gcc")]),
        ("import os\nos.mkdir('bin')\nopen('bin/gcc', 'w')\nraise RuntimeError('Failed to find C compiler.')", []),
        ("import socket\nraise ConnectionError('no') from socket.gaierror(-3, 'x')", [("host", "")]),
        ("import errno, os\nraise OSError(errno.EROFS, os.strerror(errno.EROFS), '/data/x')", [("read-only", "/data/x")]),
        ("import os\nos.mkdir('sub')\nos.chdir('sub')\nopen('x')", [("path", "{here}/sub/x"), ("path", "{here}/x")]),
        ("class Bad(Exception):\n def __str__(self): return 7 * '/a' + '\\0'\nraise Bad", []),
    ],
)
def test_the_cause_of_a_failure_is_noted_from_the_exceptions(tmp_path: Path, code: str, facts: list[tuple[str, str]]) -> None:
    places = {"here": str(tmp_path), "above": str(tmp_path.parent)}
    assert failures(tmp_path, code) == [(kind, what.format(**places)) for kind, what in facts]


def test_a_handled_exception_is_noted_only_if_the_script_exits_with_an_error(tmp_path: Path) -> None:
    caught = "import sys\ntry: open('/gone/x')\nexcept OSError: {}\n"
    assert failures(tmp_path, caught.format("sys.exit(3)"), exit_code=3) == [("path", "/gone/x")]
    assert failures(tmp_path, caught.format("sys.exit()"), exit_code=0) == []
    assert failures(tmp_path, caught.format("pass"), exit_code=0) == []
    assert failures(tmp_path, "import sys\nassert sys.exit.__name__ == 'exit'\nsys.exit((1, 2))") == []


def test_a_forked_child_does_not_note_the_failures_of_its_parent(tmp_path: Path) -> None:
    code = "import os, sys\ntry: open('/gone/x')\nexcept OSError:\n try: sys.exit(1)\n except SystemExit: pass\n"
    assert failures(tmp_path, code + "if os.fork(): os.wait()\n", exit_code=0) == [("path", "/gone/x")]
