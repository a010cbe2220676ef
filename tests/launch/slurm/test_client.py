"""What Slurm's commands answer. The commands are scripts here; tests/e2e/test_slurm.py has real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.launch.engine import State
from repro_env.launch.nodescript import SCRIPT, STDERR, STDOUT
from repro_env.launch.slurm import states
from repro_env.launch.slurm.client import Slurm
from repro_env.schema.errors import EngineError
from tests.launch.slurm.jobs import GOLDEN


def program(directory: Path, name: str, text: str) -> dict[str, str]:
    """Write a script in place of a command of Slurm. Returns the environment in which it is found."""
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{text}\n")
    (directory / name).chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


FIRST, SECOND = Path("/runs/.jobs/1"), Path("/runs/.jobs/2")


def row(job: str, state: str, reason: str, code: str, script: str = "/runs/.jobs/1/job.sh") -> str:
    """A line of squeue, with the exit code as waitpid(2) returns it."""
    return f"{job}|{state}|{reason}|{code}|{script}|\n"


@pytest.mark.parametrize(
    ("lines", "phase", "text", "code"),
    [
        (row("7", "PENDING", "Resources", "0"), "pending", "pending (Resources)", None),
        (row("7", "PENDING", "BeginTime", "0"), "pending", "pending (BeginTime)", None),
        (row("7", "PENDING", "QOSMaxJobsPerUserLimit", "0"), "pending", "pending (QOSMaxJobsPerUserLimit)", None),
        (row("7", "PENDING", "launch failed requeued held", "0"), "pending", "pending (launch_failed_requeued_held)", 16),
        (row("7", "COMPLETING", "launch failed requeued held", "0"), "running", "completing (launch_failed_requeued_held)", None),
        (row("7", "RUNNING", "None", "0"), "running", "running", None),
        (row("7", "COMPLETING", "None", "0"), "running", "completing", None),
        (row("7", "COMPLETED", "None", "0"), "ended", "completed", 0),
        (row("7", "FAILED", "NonZeroExitCode", "1792"), "ended", "failed", 7),
        (row("7", "FAILED", "NonZeroExitCode", "7:0"), "ended", "failed", 7),
        (row("7", "FAILED", "JobLaunchFailure", "3893"), "ended", "failed (JobLaunchFailure)", 16),
        (row("7", "CANCELLED", "None", "15"), "ended", "cancelled", 143),
        (row("7", "TIMEOUT", "TimeLimit", "0"), "ended", "timeout (TimeLimit)", 1),
        (row("7", "OUT_OF_MEMORY", "OutOfMemory", "125"), "ended", "out of memory (OutOfMemory)", 253),
        (row("7_0", "FAILED", "NonZeroExitCode", "768") + row("7_1", "PENDING", "Resources", "0"), "pending", "failed, pending (Resources)", None),
        (row("7_0", "COMPLETED", "None", "0") + row("7_1", "FAILED", "NonZeroExitCode", "768"), "ended", "completed, failed", 3),
    ],
)  # fmt: skip
def test_states_of_jobs(lines: str, phase: str, text: str, code: int | None) -> None:
    state = states.parse_jobs(lines, {FIRST: "7"})[FIRST]
    assert (state.phase, state.text, state.exit_code) == (phase, text, code)


def test_a_job_of_the_same_number_with_another_script_is_not_taken_for_it() -> None:
    lines = row("7", "RUNNING", "None", "0") + row("8", "RUNNING", "None", "0", "/other/job.sh") + "noise\n"
    lines += row("9_1", "RUNNING", "None", "0")  # the script of an array job is that of its first run
    jobs = {FIRST: "7", SECOND: "7", Path("/runs/.jobs/3"): "8", Path("/runs/.jobs/4"): "9_1", Path("/runs/.jobs/5"): "10"}
    assert [path.name for path in states.parse_jobs(lines, jobs)] == ["1", "4"]


def test_slurm_is_asked_once_for_several_jobs_and_its_accounting_for_those_that_it_has_forgotten(tmp_path: Path) -> None:
    jobs = tmp_path / "runs/.jobs"
    lines = row("7", "PENDING", "Resources", "0", f"{jobs}/1/job.sh") + row("9_1", "RUNNING", "None", "0", f"{jobs}/2/job.sh")
    environ = program(tmp_path / "bin", "squeue", f"echo \"$@\" >>{tmp_path}/asked; printf '%s' '{lines}'")
    program(
        tmp_path / "bin", "sacct", f"echo \"$@\" >>{tmp_path}/asked; echo '10|CANCELLED by 1000|0:15'; echo '11.0|RUNNING|0:0'"
    )
    numbers = {jobs / "1": "7", jobs / "3": "9_1", jobs / "4": "10", jobs / "5": "11"}
    states = Slurm.states([(Slurm(directory, environ), number) for directory, number in numbers.items()])
    assert [state.text for state in states] == [
        "pending (Resources)",
        "running",
        "cancelled",
        "Slurm does not know the job any more",
    ]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert ["--jobs=7,9_1,10,11" in asked[0], "--jobs=10,11" in asked[1], len(asked)] == [True, True, 2]


def test_a_job_that_failed_without_its_output_files_has_a_hint(tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "squeue", f"echo '7|FAILED|NonZeroExitCode|{16 << 8}|{tmp_path}/job.sh|'")
    assert "the node cannot open the job's output files" in Slurm(tmp_path, environ).state("7").hint
    (tmp_path / STDERR).touch()
    assert Slurm(tmp_path, environ).state("7") == State(phase="ended", text="failed", exit_code=16)


def test_a_job_that_slurmctld_has_forgotten_is_looked_up_in_the_accounting(tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    program(tmp_path / "bin", "sacct", "echo '7|CANCELLED by 1000|0:15'")
    assert Slurm(tmp_path, environ).state("7") == State(phase="ended", text="cancelled", exit_code=143)


@pytest.mark.parametrize("sacct", ["echo 'Slurm accounting storage is disabled' >&2; exit 1", "exit 0"])
def test_without_accounting_it_is_not_known_how_a_forgotten_job_ended(tmp_path: Path, sacct: str) -> None:
    environ = program(tmp_path / "bin", "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    program(tmp_path / "bin", "sacct", sacct)
    assert Slurm(tmp_path, environ).state("7") == State(phase="forgotten", text="Slurm does not know the job any more")


def test_a_controller_that_does_not_answer_says_nothing_about_the_job(tmp_path: Path) -> None:
    why = "Unable to contact slurm controller (connect failure)"
    environ = program(tmp_path / "bin", "squeue", f"echo 'slurm_load_jobs error: {why}' >&2; exit 1")
    assert Slurm(tmp_path, environ).state("7") == State(phase="unknown", text=why)


def test_the_largest_array_is_that_of_the_configuration(tmp_path: Path) -> None:
    environ = program(
        tmp_path / "bin", "scontrol", "printf 'MaxArraySize            = 1001\\nMaxJobCount             = 10000\\n'"
    )
    assert Slurm(tmp_path, environ).largest_array() == 1001


def test_a_machine_without_slurm_is_named(tmp_path: Path) -> None:
    engine = Slurm(tmp_path, {"PATH": str(tmp_path)})
    assert engine.state("7") == State(phase="unknown", text="the command squeue is not on this machine")
    with pytest.raises(EngineError, match="the command sbatch is not on this machine"):
        engine.submit(GOLDEN)


def test_variables_of_sbatch_do_not_override_the_options_of_the_script(tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "sbatch", f"env > {tmp_path}/env; echo '12;cluster'")
    environ |= {
        "SBATCH_PARTITION": "other",
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_QOS": "low",
        "SBATCH_RESERVATION": "mine",
        "TOKEN": "x",
    }
    assert Slurm(tmp_path, environ).submit(GOLDEN) == "12"
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names >= {"SBATCH_RESERVATION", "TOKEN"}
    assert not names & {"SBATCH_PARTITION", "SBATCH_TIMELIMIT", "SBATCH_QOS"}
    assert (tmp_path / SCRIPT).stat().st_mode & 0o777 == 0o500


def test_a_refused_job_is_an_error_with_the_words_of_sbatch(tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    with pytest.raises(EngineError, match="Slurm refused the job: invalid partition specified: x"):
        Slurm(tmp_path, environ).submit(GOLDEN)


def test_logs_are_read_from_where_the_last_look_ended(tmp_path: Path) -> None:
    engine = Slurm(tmp_path, {})
    assert engine.logs("1") == (b"", b"")
    (tmp_path / STDOUT).write_bytes(b"one\n")
    assert engine.logs("1") == (b"one\n", b"")
    with (tmp_path / STDOUT).open("ab") as file:
        file.write(b"two")
    (tmp_path / STDERR).write_bytes(b"error")
    assert engine.logs("1") == (b"two", b"error")
