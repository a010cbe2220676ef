"""Words for people, on stderr; results for programs, on stdout. Data is never taken for markup or terminal codes."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from repro_env.model import codec
from repro_env.model.errors import DiskError, ReproEnvError
from repro_env.model.talk import Advance, Tell

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_OBEYED = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff"
"""DEL and C1 control characters, those that turn the direction of text around or begin a line, and halves of characters."""
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f{_OBEYED}]")
_CONTROL_IN_JSON = re.compile(rf"[{_OBEYED}]")
"""Others are escaped in JSON anyway."""
_PATIENCE = 0.4
"""Seconds until a progress bar shows: what is over sooner needs none, and drawing it costs time to import."""


class Screen:
    """What a command says while it works (`model.talk.Tell`). All of them share the one screen."""

    _bar: ClassVar[Progress | None] = None
    """The bar that is shown now: lines go above it."""

    def __call__(self, text: str, /) -> None:
        """A line, or a few, on stderr."""
        text = visible(text)
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)
            return
        if sys.stderr is not None:
            with contextlib.suppress(BrokenPipeError):  # nobody listens; the work goes on
                print(text, file=sys.stderr, flush=True)  # noqa: T201

    @contextlib.contextmanager
    def progress(self, total: int, label: str, /) -> Iterator[Advance]:
        """A bar of bytes while the block runs; one line when stderr is no terminal, or shows another bar already."""
        if not _is_terminal() or self._bar is not None:
            self(f"{label} ({size(total)})" if total else label)
            yield lambda count: None  # noqa: ARG005
            return
        bar = _Bar(total, label)
        try:
            yield bar.advance
        finally:
            bar.stop()

    @classmethod
    def show(cls, bar: Progress | None) -> None:
        """Take note of the bar that is shown now."""
        cls._bar = bar


class _Bar:
    """A progress bar that appears once it is worth it. Several threads may advance it."""

    def __init__(self, total: int, label: str) -> None:
        self._total = total
        self._label = visible(label)
        self._due = time.monotonic() + _PATIENCE
        self._done = 0
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def advance(self, count: int, /) -> None:
        with self._lock:
            self._done += count
            if self._progress is None and time.monotonic() >= self._due:
                self._progress = self._start()
            if self._progress is not None and self._task is not None:
                self._progress.update(self._task, completed=self._done)

    def stop(self) -> None:
        with self._lock:
            self._due = float("inf")
            if self._progress is not None:
                self._progress.stop()
                Screen.show(None)

    def _start(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = progress.add_task(self._label, total=self._total or None, completed=self._done)
        progress.start()
        Screen.show(progress)
        return progress


say = tell = Screen()
_: Tell = tell


def result(text: str) -> None:
    """The answer of a command, on stdout: this text, its control characters spelled out, and a newline, whatever the locale.

    Raises `DiskError` where stdout is closed, or a file that cannot take it.
    """
    styled(visible(text))


def styled(text: str) -> None:
    """As `result`, of a line whose control characters are our own: `page` has spelled out all others."""
    if sys.stdout is None:
        raise DiskError(
            "is closed: the answer has nowhere to go", where="standard output", hint="send it to /dev/null if need be"
        )
    try:
        try:
            print(text, flush=True)  # noqa: T201
        except UnicodeEncodeError:
            sys.stdout.buffer.write(text.encode() + b"\n")
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is left in the buffer has nowhere to go, and Python would try once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        hint = "make room there, or send it elsewhere"
        raise DiskError(f"cannot be written: {error.strerror}", where="standard output", hint=hint) from None


def json_result(value: object) -> None:
    """One JSON object on one line of stdout: for programs. What a terminal would obey is escaped, as JSON has it."""
    result(_CONTROL_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", codec.canonical(value).decode()))


def error(failure: ReproEnvError) -> None:
    """A failure of ours: what happened where, and what to do next. Secrets are taken out where it was made, and again here."""
    from repro_env.model import redact

    say(redact.secretless(f"repro-env: error: {failure}"))
    if failure.hint:
        say(redact.secretless(f"  -> {failure.hint}"))


def table(rows: Iterable[Sequence[str]], *, header: Sequence[str] = ()) -> str:
    """Columns of plain text, two spaces apart; no trailing white space."""
    lines = [[visible(cell).replace("\n", " ") for cell in row] for row in ([header] if header else []) + list(rows)]
    columns = range(max(map(len, lines), default=0))
    widths = [max(len(line[column]) for line in lines if column < len(line)) for column in columns]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in lines)


def size(count: int) -> str:
    """Bytes for people: `999 B`, `1.4 GB` (decimal units)."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def visible(text: str) -> str:
    """The text with control characters spelled out (a file's name must not move the cursor); newline and tab stay."""
    if text.isprintable():  # none of them is
        return text
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
