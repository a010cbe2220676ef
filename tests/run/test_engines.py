"""What doctor says of container engines."""

from __future__ import annotations

from pathlib import Path

from repro_env.run import engines
from repro_env.run.diagnosis import works
from repro_env.run.engines import Met
from tests.run.engines import docker


def test_no_engine_is_no_reason_not_to_run(tmp_path: Path) -> None:
    met = engines.meet({"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "XDG_RUNTIME_DIR": str(tmp_path)})
    (found, *_) = engines.findings(met)
    assert (found.name, found.state) == ("container engine", "absent")
    assert "no such socket" in found.text
    assert found.fix
    assert works(engines.findings(met))


def test_an_engine_that_answers_is_named(tmp_path: Path) -> None:
    (met, *_) = engines.meet({"DOCKER_HOST": docker(), "XDG_RUNTIME_DIR": str(tmp_path)})
    (found,) = engines.findings((met,))
    assert (found.name, found.state, found.fix) == ("docker engine", "ok", "")
    assert f"Docker {met.version} at {docker()}" in found.text


def test_a_remote_engine_is_told_with_its_fix() -> None:
    met = Met(address="tcp://far.example.com:2375", product="Docker", version="1", problem="it is elsewhere", fix="unset it")
    (found,) = engines.findings((met,))
    assert (found.state, found.fix) == ("absent", "unset it")
    assert "it is elsewhere" in found.text
