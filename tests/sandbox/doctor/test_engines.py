"""The findings of doctor about container engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.sandbox.doctor import engines
from repro_env.sandbox.doctor.diagnosis import works
from tests.sandbox.engines import docker


def test_a_missing_engine_does_not_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    findings = engines.findings()
    assert (findings[0].name, findings[0].state) == ("container engine", "absent")
    assert "the socket does not exist" in findings[0].text
    assert findings[0].fix
    assert works(findings)


def test_an_engine_that_answers_is_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker())
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (finding, *_) = engines.findings()
    assert (finding.name, finding.state, finding.fix) == ("docker engine", "ok", "")
    assert finding.text.startswith("Docker ")
    assert f" at {docker()}" in finding.text
