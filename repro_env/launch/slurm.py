"""Slurm: a job script for `sbatch`, whose last line is `repro-env exec` on the node; states from `squeue` or `sacct`.

The command of a run always starts in the image: the script runs nothing but `repro-env exec`, which has no other way to start it.
A node that lacks the project, the store or repro-env ends the job before that, with the exit code of `RunError`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from repro_env.delivery.documents import templates
from repro_env.io import process
from repro_env.launch.engine import Engine, Phase, State, ask
from repro_env.sandbox.limits import parse_time
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import EngineError, RunError, UsageError

SCRIPT, STDOUT, STDERR = "job.sh", "stdout.log", "stderr.log"
"""The files of a job, in its directory."""
WARNING = 120
"""Seconds before the time limit at which a job that may be queued again gets SIGUSR1."""
_PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED"}
_RUNNING = {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"}
_FORGOTTEN = State(phase="forgotten", text="Slurm does not know the job any more")
_LAUNCH_FAILED = "0:53"
"""The exit code of a job whose output files slurmd cannot open."""
_NO_FILES = "the node cannot open the job's output files: put the runs on a file system that the nodes share (--runs DIR)"
_HELD = "launch_failed_requeued_held"
_FIELDS = ("JobArrayID", "State", "Reason", "exit_code", "Command")
"""What squeue prints of each job. `Command` is the job script."""
_NAME = re.compile(r"[A-Za-z0-9_.@/+,-]+")
_TIME = re.compile(r"\d+(?::\d+){0,2}|\d+-\d+(?::\d+){0,2}")
_SIGNAL = re.compile(r"--signal=[^@]*(?:@(\d+))?")
_ARGUMENT = re.compile(r"--([a-z][a-z0-9-]*)(?:=[A-Za-z0-9_.,:/@%+*~^=-]+)?")
_OWN = {
    "account", "array", "chdir", "error", "export", "export-file", "gpus", "input", "job-name", "nodes", "ntasks", "ntasks-per-node", "open-mode",
    "output", "parsable", "partition", "requeue", "no-requeue", "test-only", "time", "wait", "wrap",
}  # fmt: skip
"""Options of sbatch that this module sets, or that would change what a job is."""
_VARIABLES = {"time": "SBATCH_TIMELIMIT"}
"""Variables of sbatch whose names are not those of their options. They take precedence over the lines of a script."""
_TIMEOUT = 60.0


class Resources(Frozen, frozen=True, kw_only=True):
    """What a job requests from Slurm."""

    partition: str | None = None
    account: str | None = None
    time: str | None = None
    """As sbatch reads it: minutes, `H:M:S`, `D-H` ..."""
    gpus: int = 0
    cpus: int = 0
    memory: int = 0
    """Bytes, on each node."""
    nodes: int = 1
    tasks_per_node: int = 1
    requeue: bool = False
    """Queue the job again if its time limit ends it."""
    arguments: tuple[str, ...] = ()
    """Further options of sbatch."""

    @property
    def tasks(self) -> int:
        """The number of processes that share the run."""
        return self.nodes * self.tasks_per_node


class Job(Frozen, frozen=True, kw_only=True):
    """What a job does."""

    runs: tuple[tuple[str, int], ...]
    """The ID and the seed of each run. Several are the tasks of an array job."""
    name: str
    command: tuple[str, ...]
    """argv of `repro-env exec` on the node, without the ID, the seed and the user's command."""
    words: tuple[str, ...]
    """The user's command."""
    directory: str
    """The working directory."""
    jobs: str
    """The directory that has, for each run, a directory of its job."""
    store: str
    needed: tuple[str, ...]
    """Paths that the node must have."""


def render(job: Job, resources: Resources) -> str:
    """Return the job script. Raises `UsageError` for a value that `#SBATCH` lines cannot have."""
    directives = _directives(job, resources)
    text = templates.render(
        "slurm.sh.j2",
        directives=directives,
        about=f"The run {job.runs[0][0]}" if len(job.runs) == 1 else f"{len(job.runs)} runs, each with another seed",
        tasks=len(job.runs) > 1,
        requeue=resources.requeue,
        block=resources.requeue and resources.tasks == 1,  # srun handles its signals itself
        run_id=job.runs[0][0],
        seed=job.runs[0][1],
        run_ids=_quote([run_id for run_id, _ in job.runs]),
        seeds=_quote([str(seed) for _, seed in job.runs]),
        jobs=_quote([job.jobs]),
        stdout=STDOUT,
        stderr=STDERR,
        refused=RunError.exit_code,
        needed=_quote(job.needed),
        directory=_quote([job.directory]),
        store=_quote([job.store]),
        command=_quote([*_srun(resources), *job.command]),
        words=_quote(job.words),
    ).decode()
    found = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    if found != directives:
        raise UsageError("the job script would have other #SBATCH lines than the options name", where=job.name)
    return text


