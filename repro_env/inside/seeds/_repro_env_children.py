"""Processes that have streams of their own: children of multiprocessing, and bare forks."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")


def hook(process: Any) -> None:
    """A child of multiprocessing knows who it is before its work starts, whatever the start method."""
    plain = process.BaseProcess._bootstrap

    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            become(("process", *self._identity))
            seeds._State.thread = thread()
        except Exception as error:
            seeds.problem("child process", error)
        try:
            return plain(self, *args, **kwargs)
        finally:
            seeds._end()  # a forked child leaves by os._exit

    _bootstrap.__qualname__ = "BaseProcess._bootstrap"
    _bootstrap.__module__ = process.__name__
    process.BaseProcess._bootstrap = _bootstrap


def thread() -> int:
    from _thread import get_ident

    return get_ident()


def become(worker: tuple[Any, ...], *, task: bool = False) -> None:
    """Be that worker: streams start again, and what the script has not seeded is seeded anew.

    `task`: the process stays the same, and so does what was seeded in it.
    """
    seeds._State.worker = worker
    seeds._State.forks = seeds._State.executors = seeds._State.calls = 0
    if task:
        seeds.part("streams").restart()
    else:
        seeds.each("restart")
    seeds.each("reseed", task)
