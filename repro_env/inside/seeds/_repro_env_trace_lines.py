"""One step, as a line of a trace. Read with torch; standard library only, Python 3.8 and newer."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
tensors: Any = seeds.part("trace_tensors")


class Line:
    """A step, some of it perhaps still on a device."""

    __slots__ = ("away", "crc", "head", "losses", "tail")

    def __init__(self, head: str, losses: list[Any] | None, tail: str) -> None:
        self.head = head
        self.losses = losses
        self.crc: int | None = None
        """Of what was in memory."""
        self.away: list[Any] = []
        """Bytes of a screen that are still on a device."""
        self.tail = tail

    @property
    def waits(self) -> bool:
        return bool(self.away) or any(map(tensors.is_away, self.losses or ()))

    def text(self) -> str:
        line = self.head
        if self.losses is not None:
            line += ', "loss": [%s]' % ", ".join(map(_value, self.losses))
        for screen in self.away:
            self.crc = tensors.crc(screen.cpu(), self.crc or 0)
        if self.crc is not None:
            line += ', "screen": "%08x"' % self.crc
        return line + self.tail + "}\n"


def loss(tensor: Any) -> Any:
    """The tensor, where it is one number: what is large must not live longer for being looked at."""
    if not hasattr(tensor, "detach"):
        return None  # an edge of the graph
    local = tensors.local(tensor)
    return local if local.numel() == 1 and local.dtype.is_floating_point else None


def _value(told: Any) -> str:
    try:
        return "null" if told is None else number(told.item())
    except (RuntimeError, TypeError, ValueError):  # it has no value: on `meta`, one of a class that stands for others
        return "null"


def rate(value: Any) -> float | None:
    """None for one that is not to be had without waiting for a device."""
    if hasattr(value, "numel") and value.numel() == 1 and not tensors.is_away(value):
        value = value.item()
    return float(value) if isinstance(value, (int, float)) else None


def number(value: float | None) -> str:
    """As JSON, which has no name for what is no number."""
    text = "null" if value is None else repr(float(value))
    return f'"{text}"' if text in ("nan", "inf", "-inf") else text
