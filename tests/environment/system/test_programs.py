"""`--with` programs work in the image, with everything that they start and open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from repro_env.environment.system import dpkg, programs
from repro_env.environment.system.packages import Database
from repro_env.schema.errors import UsageError
from repro_env.store.hashes import FileHashes
from tests.environment.system import elves, roots
from tests.environment.system.conftest import Captured, make
from tests.environment.system.debian import Machine as Debian
from tests.environment.system.rpms import Machine, convert
from tests.parts import need

RPM_NAMES = {"libc6": "glibc", "libc-bin": "glibc-common", "base-files": "filesystem", "mawk": "gawk", "libc6-dev": "glibc-devel"}
"""Fedora's names of some Debian packages."""
PROGRAM = '#include <stdio.h>\n#include <math.h>\nint main(int n, char **a) { printf("%.3f\\n", sqrt(2.0 * n)); return 0; }\n'


def as_rpm(tmp: Path, names: tuple[str, ...]) -> Database:
    """An rpm database with the files of this machine: each Debian package that a base needs, built as an rpm."""
    debian, machine = dpkg.Database(), Machine(tmp / "root", tmp / "work")
    starts = [
        debian.find(name) for name in (*names, "bash", "coreutils", "base-files", "grep", "sed", "mawk", "libc-bin", "dash")
    ]
    chosen = [package for package in starts if package is not None]
    chosen += [more for package in chosen for more in debian.recommendations(package) if names]
    machine.install(*(convert(machine, debian, package, RPM_NAMES) for package in debian.with_dependencies(chosen)))
    return machine.database()


@pytest.fixture(scope="module")
def fedora(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return as_rpm(tmp_path_factory.mktemp("rpm"), ())


@pytest.mark.parametrize("family", ["deb", pytest.param("rpm", marks=pytest.mark.soak)])
def test_a_compiler_and_git_work_inside(captured: Captured, hashes: FileHashes, tmp_path: Path, family: str) -> None:
    need(shutil.which("gcc", path="/usr/bin") and shutil.which("git", path="/usr/bin"), "gcc, libc6-dev and git")
    debian = dpkg.Database()
    needed = [debian.find(name) for name in ("gcc", "git")]
    recommended = {more.name for library in needed if library for more in debian.recommendations(library)}
    need("libc6-dev" in recommended, "libc6-dev")
    system = as_rpm(tmp_path / "rpm", ("gcc", "git", "python3")) if family == "rpm" else None
    found = make(
        captured,
        hashes,
        programs=(
            "git",
            "gcc",
        ),
        system=system,
    )
    assert {library.owner.split(" ")[0] for library in found.libraries if library.owner} == {family}
    if family == "deb":  # the rpm database has the packages of the programs, but not those of every Python
        assert found.bundled == ()
    root = tmp_path / "root"
    root.mkdir()
    roots.write(root, [found.base, *([found.unpackaged] if found.unpackaged else []), captured.interpreter])
    (root / "tmp/x.c").write_text(PROGRAM)
    assert roots.run(root, "sh", "-c", "cd /tmp && gcc -O2 -o x x.c -lm && ./x") == "1.414\n"
    assert roots.run(root, "sh", "-c", "cd /tmp && cc -shared -fPIC -o x.so x.c && echo built") == "built\n"
    commands = "git init -q /tmp/r && cd /tmp/r && touch f && git add f && git -c user.name=a -c user.email=a@b commit -qm m"
    assert roots.run(root, "sh", "-c", f"{commands} && git status --short && git log --format=%s", HOME="/tmp") == "m\n"


def test_python_starts_in_a_base_made_from_an_rpm_database(
    captured: Captured, fedora: Database, hashes: FileHashes, tmp_path: Path
) -> None:
    found = make(captured, hashes, system=fedora)
    names = {package.name for package in found.packages}
    assert {"bash", "coreutils", "glibc", "glibc-common", "filesystem"} <= names
    paths = {entry.path for entry in found.base.entries}
    assert not [path for path in paths if path.startswith(("var/lib/dpkg", "var/lib/rpm", "usr/lib/sysimage"))]
    root = tmp_path / "root"
    root.mkdir()
    roots.write(root, [found.base, *([found.unpackaged] if found.unpackaged else []), captured.interpreter])
    python = captured.facts.interpreter.executable
    assert (
        roots.run(root, python, "-c", "import platform; print(platform.python_version())")
        == f"{captured.facts.interpreter.version}\n"
    )
    assert roots.run(root, "bash", "-c", "ls / | grep '^us' | sed s/u/U/ | awk '{print $1 1}'") == "Usr1\n"
    owners = {library.path: library.owner for library in found.libraries}
    (libc,) = (path for path in owners if path.endswith("/libc.so.6"))
    assert owners[libc] == "rpm glibc 1.0-1"
    again = make(captured, hashes, system=fedora)
    assert again.base.entries == found.base.entries


def test_the_interpreter_of_a_script_is_found(tmp_path: Path) -> None:
    machine = Debian(tmp_path / "db")
    tool = elves.place(tmp_path / "tool", elves.elf())
    for name, line, expected in (
        ("plain", f"#!{tool}", "tool"),
        ("option", f"#! {tool}  -x y", "tool"),
        ("env", "#!/usr/bin/env sh", "sh"),
        ("env-s", "#!/usr/bin/env -S LANG=C sh -e", "sh"),
        ("gone", "#!/no/such/program", ""),
        ("text", "no script", ""),
        ("empty", "", ""),
        ("relative", "#!tool", ""),
        ("bare", "#!/usr/bin/env", ""),
    ):
        path = tmp_path / name
        path.write_text(line + "\n")
        script, *others = programs.find(machine.database(), str(path))
        assert script.file == str(path)
        assert [Path(program.chain[0]).name for program in others] == ([expected] if expected else [])


def test_scripts_that_are_each_others_interpreters_terminate(tmp_path: Path) -> None:
    for name, interpreter in (("a", "b"), ("b", "a")):
        (tmp_path / name).write_text(f"#!{tmp_path}/{interpreter}\n")
    assert 2 <= len(programs.find(Debian(tmp_path / "db").database(), str(tmp_path / "a"))) <= 10


def test_a_directory_that_packages_share_is_rejected(tmp_path: Path) -> None:
    machine = Debian(tmp_path / "db")
    (tmp_path / "shared").mkdir()
    (tmp_path / "own").mkdir()
    machine.install("base", str(tmp_path / "shared"))
    with pytest.raises(UsageError, match="directory that system packages share") as caught:
        programs.find(machine.database(), str(tmp_path / "shared"))
    assert caught.value.where == f"--with {tmp_path}/shared"
    (found,) = programs.find(machine.database(), f"{tmp_path}/own/")
    assert found.directory == str(tmp_path / "own")
