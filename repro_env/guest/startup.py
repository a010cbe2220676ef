"""The startup probe: report `sys.path` and libraries as they are when Python has started in an environment.

Run as the user runs a script: `python startup.py REPORT`, without `-I` and `-S`. The facts are written to the file REPORT, a
JSON object on each line. Each line is written before the next step (`doing`), so it is complete even after a crash.
"""

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

AT_START = list(sys.path)
EXTENSIONS = ("ssl", "ctypes", "sqlite3", "lzma", "bz2", "readline", "curses", "zlib", "hashlib", "uuid", "decimal")
"""Extension modules that are imported first, so that a crash in a later one loses little."""


def write(report: "IO[str]", **facts: object) -> None:
    report.write(json.dumps(facts) + "\n")
    report.flush()


def utf8(path: object) -> str:
    """A path as UTF-8, whatever the encoding of this Python's file names is."""
    return os.fsencode(str(path)).decode("utf-8", "surrogateescape")


def path_at_start() -> "list[str]":
    """`sys.path` without the entry that Python adds for the script."""
    entries = [utf8(entry) for entry in AT_START]
    directory = os.path.dirname(os.path.abspath(__file__))
    if not getattr(sys.flags, "safe_path", False) and entries and os.path.abspath(str(AT_START[0])) == directory:
        del entries[0]
    return entries


def user_base() -> str:
    """The base directory of the user's packages (PEP 370); empty if Python does not use it."""
    import site

    return utf8(site.getuserbase()) if getattr(site, "ENABLE_USER_SITE", None) else ""


def current_locale() -> str:
    import locale

    return "%s %s" % (locale.setlocale(locale.LC_CTYPE), locale.getpreferredencoding(False))


def extensions() -> "list[str]":
    """The names of the extension modules of the standard library, without those for tests."""
    names = set()
    for entry in AT_START:
        if os.path.basename(str(entry)) == "lib-dynload" and os.path.isdir(entry):
            for name in os.listdir(entry):
                if name.endswith(".so"):
                    names.add(name.split(".")[0])
    return list(EXTENSIONS) + sorted(name for name in names if "test" not in name and not name.startswith("xx"))


def mapped_libraries() -> "list[str]":
    """The sorted paths of the shared libraries that are mapped into this process."""
    paths = set()
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            path = line.rstrip(b"\n").split(None, 5)[5:]
            if path and path[0].startswith(b"/") and b".so" in os.path.basename(path[0]) and os.path.exists(path[0]):
                paths.add(path[0].decode("utf-8", "surrogateescape"))
    return sorted(paths)


def main() -> None:
    import importlib
    import warnings

    with open(sys.argv[1], "w") as report:
        write(report, doing="its start", sys_path=path_at_start(), locale=current_locale(), user_base=user_base())
        sys.stdout.flush()
        sys.stderr.flush()
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.dup2(devnull, 2)
        warnings.simplefilter("ignore")
        write(report, mapped=mapped_libraries())
        for name in extensions():
            write(report, doing="import of " + name)
            try:
                importlib.import_module(name)
            except BaseException:
                continue
        write(report, mapped=mapped_libraries())
        write(report, doing="")


main()
