"""The entry point, before any command."""

from __future__ import annotations

import subprocess
import sys

import pytest

SAYS = "import os; from repro_env.__main__ import uncoerced; uncoerced(); print(os.environ.get('LC_CTYPE'))"


@pytest.mark.parametrize(
    ("given", "left"),
    [({}, "None"), ({"LC_CTYPE": "C.UTF-8"}, "C.UTF-8"), ({"LC_ALL": "C"}, "None"), ({"LANG": "C.UTF-8"}, "None")],
)
def test_what_our_own_python_sets_is_not_the_users(given: dict[str, str], left: str) -> None:
    """With no locale at all, Python puts LC_CTYPE=C.UTF-8 into its own environment: captured, it would change UTF-8 mode in the image."""
    done = subprocess.run([sys.executable, "-c", SAYS], env=given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == left
