"""The Python API, from another program: values in, values out, and nothing printed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import repro_env
from tests.e2e.parts import Project, environ

PROGRAM = """
import json, sys
import repro_env
spec = repro_env.capture(python=sys.argv[1], seed=5)
image = repro_env.rebuild(spec)
options = repro_env.RunOptions(env={"LEVEL": "3"}, note="from Python")
run = repro_env.execute(spec, ["train.py"], options)
checked = repro_env.check(spec, environment=False)
verified = repro_env.verify(run, env={"LEVEL": "3"})
listed = [str(run.directory) for run in repro_env.list_runs().runs]
answer = {
    "image": image.image_id == spec.spec.expected.image_id == repro_env.rebuild("repro").image_id,
    "outputs": [output.path for output in run.end.outputs],
    "printed": (run.directory / "stdout.log").read_text(),
    "code": checked.compared.same,
    "verdict": [verified.verdict.same, verified.verdict.level],
    "listed": str(run.directory) in listed,
    "same": repro_env.diff("repro", "repro").same,
    "made": str(repro_env.lineage(str(run.directory / "files" / "made.txt")).run.directory) == str(run.directory),
}
open("answer.json", "w").write(json.dumps(answer))
"""
TRAIN = "import os, random\nprint('level', os.environ['LEVEL'])\nopen('made.txt', 'w').write(str(random.random()))\n"


def test_a_program_captures_rebuilds_runs_and_verifies(small: Project) -> None:
    (small.directory / "train.py").write_text(TRAIN)
    (small.directory / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py", small.python],
        cwd=small.directory,
        env=environ(small.store, None),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    answer = json.loads((small.directory / "answer.json").read_text())
    assert answer == {
        "image": True,
        "outputs": ["made.txt"],
        "printed": "level 3\n",
        "code": True,
        "verdict": [True, "bitwise"],
        "listed": True,
        "same": True,
        "made": True,
    }


def test_a_failed_call_raises_an_error_with_its_exit_code(small: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small.directory)
    with pytest.raises(repro_env.ReproEnvError, match="not") as raised:
        repro_env.show("missing/spec.json")
    assert raised.value.exit_code == 3


def test_every_public_name_can_be_imported() -> None:
    for name in repro_env.__all__:
        assert getattr(repro_env, name) is not None
