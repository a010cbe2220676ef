"""Slurm: a job script for `sbatch`, whose last line is `repro-env exec` on the node; states from `scontrol` or `sacct`.

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
from repro_env.launch.engine import Engine, Phase, State
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import EngineError, RunError, UsageError

SCRIPT, STDOUT, STDERR = "job.sh", "stdout.log", "stderr.log"
"""The files of a job, in its directory."""
WARNING = 120
"""Seconds before the time limit at which a job that may be queued again gets SIGUSR1."""
_PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED"}
_RUNNING = {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"}
_FORGOTTEN = State(phase="ended", text="Slurm does not know the job any more")
_LAUNCH_FAILED = "0:53"
"""The exit code of a job whose output files slurmd cannot open."""
_NAME = re.compile(r"[A-Za-z0-9_.@/+,-]+")
_TIME = re.compile(r"\d+(?::\d+){0,2}|\d+-\d+(?::\d+){0,2}")
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
    # srun does not take this from sbatch (Slurm 22.05, release notes).
    return ["srun", kill, *([f"--cpus-per-task={resources.cpus}"] if resources.cpus else [])]


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
    return [*lines, *resources.arguments]


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
        try:
            done = self._ask("scontrol", "--oneliner", "show", "job", job)
            text = done.stdout.decode("utf-8", "replace")
            # Numbers of jobs start again at some time, and another cluster has the same ones.
            if " Command=" in text and f" Command={self._directory.parent}/" not in text:
                return _FORGOTTEN
            if not done.code:
                return parse_jobs(text)
            why = _message(done)
            done = self._ask("sacct", "--noheader", "--parsable2", "--allocations", "--format=State,ExitCode", f"--jobs={job}")
        except EngineError as error:
            return State(phase="unknown", text=error.what)
        lines = done.stdout.decode("utf-8", "replace").split("\n")
        if done.code or "|" not in lines[0]:
            # slurmctld forgets a job some minutes after its end (MinJobAge).
            return _FORGOTTEN if "Invalid job id" in why else State(phase="unknown", text=why)
        state, _, code = lines[0].partition("|")
        return _state(state.split()[0], "", code.strip())

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
        try:
            done = process.run(words, env=self._environ if environ is None else environ, timeout=_TIMEOUT)
        except (FileNotFoundError, PermissionError):
            hint = "use a machine that has Slurm's commands, such as the cluster's login machine"
            raise EngineError(f"the command {words[0]} is not on this machine", hint=hint) from None
        if done.timed_out:
            raise EngineError(f"{words[0]} did not answer within {_TIMEOUT:.0f} seconds", hint="try again later")
        return done


def parse_jobs(text: str) -> State:
    """Parse the lines of `scontrol --oneliner show job`: the tasks of an array job have one each. Pure.

    A job with tasks has ended when all of them have. Its text has the states of all.
    """
    states = [_parse_job(line) for line in text.splitlines() if line.strip()] or [_parse_job("")]
    phases: tuple[Phase, ...] = ("running", "pending", "unknown", "ended")
    phase = next(phase for phase in phases if any(state.phase == phase for state in states))
    code = next((state.exit_code for state in states if state.exit_code), states[0].exit_code) if phase == "ended" else None
    hint = next((state.hint for state in states if state.hint), "")
    return State(phase=phase, text=", ".join(dict.fromkeys(state.text for state in states)), hint=hint, exit_code=code)


def _parse_job(text: str) -> State:
    fields = dict(reversed(re.findall(r"(?:^| )(JobState|Reason|ExitCode)=(\S*)", text)))
    return _state(fields.get("JobState", ""), fields.get("Reason", ""), fields.get("ExitCode", ""))


def _state(state: str, reason: str, code: str) -> State:
    phase: Phase = "pending" if state in _PENDING else "running" if state in _RUNNING else "ended" if state else "unknown"
    text = state.lower().replace("_", " ") + (f" ({reason})" if reason not in ("", "None", "NonZeroExitCode") else "")
    if code == _LAUNCH_FAILED:
        hint = "the node cannot open the job's output files: put the runs on a file system that the nodes share (--runs DIR)"
        return State(phase=phase, text=text, hint=hint, exit_code=RunError.exit_code)
    if phase != "ended":
        return State(phase=phase, text=text)
    status, _, signal = code.partition(":")
    numbers = [int(number) if number.isdecimal() else 0 for number in (status, signal)]
    number = numbers[0] or (128 + numbers[1] if numbers[1] else 0)
    return State(phase=phase, text=text, exit_code=number if number or state == "COMPLETED" else 1)


def _message(done: process.Done) -> str:
    """What a command of Slurm said, without the name of the command."""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return re.sub(r"^.*?\b(?:error|fatal): ", "", lines[-1]) if lines else f"exit code {done.code}"
