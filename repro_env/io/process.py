"""The one door to helper processes (a training run is no helper: it has the runner)."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

_READ = 1 << 16
_POLL = 0.1
_GRACE = 1.0
"""Seconds that a pipe may stay open after the child itself is gone: something it left behind holds it."""


class Done(msgspec.Struct, frozen=True):
    """How a process ended."""

    code: int
    """Its exit status; minus the signal's number when a signal ended it."""
    stdout: bytes
    stderr: bytes
    timed_out: bool
    """It was killed because its time was over."""


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
    stdin: bytes | Iterator[bytes] = b"",
    limit: int = 64 << 20,
) -> Done:
    """Run a program to its end. `timeout` in seconds; `limit` bytes are kept of each of stdout and stderr, the rest dropped.

    `stdin` may be given in pieces; an exception of theirs passes through, and the child is killed.

    The child gets a session of its own: it cannot ask on the terminal, and nothing of its process group outlives
    this call. An exit status is never an error here. Raises `FileNotFoundError` or `PermissionError` when it cannot start.
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
        kept, timed_out = _talk(child, stdin, None if timeout is None else started + timeout, limit)
    finally:
        # Not reaped yet, so its number cannot be another group's by now.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        child.wait()
    return Done(child.returncode, bytes(kept[0]), bytes(kept[1]), timed_out)


def _talk(
    child: subprocess.Popen[bytes], stdin: bytes | Iterator[bytes], deadline: float | None, limit: int
) -> tuple[list[bytearray], bool]:
    """Feed and drain the child until it has ended and its pipes are empty, or its time is over."""
    kept = [bytearray(), bytearray()]
    pieces = iter((stdin,)) if isinstance(stdin, bytes) else stdin
    rest = memoryview(b"")
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
                return kept, False
            if deadline is not None and now >= deadline:
                return kept, ended is None
            if not selector.get_map():
                time.sleep(wait)  # it closed its pipes and goes on working
                wait = min(2 * wait, 0.05)
                continue
            pause = _POLL if deadline is None else max(0.0, min(_POLL, deadline - now))
            for key, _ in selector.select(pause):
                if key.data == 2:
                    rest = rest or memoryview(next((piece for piece in pieces if piece), b""))
                    try:
                        if rest:
                            rest = rest[os.write(key.fd, rest[:_READ]) :]
                            continue
                    except BlockingIOError:
                        continue
                    except BrokenPipeError:
                        rest = rest[:0]
                    assert child.stdin is not None  # noqa: S101
                    selector.unregister(key.fileobj)
                    child.stdin.close()
                    continue
                chunk = os.read(key.fd, _READ)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif room := limit - len(kept[key.data]):
                    kept[key.data] += chunk[:room]


def _has_ended(pid: int) -> bool:
    """Whether the child has ended; it is left to be reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
