"""A tiny real image: layers unpacked as the store keeps them, cut from this machine's own programs.

A shell, a few tools, and the Python that runs the tests with only the modules it needs: enough to ask, from
inside, what a run can see.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PREFIX = "/srv/captured/venv"
"""The captured prefix of the fake environment."""
TOOLS = ("sh", "cat", "ls", "mkdir", "rm", "mv", "touch", "sleep", "id", "env", "stat", "chmod", "rmdir", "ln", "cp", "mknod")
IMPORTS = "ctypes, encodings.idna, getpass, grp, os, pwd, shutil, signal, socket, stat, subprocess, sysconfig, tempfile, time, json, errno, inspect, py_compile, warnings"


def digest(number: int) -> str:
    """The diff ID of the fake layer `number`."""
    return f"sha256:{number:064x}"


def make(store: Path) -> list[str]:
    """Write the layers into `store/layers`. Returns their diff IDs, lowest first."""
    base = _layer(store, 1)
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        _program(Path(found), base, Path("bin") / tool)
    _python(base)
    etc = base / "etc"
    etc.mkdir()
    (etc / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
    (etc / "group").write_text("root:x:0:\n")
    (etc / "resolv.conf").symlink_to("/run/somewhere/else")
    (base / "opt/only-below").mkdir(parents=True)
    (base / "opt/only-below/gone").write_text("a layer above removes this\n")

    (base / "tmp/of-the-image").mkdir(parents=True)
    (base / "tmp/of-the-image/file").write_text("bundled\n")

    environment = _layer(store, 2)
    (environment / "opt/env/bin").mkdir(parents=True)
    (environment / "opt/env/bin/hello").write_text("#!/bin/sh\necho hello from $0\n")
    (environment / "opt/env/bin/hello").chmod(0o755)
    (environment / "opt/env/note").write_text("the environment\n")
    (environment / "opt/env/bin/no-interpreter").write_text("#!/no/such/program\n")
    (environment / "opt/env/bin/no-interpreter").chmod(0o755)
    (environment / "opt/env/bin/plain").write_text("text\n")
    (environment / "opt/only-below").mkdir()
    os.mknod(environment / "opt/only-below/gone", 0o600 | 0o020000, 0)

    marker = _layer(store, 3)
    link = marker / PREFIX.lstrip("/")
    link.parent.mkdir(parents=True)
    link.symlink_to("/opt/env")
    return [digest(1), digest(2), digest(3)]


def source(store: Path) -> str:
    """A source snapshot in `store/layers`. Returns its diff ID."""
    tree = _layer(store, 1000)
    (tree / "train.py").write_text("print('training')\n")
    (tree / "old.txt").write_text("old\n")
    (tree / "package/deep").mkdir(parents=True)
    (tree / "package/__init__.py").write_text("")
    (tree / "package/deep/one.txt").write_text("one\n")
    (tree / "package/deep/two.txt").write_text("two\n")
    (tree / "link").symlink_to("train.py")
    (tree / "run.sh").write_text("#!/bin/sh\nexit 7\n")
    (tree / "run.sh").chmod(0o755)
    return digest(1000)


def thin(store: Path, count: int) -> list[str]:
    """`count` more layers of one file each. Returns their diff IDs."""
    for number in range(2000, 2000 + count):
        tree = _layer(store, number)
        (tree / "many").mkdir()
        (tree / "many" / str(number)).write_text(str(number))
    return [digest(number) for number in range(2000, 2000 + count)]


def _layer(store: Path, number: int) -> Path:
    tree = store / "layers" / digest(number).removeprefix("sha256:")
    tree.mkdir(parents=True)
    return tree


def _program(path: Path, base: Path, inside: Path) -> None:
    _copy(path, base / inside)
    for library in _libraries(path):
        _copy(library, base / str(library).lstrip("/"))


def _libraries(path: Path) -> list[Path]:
    done = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
    return [Path(found) for found in re.findall(r"(/\S+) \(0x", done.stdout)]


def _copy(path: Path, target: Path) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)  # follows links: the name that is asked for becomes the file
    target.chmod(0o755 if os.access(path, os.X_OK) else 0o644)


def _python(base: Path) -> None:
    """This interpreter at its own path, with what it has loaded after `IMPORTS`, and `/bin/python` to start it."""
    listing = (
        f"import {IMPORTS}, site, sys; print(sys._base_executable); "
        "print(*sorted({m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)}), "
        "*filter(os.path.exists, (os.path.dirname(os.__file__) + name for name in ('/os.py', '/collections/abc.py'))), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", listing], capture_output=True, text=True, check=True)
    executable, *modules = done.stdout.splitlines()
    real = Path(executable).resolve()
    _program(real, base, Path(str(real).lstrip("/")))
    for module in modules:
        _program(Path(module), base, Path(module.lstrip("/"))) if module.endswith(".so") else _copy(
            Path(module), base / module.lstrip("/")
        )
    (base / "bin/python").symlink_to(real)
