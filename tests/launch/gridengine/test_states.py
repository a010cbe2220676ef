"""What Grid Engine's commands print. tests/e2e/test_gridengine.py has real ones."""

from __future__ import annotations

import pytest

from repro_env.launch.engine import State
from repro_env.launch.gridengine import states
from repro_env.launch.gridengine.states import Listed
from repro_env.schema.errors import RunError
from tests.launch.gridengine.answers import IN_ERROR, QSTAT, WAITING, accounting


def test_jobs_that_wait_or_run_are_listed_by_their_numbers() -> None:
    letters = {number: (job.name, job.letters, job.is_running) for number, job in states.parse_jobs(QSTAT).items()}
    assert letters == {
        "1": ("train.py-0000abc1", "r", True),
        "2": ("train.py-0000abc2", "dr", True),
        "3": ("train.py-0000abc3", "qw", False),
        "4": ("train.py-0000abc4", "Eqw", False),
        "5": ("train.py-0000abc5", "hqw", False),
        "6": ("train.py-0000abc6", "Rq", False),
    }
    assert states.parse_jobs("<?xml version='1.0'?>\n<job_info>\n</job_info>\n") == {}


@pytest.mark.parametrize(
    ("letters", "reason", "phase", "text"),
    [
        ("qw", "", "pending", "pending"),
        ("qw", "Job is in hold state", "pending", "pending (Job is in hold state)"),
        ("hqw", "", "pending", "held"),
        ("Rq", "", "pending", "pending"),
        ("t", "", "running", "running"),
        ("Rr", "", "running", "running"),
        ("S", "", "running", "suspended"),
        ("dr", "", "running", "being deleted"),
    ],
)
def test_states_of_jobs(letters: str, reason: str, phase: str, text: str) -> None:
    state = states.state_of(Listed("train.py-0000abc1", letters), reason, "1")
    assert (state.phase, state.text, state.exit_code) == (phase, text, None)


def test_a_waiting_job_has_the_reason_of_the_scheduler() -> None:
    assert states.parse_reason(WAITING) == 'cannot run in PE "smp" because it only offers 0 slots'
    assert states.parse_reason("Following jobs do not exist: \n7\n") == ""


def test_a_job_in_error_state_does_not_start_without_help() -> None:
    state = states.state_of(states.parse_jobs(QSTAT)["4"], states.parse_reason(IN_ERROR), "4")
    assert state.text == (
        'could not start (can\'t open output file "/home/ann/digits/runs/.jobs/1/stdout.log": No such file or directory)'
    )
    assert (state.phase, state.exit_code) == ("pending", RunError.exit_code)
    assert "`qmod -cj 4`" in state.hint


@pytest.mark.parametrize(
    ("entries", "text", "code"),
    [
        ([("0    ", "0                   ")], "completed", 0),
        ([("0    ", "7                   ")], "failed", 7),
        ([("100 : assumedly after job", "137                  (Killed)")], "failed (assumedly after job)", 137),
        ([("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137                  (Killed)")], "failed (qmaster enforced h_rt, h_cpu, or h_vmem limit)", 137),
        ([("26  : opening input/output file", "0")], "failed (opening input/output file)", RunError.exit_code),
        ([("25  : rescheduling", "99"), ("0    ", "0")], "completed", 0),
        ([("25  : rescheduling", "99"), ("25  : rescheduling", "99")], "failed (rescheduling)", 99),
    ],
)  # fmt: skip
def test_the_last_entry_of_the_accounting_is_how_a_job_ended(entries: list[tuple[str, str]], text: str, code: int) -> None:
    assert states.parse_accounting(accounting(*entries), "0000abc7") == State(phase="ended", text=text, exit_code=code)


def test_an_older_job_of_the_same_number_is_not_taken_for_it() -> None:
    older = accounting(("0", "3"), name="train.py-0000abc0")
    assert states.parse_accounting(older, "0000abc7") is None
    assert states.parse_accounting("error: job id 7 not found\n", "0000abc7") is None
    found = states.parse_accounting(older + accounting(("0", "0")), "0000abc7")
    assert found == State(phase="ended", text="completed", exit_code=0)
