"""The entry point of the command line. It reports errors and returns exit codes."""

from __future__ import annotations

import os
import sys

from repro_env.schema.errors import ReproEnvError


def main() -> None:
    """Entry point of `repro-env`."""
    restart_in_utf8()
    fill_closed_streams()
    undo_locale_coercion()
    restrict_path()
    try:
        from repro_env.cli import app

        code = app.run(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except ReproEnvError as error:
        from repro_env.cli.ui import messages

        messages.error(error)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # The reader of stdout closed the pipe (`| head`), so nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except Exception as error:  # noqa: BLE001 - a bug; its report is redacted and escaped like all other text
        code = _report(error)
    raise SystemExit(code)


def _report(error: Exception) -> int:
    """Report an unexpected exception. Returns the exit code."""
    import traceback

    from repro_env.cli.ui import messages
    from repro_env.schema import redact
    from repro_env.schema.errors import DiskError

    if isinstance(error, OSError) and error.filename is not None:
        hint = "check that the path exists and that you can read and write it, or use another path"
        disk_error = DiskError(f"cannot be used: {error.strerror}", where=str(error.filename), hint=hint)
        messages.error(disk_error)
        return disk_error.exit_code
    messages.say.warn(redact.secretless("".join(traceback.format_exception(error)).rstrip()))
    messages.say.warn("repro-env: error: this is a bug in repro-env; please report it with the lines above")
    return 70


def restart_in_utf8() -> None:
    """Start again in UTF-8 mode if the locale uses a different character set (ISO-8859-1, or C with PYTHONUTF8=0).

    File names in images are always UTF-8. The captured Python keeps the locale of the user.
    """
    if sys.getfilesystemencoding() != "utf-8" and sys.executable:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606


def fill_closed_streams() -> None:
    """Open /dev/null for each closed standard stream (`>&-`). The next open file would get its number and be overwritten."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)


def undo_locale_coercion() -> None:
    """Remove the variable LC_CTYPE if this Python set it in the C locale (PEP 538).

    It would be captured as a variable of the user, and the image's Python would start in another mode (PEP 540).
    """
    if os.environ.get("LC_CTYPE", "") not in ("C.UTF-8", "C.utf8", "UTF-8"):
        return
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - pathlib is not needed for every command
            original = file.read()
    except OSError:
        return
    if not any(entry.startswith(b"LC_CTYPE=") for entry in original.split(b"\0")):
        del os.environ["LC_CTYPE"]


def restrict_path() -> None:
    """Remove relative directories from PATH. With `.` in it, a program `git` in a cloned repository would be run."""
    if "PATH" in os.environ:
        os.environ["PATH"] = ":".join(entry for entry in os.environ["PATH"].split(":") if entry.startswith("/"))


if __name__ == "__main__":
    main()
