"""`repro_env.tags`: the tags of a run for trackers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import repro_env
from repro_env import tagging


def test_a_run_has_the_tags_of_its_spec_and_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_ENV_SPEC", "sha256:aa")
    monkeypatch.setenv("REPRO_ENV_RUN", "01a2")
    assert repro_env.tags() == {"repro_env_spec": "sha256:aa", "repro_env_run": "01a2"}


def test_there_are_no_tags_outside_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPRO_ENV_SPEC", raising=False)
    monkeypatch.setenv("REPRO_ENV_RUN", "")
    assert repro_env.tags() == {}


def test_the_module_runs_in_old_pythons_and_imports_only_os() -> None:
    text = Path(tagging.__file__).read_text()
    ast.parse(text, feature_version=(3, 8))
    code = (
        "import sys, os; before = set(sys.modules); import repro_env; repro_env.tags(); print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], check=True, cwd=Path(tagging.__file__).parents[1], capture_output=True, text=True
    )
    assert "repro_env.tagging" in done.stdout
    assert not {"json", "msgspec", "re"} & set(ast.literal_eval(done.stdout))
