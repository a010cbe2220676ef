"""The lines that a function tells its caller."""

from __future__ import annotations

from repro_env.schema.progress import Silent


class Messages(Silent):
    """A `Tell` that collects the lines of all levels."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str, /) -> None:
        self.lines.append(text)
