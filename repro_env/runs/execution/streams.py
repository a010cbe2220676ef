"""Redirect the standard streams while repro-env runs code of its own, not the user's command."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirect stdout to stderr in the block: stdout is reserved for the verdict."""
    _flush()
    saved = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        _flush()
        os.dup2(saved, 1)
        os.close(saved)


@contextlib.contextmanager
def silent(handles: Sequence[int] = (0, 1, 2)) -> Iterator[None]:
    """Redirect these standard streams to /dev/null in the block."""
    _flush()
    with contextlib.ExitStack() as stack:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, null)
        for handle in handles:  # all are open: `__main__.fill_closed_streams`
            saved = os.dup(handle)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, handle)
            os.dup2(null, handle)
        yield
        _flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None if the parent process closed it
            stream.flush()
