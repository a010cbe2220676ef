"""Print messages on stderr and results on stdout. Data is escaped, so that it cannot act as markup or terminal codes."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from repro_env.schema import codec
from repro_env.schema.errors import DiskError, ReproEnvError, UsageError
from repro_env.schema.progress import Advance, Tell

Level = Literal["quiet", "normal", "verbose"]
_UNSAFE = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff"
"""DEL and C1 control characters, characters that change the direction of text or begin a line, and surrogates."""
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f{_UNSAFE}]")
_CONTROL_IN_JSON = re.compile(rf"[{_UNSAFE}]")
"""JSON encoders escape all other control characters."""
_DELAY = 1.0
"""Seconds before a task is shown on a terminal."""
_PERIOD = 0.2
"""Seconds between two updates of the status line."""


class Screen:
    """Prints the messages of a command (`schema.progress.Tell`). All screens have the same level."""

    level: ClassVar[Level] = "normal"
    json: ClassVar[bool] = False
    """Answer with one JSON object."""
    _status: ClassVar[_Status | None] = None
    """The last line of the terminal, which shows the current task."""

    def __init__(self, prefix: str = "") -> None:
        """`prefix`: the beginning of each message."""
        self._prefix = prefix

    def __call__(self, text: str, /) -> None:
        """Print one or more lines on stderr, but not with --quiet."""
        if self.level != "quiet":
            self.warn(text)

    def detail(self, text: str, /) -> None:
        """Print lines on stderr, but only with --verbose."""
        if self.level == "verbose":
            self.warn(text)

    def warn(self, text: str, /) -> None:
        """Print lines on stderr, also with --quiet."""
        text = visible(self._prefix + text)
        if self._status is not None:
            self._status.print(f"{text}\n")
        elif sys.stderr is not None:
            with contextlib.suppress(BrokenPipeError):  # the reader closed the pipe; continue the work
                print(text, file=sys.stderr, flush=True)  # noqa: T201

    @contextlib.contextmanager
    def progress(self, total: int, label: str, /) -> Iterator[Advance]:
        """Show a task on the status line while the block runs. Without a terminal, print it as a detail.

        The status line is not shown for tasks of less than a second, with --quiet, or if CI is set. It is removed afterwards.
        """
        task = _Task(total, visible(self._prefix + label))
        if self._status is None and not _is_terminal():
            self.detail(f"{label} ({size(total)})" if total else label)
        with self._shown(task):
            yield task.advance

    @contextlib.contextmanager
    def command(self, name: str) -> Iterator[None]:
        """Show the command as a task while no other task is in progress."""
        with self._shown(_Task(0, f"repro-env {name}")):
            yield

    @classmethod
    def clear(cls) -> None:
        """Clear the status line before other output. It is drawn again later."""
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
    """A task that is in progress. Several threads may advance it."""

    def __init__(self, total: int, label: str) -> None:
        self._total = total
        self._label = label
        self._started = time.monotonic()
        self._done = 0
        self._lock = threading.Lock()

    def advance(self, count: int, /) -> None:
        with self._lock:
            self._done += count

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def text(self) -> str:
        """`rebuilding: 12.0 MB of 1.4 GB, 1m 20s`."""
        done = f"{size(self._done)} of {size(self._total)}, " if self._total else f"{size(self._done)}, " if self._done else ""
        return f"{self._label}: {done}{duration(self.seconds)}"


class _Status:
    """The status line: the last line of the terminal shows the newest task that takes long. A thread draws it.

    It is written to a duplicate of stderr, which remains the terminal when stderr is redirected (`runs.execution.streams`).
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
        """Print lines above the status line."""
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
            task = next((task for task in tasks if task.seconds >= _DELAY), None)
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
        with contextlib.suppress(OSError):  # the terminal was closed; continue the work
            data = text.encode("utf-8", "replace")
            while data:
                data = data[os.write(self._terminal, data) :]


say = Screen()
prefixed = Screen("repro-env: ")
"""For commands that run a command of the user, which prints to stderr too."""
_: Tell = say


def set_level(level: Level) -> None:
    """Apply --quiet or --verbose. Raises `UsageError` if both are given."""
    if Screen.level not in ("normal", level):
        raise UsageError("--quiet and --verbose are mutually exclusive", hint="give one of them")
    Screen.level = level


def result(text: str) -> None:
    """Print the answer of a command on stdout, with escaped control characters, in UTF-8 if the locale cannot encode it.

    Raises `DiskError` if stdout is closed or cannot be written.
    """
    styled(visible(text))


def styled(text: str) -> None:
    """Like `result`, for a line that contains terminal codes of `page`. Other control characters must be escaped."""
    if sys.stdout is None:
        hint = "to discard the answer, redirect standard output to /dev/null"
        raise DiskError("standard output is closed, so the answer cannot be printed", hint=hint)
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
        # Python would try to write the remaining buffer again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        hint = "free some space, or redirect the output to another file"
        raise DiskError(f"standard output cannot be written: {error.strerror}", hint=hint) from None


def answer_in_json(value: object, **more: object) -> bool:
    """Print the answer as `json_result` does, but only with --json. Returns whether it was printed."""
    if Screen.json:
        json_result(value, **more)
    return Screen.json


def json_result(value: object, **more: object) -> None:
    """Print one JSON object on one line of stdout, with the keys `more` too. Control characters are escaped as in JSON."""
    text = codec.canonical({**facts(value), **facts(more)}).decode()
    result(_CONTROL_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def facts(value: Any) -> Any:
    """Return a result of `api` for JSON: structs with their fields and properties, paths and errors as text."""
    if isinstance(value, msgspec.Struct):
        properties = [name for name, member in vars(type(value)).items() if isinstance(member, property)]
        return {name: facts(getattr(value, name)) for name in (*value.__struct_fields__, *properties)}
    if isinstance(value, Mapping):
        return {name: facts(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [facts(item) for item in value]
    return str(value) if isinstance(value, Path | Exception) else value


def error(failure: ReproEnvError) -> None:
    """Print an error and its hint on stderr. Secrets are removed, even if they were removed before."""
    from repro_env.schema import redact

    say.warn(redact.secretless(f"repro-env: error: {failure}"))
    if failure.hint:
        say.warn(redact.secretless(f"  -> {failure.hint}"))


def table(rows: Iterable[Sequence[str]], *, header: Sequence[str] = ()) -> str:
    """Columns of plain text, two spaces apart, without trailing white space."""
    lines = [[visible(cell).replace("\n", " ") for cell in row] for row in ([header] if header else []) + list(rows)]
    columns = range(max(map(len, lines), default=0))
    widths = [max(len(line[column]) for line in lines if column < len(line)) for column in columns]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in lines)


def size(count: int) -> str:
    """A number of bytes with a decimal unit: `999 B`, `1.4 GB`."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def duration(seconds: float) -> str:
    """A number of seconds with units: `0s`, `59s`, `1m 20s`, `2h 05m`."""
    total = int(seconds)
    if total < 60:
        return f"{total}s"
    return f"{total // 60}m {total % 60:02}s" if total < 3600 else f"{total // 3600}h {total // 60 % 60:02}m"


def visible(text: str) -> str:
    """The text with escaped control characters, except newline and tab. A file name must not move the cursor."""
    if text.isprintable():  # it has no control characters
        return text
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _columns(terminal: int) -> int:
    try:
        return os.get_terminal_size(terminal).columns or 80
    except OSError:
        return 80
