"""The first process of a run, which reaps children, and the command's process, until they execute programs of the image.

Both are forked from this package's own Python, whose memory has the caller's variables and whose descriptors are the caller's
files. So neither runs code of the image until it executes a new program. The command waits until the first process has done so.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from repro_env.oci import paths
from repro_env.sandbox import command, kernel, session
from repro_env.sandbox.embedded import namespaces, seccomp
from repro_env.sandbox.embedded.stage import Stage
from repro_env.sandbox.session import Connection, Started
from repro_env.schema.errors import SandboxError
from repro_env.schema.run import Launch

WATCHED = session.FORWARDED | {signal.SIGCHLD}
"""Signals that `guest/init.py` receives, which expects that they are blocked."""
_INIT = f"{paths.SEEDS}/guest/init.py"


def main(launch: Launch, stage: Stage, *, out: Connection, mask: set[int], umask: int) -> NoReturn:
    """Make the root, enter it, start the command, and become `guest/init.py`.

    `mask` and `umask` are the caller's; the command gets them. Signals in `WATCHED` are already blocked and have no handlers.
    """
    try:
        os.setsid()
        deviations = stage.make_root(out)
        command.fix_addresses(launch, deviations)
        kernel.new_session_keyring()
        deviations += _filter_calls()
        ready, gate = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child == 0:
            os.close(gate)
            _become_command(launch, stage, ready, out=out, mask=mask, umask=umask)
        if not namespaces.keep_harmless_capability():
            deviations.append("init: the command can trace it")
        session.send(out, Started(tuple(deviations)))
        raise _become_init(launch, stage.interpreter, child, out.fileno())
    except BaseException as error:  # noqa: BLE001  a forked process has no caller to raise to
        fail(out, error)


def fail(out: Connection, error: BaseException) -> NoReturn:
    """Report an error to the supervisor and end this process."""
    try:
        session.send_error(out, error)
    finally:
        os._exit(1)


def _become_init(launch: Launch, interpreter: str, child: int, connection: int) -> SandboxError:
    """Execute the program that waits for the command, without the caller's memory, variables and descriptors.

    Returns only on failure, with the error.
    """
    _silence_streams()
    mark_all_but({0, 1, 2, connection})
    os.set_inheritable(connection, True)
    # Some interpreters need this variable to find their libraries.
    env = {variable.name: variable.value for variable in launch.env if variable.name == "LD_LIBRARY_PATH"}
    try:
        os.execve(interpreter, [interpreter, *paths.ISOLATED, _INIT, "attend", str(child), str(connection)], env)  # noqa: S606
    except OSError as error:
        return SandboxError(
            f"the image's Python, which is the first process of the run, cannot be started: {error.strerror}",
            where=interpreter,
            hint="run `repro-env image verify` to check whether the image is complete",
        )


def _filter_calls() -> list[str]:
    """Install the system call filter for this process and the command. Returns why this failed, for the record; an empty list if it worked."""
    machine = os.uname().machine
    program = seccomp.program(machine, root=os.geteuid() == 0)
    if program is None:
        return [f"system calls: not filtered ({machine} is not supported)"]
    try:
        kernel.filter_calls(program)
    except OSError as error:
        return [f"system calls: not filtered ({error.strerror})"]
    return []


def _become_command(launch: Launch, stage: Stage, ready: int, *, out: Connection, mask: set[int], umask: int) -> NoReturn:
    """Execute the command, after the first process has executed its program."""
    try:
        stage.streams.replace()
        os.umask(umask)
        if refused := command.enter_directory(launch):
            raise command.refusal(launch, *refused)
        namespaces.drop_privileges()
        os.read(ready, 1)  # returns when the first process executes its program or ends
        mark_all_but({0, 1, 2})
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise command.refusal(launch, *command.execute(launch))
    except BaseException as error:  # noqa: BLE001
        fail(out, error)


def mark_all_but(handles: Iterable[int]) -> None:
    """Set close-on-exec on all descriptors except `handles`."""
    for handle in _descriptors().difference(handles):
        with contextlib.suppress(OSError):  # the descriptor by which they were listed is closed
            os.set_inheritable(handle, False)


def close_all_but(handles: Iterable[int]) -> None:
    """Close all descriptors except `handles`, so that a reader of the caller's output does not wait for this process."""
    _silence_streams()
    for handle in _descriptors().difference({0, 1, 2, *handles}):
        with contextlib.suppress(OSError):  # the descriptor by which they were listed is closed
            os.close(handle)


def _silence_streams() -> None:
    """Connect the standard streams to /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def _descriptors() -> set[int]:
    return {int(item.name) for item in Path("/proc/self/fd").iterdir()}
