"""Pools of processes: which worker takes a task, and with which others, is chance, so a task has streams of its own."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
children: Any = seeds.part("children")


class _Tasks:
    """The queue that a worker of a pool takes its tasks from."""

    def __init__(self, queue: Any, number: Callable[[Any], tuple[int, ...] | None], parent: tuple[Any, ...]) -> None:
        self._queue = queue
        self._number = number
        self._parent = parent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """The next task; the generators that nobody seeded are seeded for it."""
        seeds.each("unseeded")  # a pool kills its workers
        task = self._queue.get(*args, **kwargs)
        try:
            number = self._number(task)
            if number is not None:
                children.become((*self._parent, "task", *number), task=True)
        except Exception as error:
            seeds.problem("task", error)
        return task


def _hook_worker(module: Any, name: str, number: Callable[[Any], tuple[int, ...] | None]) -> None:
    plain = getattr(module, name)

    def worker(queue: Any, *args: Any, **kwargs: Any) -> Any:
        if seeds._State.worker[:1] == ("process",) and seeds._State.thread == children.thread():  # not of a pool of threads
            queue = _Tasks(queue, number, seeds._State.worker[:-1])
        return plain(queue, *args, **kwargs)

    worker.__name__ = worker.__qualname__ = name  # spawn finds it by its name
    worker.__module__ = module.__name__
    setattr(module, name, worker)


def hook_pool(pool: Any) -> None:
    """multiprocessing.pool: a task is (job, index, function, arguments, keywords); jobs are counted over all pools of a process."""
    _hook_worker(pool, "worker", lambda task: None if task is None else (task[0], task[1] or 0))


def hook_executor(module: Any) -> None:
    """concurrent.futures and loky, which counts in the same way: tasks from 0 in each executor, so those get ranges."""
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
    """A batch of calls that joblib sends to a process, as large as the clock suggests: there each has streams of its own."""

    def __init__(self, calls: list[Any], who: tuple[Any, ...], first: int) -> None:
        self.calls = calls
        self.who = who
        self.first = first
        self.sender = os.getpid()

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[Any]:
        """The calls, each when the one before it is over."""
        for number, call in enumerate(self.calls, self.first):
            if os.getpid() != self.sender:
                seeds.each("unseeded")
                try:
                    children.become((*self.who, number), task=True)
                except Exception as error:
                    seeds.problem("joblib's call", error)
            yield call


def hook_joblib(module: Any) -> None:
    """Only the two backends whose workers are ours too: elsewhere nobody could read `Calls`."""
    dispatch, init = module.Parallel._dispatch, module.BatchedCalls.__init__

    def _dispatch(self: Any, batch: Any) -> Any:
        try:
            if type(getattr(self, "_backend", None)).__name__ in ("LokyBackend", "MultiprocessingBackend"):
                if not self.n_dispatched_tasks:
                    seeds._State.calls += 1
                    self._repro_env_call = seeds._State.calls
                who = (*seeds._State.worker, "joblib", self._repro_env_call)
                batch.items = Calls(batch.items, who, self.n_dispatched_tasks)
        except Exception as error:
            seeds.problem("joblib", error)
        return dispatch(self, batch)

    def __init__(self: Any, iterator_slice: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        ours = isinstance(iterator_slice, Calls)
        init(self, () if ours else iterator_slice, *args, **kwargs)
        if ours:  # it came to a worker; else it would become a list, and all calls would be asked for at once
            self.items = iterator_slice
            self._size = len(iterator_slice)

    _dispatch.__wrapped__ = dispatch  # type: ignore[attr-defined]
    __init__.__wrapped__ = init  # type: ignore[attr-defined]
    module.Parallel._dispatch = _dispatch
    module.BatchedCalls.__init__ = __init__
