"""Run by a case's own python, on the host and in the image: prints what there is as one line of JSON after `MARK`.

Standard library only, Python 3.8 syntax. argv: further directories or files to look at. Nothing here knows a rule of ours but
the two that are written down: what an interpreter's own library is without (tests, static libraries, other people's
packages), and that bytecode beside its source is not part of an environment.
"""

import hashlib
import importlib
import importlib.metadata
import json
import locale
import os
import platform
import site
import stat
import subprocess
import sys
import sysconfig

MARK = "\n@@fidelity@@"
SHOWN = 1 << 16
"""Bytes: a script up to this size is told whole."""
OURS = ("repro", "runs", ".git")
"""Beside the code: what repro-env writes, and git's own."""


def library_directories() -> "list[str]":
    return sorted({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")})


LIBRARY = library_directories()


def not_in_library(directory: str, name: str, is_dir: bool) -> bool:
    """What an interpreter's own library is without (base rule 1)."""
    real = os.path.realpath(directory)
    inside = any(real == own or real.startswith(own + "/") for own in LIBRARY)
    parts = real.split("/")
    if not inside or "site-packages" in parts or "dist-packages" in parts:
        return False
    if is_dir:
        return name in ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__")
    return name.endswith((".a", ".o"))


def is_bytecode(directory: str, name: str) -> bool:
    """Bytecode beside its source: `__pycache__/module.*.pyc` where `module.py` is there."""
    above, last = os.path.split(directory)
    stem = name.split(".", maxsplit=1)[0]
    return last == "__pycache__" and name.endswith(".pyc") and os.path.exists(os.path.join(above, stem + ".py"))


def fact(path: str, here: "os.stat_result") -> "list[object]":
    if stat.S_ISLNK(here.st_mode):
        return ["link", os.readlink(path)]
    if not stat.S_ISREG(here.st_mode):
        return ["other", stat.S_IFMT(here.st_mode)]
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        return ["unreadable", str(error.errno)]
    entries = ["file", hashlib.sha256(data).hexdigest(), bool(here.st_mode & 0o111)]
    if data[:2] == b"#!" and len(data) < SHOWN and os.path.basename(os.path.dirname(path)) == "bin":
        entries.append(data.decode("utf-8", "surrogateescape"))
    return entries


def left_out(at_root: bool, name: str, skip: "tuple[str, ...]") -> bool:
    """Of the code's directory; git's own in every repository inside it."""
    return name in skip and (at_root or name == ".git")


def look(root: str, entries: "dict[str, list[object]]", skip: "tuple[str, ...]" = ()) -> None:
    """Every file, symlink and empty directory below; a root that is a file or a link is listed itself.

    A prefix that is a symlink is not: a venv is shown as a directory at the same path, and its content is what counts.
    """
    if not os.path.isdir(root) or (os.path.islink(root) and root != sys.prefix):
        if os.path.lexists(root):
            entries[root] = fact(root, os.lstat(root))
        if not os.path.isdir(root):
            return
    for directory, directories, files in os.walk(root):
        directories[:] = [
            name
            for name in directories
            if not left_out(directory == root, name, skip)
            and not not_in_library(directory, name, True)
            and not holds_hooks(os.path.join(directory, name))
        ]
        for name in list(directories):
            path = os.path.join(directory, name)
            if os.path.islink(path):
                if path != sys.prefix:
                    entries[path] = fact(path, os.lstat(path))
                directories.remove(name)
        held = [
            name
            for name in files
            if not left_out(directory == root, name, skip)
            and not not_in_library(directory, name, False)
            and not is_bytecode(directory, name)
        ]
        for name in held:
            path = os.path.join(directory, name)
            entries[path] = fact(path, os.lstat(path))
        if not directories and not held and directory != root and os.path.basename(directory) != "__pycache__":
            entries[directory] = ["directory"]


def roots() -> "list[str]":
    wanted = [sys.prefix] if sys.prefix != sys.base_prefix else []
    wanted += [path for path in sys.path if path.startswith("/") and not holds_hooks(path)]
    if site.ENABLE_USER_SITE:
        wanted.append(site.getuserbase())
    return wanted + sys.argv[1:]


def holds_hooks(path: str) -> bool:
    """Whether a run put its hooks at a path that Python looks at and that no environment has."""
    return path.endswith(".zip") and os.path.isdir(path) and os.listdir(path) == ["sitecustomize.py"]


def files() -> "dict[str, list[object]]":
    entries: "dict[str, list[object]]" = {}
    done: "list[str]" = []
    for root in sorted({os.path.normpath(root) for root in roots()}):
        if not any(root.startswith(other + "/") for other in done) or not_covered(root):
            look(root, entries)
            done.append(root)
    look(os.getcwd(), entries, OURS)
    return entries


def not_covered(root: str) -> bool:
    """A packages directory lies below the library's directory, which is looked at without it."""
    return any(part in ("site-packages", "dist-packages") for part in root.split("/"))


def importable() -> "list[str]":
    """Top-level modules of every directory on `sys.path` that is not the interpreter's own."""
    names = set()
    for root in [path for path in sys.path if os.path.isdir(path) and not holds_hooks(path)]:
        if os.path.realpath(root) in LIBRARY or os.path.basename(root) == "lib-dynload":
            continue
        for name in os.listdir(root):
            path = os.path.join(root, name)
            stem = name.split(".")[0]
            if not stem.isidentifier() or stem in ("__pycache__", "__editable__"):
                continue
            if name.endswith((".py", ".pyc", ".so")) or (os.path.isdir(path) and "." not in name and has_code(path)):
                names.add(stem)
    for distribution in importlib.metadata.distributions():
        names.update((distribution.read_text("top_level.txt") or "").split())
        names.update((distribution.read_text("fidelity_imports.txt") or "").split())
    return sorted(name for name in names if name.replace(".", "_").isidentifier())


def has_code(directory: str) -> bool:
    return any(name.endswith((".py", ".pyc", ".so")) for _, _, held in os.walk(directory) for name in held)


def modules() -> "dict[str, list[str]]":
    """What each import gives: where from, and the module's VALUE, through which cases say what it would do."""
    entries = {}
    for name in importable():
        if name.startswith("_distutils_hack") or name in ("antigravity", "this", "__main__"):
            continue
        try:
            module = importlib.import_module(name)
        except BaseException as error:
            entries[name] = ["no", type(error).__name__, str(error)[:300]]
        else:
            places = [str(getattr(module, "__file__", None))]
            if places == ["None"]:
                places = sorted(str(path) for path in getattr(module, "__path__", ()))
            entries[name] = ["yes", ":".join(places), repr(getattr(module, "VALUE", None))[:2000]]
    return entries


def scripts() -> "dict[str, list[object]]":
    """Every program of the environment, started with --version. Of an interpreter's own directory: what packages put there."""
    directory = sysconfig.get_path("scripts")
    if sys.prefix == sys.base_prefix:
        names = [
            point.name
            for distribution in importlib.metadata.distributions()
            for point in distribution.entry_points
            if is_script(point)
        ]
        names = [name for name in names if os.path.exists(os.path.join(directory, name))]
    else:
        names = os.listdir(directory) if os.path.isdir(directory) else []
    entries = {}
    for name in sorted(set(names)):
        path = os.path.join(directory, name)
        if os.path.islink(path) or not os.path.isfile(path) or not os.access(path, os.X_OK) or is_python(path):
            continue
        try:
            done = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
            entries[name] = [done.returncode, done.stdout.decode("utf-8", "replace")[:2000], last(done.stderr)]
        except OSError as error:
            entries[name] = ["does not start", error.errno, ""]
        except subprocess.TimeoutExpired:
            entries[name] = ["does not end", 0, ""]
    return entries


def is_script(point: "importlib.metadata.EntryPoint") -> bool:
    return point.group in ("console_scripts", "gui_scripts")


def is_python(path: str) -> bool:
    return os.path.basename(path).startswith("python")


def last(printed: bytes) -> str:
    """The last line: tracebacks quote lines of the script, whose first lines each installer writes anew."""
    rows = printed.decode("utf-8", "replace").strip().splitlines()
    return rows[-1][:500] if rows else ""


def distributions() -> "list[object]":
    """As `importlib.metadata` finds them, in its order of directories, with entry points; the files that they claim."""
    entries: "list[object]" = []
    for distribution in importlib.metadata.distributions():
        points = sorted("%s: %s = %s" % (point.group, point.name, point.value) for point in distribution.entry_points)
        entries.append([str(distribution.metadata["Name"]), str(distribution.metadata["Version"]), points])
    return sorted(entries, key=str)


def facts() -> "dict[str, object]":
    flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if not name.startswith(("_", "n_", "count", "index"))}
    return {
        "version": sys.version,
        "prefix": sys.prefix,
        "exec_prefix": sys.exec_prefix,
        "base_prefix": sys.base_prefix,
        "executable": sys.executable,
        "flags": {name: str(value) for name, value in flags.items() if name != "dont_write_bytecode"},
        "user site": site.ENABLE_USER_SITE,  # its path comes from HOME; where it is one, it is on `sys.path`
        "site packages": site.getsitepackages(),
        "paths": dict(sysconfig.get_paths()),
        "soabi": sysconfig.get_config_var("SOABI"),
        "encoding": [locale.getpreferredencoding(False), sys.getfilesystemencoding(), sys.stdout.encoding],
        "libc": platform.libc_ver(),
        "customized": [
            path for path in customized() if not path.startswith("/.repro-env/seeds/")
        ],  # a run's seeds: not the environment
    }


def customized() -> "list[str]":
    modules = (sys.modules.get(name) for name in ("sitecustomize", "usercustomize"))
    return [str(module.__file__) for module in modules if module is not None and getattr(module, "__file__", None)]


def main() -> None:
    entries: "dict[str, object]" = {"path": list(sys.path), "facts": facts(), "files": files()}
    entries["distributions"] = distributions()
    entries["scripts"] = scripts()
    sys.stdout.flush()
    entries["modules"] = modules()
    sys.stdout.write(MARK + json.dumps(entries) + "\n")
    sys.stdout.flush()
    os._exit(0)


main()
