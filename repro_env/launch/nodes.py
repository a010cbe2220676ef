"""What engines have in common whose nodes share the runs and the store with the machine that submits."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

from msgspec import Meta

from repro_env.io import process
from repro_env.launch import nodescript
from repro_env.launch.engine import Client, Engine, NodeJob, Resources, Settings, ask
from repro_env.launch.nodescript import SCRIPT, STDERR, STDOUT
from repro_env.schema.environment import Variable, values_of

_TIMEOUT = 60.0
S = TypeVar("S", bound=Settings)


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


class NodeClient(Client):
    """A job of an engine, through its commands."""

    missing: ClassVar[str]
    """What to do on a machine without the commands."""

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

    def _ask(self, *words: str, environ: Mapping[str, str] | None = None) -> process.Done:
        return ask(words, self._environ if environ is None else environ, _TIMEOUT, missing=self.missing)


class NodeEngine(Engine[S]):
    """Base of the engine."""

    client_type: ClassVar[type[NodeClient]]

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

    @abc.abstractmethod
    def script(self, job: NodeJob, resources: Resources, settings: S, template: str = "") -> str:
        """Return the script of a job. Pure. Raises `UsageError` for a value that it cannot have."""
