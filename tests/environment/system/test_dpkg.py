from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from repro_env.environment.system import dpkg
from repro_env.environment.system.dpkg import Database
from repro_env.environment.system.packages import Package
from repro_env.io import process
from repro_env.schema.errors import LockError
from repro_env.store.facts import FactCache
from tests.environment.system.debian import Machine
from tests.parts import need


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def keys(packages: tuple[Package, ...] | list[Package]) -> list[str]:
    return [f"{package.name}:{package.architecture}" for package in packages]


def package(database: Database, key: str) -> Package:
    return next(package for package in database.packages if keys([package]) == [key])


def test_owners_are_found_by_paths_from_before_usrmerge(machine: Machine) -> None:
    (machine.root / "lib").symlink_to("usr/lib")
    machine.install("zlib1g", "/lib", "/lib/libz.so.1", exact=True)
    machine.install("other", "/usr/lib/libother.so")
    owners = machine.database().owners(["/usr/lib/libz.so.1", "/usr/lib/libother.so", "/usr/lib/nobody.so", "/usr/lib/libz.so"])
    assert {path: keys(found) for path, found in owners.items()} == {
        "/usr/lib/libz.so.1": ["zlib1g:amd64"],
        "/usr/lib/libother.so": ["other:amd64"],
    }


def test_a_diverted_file_has_an_owner_at_each_path(machine: Machine) -> None:
    (machine.root / "var/lib/dpkg/diversions").write_text("/usr/bin/perf\n/usr/bin/perf.real\nlinux-perf\n")
    machine.install("linux-perf", "/usr/bin/perf")
    machine.install("old-perf", "/usr/bin/perf")
    database = machine.database()
    owners = database.owners(["/usr/bin/perf", "/usr/bin/perf.real"])
    assert {path: keys(found) for path, found in owners.items()} == {
        "/usr/bin/perf": ["linux-perf:amd64"],
        "/usr/bin/perf.real": ["old-perf:amd64"],
    }
    old = package(database, "old-perf:amd64")
    assert database.files(old) == ["/usr/bin/perf.real"]


def test_a_local_diversion_applies_to_every_package(machine: Machine) -> None:
    (machine.root / "var/lib/dpkg/diversions").write_text("/usr/bin/tool\n/usr/bin/tool.distrib\n:\n")
    machine.install("tool", "/usr/bin/tool")
    assert list(machine.database().owners(["/usr/bin/tool", "/usr/bin/tool.distrib"])) == ["/usr/bin/tool.distrib"]


def test_dependencies_are_met_by_name_or_provides_without_excluded_packages(machine: Machine) -> None:
    machine.install("app", Depends="liba (>= 1:2.0~) | libb, virtual-thing, gone | here:any, debconf (>= 0.5) | debconf-2.0")
    machine.install("libb", Pre_Depends="libc6")
    machine.install("libc6")
    machine.install("provider", Provides="virtual-thing (= 2), x")
    machine.install("here", arch="all")
    machine.install("debconf", arch="all", Provides="debconf-2.0")
    machine.install("unrelated")
    database = machine.database()
    app = package(database, "app:amd64")
    found = database.with_dependencies([app])
    assert keys(found) == ["app:amd64", "here:all", "libb:amd64", "libc6:amd64", "provider:amd64"]
    everything = database.with_dependencies([app, package(database, "debconf:all")])
    assert "debconf:all" in keys(everything)


def test_undeclared_dependencies_are_included(machine: Machine) -> None:
    machine.install("libapt-pkg6.0")
    machine.install("dpkg", Depends="tar")
    machine.install("tar")
    database = machine.database()
    found = database.with_dependencies([package(database, "libapt-pkg6.0:amd64")])
    assert keys(found) == ["dpkg:amd64", "libapt-pkg6.0:amd64", "tar:amd64"]


def test_cyclic_dependencies_terminate(machine: Machine) -> None:
    machine.install("libc6", Depends="libgcc-s1")
    machine.install("libgcc-s1", Depends="libc6 (>= 2.35)")
    database = machine.database()
    assert keys(database.with_dependencies([package(database, "libc6:amd64")])) == ["libc6:amd64", "libgcc-s1:amd64"]


def test_the_dependencies_of_a_foreign_package_are_foreign(machine: Machine) -> None:
    machine.install("dpkg")
    machine.install("libc6", "/lib/libc.so", exact=True)
    machine.install("libc6", "/lib32/libc.so", arch="i386", exact=True)
    machine.install("wine", arch="i386", Depends="libc6")
    database = machine.database()
    assert keys(database.with_dependencies([package(database, "wine:i386")])) == ["libc6:i386", "wine:i386"]
    native = database.find("libc6")
    assert native is not None
    assert native.architecture == "amd64"
    assert database.files(native) == ["/lib/libc.so"]


def test_removed_packages_are_ignored(machine: Machine) -> None:
    machine.install("gone", Status="deinstall ok config-files")
    machine.install("held", Status="hold ok installed")
    assert keys(machine.database().packages) == ["held:amd64"]


