"""What Grid Engine's commands answer. The commands are scripts here; tests/e2e/test_gridengine.py has real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.launch.engine import State
from repro_env.launch.gridengine import ENGINE
from repro_env.launch.gridengine.client import GridEngine
from repro_env.launch.nodescript import SCRIPT, STDERR, STDOUT
from repro_env.schema.errors import EngineError
from tests.launch.gridengine.answers import QSTAT, WAITING, accounting


def commands(directory: Path, **answers: str) -> dict[str, str]:
    """Write commands of Grid Engine that print these texts. Returns the environment in which they are found."""
    directory.mkdir()
    for name, text in answers.items():
        (directory / f"{name}.txt").write_text(text)
        (directory / name).write_text(f'#!/bin/sh\necho "$*" >>{directory}/asked\ncat {directory}/{name}.txt\n')
        (directory / name).chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


def client(runs: Path, short: str, environ: dict[str, str]) -> GridEngine:
    directory = runs / f"0197c1d2-0000-7000-8000-0000{short}"
    directory.mkdir(parents=True)
    return GridEngine(directory, environ)


def test_jobs_are_listed_once_for_all(tmp_path: Path) -> None:
    environ = commands(tmp_path / "bin", qstat=QSTAT, qacct=accounting(("0", "7")))
    clients = [client(tmp_path / "runs", f"0000abc{number}", environ) for number in (1, 2, 7)]
    found = ENGINE.states([(each, number) for each, number in zip(clients, ("1", "2", "7"), strict=True)])
    assert [(state.phase, state.text) for state in found] == [
        ("running", "running"),
        ("running", "being deleted"),
        ("ended", "failed"),
    ]
    assert (tmp_path / "bin/asked").read_text().splitlines() == ["-u $user -xml", "-j 7"]


def test_a_waiting_job_is_asked_for_its_reason(tmp_path: Path) -> None:
    # The real command prints either, as asked.
    environ = commands(tmp_path / "bin", qstat=QSTAT + WAITING)
    state = client(tmp_path / "runs", "0000abc3", environ).state("3")
    assert state == State(phase="pending", text='pending (cannot run in PE "smp" because it only offers 0 slots)')


def test_another_job_of_the_same_number_is_not_taken_for_it(tmp_path: Path) -> None:
    environ = commands(tmp_path / "bin", qstat=QSTAT, qacct="error: job id 1 not found\n")
    found = client(tmp_path / "runs", "0000beef", environ).state("1")
    assert found == State(phase="forgotten", text="Grid Engine does not know the job any more")


def test_a_job_that_is_deleted_while_it_waits_has_ended(tmp_path: Path) -> None:
    environ = commands(tmp_path / "bin", qstat="<job_info/>", qacct="", qdel="ann has deleted job 3\n")
    waiting = client(tmp_path / "runs", "0000abc3", environ)
    assert waiting.state("3").phase == "forgotten"
    waiting.cancel("3")
    assert waiting.state("3") == State(phase="ended", text="deleted", exit_code=143)


def test_a_master_that_does_not_answer_says_nothing_about_the_job(tmp_path: Path) -> None:
    environ = commands(tmp_path / "bin", qstat="")
    why = "commlib error: got select error (Connection refused)"
    (tmp_path / "bin/qstat").write_text(f"#!/bin/sh\necho 'error: {why}' >&2\nexit 1\n")
    assert client(tmp_path / "runs", "0000abc3", environ).state("3") == State(phase="unknown", text=why)


def test_a_machine_without_grid_engine_is_named(tmp_path: Path) -> None:
    engine = client(tmp_path, "0000abc3", {"PATH": str(tmp_path)})
    assert engine.state("7") == State(phase="unknown", text="the command qstat is not on this machine")
    with pytest.raises(EngineError, match="the command qsub is not on this machine"):
        engine.submit("#!/bin/bash\n")


def test_a_submitted_job_has_its_script_and_its_logs_in_its_directory(tmp_path: Path) -> None:
    engine = client(tmp_path / "runs", "0000abc3", commands(tmp_path / "bin", qsub="12\n"))
    assert engine.submit("#!/bin/bash\n") == "12"
    assert (engine.directory / SCRIPT).stat().st_mode & 0o777 == 0o500
    assert engine.logs("12") == (b"", b"")
    (engine.directory / STDOUT).write_bytes(b"one\n")
    (engine.directory / STDERR).write_bytes(b"error")
    assert engine.logs("12") == (b"one\n", b"error")
    assert engine.logs("12") == (b"", b"")


def test_a_refused_job_is_an_error_with_the_words_of_qsub(tmp_path: Path) -> None:
    environ = commands(tmp_path / "bin", qsub="")
    refusal = 'Unable to run job: Job was rejected because job requests unknown queue "nowhere".\\nExiting.'
    (tmp_path / "bin/qsub").write_text(f"#!/bin/sh\nprintf '{refusal}\\n' >&2\nexit 1\n")
    engine = client(tmp_path / "runs", "0000abc3", environ)
    with pytest.raises(EngineError, match=r'refused the job: Job was rejected because job requests unknown queue "nowhere"$'):
        engine.submit("#!/bin/bash\n")


def test_a_job_of_another_script_cannot_be_queued_again(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="was not submitted by repro-env"):
        GridEngine(tmp_path, {}).requeue("7")
