"""Run helper programs. A training run is started by a runner instead."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

_READ = 1 << 16
_POLL = 0.1
_GRACE = 1.0
"""Seconds to keep reading after the child has ended, while a process that it started holds a pipe open."""


class Done(msgspec.Struct, frozen=True):
    """How a process ended."""

    code: int
    """The exit status, or minus the number of the signal that ended the process."""
    stdout: bytes
    stderr: bytes
    timed_out: bool
    """Whether the process was killed at the timeout."""


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
    stdin: bytes | Iterator[bytes] = b"",
    limit: int = 64 << 20,
) -> Done:
    """Run a program until it ends, at most `timeout` seconds. Keeps the first `limit` bytes of each of stdout and stderr.

    If `stdin` is an iterator that raises an exception, the child is killed and the exception passes through.

    The child runs in its own session: it cannot prompt on the terminal, and all processes of its process group are killed
    before this function returns. Any exit status is a result. Raises `FileNotFoundError` or `PermissionError` if the
    program cannot be started.
    """
    started = time.monotonic()
    child = subprocess.Popen(
        list(argv),
        env=None if env is None else dict(env),
        cwd=cwd,
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
    )
    try:
        output, timed_out = _communicate(child, stdin, None if timeout is None else started + timeout, limit)
    finally:
        # The child has not been reaped yet, so its PID cannot have been reused.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        child.wait()
    return Done(child.returncode, bytes(output[0]), bytes(output[1]), timed_out)


class PythonProcess:
    """This Python with the same modules in another process, which gets objects through its stdin and sends others from its stdout.

    It has a session of its own, so Ctrl-C does not reach it: it must end when its stdin is closed.
    """

    def __init__(self, code: str) -> None:
        """Start the process. `code`: the statements that it executes."""
        start = f"import sys; sys.path[:] = {sys.path!r}; sys.pycache_prefix = {sys.pycache_prefix!r}\n{code}"
        words = [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", start]
        self._child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.pid = self._child.pid

    def exchange(self, message: object) -> Iterator[object]:
        """Send an object, and yield the answers. Raises `OSError`, `EOFError` or `ValueError` if the process ends or was stopped."""
        import pickle  # slow to import

        assert self._child.stdin is not None  # noqa: S101
        assert self._child.stdout is not None  # noqa: S101
        send(self._child.stdin, message)
        while True:
            yield pickle.load(self._child.stdout)  # noqa: S301 - from our own process

    def wait(self) -> None:
        """Wait until the process has ended by itself."""
        self._child.wait()

    def stop(self) -> None:
        """Close stdin. Safe to use while another thread waits for an answer."""
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()

    def close(self) -> None:
        """Stop the process, and wait until it has ended."""
        self.stop()
        with self._child:
            pass


def send(file: IO[bytes], message: object) -> None:
    """Write an object for a process that reads it with `pickle.load`."""
    import pickle

    pickle.dump(message, file, pickle.HIGHEST_PROTOCOL)
    file.flush()


def _communicate(
    child: subprocess.Popen[bytes], stdin: bytes | Iterator[bytes], deadline: float | None, limit: int
) -> tuple[list[bytearray], bool]:
    """Write to stdin and read stdout and stderr until the child has ended and its pipes are empty.

    A child that is still running at the deadline has timed out. The output of one that has ended is read whole.
    """
    output = [bytearray(), bytearray()]
    pieces = iter((stdin,)) if isinstance(stdin, bytes) else stdin
    pending = memoryview(b"")
    ended: float | None = None
    with selectors.DefaultSelector() as selector:
        for number, pipe in enumerate((child.stdout, child.stderr)):
            assert pipe is not None  # noqa: S101
            selector.register(pipe, selectors.EVENT_READ, number)
        if child.stdin is not None:
            os.set_blocking(child.stdin.fileno(), False)
            selector.register(child.stdin, selectors.EVENT_WRITE, 2)
        wait = 0.001
        while True:
            now = time.monotonic()
            if ended is None and _has_ended(child.pid):
                ended = now
            if ended is not None and (not selector.get_map() or now - ended > _GRACE):
                return output, False
            if ended is None and deadline is not None and now >= deadline:
                return output, True
            if not selector.get_map():
                time.sleep(wait)  # the child has closed its pipes and is still running
                wait = min(2 * wait, 0.05)
                continue
            pause = _POLL if deadline is None or ended is not None else max(0.0, min(_POLL, deadline - now))
            for key, _ in selector.select(pause):
                if key.data == 2:
                    pending = pending or memoryview(next((piece for piece in pieces if piece), b""))
                    try:
                        if pending:
                            pending = pending[os.write(key.fd, pending[:_READ]) :]
                            continue
                    except BlockingIOError:
                        continue
                    except BrokenPipeError:
                        pending = pending[:0]
                    assert child.stdin is not None  # noqa: S101
                    selector.unregister(key.fileobj)
                    child.stdin.close()
                    continue
                chunk = os.read(key.fd, _READ)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif free := limit - len(output[key.data]):
                    output[key.data] += chunk[:free]


def _has_ended(pid: int) -> bool:
    """Whether the child has ended. Does not reap it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
