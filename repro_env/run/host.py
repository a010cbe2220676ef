"""The host runner: the command in the live environment, only when asked for. No isolation, and the record says so.

The environment was checked against the spec before (`verify.environment`); the seeds are the same as inside.
What the command wrote is found by comparing the source folder before and after, and copied to the run's files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import termios
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NoReturn

from repro_env.io.files import Found, room, walk
from repro_env.model.errors import CommandMissingError, RunError
from repro_env.model.run import Launch, Lost, Outcome
from repro_env.run import addresses, kernel, landlock, memory
from repro_env.run.bytecode import Module
from repro_env.run.interface import Runner
from repro_env.run.redirection import open_logs, open_redirections
from repro_env.run.signals import Heard, heard
from repro_env.run.terminal import Relay, Terminal, open_terminal
from repro_env.run.workspace import copy_file

MEANS = "isolation: none, the live environment with the files and network of this machine"
_PASSED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SHARED = (signal.SIGINT, signal.SIGQUIT)
"""The terminal sends these to the command too."""
_OF_TERMINAL = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
"""Come to this process alone where the command has a terminal of its own."""
_NEVER = ("__pycache__", ".git")


class HostRunner:
    """Runs launches in the live source folder. One object a run: it remembers what the folder held before."""

    def __init__(self, *, skip: Sequence[Path], hidden: Collection[str] | None = None) -> None:
        """`skip`: folders whose changes are no outputs (environment, spec, runs). `hidden`: as of `stage.Stage`."""
        self._hidden = hidden
        self._skip = frozenset(str(path) for path in skip)
        self.began = False
        self.lost: Lost | None = None  # what it writes elsewhere lies there
        self.compiled: tuple[Module, ...] = ()  # what it compiles lies beside its source, and is nobody else's
        self._before: dict[str, Found] = {}

    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        """See `interface.Runner`; `collect` afterwards brings the outputs."""
        self._before = self._list(Path(launch.workspace))
        return start(launch, folder, self._hidden)

    def collect(self, workspace: Path, snapshot: Path, files: Path) -> tuple[str, ...]:  # noqa: ARG002
        """Copy what was written to `files`, also with the same bytes; return the paths that are gone. Raises `OSError`, `DiskError`."""
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
            return is_dir and (path.rpartition("/")[2] in _NEVER or f"{root}/{path}" in self._skip)

        return {found.path: found for found in walk(root, skip=skip) if found.kind != "dir"}


_: type[Runner] = HostRunner


def _copy(path: Path, target: Path, found: Found) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if found.kind == "link":
        target.symlink_to(found.target)
        return
    with contextlib.suppress(FileNotFoundError):  # gone again: something that still runs cleans up
        copy_file(path, target)


class _Streams:
    """What stands for the caller's streams while the command runs, so that there is a log of what it prints."""

    def __init__(self, folder: Path, hidden: Collection[str] | None, stack: contextlib.ExitStack) -> None:
        self.terminal = None if hidden is None else open_terminal()
        self.relays: list[Relay] = [] if hidden is None else [*open_redirections()]
        self.relays += [] if self.terminal is None else [self.terminal]
        self.logs = {} if hidden is None else open_logs(folder, hidden)
        for relay in self.relays:
            stack.callback(relay.close)
            relay.log = next((self.logs[stream] for stream in relay.streams if stream in self.logs), None)
        for log in set(self.logs.values()):
            stack.callback(log.close)

    def become(self) -> None:
        """In the child: have them instead of the caller's."""
        if self.terminal is not None:
            os.setsid()
            fcntl.ioctl(self.terminal.side, termios.TIOCSCTTY, 0)
        for relay in self.relays:
            for stream in relay.streams:
                os.dup2(relay.side, stream)

    def wait(self, came: Heard) -> None:
        """Pass on what is there, until a signal comes."""
        while True:
            poll = select.poll()
            poll.register(came.handle, select.POLLIN)
            for relay in self.relays:
                relay.watch(poll)
            pauses = [pause for log in self.logs.values() if (pause := log.wait()) is not None]
            ready = dict(poll.poll(int(1000 * min(pauses)) + 1 if pauses else None))
            for relay in self.relays:
                relay.pass_on(ready)
            for log in self.logs.values():
                log.tick()
            if came.handle in ready:
                return


