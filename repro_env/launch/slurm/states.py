"""The states of jobs, as `squeue` and `sacct` print them. Pure, but for `explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from repro_env.launch.engine import Phase, State
from repro_env.launch.nodescript import STDERR
from repro_env.schema.errors import RunError

FORGOTTEN = State(phase="forgotten", text="Slurm does not know the job any more")
FIELDS = ("JobArrayID", "State", "Reason", "exit_code", "Command")
"""What squeue prints of each job. `Command` is the job script."""
_PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED"}
_RUNNING = {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"}
_LAUNCH_FAILED = "0:53"
"""The exit code of a job whose output files slurmd cannot open."""
_NO_FILES = "the node cannot open the job's output files: put the runs on a file system that the nodes share (--runs DIR)"
_HELD = "launch_failed_requeued_held"


def parse_jobs(text: str, jobs: Mapping[Path, str]) -> dict[Path, State]:
    """Parse the lines of squeue: the tasks of an array job have one each. Jobs that it does not know are not in the result. Pure.

    Jobs are identified by their script too, because job numbers are reused and other clusters have the same ones.
    """
    rows = [line.removesuffix("|").split("|", len(FIELDS) - 1) for line in text.splitlines() if line.count("|") >= len(FIELDS)]
    states = [
        (number, _state(state, reason.replace(" ", "_"), _code(code), number), Path(script).parent)
        for number, state, reason, code, script in rows
    ]

    def is_script(place: Path, directory: Path, job: str) -> bool:
        return place == directory or ("_" in job and place.parent == directory.parent)  # all tasks have the script of the first

    return _by_job(
        {
            directory: [state for number, state, place in states if _is_part(number, job) and is_script(place, directory, job)]
            for directory, job in jobs.items()
        }
    )


def parse_accounting(text: str, jobs: Mapping[Path, str]) -> dict[Path, State]:
    """Parse the lines of sacct, as `parse_jobs`. Pure."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    states = [(number, _state(state.split()[0], "", code, number)) for number, state, code in rows if state]
    return _by_job({directory: [state for number, state in states if _is_part(number, job)] for directory, job in jobs.items()})


def _is_part(number: str, job: str) -> bool:
    """Whether a number is that of a job, or of a task of it."""
    return number == job or number.startswith(f"{job}_")


def _by_job(states: Mapping[Path, Sequence[State]]) -> dict[Path, State]:
    return {directory: _combine(found) for directory, found in states.items() if found}


def _combine(states: Sequence[State]) -> State:
    """The state of a job with tasks, which has ended when all of them have. Its text has the states of all."""
    phases: tuple[Phase, ...] = ("running", "pending", "ended")
    phase = next(phase for phase in phases if any(state.phase == phase for state in states))
    waiting = [state for state in states if state.phase != "ended"] or states
    is_over = all(state.exit_code is not None for state in waiting)
    code = next((state.exit_code for state in states if state.exit_code), states[0].exit_code) if is_over else None
    hint = next((state.hint for state in states if state.hint), "")
    return State(phase=phase, text=", ".join(dict.fromkeys(state.text for state in states)), hint=hint, exit_code=code)


def _code(text: str) -> str:
    """`STATUS:SIGNAL`, of the number that waitpid(2) returns: squeue prints this number."""
    if not text.isdecimal():
        return text
    status, number = divmod(int(text), 256)
    return f"0:{number & 127}" if number & 127 else f"{status}:0"


def _state(state: str, reason: str, code: str, job: str) -> State:
    phase: Phase = "pending" if state in _PENDING else "running" if state in _RUNNING else "ended"
    text = state.lower().replace("_", " ") + (f" ({reason})" if reason not in ("", "None", "NonZeroExitCode") else "")
    if reason == _HELD and phase == "pending":  # before that, it still ends on the node
        hint = (
            "the node could not start the job (for example because its prolog failed), so Slurm holds it. "
            f"Start it again with `scontrol release {job}`, or cancel it with `scancel {job}`"
        )
        return State(phase=phase, text=text, hint=hint, exit_code=RunError.exit_code)
    if phase != "ended":
        return State(phase=phase, text=text)
    if code == _LAUNCH_FAILED:
        return State(phase=phase, text=text, hint=_NO_FILES, exit_code=RunError.exit_code)
    status, _, signal = code.partition(":")
    numbers = [int(number) if number.isdecimal() else 0 for number in (status, signal)]
    number = numbers[0] or (128 + numbers[1] if numbers[1] else 0)
    return State(phase=phase, text=text, exit_code=number if number or state == "COMPLETED" else 1)


def explain(state: State, directory: Path) -> State:
    """Add a hint to the state of a job that has ended without its output files. Slurm 24.11 starts its script all the same."""
    if state.exit_code != RunError.exit_code or state.hint or (directory / STDERR).exists():
        return state
    return State(phase=state.phase, text=state.text, hint=_NO_FILES, exit_code=state.exit_code)
