"""What a test needs that a machine may lack: a skip on a developer's machine, a failure in CI."""

from __future__ import annotations

import os
import sys

import pytest

BASE_PYTHON = os.path.join(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info))  # noqa: PTH118
"""The Python that made the environment of the tests. Before Python 3.11, `sys._base_executable` is that of the environment."""


def need(condition: object, message: str) -> None:
    """Go on when `condition` holds. Else skip, saying what is missing and how to get it; with CI set, fail."""
    if condition:
        return
    if os.environ.get("CI"):
        pytest.fail(f"CI has to have this part: {message}")
    pytest.skip(message)