def start(
    launch: Launch, folder: Path, hidden: Collection[str] | None, means: Sequence[str] = (), writable: Sequence[str] | None = None
) -> Outcome:
    """Start the command and wait for its end. `folder`: the run's directory, for the console log; `hidden`: as of `stage.Stage`.

    `means`: more of what is used; `writable`: where alone it may write, None for no limit. Raises `CommandMissingError`, `RunError`.
    """
    killed = memory.kills()
    notes: list[str] = []
    with contextlib.ExitStack() as stack:
        code = _child(launch, notes, _Streams(folder, hidden, stack), writable)
    now = memory.kills()
    return Outcome(
        exit_code=code if code >= 0 else 128 - code,
        signal=max(0, -code),
        out_of_memory=code != 0 and killed is not None and now is not None and now > killed,
        isolation="none",
        means=(MEANS, *means, *notes),
    )


def _child(launch: Launch, notes: list[str], streams: _Streams, writable: Sequence[str] | None) -> int:
    """Start the command and wait for its end. Returns its code, or minus its signal; adds to the `notes` for the record.

    Without a terminal of the command's own, Ctrl-C reaches it from the caller's. All other signals are passed on.
    """
    read, write = os.pipe2(os.O_CLOEXEC)
    more = () if streams.terminal is None else _OF_TERMINAL
    with heard((*_PASSED, *_SHARED, *more, signal.SIGCHLD)) as came:
        # None may come to the child while it would do nothing there.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_PASSED, *_SHARED))
        before = addresses.fix(launch, notes)
        child = os.fork()
        if child == 0:
            _become(launch, write, came, set(mask), streams, writable)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if before is not None:
            kernel.personality(before)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            problem = pipe.read()
        code = os.waitstatus_to_exitcode(_waited(child, came, streams))
    if problem:
        raise _refusal(launch, int(problem.split()[0]), problem.split(b" ", 1)[1].decode())
    return code


def _waited(child: int, came: Heard, streams: _Streams) -> int:
    """The child's status when it has ended; signals and output are passed on meanwhile."""
    terminal = streams.terminal
    if terminal is not None:
        terminal.take_over()
    try:
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            streams.wait(came)
            for number in came.take():
                if terminal is not None:
                    _to_session(child, number, terminal)
                elif number in _PASSED:
                    os.kill(child, number)  # it is there until it is waited for
    finally:
        for relay in streams.relays:
            relay.drain()
        if terminal is not None:
            terminal.give_back()
    return ended[1]


def _to_session(child: int, number: int, terminal: Terminal) -> None:
    """Pass a signal on to a command that has a session of its own."""
    if number == signal.SIGWINCH:
        terminal.resize()
    elif number == signal.SIGTSTP:
        _to_group(child, signal.SIGSTOP)  # the kernel ignores SIGTSTP there
        terminal.give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
    elif number == signal.SIGCONT:
        terminal.take_over()
        _to_group(child, number)
    elif number in _SHARED:
        _to_group(child, number)
    elif number in _PASSED:
        os.kill(child, number)


def _to_group(child: int, number: int) -> None:
    try:
        os.killpg(child, number)
    except ProcessLookupError:  # it has not made its own group yet
        os.kill(child, number)


def _become(
    launch: Launch, report: int, came: Heard, mask: set[int], streams: _Streams, writable: Sequence[str] | None
) -> NoReturn:
    """In the child: become the command, or say why not (`<errno> <what>`)."""
    what = launch.cwd
    try:
        came.forget()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these two, and ignored ones are inherited
            signal.signal(number, signal.SIG_DFL)
        streams.become()
        os.chdir(launch.cwd)
        if writable is not None:
            landlock.hold_writes(writable)
        what = launch.argv[0]
        os.execvpe(what, launch.argv, {variable.name: variable.value for variable in launch.env})  # noqa: S606
    except OSError as error:
        os.write(report, f"{error.errno} {what}".encode(errors="surrogateescape"))
    finally:
        os._exit(127)


def _refusal(launch: Launch, number: int, what: str) -> CommandMissingError | RunError:
    if what == launch.argv[0] and number in (2, 20):
        return CommandMissingError("is not on the environment's PATH", where=what, hint="install it there, or give its path")
    return RunError(f"cannot be started: {os.strerror(number)}", where=what, hint="check the path and its permissions")
