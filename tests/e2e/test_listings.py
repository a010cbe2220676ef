"""The order of directories, through the command: two copies of the same data, in directories that are listed in another order."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import parts
from tests.parts import need

NAMES = [f"{name}.txt" for name in "qwertzuiopasdfghjklyxcvbnm"]
SCRIPT = """
import glob, os, pathlib, random, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
if __name__ == "__main__":
    with get_context("spawn").Pool(1) as pool, ThreadPoolExecutor() as threads:
        lists = [
            os.listdir("/listed"), [path.name for path in pathlib.Path("/listed").iterdir()], pool.map(os.listdir, ["/listed"]),
            threads.submit(glob.glob, "/listed/*").result(), next(os.walk("/listed"))[2],
            subprocess.check_output([sys.executable, "-c", "import os; print(os.listdir('/listed'))"], text=True),
        ]
    names = os.listdir("/listed")
    random.shuffle(names)
    open("order.txt", "w").write(f"{lists} {names}")
"""


@pytest.fixture
def copies() -> Iterator[list[Path]]:
    """Two directories of a tmpfs, which lists the newest file first."""
    need(Path("/dev/shm").is_dir(), "no tmpfs at /dev/shm")
    root = Path(tempfile.mkdtemp(dir="/dev/shm"))
    directories = [root / "one", root / "two"]
    for directory, names in zip(directories, (NAMES, NAMES[::-1]), strict=True):
        directory.mkdir()
        for name in names:
            (directory / name).write_text(name)
    yield directories
    shutil.rmtree(root)


@pytest.mark.parametrize("mode", ["warn", "off"])
def test_directories_are_listed_in_one_order_unless_determinism_is_off(
    small: parts.Project, copies: list[Path], mode: str
) -> None:
    (small.directory / "order.py").write_text(SCRIPT)
    orders, latest = [], small.directory / "runs" / "latest"
    for directory in copies:
        small.run("exec", "--determinism", mode, "--data", f"{directory}:/listed", "order.py")
        orders.append((latest / "files" / "order.txt").read_text())
    assert (orders[0] == orders[1]) == (mode == "warn")
    effective = json.loads((latest / "end.json").read_text())["settings"]
    assert {"name": "directory order", "value": "sorted" if mode == "warn" else "not sorted"} in effective
