"""The static probe: says what an interpreter is, and imports nothing of its environment.

Run as `python -I -S -B probe.py`; prints one JSON object. With `-S`, `site` has not run: no `.pth` file is
executed, and in a venv `sys.prefix` is the base's (before CPython 3.14), so the venv is worked out here from
`pyvenv.cfg` as `site.venv` does. Old syntax on purpose: a Python too old to be captured must be able to say so.
"""

import json
import os
import sys

SHARED = ("/", "/usr", "/usr/local")
"""Prefixes that a Python shares with other programs."""


def venv_of(executable: str) -> "tuple[str | None, dict[str, str]]":
    """(prefix, keys of pyvenv.cfg) of the venv that this executable belongs to, or (None, {})."""
    folder = os.path.dirname(os.path.abspath(executable))
    for candidate in (folder, os.path.dirname(folder)):
        config = os.path.join(candidate, "pyvenv.cfg")
        if os.path.isfile(config):
            keys = {}
            with open(config, "rb") as file:
                for line in file.read(1 << 20).decode("utf-8", "replace").splitlines():
                    key, equals, value = line.partition("=")
                    if equals:
                        keys[key.strip().lower()] = value.strip()
            return os.path.dirname(folder), keys
    return None, {}


def layout_of(prefix: str) -> "dict[str, object]":
    """The install scheme of a venv, relative to its prefix."""
    import sysconfig

    # Debian changes the default schemes of its Python (`local/`, `dist-packages`), but not the venv's.
    names = sysconfig.get_scheme_names()
    scheme = next(name for name in ("venv", "posix_venv", "posix_prefix") if name in names)
    paths = sysconfig.get_paths(scheme, {"base": "/", "platbase": "/", "installed_base": "/", "installed_platbase": "/"})
    return {
        "prefix": prefix,
        "purelib": paths["purelib"].strip("/"),
        "platlib": paths["platlib"].strip("/"),
        "scripts": paths["scripts"].strip("/"),
        # Where pip puts headers in a venv; sysconfig's own answer is the base's folder.
        "headers": "include/site/python%d.%d" % sys.version_info[:2],
    }


def own_layout() -> "dict[str, object]":
    """Where this Python itself installs to; Debian's into `/usr/local`, though its prefix is `/usr`."""
    import sysconfig

    paths = sysconfig.get_paths()
    prefix = os.path.normpath(paths["data"])
    if not all(paths[key].startswith(prefix + "/") for key in ("purelib", "platlib", "scripts")):
        prefix = os.path.normpath(sys.prefix)
        paths = sysconfig.get_paths("posix_prefix", {"base": prefix, "platbase": prefix, "installed_base": prefix})
    inner = {key: os.path.relpath(paths[key], prefix) for key in ("purelib", "platlib", "scripts", "include")}
    return {
        "prefix": prefix,
        "in_place": True,
        "purelib": inner["purelib"],
        "platlib": inner["platlib"],
        "scripts": inner["scripts"],
        # Debian's lie below another prefix.
        "headers": inner["include"] if not inner["include"].startswith("..") else "include/python%d.%d" % sys.version_info[:2],
    }


def base_executable(prefix: str, keys: "dict[str, str]") -> str:
    """The base interpreter's binary, symlinks resolved; for a venv made with `--copies` the one it was copied from."""
    running = os.path.realpath("/proc/self/exe")
    inside = os.path.realpath(prefix) + os.sep
    if "home" not in keys or not running.startswith(inside):
        return running
    names = (os.path.basename(running), "python%d.%d" % sys.version_info[:2], "python3", "python")
    for candidate in [getattr(sys, "_base_executable", "")] + [os.path.join(keys["home"], name) for name in names]:
        candidate = os.path.realpath(candidate)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate) and not candidate.startswith(inside):
            return candidate
    return running


def libpython() -> "str | None":
    """The shared libpython that is mapped into this process, or None."""
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            path = line.decode("utf-8", "surrogateescape").rstrip("\n").split(None, 5)[5:]
            if path and os.path.basename(path[0]).startswith("libpython") and ".so" in path[0]:
                return os.path.realpath(path[0])
    return None


def openssl() -> str:
    try:
        import ssl
    except Exception as error:
        return "none: %s" % error
    return ssl.OPENSSL_VERSION


def platstdlib_of(stdlib: str) -> str:
    for entry in sys.path:
        if os.path.basename(entry) == "lib-dynload" and os.path.isdir(entry):
            return os.path.dirname(entry)
    return stdlib


def is_conda(prefix: str) -> bool:
    return os.path.isdir(os.path.join(prefix, "conda-meta"))


def report() -> "dict[str, object]":
    import platform
    import sysconfig

    prefix, keys = venv_of(sys.executable)
    if prefix is None:
        prefix = sys.prefix
    stdlib = os.path.dirname(os.path.abspath(os.__file__))
    interpreter = {
        "implementation": sys.implementation.name,
        "version": platform.python_version(),
        "banner": sys.version,
        "executable": base_executable(prefix, keys),
        "prefix": os.path.abspath(sys.base_prefix),
        "stdlib": stdlib,
        "platstdlib": platstdlib_of(stdlib),
        "libpython": libpython(),
        "cache_tag": sys.implementation.cache_tag or "",
        "soabi": sysconfig.get_config_var("SOABI") or "",
        "libc": " ".join(platform.libc_ver()).strip() or "unknown",
        "openssl": openssl(),
        "platform": sysconfig.get_platform(),
    }
    kind = "venv" if keys else "conda" if is_conda(prefix) else "interpreter"
    if kind == "interpreter" and os.path.realpath(sys.base_prefix) in SHARED:
        kind = "system"
    return {
        "interpreter": interpreter,
        "kind": kind,
        "layout": layout_of(prefix) if kind == "venv" else own_layout(),
        "command": os.path.abspath(sys.executable),
        "system_site": keys.get("include-system-site-packages", "false").lower() == "true",
    }


def main() -> None:
    prefix = venv_of(sys.executable)[0] or sys.prefix
    implementation = getattr(getattr(sys, "implementation", None), "name", "cpython")
    said = {
        "implementation": implementation,
        "version": list(sys.version_info[:3]),
        "prefix": prefix,
    }
    if implementation == "cpython" and sys.version_info >= (3, 8) and sys.platform == "linux":
        said["facts"] = report()
    sys.stdout.write(json.dumps(said))


main()
