"""The interpreters of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess

from tests.parts import BASE_PYTHON

BASE = os.path.realpath(BASE_PYTHON)


def pythons() -> tuple[str, ...]:
    """Every CPython 3.8+ on PATH that can create a venv, and the interpreter of the tests."""
    names = [BASE, "/usr/bin/python3", *(f"python3.{minor}" for minor in range(8, 16))]
    code = "import os, sys, venv; assert sys.version_info >= (3, 8); print(os.path.realpath(sys.executable))"
    paths = set()
    for name in names:
        if (path := shutil.which(name)) is not None:
            done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                paths.add(done.stdout.strip())
    return tuple(sorted(paths))
