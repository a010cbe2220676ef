from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

from repro_env.environment.python import interpreter as python
from repro_env.environment.system import interpretertree
from repro_env.io import process
from repro_env.schema.environment import Interpretation, Interpreter, Layout
from repro_env.schema.errors import InterpreterError
from repro_env.store.hashes import FileHashes
from tests.environment.system import elves

NAME = "python3.11"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A Python with its own prefix, as uv unpacks it: the directory has an alias, and so do all files in `bin`."""
    own = tmp_path / "cpython-3.11.9"
    files = {
        f"lib/{NAME}/os.py": "x", f"lib/{NAME}/json/__init__.py": "x", f"lib/{NAME}/test/test_os.py": "x",
        f"lib/{NAME}/ctypes/test/x.py": "x", f"lib/{NAME}/idlelib/idle_test/x.py": "x", f"lib/{NAME}/__pycache__/os.pyc": "x",
        f"lib/{NAME}/config-3.11/Makefile": "x", f"lib/{NAME}/config-3.11/libpython3.11.a": "x",
        f"lib/{NAME}/config-3.11/python.o": "x", f"lib/{NAME}/site-packages/numpy.py": "x",
        f"lib/{NAME}/json/site-packages/kept.py": "x", f"include/{NAME}/pyconfig.h": "x", "include/other/no.h": "x",
        "share/man/python.1": "x", "etc/site.py": "x",
    }  # fmt: skip
    for path, text in files.items():
        elves.place(own / path, text.encode())
    elves.place(own / f"bin/{NAME}", elves.elf(("libpython3.11.so.1.0",), runpath="$ORIGIN/../lib", interpreter="/lib64/ld.so"))
    (own / f"bin/{NAME}").chmod(0o755)
    for name in ("python3", "python"):
        (own / "bin" / name).symlink_to(NAME)
    elves.place(own / "bin/python3-config", b"#!/bin/sh\n")
    elves.place(own / "lib/libpython3.11.so.1.0", elves.elf(soname="libpython3.11.so.1.0"))
    (own / "lib/libpython3.11.so").symlink_to("libpython3.11.so.1.0")
    elves.place(own / f"lib/{NAME}/lib-dynload/_ssl.so", elves.elf(("libssl.so.9", "libfar.so"), runpath="$ORIGIN/../.."))
    elves.place(own / "lib/libssl.so.9.1", elves.elf(soname="libssl.so.9"))
    (own / "lib/libssl.so.9").symlink_to("libssl.so.9.1")
    elves.place(own / "lib/libunused.so", elves.elf())
    (own / f"lib/{NAME}/sitecustomize.py").symlink_to("../../etc/site.py")
    (tmp_path / "cpython-3.11").symlink_to("cpython-3.11.9")
    return own


def facts(home: Path) -> Interpretation:
    alias = home.parent / "cpython-3.11"
    env = home.parent / "project/.venv"
    (env / "bin").mkdir(parents=True)
    (env / "pyvenv.cfg").write_text(f"home = {alias}/bin\nversion = 3.11.9\n")
    (env / "bin/python").symlink_to(alias / "bin/python3")
    return Interpretation(
        interpreter=Interpreter(
           version="3.11.9", executable=f"{home}/bin/{NAME}", prefix=str(alias),
            stdlib=f"{alias}/lib/{NAME}", platstdlib=f"{alias}/lib/{NAME}", libpython=f"{home}/lib/libpython3.11.so.1.0",
            cache_tag="cpython-311",
        ),
        layout=Layout(prefix=str(env), purelib="lib/p", platlib="lib/p", scripts="bin", headers="include"),
        command=f"{env}/bin/python", kind="venv",
    )  # fmt: skip


def test_a_python_with_its_own_prefix_is_captured_completely(home: Path, hashes: FileHashes) -> None:
    tree = interpretertree.interpreter_tree(facts(home), {}, hashes)
    start = f"{str(home.parent)[1:]}/"
    found = {
        entry.path.removeprefix(start): entry.target or ("program" if entry.executable else entry.kind)
        for entry in tree.entries
        if entry.path.startswith(start) and entry.kind != "dir"
    }
    own = home.name
    assert found == {
        "cpython-3.11": own,
        f"{own}/bin/python": NAME,
        f"{own}/bin/python3": NAME,
        f"{own}/bin/{NAME}": "program",
        f"{own}/etc/site.py": "file",
        f"{own}/include/{NAME}/pyconfig.h": "file",
        f"{own}/lib/libpython3.11.so": "libpython3.11.so.1.0",
        f"{own}/lib/libpython3.11.so.1.0": "file",
        f"{own}/lib/libssl.so.9": "libssl.so.9.1",
        f"{own}/lib/libssl.so.9.1": "file",
        f"{own}/lib/{NAME}/config-3.11/Makefile": "file",
        f"{own}/lib/{NAME}/json/__init__.py": "file",
        f"{own}/lib/{NAME}/json/site-packages/kept.py": "file",
        f"{own}/lib/{NAME}/lib-dynload/_ssl.so": "file",
        f"{own}/lib/{NAME}/os.py": "file",
        f"{own}/lib/{NAME}/sitecustomize.py": "../../etc/site.py",
    }


def test_the_project_around_an_environment_is_not_captured(home: Path, hashes: FileHashes) -> None:
    tree = interpretertree.interpreter_tree(facts(home), {}, hashes)
    assert not [entry.path for entry in tree.entries if "/project" in entry.path or ".venv" in entry.path]


def test_a_missing_part_is_named(home: Path, hashes: FileHashes) -> None:
    whole = facts(home)
    broken = msgspec.structs.replace(whole, interpreter=msgspec.structs.replace(whole.interpreter, stdlib=f"{home}/lib/gone"))
    with pytest.raises(InterpreterError) as caught:
        interpretertree.interpreter_tree(broken, {}, hashes)
    assert caught.value.where == f"{home}/lib/gone"


def test_every_name_of_an_environments_python_leads_to_the_binary(tmp_path: Path, hashes: FileHashes) -> None:
    real = Path(sys.executable).resolve()
    (tmp_path / "alias").symlink_to(real.parent.parent)
    alias = tmp_path / "alias/bin" / real.name
    done = process.run([str(alias), "-m", "venv", "--without-pip", str(tmp_path / "env")])
    assert done.code == 0, done.stderr
    found = python.interpret(str(tmp_path / "env/bin/python"), {"PATH": os.environ["PATH"]})
    tree = interpretertree.interpreter_tree(found, {}, hashes)
    kinds = {f"/{entry.path}": entry for entry in tree.entries}
    assert kinds[str(tmp_path / "alias")].target == str(real.parent.parent)
    assert kinds[str(real)].executable
    again = interpretertree.interpreter_tree(found, {}, hashes)
    assert again.entries == tree.entries


def test_own_libraries_found_only_by_ld_library_path_are_included(home: Path, hashes: FileHashes) -> None:
    elves.place(home / "far/libfar.so", elves.elf())
    environ = {"LD_LIBRARY_PATH": f"{home.parent}/cpython-3.11/far"}
    found = facts(home)
    without = interpretertree.interpreter_tree(found, {}, hashes)
    tree = interpretertree.interpreter_tree(found, environ, hashes)
    added = {entry.path for entry in tree.entries} - {entry.path for entry in without.entries}
    assert added == {f"{home}/far"[1:], f"{home}/far/libfar.so"[1:]}
