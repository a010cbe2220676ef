"""Worker processes. Unpacking runs Python code for each file, so threads would wait for the interpreter lock.

Workers are forked before this process starts threads, and live as long as the build. If the parent is killed, a
worker finishes its job, sees the end of its pipe, and exits.
"""

from __future__ import annotations

import mmap
import queue
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from repro_env.schema.errors import BuildError
from repro_env.schema.progress import Advance

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

Job = TypeVar("Job")
Answer = TypeVar("Answer")
PATIENCE = 5.0
"""Seconds that a worker gets to exit before it is killed."""
_COUNT = struct.Struct("=Q")


class Workers(Generic[Job, Answer]):
    """`count` processes that each answer jobs by `serve(job, advance)`; with 0, jobs run in the calling thread."""

    def __init__(self, count: int, serve: Callable[[Job, Advance], Answer]) -> None:
        self._serve = serve
        self._stopping = False
        self._busy = False
        self._counts = mmap.mmap(-1, _COUNT.size * max(count, 1))  # shared with the children
        self._free: queue.Queue[tuple[int, Connection | None]] = queue.Queue()
        self._processes: list[ForkProcess] = []
        self._pipes: list[Connection] = []
        if count == 0:
            self._free.put((0, None))
        else:
            self._start(count)

    def _start(self, count: int) -> None:
        from multiprocessing import get_context

        context = get_context("fork")
        for slot in range(count):
            parent_end, child_end = context.Pipe()
            process = context.Process(target=self._work, args=(slot, child_end, [*self._pipes, parent_end]), daemon=True)
            with warnings.catch_warnings():
                # Python 3.12 and later warn about forks in a process with threads. Ours are not started yet, and a
                # caller's threads hold no lock that a worker needs.
                warnings.filterwarnings("ignore", r".*multi-threaded.*fork", DeprecationWarning)
                process.start()
            child_end.close()
            self._processes.append(process)
            self._pipes.append(parent_end)
            self._free.put((slot, parent_end))

    def _work(self, slot: int, jobs: Connection, parent_ends: list[Connection]) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and sends SIGTERM
        signal.signal(signal.SIGTERM, self._handle_stop)
        for parent_end in parent_ends:  # else the pipe would stay open after the parent died
            parent_end.close()
        while True:
            try:
                job: Job = jobs.recv()
            except EOFError:
                return
            self._busy = True
            try:
                answer: tuple[Answer | None, Exception | None] = (self._serve(job, self._advance(slot)), None)
            except Exception as error:  # noqa: BLE001 the parent raises it again
                answer = (None, error)
            self._busy = False
            if self._stopping:
                return
            try:
                jobs.send(answer)
            except BrokenPipeError:
                return

    def _advance(self, slot: int) -> Advance:
        place = slot * _COUNT.size

        def advance(count: int, /) -> None:
            if self._stopping:
                sys.exit(1)  # runs the clean-up of incomplete files
            _COUNT.pack_into(self._counts, place, _COUNT.unpack_from(self._counts, place)[0] + count)

        return advance

    def _handle_stop(self, *_: object) -> None:
        self._stopping = True
        if not self._busy:
            sys.exit(1)
        # No exception during a job: it could be raised while a lock or queue is held, and the clean-up would wait forever.

    @property
    def done(self) -> int:
        """Total progress of all jobs, in bytes."""
        return sum(count for (count,) in _COUNT.iter_unpack(self._counts))

    def run(self, job: Job) -> Answer:
        """Run one job in the next free worker and return its result. Raises the job's exception. Safe from any thread."""
        slot, pipe = self._free.get()
        try:
            if pipe is None:
                return self._serve(job, self._advance(slot))
            try:
                pipe.send(job)
                answer: tuple[Answer, Exception | None] = pipe.recv()
            except (EOFError, OSError):
                raise BuildError(
                    "a worker process was killed while it made a layer",
                    hint="check whether the machine ran out of memory (dmesg), then rebuild: complete layers are kept",
                ) from None
            result, error = answer
            if error is not None:
                raise error
            return result
        finally:
            self._free.put((slot, pipe))

    def stop(self) -> None:
        """Stop running jobs. Each one ends at its next progress report and leaves no incomplete files."""
        for process in self._processes:
            process.terminate()
        end = time.monotonic() + PATIENCE
        for process in self._processes:
            process.join(max(end - time.monotonic(), 0))
            process.kill()  # it still waits, perhaps for a lock; the next process cleans up after it

    def __enter__(self) -> Workers[Job, Answer]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.stop()
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join()
        self._counts.close()
