"""The interface through which long work reports what it does. Types only; `cli.say` is what prints."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Advance(Protocol):
    """Says that `count` more bytes are done."""

    def __call__(self, count: int, /) -> None: ...


class Progress(Protocol):
    """Shows that a task of this name is in progress, of `total` bytes; 0 where bytes are not counted."""

    def __call__(self, total: int, label: str, /) -> AbstractContextManager[Advance]: ...


class Tell(Protocol):
    """Reports to the person who waits.

    A call prints a line that everybody should see; a command that went well has at most four of them. `detail` is for all
    else that is worth printing (--verbose). `warn` is for what may be lost or wrong, and prints also with --quiet.
    """

    def __call__(self, text: str, /) -> None: ...

    def detail(self, text: str, /) -> None: ...

    def warn(self, text: str, /) -> None: ...

    def progress(self, total: int, label: str, /) -> AbstractContextManager[Advance]:
        """As `Progress`. For whatever may take longer than two seconds."""
        ...


class Silent:
    """A `Tell` that prints nothing: for the Python API. A subclass that collects lines gets those of every level."""

    def __call__(self, text: str, /) -> None:
        pass

    def detail(self, text: str, /) -> None:
        self(text)

    def warn(self, text: str, /) -> None:
        self(text)

    def progress(self, total: int, label: str, /) -> AbstractContextManager[Advance]:  # noqa: ARG002
        return nullcontext(_ignore)


class Details(Silent):
    """Reports to another `Tell`; what this one would show to everybody is a detail there."""

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


_: type[Tell] = Silent
