"""Worker processes: unpacking is Python work per file, so threads would wait for each other.

They are forked before this process starts threads of its own, and live as long as the build. A worker whose
parent is gone sees the end of its pipe after its job, and ends.
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

from repro_env.model.errors import BuildError
from repro_env.model.talk import Advance

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

Job = TypeVar("Job")
Answer = TypeVar("Answer")
PATIENCE = 5.0
"""Seconds that a worker has to end when it is asked to."""
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
            ours, theirs = context.Pipe()
            process = context.Process(target=self._work, args=(slot, theirs, [*self._pipes, ours]), daemon=True)
            with warnings.catch_warnings():
                # Python 3.12 and later warn of any fork beside threads. Ours have not started; a caller's own hold
                # nothing that a worker needs.
                warnings.filterwarnings("ignore", r".*multi-threaded.*fork", DeprecationWarning)
                process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
            self._free.put((slot, ours))

    def _work(self, slot: int, jobs: Connection, others: list[Connection]) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, and sends SIGTERM
        signal.signal(signal.SIGTERM, self._asked_to_stop)
        for other in others:  # else the pipe of a parent that died would never end
            other.close()
        while True:
            try:
                job: Job = jobs.recv()
            except EOFError:
                return
            self._busy = True
            try:
                answer: tuple[Answer | None, Exception | None] = (self._serve(job, self._advance(slot)), None)
            except Exception as error:  # noqa: BLE001 it is raised again in the parent
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
                sys.exit(1)  # runs the clean-up of what is half written
            _COUNT.pack_into(self._counts, place, _COUNT.unpack_from(self._counts, place)[0] + count)

        return advance

    def _asked_to_stop(self, *_: object) -> None:
        self._stopping = True
        if not self._busy:
            sys.exit(1)
        # Within a job no exception from here: it could strike inside a lock or a queue, and the clean-up would wait for ever.

    @property
    def done(self) -> int:
        """What all jobs together have advanced by."""
        return sum(count for (count,) in _COUNT.iter_unpack(self._counts))

    def run(self, job: Job) -> Answer:
        """Run one job in the next free worker, and wait for its answer. Raises what it raised. Safe from any thread."""
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
                    hint="see whether the machine ran out of memory (dmesg), then rebuild: it goes on where it was",
                ) from None
            found, error = answer
            if error is not None:
                raise error
            return found
        finally:
            self._free.put((slot, pipe))

    def stop(self) -> None:
        """End running jobs: they fail where they next advance, and leave nothing half-written."""
        for process in self._processes:
            process.terminate()
        end = time.monotonic() + PATIENCE
        for process in self._processes:
            process.join(max(end - time.monotonic(), 0))
            process.kill()  # it waits for something else, say a lock; what it leaves is cleaned up by the next

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
