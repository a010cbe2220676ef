"""The interface for reporting messages and progress. Only types; `cli.ui.messages` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Advance(Protocol):
    """Reports that `count` more bytes are done."""

    def __call__(self, count: int, /) -> None: ...


class Progress(Protocol):
    """Shows that the task `label` of `total` bytes is in progress; 0 if its bytes are not counted."""

    def __call__(self, total: int, label: str, /) -> AbstractContextManager[Advance]: ...


class Tell(Protocol):
    """Reports to the user.

    A call prints a line that every user should see; a successful command prints at most four of them. `detail` prints only
    with --verbose. `warn` prints a possible loss or mistake, even with --quiet.
    """

    def __call__(self, text: str, /) -> None: ...

    def detail(self, text: str, /) -> None: ...

    def warn(self, text: str, /) -> None: ...

    def progress(self, total: int, label: str, /) -> AbstractContextManager[Advance]:
        """See `Progress`. Use it for work that may take longer than two seconds."""
        ...


class Silent:
    """A `Tell` that prints nothing, for the Python API. A subclass that overrides `__call__` receives the lines of all levels."""

    def __call__(self, text: str, /) -> None:
        pass

    def detail(self, text: str, /) -> None:
        self(text)

    def warn(self, text: str, /) -> None:
        self(text)

    def progress(self, total: int, label: str, /) -> AbstractContextManager[Advance]:  # noqa: ARG002
        return nullcontext(_ignore)


class Details(Silent):
    """Reports to another `Tell`, with all messages except warnings as details."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def __call__(self, text: str, /) -> None:
        self._tell.detail(text)

    def warn(self, text: str, /) -> None:
        self._tell.warn(text)

    def progress(self, total: int, label: str, /) -> AbstractContextManager[Advance]:
        return self._tell.progress(total, label)


def _ignore(count: int, /) -> None:
    pass


def counted(chunks: Iterable[bytes], advance: Advance) -> Iterator[bytes]:
    """Yield the chunks, and tell the progress how many bytes they have."""
    for chunk in chunks:
        yield chunk
        advance(len(chunk))


SILENT: Tell = Silent()
