"""Print messages on stderr and results on stdout. Data is escaped, so that it cannot act as markup or terminal codes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TextIO

from repro_env.schema.errors import DiskError, ReproEnvError, UsageError
from repro_env.schema.patterns import lazy
from repro_env.schema.progress import Advance, Tell

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Level = Literal["quiet", "normal", "verbose"]
_UNSAFE = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff"
"""DEL and C1 control characters, characters that change the direction of text or begin a line, and surrogates."""
_CONTROL = lazy(rf"[\x00-\x08\x0b-\x1f{_UNSAFE}]")
_CONTROL_IN_JSON = lazy(rf"[{_UNSAFE}]")
"""JSON encoders escape all other control characters."""
_DELAY = 1.0
"""Seconds before a task is shown on a terminal."""


class Screen:
    """Prints the messages of a command (`schema.progress.Tell`). All screens have the same level."""

    level: ClassVar[Level] = "normal"
    json: ClassVar[bool] = False
    """Answer with one JSON object."""
    lock: ClassVar[threading.RLock] = threading.RLock()
    terminal: ClassVar[TextIO | None] = None
    """A duplicate of stderr, which remains the terminal when stderr is redirected (`runs.execution.streams`)."""
    drawn: ClassVar[Progress | None] = None
    """The tasks at the end of the terminal."""

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
        with self.lock, contextlib.suppress(OSError):  # the reader closed the pipe or the terminal; continue the work
            if self.drawn is not None:
                self.drawn.console.print(text, soft_wrap=True)
            elif sys.stderr is not None:
                print(text, file=sys.stderr, flush=True)  # noqa: T201

    @contextlib.contextmanager
    def progress(self, total: int, label: str, /) -> Iterator[Advance]:
        """Show a task below the messages while the block runs. Without a terminal, print it as a detail.

        It is not shown during its first second, with --quiet, or if CI is set. It is removed afterwards.
        """
        if self.terminal is None and not is_terminal(sys.stderr):
            self.detail(f"{label} ({size(total)})" if total else label)
        with self._shown(total, visible(self._prefix + label)) as advance:
            yield advance

    def command(self, name: str) -> AbstractContextManager[Advance]:
        """Show the command as a task while the block runs."""
        return self._shown(0, f"repro-env {name}")

    @classmethod
    def clear(cls) -> None:
        """Remove the tasks from the terminal before other output."""
        with cls.lock, contextlib.suppress(OSError):
            if cls.drawn is not None:
                cls.drawn.stop()
                cls.drawn = None

    @classmethod
    @contextlib.contextmanager
    def _shown(cls, total: int, label: str) -> Iterator[Advance]:
        if cls.terminal is None and is_terminal(sys.stderr) and not os.environ.get("CI"):
            cls.terminal = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
        task = _Task(total, label)
        if cls.terminal is not None:
            threading.Thread(target=task.show, args=[cls.terminal], daemon=True).start()
        try:
            yield task.advance
        finally:
            task.end()


class _Task:
    """A task that is in progress. Several threads may advance it."""

    def __init__(self, total: int, label: str) -> None:
        self._total = total
        self._label = label
        self._done = 0
        self._ended = threading.Event()
        self._row: tuple[Progress, TaskID] | None = None

    def show(self, terminal: TextIO) -> None:
        """Draw the task after a while. rich is imported only here, because most tasks end before."""
        if self._ended.wait(_DELAY):
            return
        with Screen.lock, contextlib.suppress(OSError):
            if Screen.level != "quiet" and not self._ended.is_set():
                drawn = Screen.drawn = Screen.drawn or _start_drawing(terminal)
                self._row = drawn, drawn.add_task(self._label, total=self._total or None, completed=self._done)
                drawn.tasks[-1].start_time = drawn.get_time() - _DELAY

    def advance(self, count: int, /) -> None:
        with Screen.lock:
            self._done += count
            if self._row is not None:
                drawn, task = self._row
                drawn.advance(task, count)

    def end(self) -> None:
        self._ended.set()
        with Screen.lock:
            if self._row is not None:
                drawn, task = self._row
                drawn.remove_task(task)
                if drawn is Screen.drawn and not drawn.tasks:
                    Screen.clear()


def _start_drawing(terminal: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    class Amount(ProgressColumn):
        def render(self, task: Task) -> Text:
            done = size(int(task.completed)) if task.total or task.completed else ""
            return Text(f"{done} of {size(int(task.total))}" if task.total else done)

    console = Console(file=terminal, markup=False, emoji=False, highlight=False)
    console.show_cursor = lambda show=True: show and False  # type: ignore[method-assign] # a killed process cannot show it again
    label = TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold"))
    columns = (label, BarColumn(20), Amount(), TimeElapsedColumn())
    drawn = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    drawn.start()
    return drawn


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
    """Like `result`, for lines that contain terminal codes of `page`. Other control characters must be escaped."""
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
    from repro_env.schema import codec

    text = codec.canonical({**facts(value), **facts(more)}).decode()
    result(_CONTROL_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def facts(value: Any) -> Any:
    """Return a result of `api` for JSON: structs with their fields and properties, paths and errors as text."""
    import msgspec

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


def visible(text: str) -> str:
    """The text with escaped control characters, except newline and tab. A file name must not move the cursor."""
    if text.isprintable():  # it has no control characters
        return text
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
