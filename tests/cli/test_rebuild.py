"""The command line of rebuild: what is on stdout, what on stderr, and the exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from repro_env.model.spec import Spec
from tests.fakes import specs, wheels

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / "project"


@pytest.fixture
def spec(project: Path, tmp_path: Path) -> Spec:
    made = {"alpha": wheels.make(tmp_path / "wheels", "alpha")}
    return specs.make(project / "repro", made, carry=list(made))


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "repro_env", "rebuild", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_image_id_alone_is_on_stdout(project: Path, spec: Spec) -> None:
    for _ in range(2):
        done = call(project)
        assert done.returncode == 0, done.stderr
        assert done.stdout == spec.expected.image_id + "\n"
        assert done.stderr.splitlines()[-1] == "next: repro-env exec train.py"


def test_what_is_to_do_is_said_first(project: Path, spec: Spec) -> None:
    assert call(project, str(project / "repro")).stderr.startswith("rebuilding: 0.0 MB to fetch")


def test_json_is_one_object(project: Path, spec: Spec) -> None:
    facts = json.loads(call(project, "--json").stdout)
    assert facts["image_id"] == spec.expected.image_id
    assert facts["spec_digest"] == spec.digest
    assert {item["what"]: item["origin"] for item in facts["items"]}["alpha==1.0"] == "bundled"
    again = json.loads(call(project, "--json").stdout)
    assert (again["image_id"], again["items"], again["changed"]) == (spec.expected.image_id, [], False)


def test_a_dry_run_shows_where_everything_is(project: Path, spec: Spec, own_store: Path) -> None:
    done = call(project, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "alpha==1.0" in done.stderr
    assert not list((own_store / "layers").iterdir())
    assert json.loads(call(project, "--dry-run", "--json").stdout)["changed"] is False


def test_failures_have_their_exit_codes(project: Path, spec: Spec, tmp_path: Path) -> None:
    assert call(tmp_path).returncode == 3
    assert call(project, "--builder", "magic").returncode == 2
    specs.blob(project / "repro", spec.identity.base).unlink()
    done = call(project)
    assert (done.returncode, done.stdout) == (11, "")
    assert "the base is not there" in done.stderr
    assert "->" in done.stderr
