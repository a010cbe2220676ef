"""Where the streams of a run lead that is ours and not the user's own command."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """What runs in the block prints to stderr: stdout is for the verdict."""
    _flush()
    held = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        _flush()
        os.dup2(held, 1)
        os.close(held)


@contextlib.contextmanager
def silent(handles: Sequence[int] = (0, 1, 2)) -> Iterator[None]:
    """In the block these standard streams lead to /dev/null."""
    _flush()
    with contextlib.ExitStack() as stack:
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, nowhere)
        for handle in handles:  # all there: `__main__.occupied`
            held = os.dup(handle)
            stack.callback(os.close, held)
            stack.callback(os.dup2, held, handle)
            os.dup2(nowhere, handle)
        yield
        _flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by whoever started us
            stream.flush()
