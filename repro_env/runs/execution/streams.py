"""Redirect the standard streams while repro-env runs code of its own, not the user's command."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirect stdout to stderr in the block: stdout is reserved for the verdict."""
    with _redirected((1,), 2):
        yield


@contextlib.contextmanager
def silent(handles: Sequence[int] = (0, 1, 2)) -> Iterator[None]:
    """Redirect these standard streams to /dev/null in the block."""
    with open(os.devnull, "r+b", buffering=0) as null, _redirected(handles, null.fileno()):  # noqa: PTH123
        yield


@contextlib.contextmanager
def _redirected(handles: Sequence[int], target: int) -> Iterator[None]:
    _flush()
    saved = {handle: os.dup(handle) for handle in handles}  # all are open: `__main__.fill_closed_streams`
    try:
        for handle in handles:
            os.dup2(target, handle)
        yield
    finally:
        _flush()
        for handle, copy in saved.items():
            os.dup2(copy, handle)
            os.close(copy)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None if the parent process closed it
            stream.flush()