def _srun(resources: Resources) -> list[str]:
    """The start of a command that runs once for each task. If one fails, the others are ended.

    Not with `requeue`, because a task that has saved its state ends with a failure too, and others may take longer.
    """
    if resources.tasks == 1:
        return []
    kill = f"--kill-on-bad-exit={0 if resources.requeue else 1}"
    # As in the script: the warning must not end a task before it can handle it.
    ignore = ["bash", "-c", "trap '' USR1; exec \"$@\"", "bash"] if resources.requeue else []
    # srun does not take this from sbatch (Slurm 22.05, release notes).
    return ["srun", kill, *([f"--cpus-per-task={resources.cpus}"] if resources.cpus else []), *ignore]


def _directives(job: Job, resources: Resources) -> list[str]:
    for option, value, pattern in (
        ("--partition", resources.partition, _NAME),
        ("--account", resources.account, _NAME),
        ("--time", resources.time, _TIME),
    ):
        if value is not None and not pattern.fullmatch(value):
            hint = "for example: --time 30, --time 4:00:00 or --time 1-12" if option == "--time" else "name one of `sinfo`"
            raise UsageError(f'{option} has an invalid value (got "{value}")', hint=hint)
    names = set()
    for argument in resources.arguments:
        if (match := _ARGUMENT.fullmatch(argument)) is None:
            hint = "for example: --slurm-arg=--qos=high; values have no spaces and no quotes"
            raise UsageError(f'--slurm-arg must be a long option of sbatch (got "{argument}")', hint=hint)
        if match[1] in _OWN:
            raise UsageError(f"--slurm-arg cannot set --{match[1]}", hint="leave it out, or use the option of `exec`")
        names.add(match[1])
    files = {name: f"{job.jobs}/{job.runs[0][0]}/{name}" for name in (STDOUT, STDERR)}
    for path in files.values():
        if not path.isprintable() or set(path) & set('"\\'):
            raise UsageError("this path has a quote, a backslash or a control character, so Slurm cannot read it", where=path)
    options = {"partition": resources.partition, "account": resources.account, "time": resources.time}
    lines = [f"--job-name={job.name}", f"--comment=repro-env:{job.runs[0][0]}"]
    lines += [f"--array=0-{len(job.runs) - 1}"] if len(job.runs) > 1 else []
    lines += [f'--{option}="{files[name].replace("%", "%%")}"' for option, name in (("output", STDOUT), ("error", STDERR))]
    lines += ["--open-mode=append", *(f"--{name}={value}" for name, value in options.items() if value is not None)]
    lines += [f"--gpus={resources.gpus}"] if resources.gpus else []
    lines += [f"--cpus-per-task={resources.cpus}"] if resources.cpus else []
    lines += [f"--mem={resources.memory >> 10}K"] if resources.memory else []
    lines += [f"--nodes={resources.nodes}", f"--ntasks-per-node={resources.tasks_per_node}"] if resources.tasks > 1 else []
    if resources.requeue:
        lines += ["--requeue", *([] if "signal" in names else [f"--signal=B:USR1@{WARNING}"])]
        _check_warning(resources)
    return [*lines, *resources.arguments]


def _check_warning(resources: Resources) -> None:
    """Raise `UsageError` if the command would get its warning when the job starts."""
    warning = WARNING
    for match in filter(None, map(_SIGNAL.fullmatch, resources.arguments)):
        warning = int(match[1] or 60)  # the default of sbatch
    if resources.time is not None and parse_time(resources.time) <= warning:
        what = f"with --requeue, --time must be longer than the warning, which comes {warning} seconds before the time limit"
        hint = "request more time, or a later warning, for example --slurm-arg=--signal=B:USR1@60"
        raise UsageError(what, where=f"--time {resources.time}", hint=hint)


