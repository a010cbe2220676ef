"""The checks of `checks/`, which run in one process where torch is, as one test each."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.checkpoint import place

NAMES = [
    one.name
    for file in sorted((place.HERE / "checks").glob("*.py"))
    for one in ast.parse(file.read_text()).body
    if isinstance(one, ast.FunctionDef)
    and not one.name.startswith("_")
    and len(one.args.args) == 1
    and isinstance(one.args.args[0].annotation, ast.Name)
    and one.args.args[0].annotation.id == "Path"
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    folder = tmp_path_factory.mktemp("checks")
    result: dict[str, str | None] = json.loads(place.run("checks/run.py", str(folder), cwd=folder).splitlines()[-1])
    return result


@pytest.mark.parametrize("name", NAMES)
def test_check(found: dict[str, str | None], name: str) -> None:
    assert name in found, "it was not run"
    assert found[name] is None, found[name]


def test_torch_is_not_imported_before_it_is_used(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys, repro_env.checkpoint; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=place.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]
