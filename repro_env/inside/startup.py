"""The start-up probe: says how an environment really starts.

Run as the user runs a script: `python startup.py REPORT DONT_WRITE`, no `-I`, no `-S`. `DONT_WRITE` is what
`sys.flags.dont_write_bytecode` is without us. What it finds goes to the file REPORT, one JSON object a line,
each written before the next step is tried, so that neither noise nor a crash can spoil it. What the start
itself printed is on stdout and stderr; what our imports print is dropped.
"""

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

AT_START = list(sys.path)
EXTENSIONS = ("ssl", "ctypes", "sqlite3", "lzma", "bz2", "readline", "curses", "zlib", "hashlib", "uuid", "decimal")
"""First of all, so that a crash further on costs least."""


def say(report: "IO[str]", **facts: object) -> None:
    report.write(json.dumps(facts) + "\n")
    report.flush()


def path_at_start() -> "list[str]":
    """`sys.path` without the entry that Python adds for the script."""
    entries = [str(entry) for entry in AT_START]
    here = os.path.dirname(os.path.abspath(__file__))
    if not getattr(sys.flags, "safe_path", False) and entries and os.path.abspath(entries[0]) == here:
        del entries[0]
    return entries


def user_base() -> str:
    """The user's own folder of packages, where Python looks into it."""
    import site

    return str(site.getuserbase()) if getattr(site, "ENABLE_USER_SITE", None) else ""


def flags(dont_write: str) -> str:
    ours = "dont_write_bytecode=%d" % sys.flags.dont_write_bytecode
    return repr(sys.flags).replace(ours, "dont_write_bytecode=%s" % dont_write)


def locale_in_force() -> str:
    import locale

    return "%s %s" % (locale.setlocale(locale.LC_CTYPE), locale.getpreferredencoding(False))


def extensions() -> "list[str]":
    """Every extension module of the standard library that is there, tests apart."""
    names = set()
    for entry in AT_START:
        if os.path.basename(str(entry)) == "lib-dynload" and os.path.isdir(entry):
            for name in os.listdir(entry):
                if name.endswith(".so"):
                    names.add(name.split(".")[0])
    return list(EXTENSIONS) + sorted(name for name in names if "test" not in name and not name.startswith("xx"))


def mapped() -> "list[str]":
    """Shared libraries that are mapped into this process."""
    paths = set()
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            path = line.rstrip(b"\n").split(None, 5)[5:]
            if path and path[0].startswith(b"/") and b".so" in os.path.basename(path[0]) and os.path.exists(path[0]):
                paths.add(os.fsdecode(path[0]))
    return sorted(paths)


def main() -> None:
    import importlib
    import warnings

    with open(sys.argv[1], "w") as report:
        say(report, sys_path=path_at_start(), flags=flags(sys.argv[2]), locale=locale_in_force(), user_base=user_base())
        sys.stdout.flush()
        sys.stderr.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        warnings.simplefilter("ignore")
        say(report, mapped=mapped())
        for name in extensions():
            say(report, importing=name)
            try:
                importlib.import_module(name)
            except BaseException:
                continue
        say(report, importing="", mapped=mapped())


main()
