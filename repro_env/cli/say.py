"""Words for people, on stderr; results for programs, on stdout. Data is never taken for markup or terminal codes."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from repro_env.model import codec
from repro_env.model.errors import DiskError, ReproEnvError, UsageError
from repro_env.model.talk import Advance, Tell

Level = Literal["quiet", "normal", "verbose"]
LEVELS: Mapping[str, Level] = {"-q": "quiet", "--quiet": "quiet", "-v": "verbose", "--verbose": "verbose"}
"""Options of every command -> how much it prints."""

_OBEYED = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff"
"""DEL and C1 control characters, those that turn the direction of text around or begin a line, and halves of characters."""
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f{_OBEYED}]")
_CONTROL_IN_JSON = re.compile(rf"[{_OBEYED}]")
"""Others are escaped in JSON anyway."""
_PATIENCE = 1.0
"""Seconds until a task shows on a terminal."""
_PERIOD = 0.2
"""Seconds between two drawings of it."""


class Screen:
    """What a command reports while it works (`model.talk.Tell`). There is one screen, and one level for the whole command."""

    level: ClassVar[Level] = "normal"
    _status: ClassVar[_Status | None] = None
    """The line at the bottom of the terminal that shows the tasks in progress."""

    def __call__(self, text: str, /) -> None:
        """A line, or several, on stderr; not with --quiet."""
        if self.level != "quiet":
            self.warn(text)

    def detail(self, text: str, /) -> None:
        """As a call, with --verbose only."""
        if self.level == "verbose":
            self.warn(text)

    def warn(self, text: str, /) -> None:
        """As a call, also with --quiet."""
        text = visible(text)
        if self._status is not None:
            self._status.print(f"{text}\n")
        elif sys.stderr is not None:
            with contextlib.suppress(BrokenPipeError):  # nobody listens; the work goes on
                print(text, file=sys.stderr, flush=True)  # noqa: T201

    @contextlib.contextmanager
    def progress(self, total: int, label: str, /) -> Iterator[Advance]:
        """Show a task on a terminal while the block runs; elsewhere it is a line of --verbose.

        Nothing is shown of a task that takes less than a second, with --quiet, and under CI; nothing stays on the screen.
        """
        task = _Task(total, visible(label))
        if self._status is None and not _is_terminal():
            self.detail(f"{label} ({size(total)})" if total else label)
        with self._shown(task):
            yield task.advance

    @contextlib.contextmanager
    def command(self, name: str) -> Iterator[None]:
        """A whole command as a task, for what it does between tasks that have a name."""
        with self._shown(_Task(0, f"repro-env {name}")):
            yield

    @classmethod
    def clear(cls) -> None:
        """Remove the line of the tasks until it is drawn again: something else is printed."""
        if cls._status is not None:
            cls._status.print("")

    @classmethod
    @contextlib.contextmanager
    def _shown(cls, task: _Task) -> Iterator[None]:
        status = cls._status
        if status is not None:
            status.tasks.append(task)
        elif not _is_terminal() or os.environ.get("CI"):
            yield
            return
        else:
            status = cls._status = _Status(task)
        try:
            yield
        finally:
            status.tasks.remove(task)
            if not status.tasks:
                status.stop()
                cls._status = None


class _Task:
    """A task with a name. Several threads may advance it."""

    def __init__(self, total: int, label: str) -> None:
        self._total = total
        self._label = label
        self._began = time.monotonic()
        self._done = 0
        self._lock = threading.Lock()

    def advance(self, count: int, /) -> None:
        with self._lock:
            self._done += count

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def text(self) -> str:
        """`rebuilding: 12.0 MB of 1.4 GB, 1m 20s`."""
        done = f"{size(self._done)} of {size(self._total)}, " if self._total else f"{size(self._done)}, " if self._done else ""
        return f"{self._label}: {done}{duration(self.seconds)}"


class _Status:
    """The last line of the terminal: the newest task that has taken a while. A thread draws it.

    It writes to a copy of stderr, which stays the terminal when stderr itself is redirected (`flows.streams`).
    """

    def __init__(self, task: _Task) -> None:
        self.tasks = [task]
        self._terminal = os.dup(2)
        self._shown = False
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True)
        self._thread.start()

    def print(self, text: str) -> None:
        """Print lines above."""
        with self._lock:
            self._write(f"{self._clear()}{text}")

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        with self._lock:
            self._write(self._clear())
            os.close(self._terminal)

    def _draw(self) -> None:
        for mark in itertools.cycle("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"):
            if self._stopped.wait(_PERIOD):
                return
            tasks = () if Screen.level == "quiet" else reversed(self.tasks)
            task = next((task for task in tasks if task.seconds >= _PATIENCE), None)
            with self._lock:
                if task is not None:
                    text = f"{mark} {task.text()}"[: max(_columns(self._terminal) - 1, 1)]
                    self._write(f"{self._clear()}{text}")
                    self._shown = True
                elif self._shown:
                    self._write(self._clear())

    def _clear(self) -> str:
        shown, self._shown = self._shown, False
        return "\r\x1b[K" if shown else ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone; the work goes on
            data = text.encode("utf-8", "replace")
            while data:
                data = data[os.write(self._terminal, data) :]


say = tell = Screen()
_: Tell = tell


def set_level(level: Level) -> None:
    """Apply --quiet or --verbose. Raises `UsageError` where both are given."""
    if Screen.level not in ("normal", level):
        raise UsageError("--quiet and --verbose are mutually exclusive", hint="give one of them")
    Screen.level = level


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
    Screen.clear()
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

    say.warn(redact.secretless(f"repro-env: error: {failure}"))
    if failure.hint:
        say.warn(redact.secretless(f"  -> {failure.hint}"))


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


def duration(seconds: float) -> str:
    """Seconds for people: `0s`, `59s`, `1m 20s`, `2h 05m`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m {whole % 60:02}s" if whole < 3600 else f"{whole // 3600}h {whole // 60 % 60:02}m"


def visible(text: str) -> str:
    """The text with control characters spelled out (a file's name must not move the cursor); newline and tab stay."""
    if text.isprintable():  # none of them is
        return text
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _columns(terminal: int) -> int:
    try:
        return os.get_terminal_size(terminal).columns or 80
    except OSError:
        return 80
