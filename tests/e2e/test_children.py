"""Pythons that a script starts without repro-env's variables draw the same numbers in each run; what no seed reaches is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e import parts

DRAWS = """
import os, random, sys
own = {name for name in os.environ if name.startswith(("PYTHON", "REPRO_ENV"))} if len(os.environ) < 4 else set()
assert not own, own
print([random.random(), list({str(number) for number in range(8)}) if "hash" in sys.argv else 0, len(sys.path)])
"""
SCRIPT = """
import multiprocessing, os, random, subprocess, sys
os.chdir(os.path.dirname(os.path.abspath(__file__)))
def run(*words, env=None):
    return subprocess.check_output(words, env=env, text=True)
def draw(_):
    return run(sys.executable, "draws.py", "hash", env={})
if __name__ == "__main__":
    python, clean = sys.executable, {"PATH": "/usr/bin:/bin"}
    found = {
        "empty": run(python, "draws.py", "hash", env={}),
        "path": run(python, "draws.py", "hash", env=clean),
        "E": run(python, "-E", "draws.py"),
        "I": run(python, "-I", "draws.py"),
        "Is": run(python, "-I", "-s", "draws.py"),
        "bash": run("bash", "-c", f"env -i {python} draws.py; {python} -I draws.py"),
        "nested": run(python, "-c", f"import subprocess; subprocess.check_call([{python!r}, 'draws.py', 'hash'])", env={}),
        "cleared": run(python, "-c", f"import subprocess; subprocess.check_call([{python!r}, 'draws.py', 'hash'], env=dict())", env={}),
        "spawned": multiprocessing.get_context("spawn").Pool(1).map(draw, [0]),
        "orphan": run("bash", "-c", f"(env -i setsid bash -c 'sleep 0.3; exec {python} draws.py' >orphan.txt &) ; sleep 1; cat orphan.txt"),
    }
    os.remove("orphan.txt")
    parent = [random.random(), 0, len(sys.path)]
    open("found.txt", "w").write(repr((found, parent)))
"""


NAMED = """
import os, subprocess
subprocess.run(["python", "-S", "-c", "print('drawn')"])
os.system("perl -e 1 2>/dev/null")
open("result.txt", "w").write("done")
"""


@pytest.fixture
def project(small: parts.Project) -> parts.Project:
    (small.directory / "draws.py").write_text(DRAWS)
    (small.directory / "children.py").write_text(SCRIPT)
    (small.directory / "named.py").write_text(NAMED)
    return small


def end_of(project: parts.Project) -> dict[str, Any]:
    end: dict[str, Any] = json.loads((project.directory / "runs" / "latest" / "end.json").read_text())
    return end


def test_children_without_variables_draw_the_same_numbers(project: parts.Project) -> None:
    project.run("exec", "children.py")
    end = end_of(project)
    assert not [problem for problem in end["auto_seeded"] if problem.startswith("seeds:")]
    place = {
        "count": 1,
        "file": str(project.directory / "children.py"),
        "line": 1 + SCRIPT[: SCRIPT.index("    return")].count("\n"),
    }
    hashed = [{**place, "what": f"unseeded: the hash order of python -{letter}"} for letter in "EI"]
    assert [count for count in end["system_randomness"] if count in hashed] == hashed
    found, parent = eval((project.directory / "runs" / "latest" / "files" / "found.txt").read_text())
    texts = [found[name] for name in found if name != "spawned"] + found["spawned"]
    numbers = [eval(line) for text in texts for line in text.splitlines()]
    assert {number for number, _, _ in numbers} == {parent[0]}  # each interpreter starts with the streams of the first
    assert eval(found["empty"])[1:] == eval(found["cleared"])[1:]
    assert eval(found["empty"])[2] == parent[2]
    verified = json.loads(project.run("verify", "latest", "--json").out)
    assert verified["level"] == "bitwise", verified


def test_what_no_seed_reaches_is_recorded_with_its_line_and_expected(project: parts.Project) -> None:
    done = project.run("exec", "named.py")
    assert f"not seeded: python -S at {project.directory}/named.py:3 and 1 more" in done.err
    place = {"count": 1, "file": str(project.directory / "named.py")}
    expected = [{**place, "line": 3, "what": "unseeded: python -S"}, {**place, "line": 4, "what": "unseeded: perl"}]
    assert end_of(project)["system_randomness"] == expected
    done = project.run("verify", "latest")
    assert f"random numbers that do not depend on the seed (python -S at {project.directory}/named.py:3" in done.out + done.err


def test_on_the_host_direct_children_are_seeded_and_others_are_named(project: parts.Project) -> None:
    project.run("exec", "--runner", "host", "children.py")
    found, parent = eval((project.directory / "runs" / "latest" / "files" / "found.txt").read_text())
    assert {eval(found[name])[0] for name in ("empty", "path", "nested", "cleared")} == {parent[0]}
    names = {count["what"] for count in end_of(project)["system_randomness"]}
    assert {"unseeded: python -E", "unseeded: python -I"} <= names
