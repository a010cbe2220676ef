"""Whether a command finds its memory at the same addresses each time: a set of objects is ordered by where they lie."""

from __future__ import annotations

from repro_env.model.run import Launch
from repro_env.run import kernel

_ADDR_NO_RANDOMIZE = 0x0040000


def fix(launch: Launch, notes: list[str]) -> int | None:
    """Ask for it for programs that this thread starts, where the launch wants it. Returns what `kernel.personality` was.

    None where nothing was changed. A refusal is no failure but a note for the record: Docker's own seccomp rules refuse it.
    """
    if not launch.fixed_addresses:
        return None
    try:
        before = kernel.personality()
        kernel.personality(before | _ADDR_NO_RANDOMIZE)
    except OSError as error:
        notes.append(random(error.strerror or str(error)))
        return None
    return before


def random(why: str) -> str:
    """The note."""
    return f"addresses: random ({why})"
