"""What an engine is: a scheduler that starts a run somewhere else.

An engine has a directory in `launch`, whose `__init__` has an instance of it, `ENGINE`, and a name in `engines.NAMES`. Nothing else
knows it: options, checks, help and defaults follow from its type of settings (`settings`). To add one, derive from the types in `nodes` if its
nodes share files with the machine that submits (`nodescript` renders its script), or from `PodEngine` and `Client` if they have only
what a registry has. On the node, the job starts `repro-env exec`, with the ID and the seed of the run.
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Generic, Literal, TypeVar

import msgspec

from repro_env.io import process
from repro_env.oci import paths
from repro_env.schema.codec import Frozen
from repro_env.schema.environment import Variable
from repro_env.schema.errors import EngineError, UsageError
from repro_env.schema.run import Claim, Job

TEMPLATE = "REPRO_ENV_JOB_TEMPLATE"
"""A variable of the job, for its record: the digest of its template."""
Phase = Literal["pending", "running", "ended", "forgotten", "unknown"]


class State(Frozen, frozen=True, kw_only=True):
    """The state of a job, as its engine reports it."""

    phase: Phase
    """`unknown` if the engine does not answer. `forgotten` if it does not know the job any more: the run may still continue."""
    text: str
    """The engine's words, with the reason."""
    hint: str = ""
    """What to do about it."""
    exit_code: int | None = None
    """Of a job that has ended, 128 + signal if a signal ended it; or of a job that does not start without help."""


class Resources(Frozen, frozen=True, kw_only=True):
    """What a job requests, by the options that all engines have."""

    gpus: int = 0
    """Of each node."""
    cpus: float = 0
    """Of each process."""
    memory: int = 0
    """Bytes, on each node."""
    seconds: int = 0
    """The time limit."""
    nodes: int = 1


class Settings(Frozen, frozen=True, kw_only=True, rename="kebab"):
    """Base of what the user can set for one engine, with `--job KEY=VALUE` or in the project's configuration.

    A field is a text, a number, a truth value or a tuple of texts, with a default and a description (`msgspec.Meta`).
    """

    @property
    def requeues(self) -> bool:
        """Whether the job is queued again if its time limit ends it. If so, `exec` on the node has the option `--job requeue`."""
        return False

    @property
    def processes_per_node(self) -> int:
        """How often the command is started on each node."""
        return 1


class NodeJob(Frozen, frozen=True, kw_only=True):
    """What a job does on nodes that share files with the machine that submits it."""

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


class PodJob(Frozen, frozen=True, kw_only=True):
    """What a job does in the spec's image, which its node pulls from a registry."""

    run_id: str
    name: str
    image: str
    """The spec's image: `host/name@sha256:…`."""
    job_image: str
    """The image that fills the directory of the job."""
    interpreter: str
    command: tuple[str, ...]
    """The words after `repro-env` in the pod, with the user's command."""
    workspace: str
    """The path of the source."""
    claims: tuple[Claim, ...]
    protected: tuple[str, ...]
    """Directories of the image that nothing may hide."""
    given: tuple[str, ...]
    """Names of variables whose values the command needs."""
    uid: int
    gid: int

    @staticmethod
    def mount_path(claim: Claim, number: int, workspace: str) -> str:
        """Return where a pod mounts the claim with this number. What belongs below the source is a symbolic link there (`sandbox.pod`)."""
        return f"{paths.JOB}-data/{number}" if paths.is_below(claim.target, workspace) else claim.target


