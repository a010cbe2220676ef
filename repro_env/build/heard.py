"""What an engine says while it builds, by either of its builders: lines of JSON, in which BuildKit wraps protobuf."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence

from repro_env.model.errors import BuildError, EngineError
from repro_env.model.talk import Tell

NAMED = 10
"""How many paths are named in an error."""
_TRACE = "moby.buildkit.trace"
_KEPT = re.compile(r" ---> ([0-9a-f]{12,64})")
_STEP = re.compile(r"Step |(?:\[\d+/\d+\] )?STEP ")
"""As Docker says it, and Podman."""
_QUIET = ("[internal]", "copy /context")
"""Steps that BuildKit adds."""
_OURS = "repro-env: "
"""What each line of `install.py` begins with."""


class Heard:
    """What an engine says while it builds, either builder's."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.made = ""
        """The image's ID, when it is done."""
        self._said: list[str] = []
        """What `install.py` said, as far as it is about a failure."""
        self._error = ""
        self._steps: set[str] = set()
        self.kept: list[str] = []
        """Images that the older builder made on the way, and has no name for."""

    def take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            event = json.loads(line)
        except ValueError:
            raise EngineError("says something that is no answer to a build", where="the engine", hint="update it") from None
        if not isinstance(event, dict):
            return
        for text in str(event.get("stream") or "").splitlines():
            self._classic(text)
        aux = event.get("aux")
        if event.get("id") == _TRACE and isinstance(aux, str):
            self._trace(base64.b64decode(aux))
        elif isinstance(aux, dict) and aux.get("ID"):
            self.made = str(aux["ID"])
        if event.get("error"):
            self._error = one_line(str(event["error"]))
            self.made = ""  # the older builder says it of each stage

    def _classic(self, text: str) -> None:
        if _STEP.match(text):
            self._step(text)
        elif match := _KEPT.fullmatch(text):
            self.kept.append(match[1])
        else:
            self._ours(text)

    def _trace(self, data: bytes) -> None:
        """BuildKit's `StatusResponse`: field 1 has steps (3: name, 5: started), 3 has what they print (4: bytes)."""
        for number, value in fields(data):
            if number == 1 and isinstance(value, bytes):
                step = dict(fields(value))
                if 5 in step:
                    self._step(_text(step.get(3)))
            elif number == 3 and isinstance(value, bytes):
                for text in _text(dict(fields(value)).get(4)).splitlines():
                    self._ours(text)

    def _step(self, text: str) -> None:
        text = one_line(text)
        if text and text not in self._steps and not text.startswith(_QUIET):
            self._steps.add(text)
            self._tell(text if len(text) <= 100 else text[:99] + "…")

    def _ours(self, text: str) -> None:
        if text.startswith(_OURS):
            said = one_line(text.removeprefix(_OURS))
            self._tell(f"  {said}")
            if said.startswith(("error: ", "missing: ", "differs: ", "not in the capture: ")):
                self._said.append(said)

    def image(self, where: str) -> str:
        """The image's ID. Raises `BuildError` for a build that failed."""
        if self._error or not self.made:
            why = [one.removeprefix("error: ") for one in self._said if one.startswith("error: ")]
            paths = [one for one in self._said if not one.startswith("error: ")]
            what = why[-1] if why else self._error or "it ends without an image"
            raise BuildError(
                f"the build fails: {what}{': ' if paths else ''}{some(paths)}",
                where=where,
                hint="rebuild without --builder, which needs no engine, to see whether it is the spec or the engine",
            )
        return self.made


def fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a protobuf message, without its schema (protobuf encoding). Ends quietly where it is damaged."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while at < len(data) and shift < 64:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
        elif kind == 2:
            size = varint()
            yield key >> 3, data[at : at + size]
            at += size
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            return


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def one_line(text: str) -> str:
    """A stranger's text for a message."""
    return "".join(one if one.isprintable() else " " for one in text).strip()[:2000]


def some(lines: Sequence[str]) -> str:
    more = f"; and {len(lines) - NAMED} more" if len(lines) > NAMED else ""
    return "; ".join(lines[:NAMED]) + more
