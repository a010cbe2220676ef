"""The output and exit codes of `repro-env rebuild`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from repro_env.schema.spec import Spec
from tests.fakes import specs, wheels

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / "project"


@pytest.fixture
def spec(project: Path, tmp_path: Path) -> Spec:
    by_name = {"alpha": wheels.make(tmp_path / "wheels", "alpha")}
    return specs.make(project / "repro", by_name, carry=list(by_name))


def call(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "repro_env", "rebuild", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_rebuild_prints_only_the_image_id_on_stdout(project: Path, spec: Spec) -> None:
    for _ in range(2):
        process = call(project)
        assert process.returncode == 0, process.stderr
        assert process.stdout == spec.expected.image_id + "\n"
        assert process.stderr.splitlines()[-1] == "next: repro-env exec COMMAND"


def test_rebuild_first_prints_how_much_it_will_download(project: Path, spec: Spec) -> None:
    assert call(project, str(project / "repro")).stderr.startswith("rebuilding: 0.0 MB to download")


def test_rebuild_prints_a_json_object(project: Path, spec: Spec) -> None:
    facts = json.loads(call(project, "--json").stdout)
    assert facts["image_id"] == spec.expected.image_id
    assert facts["spec_digest"] == spec.digest
    assert {item["what"]: item["origin"] for item in facts["plan"]["items"]}["alpha==1.0"] == "bundled"
    again = json.loads(call(project, "--json").stdout)
    assert (again["image_id"], again["plan"]) == (spec.expected.image_id, None)


def test_a_dry_run_lists_the_sources_and_changes_nothing(project: Path, spec: Spec, own_store: Path) -> None:
    process = call(project, "--dry-run")
    assert process.returncode == 0, process.stderr
    assert "alpha==1.0" in process.stderr
    assert not list((own_store / "layers").iterdir())
    answer = json.loads(call(project, "--dry-run", "--json").stdout)
    assert (answer["written"], bool(answer["plan"]["items"])) == (0, True)


def test_each_failure_has_its_exit_code(project: Path, spec: Spec, tmp_path: Path) -> None:
    assert call(tmp_path).returncode == 3
    assert call(project, "--frozen").returncode == 2
    specs.blob(project / "repro", spec.identity.base).unlink()
    process = call(project)
    assert (process.returncode, process.stdout) == (11, "")
    assert "the base was not found" in process.stderr
    assert "->" in process.stderr
