"""The static probe: describe an interpreter without importing anything from its environment.

Run as `python -I -S -B -X utf8 probe.py`; prints a JSON object. With `-S`, Python does not import `site`, so it executes no `.pth`
file. In a venv, `sys.prefix` is then that of the base interpreter (before CPython 3.14), so this module finds the venv by its
`pyvenv.cfg`, as `site.venv` does. The syntax is old on purpose: a Python that is too old to be captured must still report its
version.
"""

import json
import os
import sys

SHARED = ("/", "/usr", "/usr/local")
"""Prefixes that an interpreter shares with other programs."""


def find_venv(executable: str) -> "tuple[str | None, dict[str, str]]":
    """(prefix, keys of pyvenv.cfg) of the venv of this executable, or (None, {})."""
    directory = os.path.dirname(os.path.abspath(executable))
    for candidate in (directory, os.path.dirname(directory)):
        config = os.path.join(candidate, "pyvenv.cfg")
        if os.path.isfile(config):
            keys = {}
            with open(config, "rb") as file:
                for line in file.read(1 << 20).decode("utf-8", "replace").splitlines():
                    key, equals, value = line.partition("=")
                    if equals:
                        keys[key.strip().lower()] = value.strip()
            return os.path.dirname(directory), keys
    return None, {}


def venv_layout(prefix: str) -> "dict[str, object]":
    """The install scheme of a venv, relative to its prefix."""
    import sysconfig

    # Debian changes the default schemes of its Python (`local/`, `dist-packages`), but not those of a venv.
    names = sysconfig.get_scheme_names()
    scheme = next(name for name in ("venv", "posix_venv", "posix_prefix") if name in names)
    paths = sysconfig.get_paths(scheme, {"base": "/", "platbase": "/", "installed_base": "/", "installed_platbase": "/"})
    return {
        "prefix": prefix,
        "purelib": paths["purelib"].strip("/"),
        "platlib": paths["platlib"].strip("/"),
        "scripts": paths["scripts"].strip("/"),
        # pip installs headers here in a venv. sysconfig returns the directory of the base interpreter.
        "headers": "include/site/python%d.%d" % sys.version_info[:2],
    }


def interpreter_layout() -> "dict[str, object]":
    """The install scheme of this interpreter. Debian's Python installs into `/usr/local`, although its prefix is `/usr`."""
    import sysconfig

    paths = sysconfig.get_paths()
    prefix = os.path.normpath(paths["data"])
    if not all(paths[key].startswith(prefix + "/") for key in ("purelib", "platlib", "scripts")):
        prefix = os.path.normpath(sys.prefix)
        paths = sysconfig.get_paths("posix_prefix", {"base": prefix, "platbase": prefix, "installed_base": prefix})
    relative = {key: os.path.relpath(paths[key], prefix) for key in ("purelib", "platlib", "scripts", "include")}
    return {
        "prefix": prefix,
        "in_place": True,
        "purelib": relative["purelib"],
        "platlib": relative["platlib"],
        "scripts": relative["scripts"],
        # The headers of Debian's Python are below another prefix.
        "headers": relative["include"]
        if not relative["include"].startswith("..")
        else "include/python%d.%d" % sys.version_info[:2],
    }


def base_executable(prefix: str, keys: "dict[str, str]") -> str:
    """The real path of the base interpreter; for a venv created with `--copies`, the interpreter that was copied."""
    running = os.path.realpath("/proc/self/exe")
    venv = os.path.realpath(prefix) + os.sep
    if "home" not in keys or not running.startswith(venv):
        return running
    names = (os.path.basename(running), "python%d.%d" % sys.version_info[:2], "python3", "python")
    for candidate in [getattr(sys, "_base_executable", "")] + [os.path.join(keys["home"], name) for name in names]:
        candidate = os.path.realpath(candidate)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate) and not candidate.startswith(venv):
            return candidate
    return running


def find_libpython() -> "str | None":
    """The shared libpython that is mapped into this process, or None."""
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            path = line.decode("utf-8", "surrogateescape").rstrip("\n").split(None, 5)[5:]
            if path and os.path.basename(path[0]).startswith("libpython") and ".so" in path[0]:
                return os.path.realpath(path[0])
    return None


def find_platstdlib(stdlib: str) -> str:
    for entry in sys.path:
        if os.path.basename(entry) == "lib-dynload" and os.path.isdir(entry):
            return os.path.dirname(entry)
    return stdlib


def is_conda(prefix: str) -> bool:
    return os.path.isdir(os.path.join(prefix, "conda-meta"))


def describe() -> "dict[str, object]":
    """The facts about this interpreter and its environment (`Interpretation` in `schema/environment.py`)."""
    import platform

    prefix, keys = find_venv(sys.executable)
    if prefix is None:
        prefix = sys.prefix
    stdlib = os.path.dirname(os.path.abspath(os.__file__))
    interpreter = {
        "version": platform.python_version(),
        "executable": base_executable(prefix, keys),
        "prefix": os.path.abspath(sys.base_prefix),
        "stdlib": stdlib,
        "platstdlib": find_platstdlib(stdlib),
        "libpython": find_libpython(),
        "cache_tag": sys.implementation.cache_tag or "",
    }
    kind = "venv" if keys else "conda" if is_conda(prefix) else "interpreter"
    if kind == "interpreter" and os.path.realpath(sys.base_prefix) in SHARED:
        kind = "system"
    return {
        "interpreter": interpreter,
        "kind": kind,
        "layout": venv_layout(prefix) if kind == "venv" else interpreter_layout(),
        "command": os.path.abspath(sys.executable),
    }


def main() -> None:
    prefix = find_venv(sys.executable)[0] or sys.prefix
    implementation = getattr(getattr(sys, "implementation", None), "name", "cpython")
    answer = {
        "implementation": implementation,
        "version": list(sys.version_info[:3]),
        "prefix": prefix,
    }
    if implementation == "cpython" and sys.version_info >= (3, 8) and sys.platform == "linux":
        answer["facts"] = describe()
    sys.stdout.write(json.dumps(answer))


main()
