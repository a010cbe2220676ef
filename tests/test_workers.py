"""The suite's own workers: one that crashes costs its test, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import conftest

REPOSITORY = Path(__file__).parents[1]


def test_a_worker_that_crashes_does_not_keep_the_suite_waiting(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"test_{number:02}.py").write_text("def test(): pass\n")
    crash = "import os, pathlib\ndef test():\n    try: pathlib.Path('died').touch(exist_ok=False)\n    except OSError: return\n"
    (tmp_path / "test_12.py").write_text(f"{crash}    os.kill(os.getpid(), 9)\ndef test_more(): pass\ndef test_most(): pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ["-q", "-n1", "--dist=loadfile", "--no-loadscope-reorder", "-ptests.conftest", f"--basetemp={tmp_path / 'temp'}"]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert "1 failed, 15 passed" in done.stdout, done.stdout + done.stderr


def test_files_that_share_an_expensive_fixture_are_a_group() -> None:
    groups = {path.relative_to(conftest.TESTS).as_posix(): conftest.group(path) for path in conftest.TESTS.rglob("test_*.py")}
    members = {group: {path for path, name in groups.items() if name == group} for group in conftest.SHARED.values()}
    assert all(len(files) > 1 for files in members.values())
    assert {"e2e/test_training.py", "e2e/test_output.py", "e2e/test_verify.py"} <= members["torch"]
    assert "sandbox/test_runners.py" in members["sandbox"]
    assert groups["e2e/test_inside.py"] == "e2e/test_inside.py"
