"""The check of the pod runner. tests/e2e/test_kubernetes.py runs commands with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro_env.oci import paths
from repro_env.sandbox.pod import PodRunner
from repro_env.schema.errors import RunError
from repro_env.schema.run import Limits
from tests.fakes import specs


@pytest.mark.parametrize(
    ("marker", "found"),
    [
        (None, "it has none"),
        ("{", "it has none"),
        (
            json.dumps({"schema": "repro-env/image/1", "spec": f"sha256:{'0' * 64}"}),
            "it has that of the spec sha256:000000000000…",
        ),
    ],
)
def test_a_container_of_another_image_runs_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marker: str | None, found: str
) -> None:
    monkeypatch.setattr(paths, "MARKER", str(tmp_path / "image.json"))
    if marker is not None:
        (tmp_path / "image.json").write_text(marker)
    with pytest.raises(RunError, match="this is not a container of the image") as raised:
        PodRunner.check(specs.make(tmp_path / "spec", {}), Limits())
    assert raised.value.what.endswith(found)


def test_a_container_without_the_directories_of_a_job_runs_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "MARKER", str(tmp_path / "image.json"))
    (tmp_path / "image.json").write_text(json.dumps({"spec": specs.make(tmp_path / "spec", {}).digest}))
    with pytest.raises(RunError, match="does not have the directories of a job"):
        PodRunner.check(specs.make(tmp_path / "spec", {}), Limits())
