"""Execute the command of a launch, and the errors for one that cannot be executed: the same in all runners."""

from __future__ import annotations

import errno
import os
import signal

from repro_env.sandbox import kernel
from repro_env.schema.environment import values_of
from repro_env.schema.errors import CommandMissingError, ReproEnvError, RunError
from repro_env.schema.run import Launch

Refused = tuple[str, list[tuple[str, int]]]
"""`cwd` or `argv`, and the existing files that could not be entered or executed, with errnos. `guest/init.py` reports the same."""
_ADDR_NO_RANDOMIZE = 0x0040000


def fix_addresses(launch: Launch, deviations: list[str]) -> int | None:
    """Switch off address randomization for programs that this thread starts, if the launch asks for it.

    The order of a set of objects depends on their addresses. Returns the previous personality, or None if nothing was changed.
    A refusal adds a note for the record.
    """
    if not launch.fixed_addresses:
        return None
    try:
        before = kernel.personality()
        kernel.personality(before | _ADDR_NO_RANDOMIZE)
    except OSError as error:
        deviations.append(f"addresses: random ({error.strerror or error})")
        return None
    return before


def enter_directory(launch: Launch) -> Refused | None:
    """Change to the working directory. Returns why this failed."""
    try:
        os.chdir(launch.cwd)
    except OSError as error:
        return "cwd", [(launch.cwd, error.errno or errno.EIO)]
    return None


def execute(launch: Launch) -> Refused:
    """Replace this process with the command. Returns only on failure."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and programs inherit ignored signals
        signal.signal(number, signal.SIG_DFL)
    name, env = launch.argv[0], values_of(launch.env)
    path = env.get("PATH", os.defpath)
    candidates = [name] if "/" in name else [f"{directory or '.'}/{name}" for directory in path.split(":")]
    refused: list[tuple[str, int]] = []
    for candidate in candidates:
        try:
            os.execve(candidate, list(launch.argv), env)  # noqa: S606  no shell is involved
        except OSError as error:  # noqa: PERF203
            if os.path.lexists(candidate):
                refused.append((candidate, error.errno or errno.EIO))
    return "argv", refused


def refusal(launch: Launch, what: str, refused: list[tuple[str, int]]) -> ReproEnvError:
    """The error for a command that could not be executed."""
    name = launch.argv[0]
    if not refused:
        path = values_of(launch.env).get("PATH", os.defpath)
        missing = "this file is not in the environment" if "/" in name else f"this command is not on the PATH of the run ({path})"
        hint = "capture it with `--with PROGRAM`, or install it in the environment and capture again"
        return CommandMissingError(missing, where=name, hint=hint)
    file, number = refused[0]
    if what == "cwd":
        return RunError(
            f"the working directory cannot be entered: {os.strerror(number)}",
            where=file,
            hint="start in the captured source directory or below it, or mount this directory",
        )
    if number in (errno.ENOENT, errno.ENOTDIR):
        return RunError(
            "the interpreter in the first line of this script is not in the environment",
            where=file,
            hint="capture it with `--with PROGRAM`, or name another interpreter in the first line",
        )
    return RunError(
        f"this file cannot be executed: {os.strerror(number)}",
        where=file,
        hint=f"make it executable (chmod +x), or name the program that runs it before {name}",
    )
