"""`repro-env runs get` through the command: outputs outside the project, a run that has not ended, and copies in the project."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.e2e import parts

WRITES = """
import os, sys, time
os.makedirs("../results/ckpt", exist_ok=True)
open("../results/ckpt/last.txt", "w").write("0.25")
open("made.txt", "w").write("made by the run")
while os.path.exists("wait"): time.sleep(0.1)
"""


def test_an_output_outside_the_project_is_copied_by_the_path_that_the_script_used(small: parts.Project, tmp_path: Path) -> None:
    (small.directory / "writes.py").write_text(WRITES)
    small.run("exec", "writes.py")
    path = f"{small.directory.parent}/results/ckpt/last.txt"
    for number, glob in enumerate(("last.txt", "*/last.txt", "../results/**/*.txt", "../results", path, "ckpt/last.txt")):
        to = tmp_path / str(number)
        small.run("runs", "get", "latest", glob, "--to", to)
        (copied,) = [found for found in to.rglob("*") if found.is_file()]
        assert copied.read_text() == "0.25", glob
    assert "no output of this run matches" in small.run("runs", "get", "latest", "../other/*", "--to", tmp_path, code=19).err


def test_outputs_copied_into_the_project_are_no_changed_code(small: parts.Project, tmp_path: Path) -> None:
    (small.directory / "writes.py").write_text(WRITES)
    small.capture()
    small.run("exec", "writes.py")
    small.run("runs", "get", "latest")
    assert (small.directory / "made.txt").read_text() == "made by the run"
    small.run("pack", "repro", tmp_path / "packed.tar")
    (small.directory / "made.txt").write_text("edited")
    assert "1 file differs from the captured code" in small.run("pack", "repro", tmp_path / "again.tar", code=None).err


def test_a_run_that_has_not_ended_says_so(small: parts.Project, tmp_path: Path) -> None:
    (small.directory / "writes.py").write_text(WRITES)
    (small.directory / "wait").touch()
    with subprocess.Popen(
        [parts.COMMAND, "exec", "writes.py"], cwd=small.directory, env=parts.environ(small.store, None)
    ) as process:
        try:
            done = small.run("runs", "list")
            for _ in range(100):
                time.sleep(0.1)
                done = small.run("runs", "get", "latest", "made.txt", "--to", tmp_path / "to", "--force", code=None)
                if not done.code and "the run is running" in done.err:
                    break
            assert "the run is running, so there may be more outputs" in done.err
            refused = small.run("runs", "get", "latest", "../results/*", "--to", tmp_path, code=19).err
            assert "the run has not ended, and what it writes outside its project can be copied afterwards" in refused
        finally:
            process.terminate()
