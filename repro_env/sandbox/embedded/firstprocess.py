"""The first process of a run, which reaps children, and the command's process, until they execute programs of the image.

Both are forked from this package's own Python, whose memory has the caller's variables and whose descriptors are the caller's
files. So neither runs code of the image until it executes a new program. The command waits until the first process has done so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from repro_env.oci import paths
from repro_env.sandbox import addresses, kernel
from repro_env.sandbox.embedded import namespaces, seccomp
from repro_env.sandbox.embedded.channel import Started, Writer
from repro_env.sandbox.embedded.stage import Stage
from repro_env.schema.environment import values_of
from repro_env.schema.errors import CommandMissingError, ReproEnvError, RunError, SandboxError
from repro_env.schema.run import Launch

FORWARDED = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
        signal.SIGALRM,
        signal.SIGTSTP,
        signal.SIGCONT,
        *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
    }
)
"""Signals that the supervisor passes on to the command (`guest/init.py` receives them)."""
WATCHED = FORWARDED | {signal.SIGCHLD}
_INIT = f"{paths.SEEDS}/guest/init.py"


def main(launch: Launch, stage: Stage, *, out: Writer, end: int, mask: set[int], umask: int) -> NoReturn:
    """Make the root, enter it, start the command, and become `guest/init.py`.

    `mask` and `umask` are the caller's; the command gets them. Signals in `WATCHED` are already blocked and have no handlers.
    """
    try:
        os.setsid()
        notes = stage.make_root(out)
        addresses.fix(launch, notes)
        kernel.new_session_keyring()
        ready, gate = os.pipe2(os.O_CLOEXEC)
        command = os.fork()
        if command == 0:
            os.close(gate)
            _become_command(launch, stage, ready, out=out, mask=mask, umask=umask)
        if not namespaces.keep_harmless_capability():
            notes.append("init: the command can trace it")
        notes += _filter_calls()
        out.send(Started(tuple(notes)))
        raise _become_init(launch, stage.interpreter, command, end)
    except BaseException as error:  # noqa: BLE001  a forked process has no caller to raise to
        out.fail(error)


def _become_init(launch: Launch, interpreter: str, command: int, end: int) -> SandboxError:
    """Execute the program that waits for the command, without the caller's memory, variables and descriptors.

    Returns only on failure, with the error.
    """
    _silence_streams()
    mark_all_but({0, 1, 2, end})
    os.set_inheritable(end, True)
    # Some interpreters need this variable to find their libraries.
    env = {variable.name: variable.value for variable in launch.env if variable.name == "LD_LIBRARY_PATH"}
    try:
        os.execve(interpreter, [interpreter, "-I", "-S", "-B", _INIT, "attend", str(command), str(end)], env)  # noqa: S606
    except OSError as error:
        return SandboxError(
            f"the image's Python, which is the first process of the run, cannot be started: {error.strerror}",
            where=interpreter,
            hint="run `repro-env image verify` to check whether the image is complete",
        )


def _filter_calls() -> list[str]:
    """Install the system call filter. Returns why this failed, for the record; an empty list if it worked."""
    machine = os.uname().machine
    program = seccomp.program(machine, root=os.geteuid() == 0)
    if program is None:
        return [f"system calls: not filtered ({machine} is not supported)"]
    try:
        kernel.filter_calls(program)
    except OSError as error:
        return [f"system calls: not filtered ({error.strerror})"]
    return []


def _become_command(launch: Launch, stage: Stage, ready: int, *, out: Writer, mask: set[int], umask: int) -> NoReturn:
    """Execute the command, after the first process has executed its program."""
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and programs inherit ignored signals
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        stage.relays.replace_streams()
        os.umask(umask)
        try:
            os.chdir(launch.cwd)
        except OSError as error:
            raise no_directory(launch.cwd, error.errno or 0) from None
        namespaces.drop_privileges()
        _filter_calls()
        os.read(ready, 1)  # returns when the first process executes its program or ends
        mark_all_but({0, 1, 2})
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise _execute(launch.argv, values_of(launch.env))
    except BaseException as error:  # noqa: BLE001
        out.fail(error)


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


def _execute(argv: Sequence[str], env: dict[str, str]) -> ReproEnvError:
    """Replace this process with the command. Returns only on failure, with the error."""
    name = argv[0]
    path = env.get("PATH", os.defpath)
    candidates = [name] if "/" in name else [f"{directory or '.'}/{name}" for directory in path.split(":")]
    refused: list[tuple[str, int]] = []
    for candidate in candidates:
        try:
            os.execve(candidate, list(argv), env)  # noqa: S606  no shell is involved
        except OSError as error:  # noqa: PERF203
            if os.path.lexists(candidate):
                refused.append((candidate, error.errno or 0))
    return refusal(name, path, refused)


def no_directory(path: str, number: int) -> RunError:
    """The error for a working directory that cannot be entered."""
    return RunError(
        f"the working directory cannot be entered: {os.strerror(number)}",
        where=path,
        hint="start in the captured source directory or below it, or mount this directory",
    )


def refusal(name: str, path: str, refused: Sequence[tuple[str, int]]) -> ReproEnvError:
    """The error for a command that cannot be executed. `path` is the run's PATH; `refused` are the existing files and errnos."""
    if not refused:
        what = "this file is not in the image" if "/" in name else f"this command is not on the image's PATH ({path})"
        return CommandMissingError(what, where=name, hint="capture it with `--with PROGRAM`, or install it and capture again")
    file, number = refused[0]
    if number in (errno.ENOENT, errno.ENOTDIR):
        return RunError(
            "the interpreter in the first line of this script is not in the image",
            where=file,
            hint="capture it with `--with PROGRAM`, or name another interpreter in the first line",
        )
    if number == errno.ENOEXEC:
        return RunError(
            "this file is neither a program nor a script with an interpreter in its first line (`#!`)",
            where=file,
            hint=f"name the program that runs it before {name}",
        )
    if number == errno.EACCES:
        return RunError(
            "this file is not executable", where=file, hint=f"run chmod +x on it, or name the program that runs it before {name}"
        )
    return RunError(f"this file cannot be executed: {os.strerror(number)}", where=file)
