"""The processes of a run before they become programs of the image: the first one, which reaps, and the command.

Both are forked from this package's own Python, which knows the caller's variables and files, and neither runs code of
the image before it has started a new program. The command waits until the first process has done so.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import termios
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from repro_env.image import layout
from repro_env.model.errors import CommandMissingError, ReproEnvError, RunError, SandboxError
from repro_env.model.run import Launch
from repro_env.run import addresses, kernel, namespaces, seccomp
from repro_env.run.channel import Started, Writer
from repro_env.run.stage import Stage

PASSED = frozenset(
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
"""Signals that the supervisor passes on to the command (`inside/init.py` receives them)."""
WATCHED = PASSED | {signal.SIGCHLD}
_INIT = f"{layout.SEEDS}/inside/init.py"


def main(launch: Launch, stage: Stage, *, out: Writer, end: int, mask: set[int], umask: int) -> NoReturn:
    """Make the root, enter it, start the command, and become `inside/init.py`.

    `mask` and `umask` are the caller's own, for the command. Signals in `WATCHED` are blocked already, and no handler is set.
    """
    try:
        os.setsid()
        notes = stage.inner(out)
        addresses.fix(launch, notes)
        kernel.new_session_keyring()
        ready, gate = os.pipe2(os.O_CLOEXEC)
        command = os.fork()
        if command == 0:
            os.close(gate)
            _become_command(launch, stage, ready, out=out, mask=mask, umask=umask)
        if not namespaces.keep_one():
            notes.append("init: the command can trace it")
        notes += _filter_calls()
        out.send(Started(tuple(notes)))
        raise _become_init(launch, stage.interpreter, command, end)
    except BaseException as error:  # noqa: BLE001  there is no caller above to raise to
        out.fail(error)


def _become_init(launch: Launch, interpreter: str, command: int, end: int) -> SandboxError:
    """Replace this process with the program that waits for the command, without the caller's memory, variables and descriptors.

    Returns only on failure, with the error.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    mark_all_but({0, 1, 2, end})
    os.set_inheritable(end, True)
    # Some interpreters find their own libraries only through this variable.
    env = {one.name: one.value for one in launch.env if one.name == "LD_LIBRARY_PATH"}
    try:
        os.execve(interpreter, [interpreter, "-I", "-S", "-B", _INIT, "attend", str(command), str(end)], env)  # noqa: S606
    except OSError as error:
        return SandboxError(
            f"the run's first process, the image's own Python, cannot be started: {error.strerror}",
            where=interpreter,
            hint="`repro-env image verify` says whether the image is complete",
        )


def _filter_calls() -> list[str]:
    """Install the system call filter. Returns why this failed, for the record."""
    machine = os.uname().machine
    program = seccomp.program(machine, root=os.geteuid() == 0)
    if program is None:
        return [f"system calls: not filtered (there is no filter for {machine})"]
    try:
        kernel.filter_calls(program)
    except OSError as error:
        return [f"system calls: not filtered ({error.strerror})"]
    return []


def _become_command(launch: Launch, stage: Stage, ready: int, *, out: Writer, mask: set[int], umask: int) -> NoReturn:
    """Replace this process with the command, after the first process has started its program."""
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what is ignored stays so in a new program
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        if stage.terminal is not None:
            fcntl.ioctl(stage.terminal.side, termios.TIOCSCTTY, 0)
        for relay in stage.relays:
            for stream in relay.streams:
                os.dup2(relay.side, stream)
        os.umask(umask)
        try:
            os.chdir(launch.cwd)
        except OSError as error:
            raise no_directory(launch.cwd, error.errno or 0) from None
        namespaces.drop_privileges()
        _filter_calls()
        os.read(ready, 1)  # ends when the first process starts its program, or is gone
        mark_all_but({0, 1, 2})
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise _execute(launch.argv, {variable.name: variable.value for variable in launch.env})
    except BaseException as error:  # noqa: BLE001
        out.fail(error)


def mark_all_but(kept: Iterable[int]) -> None:
    """Close every other descriptor in the program that is started next."""
    for handle in _descriptors().difference(kept):
        with contextlib.suppress(OSError):  # the one that listed them
            os.set_inheritable(handle, False)


def close_all_but(kept: Iterable[int]) -> None:
    """Close every other descriptor: a reader of the caller's output waits for the last process that could write there."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    for handle in _descriptors().difference({0, 1, 2, *kept}):
        with contextlib.suppress(OSError):  # the one that listed them
            os.close(handle)


def _descriptors() -> set[int]:
    return {int(item.name) for item in Path("/proc/self/fd").iterdir()}


def _execute(argv: Sequence[str], env: dict[str, str]) -> ReproEnvError:
    """Replace this process. Returns only when that cannot be done: with the error that says why."""
    name = argv[0]
    path = env.get("PATH", os.defpath)
    places = [name] if "/" in name else [f"{folder or '.'}/{name}" for folder in path.split(":")]
    refused: list[tuple[str, int]] = []
    for place in places:
        try:
            os.execve(place, list(argv), env)  # noqa: S606  there is nothing to expand in it
        except OSError as error:  # noqa: PERF203
            if os.path.lexists(place):
                refused.append((place, error.errno or 0))
    return refusal(name, path, refused)


def no_directory(path: str, number: int) -> RunError:
    return RunError(
        f"the working directory cannot be entered: {os.strerror(number)}",
        where=path,
        hint="start below the captured source directory, or mount this one",
    )


def refusal(name: str, path: str, refused: Sequence[tuple[str, int]]) -> ReproEnvError:
    """The error that says why nothing was started. `path`: the run's PATH; `refused`: (file, errno) of those that were there."""
    if not refused:
        looked = "no such file in the image" if "/" in name else f"not on the image's PATH ({path})"
        return CommandMissingError(looked, where=name, hint="capture it with `--with PROGRAM`, or install it and capture again")
    place, number = refused[0]
    if number in (errno.ENOENT, errno.ENOTDIR):
        return RunError("the program that would run it is not in the image (see its first line)", where=place)
    if number == errno.ENOEXEC:
        return RunError("is no program, and has no first line that names one (`#!`)", where=place)
    if number == errno.EACCES:
        return RunError("is not executable", where=place, hint=f"chmod +x, or name the program that runs it before {name}")
    return RunError(f"cannot be executed: {os.strerror(number)}", where=place)
