"""Run the kernel of a notebook: Jupyter connects to TCP ports of this machine, and the kernel listens at Unix sockets in its run.

    process that Jupyter starts   relays all connections, and waits (`attend`)
      `- process of the run       in a session of its own: starts the kernel, and records its run (`KernelRunner`)

So a run without network has a kernel, and Jupyter can kill its process without losing the record: the kernel then gets SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from repro_env.io import files
from repro_env.io.signals import handled
from repro_env.oci import paths
from repro_env.sandbox import kernel
from repro_env.sandbox.limits import Group
from repro_env.sandbox.runner import Runner
from repro_env.sandbox.session import FORWARDED, Result
from repro_env.sandbox.streams import Streams
from repro_env.schema.errors import RunError, UsageError, os_errors_as
from repro_env.schema.run import Launch, Outcome

_FILE = "kernel.json"
"""The connection file of the kernel, in `paths.REPORTS`."""
COMMAND = ("-m", "ipykernel_launcher", "-f", f"{paths.REPORTS}/{_FILE}")
PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
_SOCKETS = "kernel"
"""How the names of the sockets in `paths.REPORTS` begin; a dash and a number follow."""
_LARGEST = 1 << 20


class Connection(msgspec.Struct, frozen=True):
    """A connection file of Jupyter: where the kernel is expected, and the key that signs messages."""

    facts: dict[str, Any]

    @property
    def key(self) -> str:
        return str(self.facts.get("key", ""))

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """The addresses that Jupyter connects to, by the name of the kernel's socket."""
        ports = enumerate(PORTS, 1)
        return {f"{_SOCKETS}-{number}": (str(self.facts["ip"]), int(self.facts[port])) for number, port in ports}

    @property
    def inside(self) -> bytes:
        """The connection file of the kernel."""
        ports = {port: number for number, port in enumerate(PORTS, 1)}
        return msgspec.json.encode({**self.facts, **ports, "transport": "ipc", "ip": f"{paths.REPORTS}/{_SOCKETS}"})


def read(path: Path) -> Connection:
    """Read a connection file. Raises `UsageError`."""
    hint = "Jupyter starts this command, and writes the file"
    with os_errors_as(UsageError, "this connection file cannot be read", where=path, hint=hint):
        data = files.read_regular(path, _LARGEST)
    with contextlib.suppress(msgspec.MsgspecError, KeyError, TypeError, ValueError):
        connection = Connection(msgspec.json.decode(data, type=dict[str, Any]))
        if connection.facts["transport"] == "tcp" and connection.addresses:
            return connection
    raise UsageError("this is not a connection file with TCP ports", where=str(path), hint=hint)


def attend(connection: Connection, record: Callable[[int], int]) -> int:
    """Relay the connections while `record` runs in another process. Returns its exit status, in both processes.

    `record` gets the `control` of the `KernelRunner`. Raises `RunError` if a port is in use.
    """
    from repro_env.io.relay import relay  # slow to import

    control, other = os.pipe()
    own = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(control)
        os.setsid()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
        return record(other) if os.getppid() == own else 1
    os.close(other)

    def forward(number: int, frame: object) -> None:  # noqa: ARG001
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    hint = "restart the kernel in Jupyter, which then chooses other ports"
    with handled(sorted(FORWARDED), forward), os_errors_as(RunError, "a port of the kernel cannot be used", hint=hint):
        reports = relay(connection.addresses, control)
    if reports:  # the other process has removed it, if it was not killed
        Path(reports, _FILE).unlink(missing_ok=True)
    # From here on a signal ends this process only: the other one is recording the outputs, or has ended.
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class KernelRunner(Runner):
    """Runs a kernel with another runner."""

    def __init__(self, runner: Runner, connection: Connection, control: int) -> None:
        """Set up the runner in the process of `record`, which `attend` called with `control`."""
        self._runner = runner
        self._connection = connection
        self._control = control

    def run(self, launch: Launch, *, directory: Path) -> Outcome:
        """See `Runner`."""
        file = Path(launch.reports, _FILE)
        try:
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:  # noqa: PTH123
                out.write(self._connection.inside)
            os.write(self._control, os.fsencode(launch.reports) + b"\0")
            return self._runner.run(launch, directory=directory)
        finally:
            file.unlink(missing_ok=True)
            kernel.prctl(kernel.PR_SET_PDEATHSIG, 0)
            os.close(self._control)

    def execute(self, launch: Launch, directory: Path, streams: Streams, group: Group, stack: contextlib.ExitStack) -> Result:
        """See `Runner`."""
        return self._runner.execute(launch, directory, streams, group, stack)
