"""Run ids: UUIDv7 (RFC 9562, section 5.7), which sort by time, and the short form that people type."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

SHORT = 8


def new() -> str:
    """Return a new id, of the current time."""
    return uuid7(time.time_ns() // 1_000_000, secrets.token_bytes(10))


def uuid7(milliseconds: int, random: bytes) -> str:
    """Return a UUIDv7 made of a Unix time in milliseconds and 10 random bytes."""
    value = (milliseconds & (1 << 48) - 1) << 80 | int.from_bytes(random[:10], "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0b11 << 62) | 0b10 << 62
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def short(run_id: str) -> str:
    """Return the last eight hex digits of an id, which are all random."""
    return run_id[-SHORT:]


def matching(word: str, items: Iterable[T], names: Callable[[T], tuple[str, ...]], *, least: int = 1) -> list[T]:
    """Return the items with the name `word`, or else those with a name that begins with it. `least`: characters that such a beginning has."""
    named = [(item, names(item)) for item in items] if word else []
    exact = [item for item, own in named if word in own]
    return exact or [item for item, own in named if len(word) >= least and any(name.startswith(word) for name in own)]
