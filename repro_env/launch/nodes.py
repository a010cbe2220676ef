"""What engines have in common whose nodes share the runs and the store with the machine that submits."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from msgspec import Meta

from repro_env.io import process
from repro_env.launch import nodescript
from repro_env.launch.engine import Client, Engine, NodeJob, Resources, Settings, State, ask
from repro_env.launch.nodescript import SCRIPT, STDERR, STDOUT
from repro_env.schema import redact
from repro_env.schema.environment import Variable, values_of
from repro_env.schema.errors import EngineError, UsageError
from repro_env.schema.run import Job

WARNING = 120
"""Seconds before the time limit at which a job that may be queued again gets SIGUSR1."""
_TIMEOUT = 60.0


class NodeSettings(Settings, frozen=True, kw_only=True):
    """Base of the settings."""

    tasks_per_node: Annotated[
        int,
        Meta(ge=1, le=4096, description="Start the command N times on each node, as processes that share the run. Default: 1."),
    ] = 1
    requeue: Annotated[
        bool,
        Meta(
            description="Queue the job again before its time limit ends it, and resume the run. The command gets SIGUSR1 two minutes "
            "before the limit. Default: false."
        ),
    ] = False

    @property
    def requeues(self) -> bool:
        """See `Settings`."""
        return self.requeue

    @property
    def processes_per_node(self) -> int:
        """See `Settings`."""
        return self.tasks_per_node

    def check_warning(self, seconds: int, warning: int = WARNING, hint: str = "request more time") -> None:
        """Raise `UsageError` if the command of a job with this time limit would get its warning when it starts."""
        if self.requeue and 0 < seconds <= warning:
            what = (
                f"with --job requeue, --time must be longer than the warning, which comes {warning} seconds before the time limit"
            )
            raise UsageError(what, where=f"--time {seconds}s", hint=hint)


S = TypeVar("S", bound=NodeSettings)


class NodeClient(Client):
    """A job of an engine, through its commands."""

    scheduler: ClassVar[str]
    """Its name in messages."""
    submits: ClassVar[tuple[str, ...]]
    """The command that submits a script, and prints the number of its job."""
    cancels: ClassVar[str]
    """The command that stops a job."""
    missing: ClassVar[str]
    """What to do on a machine without the commands."""
    refused: ClassVar[str]
    """What to do if a job is refused."""

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        """`directory`: of the job's files. `environ`: of the commands."""
        self.directory = directory
        self._environ = environ
        self._offsets = {STDOUT: 0, STDERR: 0}

    def prepare(self, script: str) -> str:
        """See `Client`."""
        path = self.directory / SCRIPT
        path.write_text(script, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o500)
        return ""

    def submit(self, script: str) -> str:
        """See `Client`."""
        self.prepare(script)
        done = self._ask(*self.submits, str(self.directory / SCRIPT))
        job = done.stdout.decode("ascii", "replace").strip().partition(";")[0]
        if done.code or not job.isdecimal():
            raise EngineError(f"{self.scheduler} refused the job: {self.message(done)}", hint=self.refused)
        return job

    def state(self, job: str) -> State:
        """See `Client`."""
        return self.states([(self, job)])[0]

    @classmethod
    def states(cls, jobs: Sequence[tuple[Any, str]]) -> list[State]:
        """Return the states of jobs, by their clients, which are of this class, and IDs."""
        try:
            return list(jobs[0][0].find_states(jobs)) if jobs else []
        except EngineError as error:
            return [State(phase="unknown", text=error.what)] * len(jobs)

    @abc.abstractmethod
    def find_states(self, jobs: Sequence[tuple[Any, str]]) -> list[State]:
        """Ask for the states of all these jobs together; this one is the first. Raises `EngineError`."""

    def cancel(self, job: str) -> None:
        """See `Client`."""
        done = self._ask(self.cancels, job)
        if done.code and "does not exist" not in self.message(done):
            hint = f"cancel it with `{self.stop(job)}`"
            raise EngineError(f"{self.scheduler} did not cancel the job {job}: {self.message(done)}", hint=hint)

    def stop(self, job: str) -> str:
        """See `Client`."""
        return f"{self.cancels} {job}"

    @staticmethod
    @abc.abstractmethod
    def message(done: process.Done) -> str:
        """Return what a command printed about its failure, without the words that begin all of its messages."""

    def logs(self, job: str) -> tuple[bytes, bytes]:  # noqa: ARG002 - its files are in its directory
        """See `Client`."""
        return self._read(STDOUT), self._read(STDERR)

    def _read(self, name: str) -> bytes:
        try:
            with (self.directory / name).open("rb") as file:
                file.seek(self._offsets[name])
                data = file.read()
        except FileNotFoundError:
            return b""
        self._offsets[name] += len(data)
        return data

    def _ask(self, *words: str) -> process.Done:
        return ask(words, self._environ, _TIMEOUT, missing=self.missing)


class NodeEngine(Engine[S]):
    """Base of the engine."""

    client_type: ClassVar[type[NodeClient]]
    job_variables: ClassVar[tuple[str, str, str]]
    """The variables of a job with its number, its node, and how often it was started again."""
    dialect: ClassVar[nodescript.Dialect]

    def check_template(self, template: str) -> None:
        """See `Engine`."""
        nodescript.check_template(template)

    def client(
        self,
        directory: Path,
        environ: Mapping[str, str],
        *,
        image: str = "",  # noqa: ARG002
        variables: Sequence[Variable] = (),
    ) -> Client:
        """See `Engine`. The job gets the user's variables from the environment of the command that submits it."""
        return self.client_type(directory, {**environ, **values_of(variables)})

    def states(self, jobs: Sequence[tuple[Client, str]]) -> list[State]:
        """See `Engine`."""
        return self.client_type.states(jobs)

    def job_of(self, environ: Mapping[str, str]) -> Job | None:
        """See `Engine`."""
        job, node, restarts = (environ.get(name, "").strip() for name in self.job_variables)
        if not job.isdecimal():
            return None
        return Job(engine=self.name, id=job, node=redact.line(node), restarts=int(restarts) if restarts.isdecimal() else 0)

    def script(self, job: NodeJob, resources: Resources, settings: S, template: str = "") -> str:
        """Return the script of a job. Pure. Raises `UsageError` for a value that it cannot have."""
        directives = self.directives(job, resources, settings, template)
        starter = self.starter(job, resources, settings)
        return nodescript.render(
            job, directives, self.dialect, starter=starter, warns=self.dialect.warns and settings.requeue, template=template
        )

    @abc.abstractmethod
    def directives(self, job: NodeJob, resources: Resources, settings: S, template: str) -> list[str]:
        """Return the scheduler's options for a job, with those of the template. Raises `UsageError`."""

    @abc.abstractmethod
    def starter(self, job: NodeJob, resources: Resources, settings: S) -> list[str]:
        """Return the start of a command that runs once per process; empty if the command starts itself."""
