"""Make single layers, in this process or in worker processes: threads of one Python share a core while they run its code.

A worker gets jobs through its stdin. Through its stdout it sends the numbers of bytes that are done, and after each job its
result or error. It ends, and removes its temporary files, when its stdin is closed: also if this process is killed.

The largest layer is made in this process, so the start of workers costs no time. Measured in turns with `uv pip install` of the same
wheels (18, with torch), two busy cores, tmpfs: 1.25 times its wall time with threads, 0.78 and 0.98 times with a worker.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from threading import Thread, main_thread
from typing import NoReturn, Protocol, cast

import msgspec

from repro_env.delivery.builder.content import Content, Group, Part
from repro_env.delivery.builder.layers import Task
from repro_env.io import process
from repro_env.schema.errors import BuildError
from repro_env.schema.image import Blob
from repro_env.schema.progress import Advance
from repro_env.store.store import Store

_REPORT = 1 << 20
"""Bytes that a worker makes between two reports."""


class Writer(Protocol):
    """Writes layers to their destination. A worker gets a copy."""

    def write(self, task: Task, content: Content, advance: Advance) -> Blob | None:
        """Write one layer. Returns its blob if the destination keeps it as gzip.

        Raises `ArtifactError` or `BuildError` if the content is not the expected one. Then nothing of it is kept.
        """
        ...


class Job(msgspec.Struct, frozen=True):
    """One layer to make."""

    task: Task
    found: tuple[Part, ...] | Content
    """What it is made of."""
    store: Store
    writer: Writer


class Made(msgspec.Struct, frozen=True):
    """A layer that was written."""

    diff_id: str
    blob: Blob | None
    sizes: dict[str, int]
    """Installed size of each part in bytes, by key, for the grouping rule."""


def make(job: Job, advance: Advance) -> Made:
    """Make one layer in this process. Raises as `Writer.write`."""
    with ExitStack() as stack:
        content = Group(job.task.diff_id, job.found, job.store, stack) if isinstance(job.found, tuple) else job.found
        blob = job.writer.write(job.task, content, advance)
        return Made(content.diff_id, blob, content.sizes if isinstance(content, Group) else {})


class Worker:
    """A worker process, which is started for its first job."""

    def __init__(self) -> None:
        self._process: process.PythonProcess | None = None

    def make(self, job: Job, advance: Advance) -> Made:
        """Make one layer in the worker, or in this process if no worker can be started. Raises as `make`, and `BuildError` if the worker ended."""
        if self._process is None:
            try:
                self._process = process.PythonProcess(f"from {__name__} import run\nrun()")
            except OSError:  # this user may not start Python again, so this process makes the layer
                return make(job, advance)
        try:
            answers = self._process.exchange(job)
            while isinstance(answer := next(answers), int):
                advance(answer)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            advance(0)  # raises if the build was stopped
            hint = "look for a reason in the system log, such as a lack of memory, and rebuild"
            raise BuildError("the process that made the layer was ended", hint=hint) from None
        if isinstance(answer, Made):
            return answer
        raise cast("Exception", answer)

    def stop(self) -> None:
        """Let the worker remove its temporary files and end."""
        if self._process is not None:
            self._process.stop()

    def close(self) -> None:
        """Wait until the stopped worker has ended."""
        if self._process is not None:
            self._process.close()


def run() -> None:
    """Make layers until stdin is closed. Runs in the worker."""
    signal.signal(signal.SIGTERM, _end)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    jobs: SimpleQueue[Job] = SimpleQueue()
    Thread(target=_receive, args=(jobs.put,), daemon=True).start()
    pending = 0

    def advance(count: int, /) -> None:
        nonlocal pending
        pending += count
        if pending >= _REPORT:
            process.send(answers, pending)
            pending = 0

    with suppress(BrokenPipeError):
        while True:
            job = jobs.get()
            try:
                answer: Made | Exception = make(job, advance)
            except Exception as error:  # noqa: BLE001 - the caller raises it
                answer = error
            process.send(answers, pending)
            pending = 0
            process.send(answers, answer)


def _receive(put: Callable[[Job], None]) -> None:
    with suppress(EOFError):
        while True:
            put(pickle.load(sys.stdin.buffer))  # noqa: S301 - from the process that started this one
    signal.pthread_kill(main_thread().ident or 0, signal.SIGTERM)


def _end(_number: int, _frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(30)  # ends this process if a callback has caught the exception
    sys.exit()
