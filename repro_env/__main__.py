"""The one error boundary: runs the command line, turns our errors into a sentence and an exit code."""

from __future__ import annotations

import os
import sys

from repro_env.model.errors import ReproEnvError


def main() -> None:
    """Entry point of `repro-env`."""
    in_utf8()
    occupied()
    uncoerced()
    restrict_path()
    try:
        if sys.argv[1:2] == ["exec"]:
            from repro_env.cli import exec as run  # needs no option parser, which takes longer to import than all the rest

            code = run.main(sys.argv[2:])
        else:
            code = _run(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except ReproEnvError as error:
        from repro_env.cli import say

        say.error(error)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # Whoever read our output went away (`| head`): nothing left to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except Exception as error:  # noqa: BLE001 - a bug: its report is redacted and escaped like any other text
        code = _failed(error)
    raise SystemExit(code)


def _run(words: list[str]) -> int:
    """Run any command but `exec`. Returns the exit code."""
    import contextlib

    from repro_env.cli import quick, say

    name = words[0] if words else ""
    # What the user's own command prints would mix with the line of a task.
    with contextlib.nullcontext() if name in ("ci", "sensitivity", "shell", "verify") else say.say.command(name):
        if quick.run(words):
            return 0
        from repro_env.cli import app

        return app.run(words)


def _failed(error: Exception) -> int:
    """Report an unexpected exception. Returns the exit code."""
    import traceback

    from repro_env.cli import say
    from repro_env.model import redact
    from repro_env.model.errors import DiskError

    if isinstance(error, OSError) and error.filename is not None:
        hint = "make it a file or directory that you can read and write, or name another path"
        failure = DiskError(f"cannot be used: {error.strerror}", where=str(error.filename), hint=hint)
        say.error(failure)
        return failure.exit_code
    say.say.warn(redact.secretless("".join(traceback.format_exception(error)).rstrip()))
    say.say.warn("repro-env: error: this is a bug in repro-env: please report it with the lines above")
    return 70


def in_utf8() -> None:
    """Start again in UTF-8 mode if the locale uses a different character set (ISO-8859-1, or C with PYTHONUTF8=0).

    File names are UTF-8 in every image, whatever the terminal uses; the captured Python keeps the user's locale.
    """
    if sys.getfilesystemencoding() != "utf-8" and sys.executable:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606


def occupied() -> None:
    """Put /dev/null where a standard stream is closed (`>&-`): else the next file that is opened is in its place, and is written to."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)


def uncoerced() -> None:
    """Take back what our own Python added to the environment: in the C locale it sets LC_CTYPE (PEP 538).

    It would be captured as the user's, and the image's Python would start in another mode than the user's does (PEP 540).
    """
    if os.environ.get("LC_CTYPE", "") not in ("C.UTF-8", "C.utf8", "UTF-8"):
        return
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - pathlib is not needed for every command
            started = file.read()
    except OSError:
        return
    if not any(one.startswith(b"LC_CTYPE=") for one in started.split(b"\0")):
        del os.environ["LC_CTYPE"]


def restrict_path() -> None:
    """Keep only absolute directories on PATH: with `.` on it, a `git` program in a cloned repository would be started."""
    if "PATH" in os.environ:
        os.environ["PATH"] = ":".join(entry for entry in os.environ["PATH"].split(":") if entry.startswith("/"))


if __name__ == "__main__":
    main()
