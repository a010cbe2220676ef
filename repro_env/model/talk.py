"""How long work tells what it does, without knowing who listens. Types only; `cli.say` is the one that prints."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Advance(Protocol):
    """Says that `count` more bytes are done."""

    def __call__(self, count: int, /) -> None: ...


class Progress(Protocol):
    """Opens a progress bar of `total` bytes, 0 when the total is not known."""

    def __call__(self, total: int, label: str, /) -> AbstractContextManager[Advance]: ...


class Tell(Protocol):
    """Says one line to the person who waits."""

    def __call__(self, text: str, /) -> None: ...

    def progress(self, total: int, label: str, /) -> AbstractContextManager[Advance]:
        """As `Progress`."""
        ...


class Silent:
    """A `Tell` that says nothing: for the Python API and for tests."""

    def __call__(self, text: str, /) -> None:
        pass

    def progress(self, total: int, label: str, /) -> AbstractContextManager[Advance]:  # noqa: ARG002
        return nullcontext(_ignore)


def _ignore(count: int, /) -> None:
    pass


_: type[Tell] = Silent