class Processes(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a job that share a run, as the environment of one of them describes them."""

    names: tuple[str, str, str]
    """The variables with the rank, the number of processes, and the rank on its machine."""
    key: str
    """What the processes of one start have in common, if they have no ID of a run."""
    machines: str
    """The number of machines, as the launcher wrote it."""
    address: str = "localhost"
    """Where the processes meet, if no variable says so."""
    variables: Mapping[str, str] = {}
    """What libraries read of the launcher. Nothing in it is a secret."""


class Client(abc.ABC):
    """A job of an engine. Use one object per job."""

    @abc.abstractmethod
    def prepare(self, script: str) -> str:
        """Write the script to the job's directory, for a user who submits it. Return the ID of the job; empty if the engine chooses it."""

    @abc.abstractmethod
    def submit(self, script: str) -> str:
        """Submit the job that a script describes; return the engine's ID of it. Prepares it first. Raises `EngineError`."""

    @abc.abstractmethod
    def state(self, job: str) -> State:
        """Return the state of a job. A failure to ask is the phase `unknown`."""

    @abc.abstractmethod
    def cancel(self, job: str) -> None:
        """Stop a job: its command gets SIGTERM first. Raises `EngineError`."""

    @abc.abstractmethod
    def logs(self, job: str) -> tuple[bytes, bytes]:
        """Return what a job has printed on stdout and stderr since the last call."""

    @abc.abstractmethod
    def stop(self, job: str) -> str:
        """Return the command with which a user stops a job."""

    def requeue(self, job: str) -> None:
        """Queue a running job again, which ends it here. Raises `EngineError`."""
        raise EngineError(f"the engine of job {job} cannot queue it again", hint="submit the run again, with --resume")


S = TypeVar("S", bound=Settings)


class Engine(abc.ABC, Generic[S]):
    """A scheduler, and what it reads."""

    name: ClassVar[str]
    """As in `--on NAME`."""
    settings: ClassVar[type[Settings]]
    """The type `S`."""

    def complete(self, settings: S, environ: Mapping[str, str]) -> S:  # noqa: ARG002
        """Return the settings with the defaults that only the site knows. Raises `EngineError`."""
        return settings

    def check_template(self, template: str) -> None:
        """Raise `UsageError` for a text that cannot be the template of a job (`--job-template`)."""

    def requests_gpus(self, settings: S, template: str) -> bool:  # noqa: ARG002
        """Return whether settings or template request GPUs in the engine's own words, so that `--gpus all` has a meaning."""
        return False

    def check_count(self, count: int, environ: Mapping[str, str]) -> None:  # noqa: ARG002
        """Raise `UsageError` unless one job can have this number of runs."""
        raise UsageError(f"--on {self.name} does not support several runs in one job", hint="submit one run for each seed")

    def job_of(self, environ: Mapping[str, str]) -> Job | None:  # noqa: ARG002
        """Return the job in which a process with this environment is; None if it is in none of this engine."""
        return None

    def processes_of(self, environ: Mapping[str, str]) -> Processes | None:  # noqa: ARG002
        """Return the processes that share a run with the one that has this environment; None if there are none."""
        return None

    @abc.abstractmethod
    def client(
        self, directory: Path, environ: Mapping[str, str], *, image: str = "", variables: Sequence[Variable] = ()
    ) -> Client:
        """Return the client of a job. `directory`: of the job's files. `environ`: of the engine's commands.

        `image`: the ID of the spec's image. `variables`: the user's, for a job that is to be submitted.
        """

    def states(self, jobs: Sequence[tuple[Client, str]]) -> list[State]:
        """Return the states of jobs, by their clients, which this engine has made, and IDs."""
        return [client.state(job) for client, job in jobs]


class PodEngine(Engine[S]):
    """An engine whose nodes have only what a registry has."""

    @abc.abstractmethod
    def claim(self, kind: Literal["data", "checkpoints"], source: str, target: str) -> Claim:
        """Return the claim of `--data CLAIM[/PATH]:DST`, or of `--checkpoints`. Raises `UsageError`."""

    @abc.abstractmethod
    def script(self, job: PodJob, resources: Resources, settings: S, template: str = "") -> str:
        """Return the manifest of a job. Pure. Raises `UsageError` for a value that it cannot have."""


def digest_of(template: str) -> str | None:
    """Return the digest with which a template is recorded; None without one."""
    return f"sha256:{hashlib.sha256(template.encode()).hexdigest()}" if template else None


def ask(words: Sequence[str], environ: Mapping[str, str], timeout: float, *, missing: str, stdin: bytes = b"") -> process.Done:
    """Run a command of an engine. `missing`: what to do if it is not on this machine. Raises `EngineError`."""
    try:
        done = process.run(words, env=environ, timeout=timeout, stdin=stdin)
    except (FileNotFoundError, PermissionError):
        raise EngineError(f"the command {words[0]} is not on this machine", hint=missing) from None
    if done.timed_out:
        raise EngineError(f"{words[0]} did not answer within {timeout:.0f} seconds", hint="try again later")
    return done
