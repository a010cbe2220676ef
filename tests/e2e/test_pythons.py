"""Environments of the oldest and the newest other Python of this machine: our hooks and probes run in each of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e import parts
from tests.pythons import interpreters, oldest_and_newest

OLDEST = (3, 8)
"""The oldest Python whose environments can be captured."""
SCRIPT = """\
import json, pickle, random, sqlite3, sys, tempfile, uuid, zipfile

with open("metrics.json", "w") as file:
    json.dump({"python": sys.version_info[:2], "loss": random.random(), "id": str(uuid.uuid4())}, file)
with open("model.pkl", "wb") as file:
    pickle.dump({"weights": [random.random() for _ in range(9)], "tags": {"a", "b", "c"}}, file)
with zipfile.ZipFile("model.zip", "w") as archive:
    archive.writestr("weights.txt", str(random.random()))
database = sqlite3.connect("study.db")
database.execute("create table trial (value real)")
database.execute("insert into trial values (?)", (random.random(),))
database.commit()
database.close()
print(sorted([tempfile.mkdtemp() != "", random.random()]))
"""
"""Unseeded results in formats that `verify` reads with the image's own interpreter."""


OTHERS = [pytest.param(version, id=f"3.{version[1]}") for version in oldest_and_newest(OLDEST)]
NONE = pytest.param((0, 0), marks=pytest.mark.skip(reason="this machine has no other Python from 3.8"))


@pytest.mark.index
@pytest.mark.parametrize("version", OTHERS or [NONE])
def test_an_environment_of_another_python_is_captured_rebuilt_run_and_verified(
    version: tuple[int, int], ground: Path, tmp_path: Path
) -> None:
    python = parts.venv(tmp_path / "project" / ".venv", "packaging==23.2", python=str(interpreters()[version]))
    project = parts.project(tmp_path / "project", python, ground / "shared-store")
    (project.directory / "train.py").write_text(SCRIPT)
    project.capture()
    project.rebuild()
    assert project.python_says("import sys; print(sys.version_info[:2])") == f"{version}\n"
    project.run("exec", "train.py")
    verdict = json.loads(project.run("verify", "--json").out)
    reasons = {file["path"]: [difference["reason"] for difference in file["ignored"]] for file in verdict["files"]}
    assert set(reasons) >= {"metrics.json", "model.pkl", "model.zip", "study.db"}
    assert reasons["metrics.json"] == ["a random id drawn at train.py:4, number 0"]
    assert not reasons["model.pkl"] + reasons["study.db"]


def test_a_python_that_is_too_old_is_refused(tmp_path: Path) -> None:
    versions = [version for version in interpreters() if version < OLDEST]
    if not versions:
        pytest.skip("this machine has no Python older than 3.8")
    python = parts.venv(tmp_path / ".venv", python=str(interpreters()[versions[0]]), own_pip=False)
    project = parts.project(tmp_path, python, tmp_path / "store")
    refused = project.run("capture", "--python", python, code=6)
    assert "which is too old; repro-env supports Python 3.8 and later" in refused.err
