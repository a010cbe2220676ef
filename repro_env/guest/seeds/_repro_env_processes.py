"""Processes and tasks with their own streams: children of multiprocessing, forked children, and the tasks of pools.

The worker of a pool that takes a task is random, so each task has its own streams.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")


def hook_process(process: Any) -> None:
    """Give a child of multiprocessing its identity before its work starts, for every start method."""
    plain = process.BaseProcess._bootstrap

    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        with seeds.Attempt("child process"):
            become_worker(("process", *self._identity))
            seeds._State.thread = thread()
        try:
            return plain(self, *args, **kwargs)
        finally:
            seeds.at_exit()  # a forked child ends with os._exit

    seeds.copy_name(_bootstrap, plain, process.__name__, "BaseProcess._bootstrap")
    process.BaseProcess._bootstrap = _bootstrap


def thread() -> int:
    from _thread import get_ident

    return get_ident()


def become_worker(worker: tuple[Any, ...], *, task: bool = False) -> None:
    """Give this process a new identity: restart its streams, and reseed the generators that the script has not seeded.

    `task`: the process only starts a new task, so the generators that the script seeded are never reseeded.
    """
    seeds._State.worker = worker
    seeds._State.forks = seeds._State.executors = seeds._State.parallel_calls = 0
    if task:
        seeds.part("streams").restart()
    else:
        seeds.call_parts("restart")
    seeds.call_parts("reseed", task)


class _Tasks:
    """The task queue of a worker of a pool."""

    def __init__(self, queue: Any, number: Callable[[Any], tuple[int, ...] | None], parent: tuple[Any, ...]) -> None:
        self._queue = queue
        self._number = number
        self._parent = parent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """The next task. Generators that the script has not seeded are seeded for it."""
        seeds.call_parts("note_unseeded")  # not only at exit: a pool kills its workers
        task = self._queue.get(*args, **kwargs)
        with seeds.Attempt("task"):
            number = self._number(task)
            if number is not None:
                become_worker((*self._parent, "task", *number), task=True)
        return task


def _hook_worker(module: Any, name: str, number: Callable[[Any], tuple[int, ...] | None]) -> None:
    plain = getattr(module, name)

    def worker(queue: Any, *args: Any, **kwargs: Any) -> Any:
        if seeds._State.worker[:1] == ("process",) and seeds._State.thread == thread():  # not in a pool of threads
            queue = _Tasks(queue, number, seeds._State.worker[:-1])
        return plain(queue, *args, **kwargs)

    seeds.copy_name(worker, plain, module.__name__, name)  # spawn imports it by its name
    setattr(module, name, worker)


def hook_pool(pool: Any) -> None:
    """multiprocessing.pool: a task is (job, index, function, arguments, keywords). Jobs are counted over all pools of a process."""
    _hook_worker(pool, "worker", lambda task: None if task is None else (task[0], task[1] or 0))


def hook_executor(module: Any) -> None:
    """concurrent.futures and loky: both count the tasks of each executor from 0, so each executor gets its own range."""
    _hook_worker(module, "_process_worker", lambda task: None if task is None else (task.work_id,))
    plain = module.ProcessPoolExecutor.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plain(self, *args, **kwargs)
        seeds._State.executors += 1
        self._queue_count += seeds._State.executors << 32

    __init__.__wrapped__ = plain  # type: ignore[attr-defined]
    __init__.__doc__ = plain.__doc__
    module.ProcessPoolExecutor.__init__ = __init__


# --- joblib


class Calls:
    """A batch of calls that joblib sends to a worker. Its size depends on timing, so each call has its own streams."""

    def __init__(self, calls: list[Any], parallel: tuple[Any, ...], first: int) -> None:
        self.calls = calls
        self.parallel = parallel
        self.first = first
        self.sender = os.getpid()

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[Any]:
        """Each call, after the previous call has ended."""
        for number, call in enumerate(self.calls, self.first):
            if os.getpid() != self.sender:
                seeds.call_parts("note_unseeded")
                with seeds.Attempt("call of joblib"):
                    become_worker((*self.parallel, number), task=True)
            yield call


def hook_joblib(module: Any) -> None:
    """joblib: only the two backends whose workers have these hooks too, and so can unpickle `Calls`."""
    dispatch, init = module.Parallel._dispatch, module.BatchedCalls.__init__

    def _dispatch(self: Any, batch: Any) -> Any:
        with seeds.Attempt("joblib"):
            if type(getattr(self, "_backend", None)).__name__ in ("LokyBackend", "MultiprocessingBackend"):
                if not self.n_dispatched_tasks:
                    seeds._State.parallel_calls += 1
                    self._repro_env_call = seeds._State.parallel_calls
                parallel = (*seeds._State.worker, "joblib", self._repro_env_call)
                batch.items = Calls(batch.items, parallel, self.n_dispatched_tasks)
        return dispatch(self, batch)

    def __init__(self: Any, iterator_slice: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        is_wrapped = isinstance(iterator_slice, Calls)
        init(self, () if is_wrapped else iterator_slice, *args, **kwargs)
        if is_wrapped:  # in a worker; the original would convert it to a list, which iterates over all calls at once
            self.items = iterator_slice
            self._size = len(iterator_slice)

    _dispatch.__wrapped__ = dispatch  # type: ignore[attr-defined]
    __init__.__wrapped__ = init  # type: ignore[attr-defined]
    module.Parallel._dispatch = _dispatch
    module.BatchedCalls.__init__ = __init__
