"""Report each check in `checks/` as a test. The checks run together in one process that has torch."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.checkpoint import place

NAMES = [
    node.name
    for file in sorted((place.HERE / "checks").glob("*.py"))
    for node in ast.parse(file.read_text()).body
    if isinstance(node, ast.FunctionDef)
    and not node.name.startswith("_")
    and len(node.args.args) == 1
    and isinstance(node.args.args[0].annotation, ast.Name)
    and node.args.args[0].annotation.id == "Path"
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    directory = tmp_path_factory.mktemp("checks")
    result: dict[str, str | None] = json.loads(place.run("checks/run.py", str(directory), cwd=directory).splitlines()[-1])
    return result


@pytest.mark.parametrize("name", NAMES)
def test_check_passes(results: dict[str, str | None], name: str) -> None:
    assert name in results, "the check was not run"
    assert results[name] is None, results[name]


def test_torch_is_not_imported_before_it_is_used(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys, repro_env.checkpoint; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=place.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]
