"""What was found, one JSON object a line; each step is told before it is taken."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any


class Report:
    """A file that whoever started this process reads, also after a crash: each line is there once it is said."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def say(self, **facts: object) -> None:
        self.file.write(json.dumps(facts) + "\n")
        self.file.flush()

    def step(self, what: str, question: Callable[[], Any]) -> Any:
        """The answer, or None and a line that says why there is none."""
        self.say(doing=what)
        try:
            return question()
        except BaseException as error:
            self.say(unknown="%s: %s" % (what, reason(error)))
            return None

    def fact(self, name: str, question: Callable[[], Any]) -> None:
        found = self.step(name, question)
        if found is not None:
            self.say(**{name: found})

    def threads(self, library: str, path: str, question: Callable[[], Any]) -> None:
        found = self.step("threads of " + library, question)
        if isinstance(found, int):
            self.say(threads={"library": library, "path": path, "count": found})


def reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return "%s%s" % (type(error).__name__, ": " + text[:1000] if text else "")
