"""The first process of a run: it makes the root, starts the command, reaps what is left behind, and passes signals on.

It lives in a process group of its own once the command exists: what the terminal sends to the group reaches the
command directly and once; what only the supervisor got comes through here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from repro_env.model.errors import CommandMissingError, ReproEnvError, RunError
from repro_env.model.run import Launch
from repro_env.run import addresses, namespaces
from repro_env.run.channel import Ended, Started, Writer

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
        *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
    }
)
"""Stopping and continuing are left to the terminal: they work on the whole process group anyway."""
WATCHED = FORWARDED | {signal.SIGCHLD}


def main(
    launch: Launch,
    prepare: Callable[[], Sequence[str]],
    *,
    out: Writer,
    mask: set[int],
    umask: int,
) -> NoReturn:
    """Become init. `prepare` makes the root and enters it; it returns notes for the record.

    `mask` and `umask` are the caller's own, for the command. Signals in `WATCHED` are blocked already, and no handler is set.
    """
    try:
        notes = list(prepare())
        addresses.fix(launch, notes)
        namespaces.drop_privileges()
        out.send(Started(tuple(notes)))
        command = os.fork()
        if command == 0:
            _become(launch, out=out, mask=mask, umask=umask)
        os.setpgid(0, 0)
        status = _attend(command)
        _end_the_others()
        out.send(Ended(status))
    except BaseException as error:  # noqa: BLE001  there is nobody above to raise to
        out.fail(error)
    os._exit(0)


def _attend(command: int) -> int:
    """Pass signals on and reap until the command is over. Returns its status; everything else ends with this process."""
    while True:
        info = signal.sigwaitinfo(WATCHED)
        if info.si_signo != signal.SIGCHLD:
            if info.si_pid == 0:  # from outside: what the command's own processes send to init is not for it
                os.kill(command, info.si_signo)
            continue
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == command:
                return status
            if pid == 0:
                break


def _end_the_others() -> None:
    """Kill what the command left behind, and wait until it is gone: nothing writes any more after this."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _become(launch: Launch, *, out: Writer, mask: set[int], umask: int) -> NoReturn:
    """Turn this process into the command."""
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what is ignored stays so in a new program
            signal.signal(number, signal.SIG_DFL)
        os.umask(umask)
        try:
            os.chdir(launch.cwd)
        except OSError as error:
            raise no_folder(launch.cwd, error.errno or 0) from None
        for handle in [int(item.name) for item in Path("/proc/self/fd").iterdir()]:
            if handle > 2 and handle != out.handle:
                with contextlib.suppress(OSError):  # the one that listed them
                    os.close(handle)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise _execute(launch.argv, {variable.name: variable.value for variable in launch.env})
    except BaseException as error:  # noqa: BLE001
        out.fail(error)


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


def no_folder(path: str, number: int) -> RunError:
    return RunError(
        f"the working directory cannot be entered: {os.strerror(number)}",
        where=path,
        hint="start below the captured source folder, or mount this one",
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
