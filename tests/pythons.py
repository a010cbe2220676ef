"""The CPythons of this machine. `python -m tests.pythons` prints the oldest and the newest other one that repro-env supports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 10)
"""The oldest Python that repro-env itself runs on."""


def interpreters() -> dict[tuple[int, int], Path]:
    """Version -> interpreter that can make virtual environments: `python3.N` on PATH, and those of pyenv."""
    paths = [Path(path) for path in (shutil.which(f"python3.{minor}") for minor in range(6, 20)) if path]
    paths += sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.*/bin/python"))
    versions = {}
    for path in paths:
        code = "import sys, venv, ensurepip; print(sys.implementation.name, *sys.version_info[:2])"
        answer = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False).stdout
        if match := re.fullmatch(r"cpython (\d+) (\d+)\n", answer):
            versions[int(match[1]), int(match[2])] = path
    return versions


def oldest_and_newest(oldest: tuple[int, int]) -> list[tuple[int, int]]:
    """The oldest version of this machine that is not below `oldest`, and the newest, without the version that runs this."""
    versions = sorted(version for version in interpreters() if version >= oldest and version != sys.version_info[:2])
    return sorted({*versions[:1], *versions[-1:]})


if __name__ == "__main__":
    for chosen in oldest_and_newest(OLDEST):
        print(interpreters()[chosen])
