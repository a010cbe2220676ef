"""Switch off address randomization: the order of a set of objects depends on their addresses."""

from __future__ import annotations

from repro_env.sandbox import kernel
from repro_env.schema.run import Launch

_ADDR_NO_RANDOMIZE = 0x0040000


def fix(launch: Launch, notes: list[str]) -> int | None:
    """Fix the addresses of programs that this thread starts, if the launch asks for it. Returns the previous personality.

    Returns None if nothing was changed. A refusal adds a note for the record: Docker's default seccomp rules refuse the call.
    """
    if not launch.fixed_addresses:
        return None
    try:
        before = kernel.personality()
        kernel.personality(before | _ADDR_NO_RANDOMIZE)
    except OSError as error:
        notes.append(f"addresses: random ({error.strerror or error})")
        return None
    return before
