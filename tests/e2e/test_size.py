"""Environments of many files: all are held, a change of one is seen, and memory stays within its bound."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e import parts
from tests.parts import BASE_PYTHON

BOUND = 300_000_000
"""Bytes that a capture may take, whatever the environment."""
MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def many(directory: Path, count: int) -> parts.Project:
    """A venv in whose site-packages lie `count` modules that no distribution owns, a hundred a directory."""
    subprocess.run([BASE_PYTHON, "-m", "venv", "--without-pip", directory / ".venv"], check=True)
    (site,) = (directory / ".venv/lib").glob("python*/site-packages")
    for number in range(count):
        if number % 100 == 0:
            (site / f"many/part{number // 100:04}").mkdir(parents=True)
        (site / f"many/part{number // 100:04}/module{number % 100:02}.py").write_bytes(b"x = %d\n" % number)
    (directory / "train.py").write_text("pass\n")
    return parts.Project(directory, directory / ".venv/bin/python", directory.with_name("store"))


def capture(project: parts.Project) -> tuple[dict[str, object], int]:
    """The spec, and the most memory (bytes) that one process of the capture held."""
    words = [str(parts.COMMAND), "capture", "--python", str(project.python)]
    output = subprocess.run(
        [sys.executable, "-c", MEASURED, *words],
        cwd=project.directory,
        env=parts.environ(project.store),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    spec = json.loads((project.directory / "repro/spec.json").read_bytes())
    assert isinstance(spec, dict)
    return spec, int(output) << 10


@pytest.mark.soak
@pytest.mark.parametrize(
    "count",
    [2_000, 100_000],
)
def test_every_file_is_captured_and_every_change_found(tmp_path: Path, count: int) -> None:
    project = many(tmp_path / "project", count)
    time.sleep(2.1)  # files younger than the coarsest clock's tick are not known by their keys

    first, most = capture(project)
    assert most < BOUND
    assert first["identity"]["overlay"]["files"] >= count + count // 100  # type: ignore[index]
    again, most = capture(project)
    assert most < BOUND
    assert again == first

    changed = next(project.directory.glob(".venv/lib/python*/site-packages/many/part0007/module07.py"))
    before = changed.stat()
    changed.write_bytes(b"y = 707\n")
    assert changed.stat().st_size == before.st_size
    other, _ = capture(project)
    assert other["expected"]["image_id"] != first["expected"]["image_id"]  # type: ignore[index]
    changed.write_bytes(b"x = 707\n")
    back, _ = capture(project)
    assert back["expected"] == first["expected"], "by content, whatever the times say"
    changed.unlink()
    fewer, _ = capture(project)
    assert fewer["identity"]["overlay"]["files"] == first["identity"]["overlay"]["files"] - 1  # type: ignore[index]
