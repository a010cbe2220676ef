"""The hooks of a run read some of the files by themselves: in the user's process there is no package of ours that they are in."""

from __future__ import annotations

import importlib.util
import re

import pytest

from repro_env.capture.python import INSIDE

HOOK = INSIDE / "seeds" / "_repro_env_libraries.py"
READ = sorted(set(re.findall(r'_numeric\("(\w+)"\)', HOOK.read_text())))


def test_it_is_known_which() -> None:
    assert READ == ["functions", "instructions", "mapped", "names"]


@pytest.mark.parametrize("name", READ)
def test_it_needs_no_file_beside_it(name: str) -> None:
    spec = importlib.util.spec_from_file_location(f"_repro_env_numeric_{name}", INSIDE / "numeric" / f"{name}.py")
    assert spec
    assert spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
