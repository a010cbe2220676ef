"""Environments of the interpreter that runs the tests."""

from __future__ import annotations

import os
from pathlib import Path

from tests.parts import BASE_PYTHON

BASE = os.path.realpath(BASE_PYTHON)
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "CONDA"))}


def site_of(venv: Path) -> Path:
    return next((venv / "lib").glob("python*/site-packages"))
