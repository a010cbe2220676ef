"""The script that compiles modules inside: with the interpreter of the tests, as it is started in a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from repro_env.flows.execute import TOOLS


def compile_(tmp_path: Path, wanted: list[tuple[str, str, int]]) -> dict[str, bytes]:
    (tmp_path / "wanted.json").write_text(json.dumps(wanted))
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-s", "-S", str(TOOLS / "inside" / "compile.py"), str(tmp_path / "wanted.json"), str(out)]
    done = subprocess.run(command, env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_what_compiles_is_there_and_nothing_is_said_about_the_rest(tmp_path: Path) -> None:
    names = {"good": "VALUE = 1\n", "broken": "def (:\n", "warns": "x = '\\d'\nassert (1, 2)\n", "odd": "VALUE = '\udc80'\n"}
    for name, text in names.items():
        (tmp_path / f"{name}.py").write_bytes(text.encode(errors="surrogateescape"))
    wanted = [(str(tmp_path / f"{name}.py"), f"deep/er/{name}.pyc", 0) for name in (*names, "gone")]
    made = compile_(tmp_path, wanted)
    assert list(made) == ["deep/er/good.pyc", "deep/er/warns.pyc"]
    assert {data[4:8] for data in made.values()} == {b"\3\0\0\0"}
    assert str(tmp_path / "good.py").encode() in made["deep/er/good.pyc"]


def test_same_sources_same_bytes_whatever_the_time(tmp_path: Path) -> None:
    source = tmp_path / "one.py"
    source.write_text("def f(x):\n    '''text'''\n    return x in {'a', 'b', 'c'}\n")
    first = compile_(tmp_path, [(str(source), "one.pyc", 0), (str(source), "one.opt-2.pyc", 2)])
    os.utime(source, (0, 0))
    assert compile_(tmp_path, [(str(source), "one.pyc", 0), (str(source), "one.opt-2.pyc", 2)]) == first
    assert b"text" in first["one.pyc"]
    assert b"text" not in first["one.opt-2.pyc"]


def test_many_are_shared_among_workers(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"m{number}.py").write_text(f"VALUE = {number}\n")
    made = compile_(tmp_path, [(str(tmp_path / f"m{number}.py"), f"m{number}.pyc", 0) for number in range(50)])
    assert len(made) == 50
