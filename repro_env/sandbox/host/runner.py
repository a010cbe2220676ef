"""The host runner: runs the command in the live environment without isolation, which the record states.

The environment was compared with the spec before (`compare.environments.identity`), and random generators are seeded as in the image. To
find the outputs, the source directory is compared before and after the command; they are copied to the run's files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NoReturn

from repro_env.io.files import Found, room, walk
from repro_env.sandbox import addresses, kernel, memory
from repro_env.sandbox.host import landlock
from repro_env.sandbox.redirection import Relays
from repro_env.sandbox.runner import Runner, outcome
from repro_env.sandbox.signals import SignalQueue, queue_signals
from repro_env.sandbox.workspace import copy_file
from repro_env.schema.environment import values_of
from repro_env.schema.errors import CommandMissingError, RunError
from repro_env.schema.run import Launch, Outcome

MEANS = "isolation: none, the live environment with the files and network of this machine"
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SHARED = (signal.SIGINT, signal.SIGQUIT)
"""The caller's terminal sends these to the command too, unless it has its own terminal."""
_OF_TERMINAL = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
"""Only forwarded if the command has its own terminal."""
_IGNORED = ("__pycache__", ".git")
"""Directories without outputs."""


class HostRunner(Runner):
    """Runs a launch in the live source directory. Stores the state of the directory before the run."""

    def __init__(self, *, skip: Callable[[Path], bool], hidden: Collection[str] | None = None) -> None:
        """Set up a runner. `skip` returns whether a path and all below it are not outputs (environment, spec, runs)."""
        super().__init__(hidden=hidden)
        self._skip = skip
        self._before: dict[str, Found] = {}

    def run(self, launch: Launch, *, directory: Path) -> Outcome:
        """See `Runner`."""
        self._before = self._list(Path(launch.workspace))
        return start(launch, directory, self._hidden)

    def collect(self, workspace: Path, snapshot: Path, files: Path) -> tuple[str, ...]:  # noqa: ARG002
        """Copy all files that were written to `files`, even if their bytes are the same. Returns the removed files, sorted.

        Raises `OSError`, `DiskError`.
        """
        after = self._list(workspace)
        with room(files):
            for path, found in sorted(after.items()):
                old = self._before.get(path)
                if found.kind == "other" or (old is not None and old.key == found.key and old.target == found.target):
                    continue
                _copy(workspace / path, files / path, found)
        return tuple(sorted(self._before.keys() - after.keys()))

    def _list(self, root: Path) -> dict[str, Found]:
        def skip(path: str, is_dir: bool) -> bool:
            return (is_dir and path.rpartition("/")[2] in _IGNORED) or self._skip(root / path)

        return {found.path: found for found in walk(root, skip=skip) if found.kind != "dir"}


def _copy(path: Path, target: Path, found: Found) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if found.kind == "link":
        target.symlink_to(found.target)
        return
    with contextlib.suppress(FileNotFoundError):  # a process that still runs has removed it
        copy_file(path, target)


def start(
    launch: Launch,
    directory: Path,
    hidden: Collection[str] | None,
    means: Sequence[str] = (),
    writable: Sequence[str] | None = None,
) -> Outcome:
    """Start the command and wait for its end. `directory` is the run's, for the logs; `hidden` is as in `Runner`.

    `means` are added to `Outcome.means`. `writable` are the only paths where the command may write; None for no limit. Raises
    `CommandMissingError`, `RunError`.
    """
    has_starved = memory.watch_oom_kills()
    notes: list[str] = []
    with contextlib.ExitStack() as stack:
        code = _child(launch, notes, Relays(directory, hidden, stack), writable)
    return outcome(code, "none", (MEANS, *means, *notes), starved=has_starved())


def _child(launch: Launch, notes: list[str], relays: Relays, writable: Sequence[str] | None) -> int:
    """Start the command and wait for its end. Returns its exit code, or minus its signal. Adds notes for the record.

    All signals are forwarded, except that Ctrl-C comes from the caller's terminal if the command has no terminal of its own.
    """
    read, write = os.pipe2(os.O_CLOEXEC)
    of_terminal = () if relays.terminal is None else _OF_TERMINAL
    with queue_signals((*_FORWARDED, *_SHARED, *of_terminal, signal.SIGCHLD)) as queue:
        # Block signals until the child has restored its handlers, so that it loses none.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_FORWARDED, *_SHARED))
        before = addresses.fix(launch, notes)
        child = os.fork()
        if child == 0:
            _become(launch, write, queue, set(mask), relays, writable)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if before is not None:
            kernel.personality(before)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            problem = pipe.read()
        code = os.waitstatus_to_exitcode(_wait(child, queue, relays))
    if problem:
        raise _refusal(launch, int(problem.split()[0]), problem.split(b" ", 1)[1].decode())
    return code


def _wait(child: int, queue: SignalQueue, relays: Relays) -> int:
    """Forward signals, input and output until the child ends. Returns its status."""

    def send(number: int) -> None:
        if number == signal.SIGTSTP:
            _signal_group(child, signal.SIGSTOP)  # the kernel ignores SIGTSTP in an orphaned process group
        elif number in (*_SHARED, signal.SIGCONT):
            _signal_group(child, number)
        else:
            os.kill(child, number)  # its PID is valid until waitpid(2) has returned its status

    forwarded = _FORWARDED if relays.terminal is None else (*_FORWARDED, *_SHARED, *_OF_TERMINAL)
    with relays.connected():
        while not (result := os.waitpid(child, os.WNOHANG))[0]:
            if queue.handle in relays.wait(queue.handle):
                for number in queue.take():
                    if number in forwarded:
                        relays.forward_signal(number, send)
    return result[1]


def _signal_group(child: int, number: int) -> None:
    try:
        os.killpg(child, number)
    except ProcessLookupError:  # the child has not called setsid(2) yet
        os.kill(child, number)


def _become(
    launch: Launch, report: int, queue: SignalQueue, mask: set[int], relays: Relays, writable: Sequence[str] | None
) -> NoReturn:
    """In the child: execute the command, or report why this failed (`<errno> <path>`)."""
    path = launch.cwd
    try:
        queue.restore_defaults()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and programs inherit ignored signals
            signal.signal(number, signal.SIG_DFL)
        if relays.terminal is not None:
            os.setsid()
        relays.replace_streams()
        os.chdir(launch.cwd)
        if writable is not None:
            landlock.restrict_writes(writable)
        path = launch.argv[0]
        os.execvpe(path, launch.argv, values_of(launch.env))  # noqa: S606
    except OSError as error:
        os.write(report, f"{error.errno} {path}".encode(errors="surrogateescape"))
    finally:
        os._exit(127)


def _refusal(launch: Launch, number: int, path: str) -> CommandMissingError | RunError:
    if path == launch.argv[0] and number in (errno.ENOENT, errno.ENOTDIR):
        return CommandMissingError(
            "this command is not on the environment's PATH", where=path, hint="install it in the environment, or give its path"
        )
    return RunError(
        f"the command cannot be started: {os.strerror(number)}", where=path, hint="check the path and its permissions"
    )