def test_the_written_status_file_lists_the_same_packages(machine: Machine, tmp_path: Path) -> None:
    machine.install("b", Description="short\n long, ümläut\n .\n end")
    machine.install("a", Depends="b")
    machine.install("c")
    database = machine.database()
    kept = [package(database, "b:amd64"), package(database, "a:amd64")]
    (machine.root / "var/lib/dpkg/status").write_bytes(database.database_files(kept)["/var/lib/dpkg/status"])
    assert machine.database().packages == (kept[1], kept[0])


def test_the_written_database_gives_the_same_owners_and_files(machine: Machine) -> None:
    machine.install("libc6", "/lib/libc.so", exact=True)
    machine.install("dash", "/bin/sh", Depends="libc6")
    machine.install("gone", "/bin/gone")
    (machine.root / "var/lib/dpkg/diversions").write_text("/bin/sh\n/bin/sh.distrib\nother\n")
    database = machine.database()
    kept = [package(database, "dash:amd64"), package(database, "libc6:amd64")]
    files = database.database_files(kept)
    (machine.root / "var/lib/dpkg").rename(machine.root / "old")
    for path, text in files.items():
        (machine.root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (machine.root / path[1:]).write_bytes(text)
    written = machine.database()
    assert [written.files(item) for item in kept] == [database.files(item) for item in kept]
    assert written.owners(["/bin/sh.distrib", "/lib/libc.so", "/bin/gone"]).keys() == {"/bin/sh.distrib", "/lib/libc.so"}
    assert written.database_files(kept) == files


def test_a_missing_file_list_is_named(machine: Machine) -> None:
    machine.install("half")
    (machine.root / "var/lib/dpkg/info/half.list").unlink()
    with pytest.raises(LockError, match="no list of the files of half"):
        machine.database().owners(["/usr/bin/x"])


def test_packages_and_files_of_this_machine_match_dpkg() -> None:
    need(shutil.which("dpkg-query") and Path("/var/lib/dpkg/status").exists(), "a dpkg machine")
    database = Database()
    text = process.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}:${Architecture} ${Version}\n"]).stdout.decode()
    expected = dict(line.split()[1:] for line in text.splitlines() if line.startswith("installed "))
    assert {keys([package])[0]: package.version for package in database.packages} == expected
    libc = database.find("libc6")
    assert libc is not None
    listed = process.run(["dpkg-query", "-L", *keys([libc])]).stdout.decode().splitlines()
    assert database.files(libc) == [line for line in listed if re.match("/[^.]", line)]


def _touch_back(path: Path, text: str) -> None:
    """Overwrite a file with a text of the same size, and set its time back."""
    times = path.stat()
    assert len(text) == times.st_size
    path.write_text(text)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda machine: machine.install("other", "/usr/lib/libz.so.1"),
        lambda machine: _touch_back(machine.root / "var/lib/dpkg/info/zlib1g.list", "/.\n/usr/lib/libz.so.2\n"),
        lambda machine: _touch_back(
            machine.root / "var/lib/dpkg/status", (machine.root / "var/lib/dpkg/status").read_text().replace("1-1", "1-2")
        ),
        lambda machine: (machine.root / "var/lib/dpkg/diversions").write_text("/usr/lib/libz.so.1\n/usr/lib/x\nother\n"),
        lambda machine: (machine.root / "lib").symlink_to("usr/lib"),
    ],
    ids=["new package", "list", "status", "diversion", "usrmerge"],
)
def test_what_is_kept_of_a_database_is_what_it_says_now(
    machine: Machine, change: Callable[[Machine], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dpkg, "SETTLED", -(10**12))
    machine.install("zlib1g", "/usr/lib/libz.so.1", Depends="libc6 (>= 2), other | more", Provides="libz")
    machine.install("old", "/lib/libold.so")
    facts = FactCache(tmp_path)

    def answers(database: Database) -> object:
        paths = ["/usr/lib/libz.so.1", "/usr/lib/libz.so.2", "/usr/lib/x", "/usr/lib/libold.so"]
        files = [database.files(package) for package in database.packages]
        return database.packages, database.owners(paths), files, database.database_files(database.packages)

    before = answers(Database(machine.root, facts))
    monkeypatch.setattr(dpkg, "_paragraphs", None)
    monkeypatch.setattr(Database, "_find_owners", None)
    assert answers(Database(machine.root, facts)) == before
    monkeypatch.undo()
    change(machine)
    assert answers(Database(machine.root, facts)) == answers(Database(machine.root)) != before


def test_a_database_that_just_changed_is_read_again(machine: Machine, tmp_path: Path) -> None:
    machine.install("zlib1g", "/usr/lib/libz.so.1")
    Database(machine.root, FactCache(tmp_path)).owners(["/usr/lib/libz.so.1"])
    assert not (tmp_path / "dpkg").exists()