def _quote(words: Sequence[str]) -> str:
    """The words for bash, in one line."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_escape(word)}'" for word in words)


def _escape(word: str) -> str:
    """The content of a `$'...'` string."""
    return "".join(
        chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\x{byte:02x}" for byte in word.encode("utf-8", "surrogateescape")
    )


class Slurm(Engine):
    """A job of Slurm, through its commands."""

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        """`directory`: of the job's files. `environ`: of the commands, and of the job that is submitted."""
        self._directory = directory
        self._environ = environ
        self._offsets = {STDOUT: 0, STDERR: 0}

    def submit(self, manifest: str) -> str:
        """See `Engine`. Writes the manifest to the job's directory first."""
        script = self._directory / SCRIPT
        script.write_text(manifest, encoding="utf-8", errors="surrogateescape")
        script.chmod(0o500)
        given = {line.split()[1].partition("=")[0][2:] for line in manifest.splitlines() if line.startswith("#SBATCH ")}
        unset = {_VARIABLES.get(name, f"SBATCH_{name.upper().replace('-', '_')}") for name in given}
        environ = {name: value for name, value in self._environ.items() if name not in unset}
        done = self._ask("sbatch", "--parsable", "--export=ALL", str(script), environ=environ)
        job = done.stdout.decode("ascii", "replace").strip().partition(";")[0]
        if done.code or not job.isdecimal():
            hint = "check the options; `sinfo` lists the partitions"
            raise EngineError(f"Slurm refused the job: {_message(done)}", hint=hint)
        return job

    def state(self, job: str) -> State:
        """See `Engine`."""
        return self.states({self._directory: job})[self._directory]

    def states(self, jobs: Mapping[Path, str]) -> dict[Path, State]:
        """Return the states of jobs by their directories. Slurm is asked once for all, and its accounting for those that it forgot."""
        try:
            done = self._ask(
                "squeue", "--noheader", "--array", "--states=all", f"--jobs={','.join(jobs.values())}",
                f"--Format={','.join(f'{field}:|' for field in _FIELDS)}",
            )  # fmt: skip
            if done.code and "Invalid job id" not in _message(done):  # as of a single job
                return dict.fromkeys(jobs, State(phase="unknown", text=_message(done)))
            found = parse_jobs(done.stdout.decode("utf-8", "replace"), jobs)
            # slurmctld forgets a job some minutes after its end (MinJobAge).
            if lost := {directory: job for directory, job in jobs.items() if directory not in found}:
                words = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State,ExitCode")
                done = self._ask("sacct", *words, f"--jobs={','.join(lost.values())}")
                found |= parse_accounting(done.stdout.decode("utf-8", "replace"), lost) if not done.code else {}
        except EngineError as error:
            return dict.fromkeys(jobs, State(phase="unknown", text=error.what))
        return {directory: _explain(found.get(directory, _FORGOTTEN), directory) for directory in jobs}

    def largest_array(self) -> int:
        """Return how many tasks an array job can have; 0 if Slurm does not say so. Raises `EngineError`."""
        text = self._ask("scontrol", "show", "config").stdout.decode("utf-8", "replace")
        match = re.search(r"^MaxArraySize\s*=\s*(\d+)", text, re.MULTILINE)
        return int(match[1]) if match else 0

    def cancel(self, job: str) -> None:
        """See `Engine`."""
        done = self._ask("scancel", job)
        if done.code:
            raise EngineError(f"Slurm did not cancel the job {job}: {_message(done)}", hint=f"cancel it with `{self.stop(job)}`")

    def stop(self, job: str) -> str:
        """See `Engine`."""
        return f"scancel {job}"

    def requeue(self, job: str) -> None:
        """Queue a running job again, which ends it here. Raises `EngineError`."""
        done = self._ask("scontrol", "requeue", job)
        if done.code:
            hint = f"queue it again with `scontrol requeue {job}`"
            raise EngineError(f"Slurm did not queue the job {job} again: {_message(done)}", hint=hint)

    def logs(self, job: str) -> tuple[bytes, bytes]:  # noqa: ARG002 - its files are in its directory
        """See `Engine`."""
        return self._read(STDOUT), self._read(STDERR)

    def _read(self, name: str) -> bytes:
        try:
            with (self._directory / name).open("rb") as file:
                file.seek(self._offsets[name])
                data = file.read()
        except FileNotFoundError:
            return b""
        self._offsets[name] += len(data)
        return data

    def _ask(self, *words: str, environ: Mapping[str, str] | None = None) -> process.Done:
        missing = "use a machine that has Slurm's commands, such as the cluster's login machine"
        return ask(words, self._environ if environ is None else environ, _TIMEOUT, missing=missing)


def parse_jobs(text: str, jobs: Mapping[Path, str]) -> dict[Path, State]:
    """Parse the lines of squeue: the tasks of an array job have one each. Jobs that it does not know are not in the result. Pure.

    Jobs are identified by their script too, because job numbers are reused and other clusters have the same ones.
    """
    rows = [line.removesuffix("|").split("|", len(_FIELDS) - 1) for line in text.splitlines() if line.count("|") >= len(_FIELDS)]
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
    if reason == _HELD:
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


def _explain(state: State, directory: Path) -> State:
    """Add a hint to the state of a job that has ended without its output files. Slurm 24.11 starts its script all the same."""
    if state.exit_code != RunError.exit_code or state.hint or (directory / STDERR).exists():
        return state
    return State(phase=state.phase, text=state.text, hint=_NO_FILES, exit_code=state.exit_code)


def _message(done: process.Done) -> str:
    """What a command of Slurm said, without the name of the command."""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return re.sub(r"^.*?\b(?:error|fatal): ", "", lines[-1]) if lines else f"exit code {done.code}"
