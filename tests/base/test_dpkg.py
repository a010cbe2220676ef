from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from repro_env.base.dpkg import Database
from repro_env.base.packages import Alternative, Package
from repro_env.io import process
from repro_env.model.errors import LockError
from tests.parts import need


class Machine:
    """A dpkg database in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "var/lib/dpkg/info").mkdir(parents=True)
        (root / "var/lib/dpkg/status").write_text("")

    def install(self, name: str, *files: str, arch: str = "amd64", sums: str = "", exact: bool = False, **fields: str) -> None:
        lines = {"Package": name, "Status": "install ok installed", "Architecture": arch, "Version": "1-1"}
        lines.update({field.replace("_", "-"): value for field, value in fields.items()})
        with (self.root / "var/lib/dpkg/status").open("a") as status:
            status.write("".join(f"{field}: {value}\n" for field, value in lines.items()) + "\n")
        stem = self.root / "var/lib/dpkg/info" / (f"{name}:{arch}" if exact else name)
        Path(f"{stem}.list").write_text("/.\n" + "".join(f"{file}\n" for file in files))
        if sums:
            Path(f"{stem}.md5sums").write_text(sums)

    def database(self) -> Database:
        return Database(self.root)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def keys(packages: tuple[Package, ...] | list[Package]) -> list[str]:
    return [package.key for package in packages]


def never(name: str) -> bool:
    return False


def test_owner_by_the_spelling_from_before_usrmerge(machine: Machine) -> None:
    (machine.root / "lib").symlink_to("usr/lib")
    machine.install("zlib1g", "/lib", "/lib/libz.so.1", exact=True)
    machine.install("other", "/usr/lib/libother.so")
    owners = machine.database().owners(["/usr/lib/libz.so.1", "/usr/lib/libother.so", "/usr/lib/nobody.so", "/usr/lib/libz.so"])
    assert {path: keys(found) for path, found in owners.items()} == {
        "/usr/lib/libz.so.1": ["zlib1g:amd64"],
        "/usr/lib/libother.so": ["other:amd64"],
    }


def test_a_diverted_file_belongs_to_each_at_its_own_place(machine: Machine) -> None:
    (machine.root / "var/lib/dpkg/diversions").write_text("/usr/bin/perf\n/usr/bin/perf.real\nlinux-perf\n")
    machine.install("linux-perf", "/usr/bin/perf", sums="0" * 32 + "  usr/bin/perf\n")
    machine.install("old-perf", "/usr/bin/perf", sums="1" * 32 + "  usr/bin/perf\n")
    database = machine.database()
    owners = database.owners(["/usr/bin/perf", "/usr/bin/perf.real"])
    assert {path: keys(found) for path, found in owners.items()} == {
        "/usr/bin/perf": ["linux-perf:amd64"],
        "/usr/bin/perf.real": ["old-perf:amd64"],
    }
    old = database.packages["old-perf:amd64"]
    assert database.files(old) == ["/usr/bin/perf.real"]
    assert database.checksums(old) == {"/usr/bin/perf.real": "1" * 32}


def test_a_local_diversion_holds_for_every_package(machine: Machine) -> None:
    (machine.root / "var/lib/dpkg/diversions").write_text("/usr/bin/tool\n/usr/bin/tool.distrib\n:\n")
    machine.install("tool", "/usr/bin/tool")
    assert list(machine.database().owners(["/usr/bin/tool", "/usr/bin/tool.distrib"])) == ["/usr/bin/tool.distrib"]


def test_conffiles_have_checksums_unless_they_are_obsolete(machine: Machine) -> None:
    machine.install(
        "bash", "/etc/bash.bashrc", sums="a" * 32 + "  usr/bin/bash\n",
        Conffiles=f"\n /etc/bash.bashrc {'b' * 32}\n /etc/old {'c' * 32} obsolete\n /etc/new newconffile",
    )  # fmt: skip
    database = machine.database()
    assert database.checksums(database.packages["bash:amd64"]) == {"/usr/bin/bash": "a" * 32, "/etc/bash.bashrc": "b" * 32}


def test_closure_by_name_by_provides_and_without_what_is_left_out(machine: Machine) -> None:
    machine.install("app", Depends="liba (>= 1:2.0~) | libb, virtual-thing, gone | here:any, debconf (>= 0.5) | debconf-2.0")
    machine.install("libb", Pre_Depends="libc6")
    machine.install("libc6")
    machine.install("provider", Provides="virtual-thing (= 2), x")
    machine.install("here", arch="all")
    machine.install("debconf", arch="all", Provides="debconf-2.0")
    machine.install("unrelated")
    database = machine.database()
    app = database.packages["app:amd64"]
    found = database.close([app], lambda name: name == "debconf")
    assert keys(found) == ["app:amd64", "here:all", "libb:amd64", "libc6:amd64", "provider:amd64"]
    everything = database.close([app, database.packages["debconf:all"]], lambda name: name == "debconf")
    assert "debconf:all" in keys(everything)


def test_what_a_package_uses_without_saying_so_comes_with_it(machine: Machine) -> None:
    machine.install("libapt-pkg6.0")
    machine.install("dpkg", Depends="tar")
    machine.install("tar")
    database = machine.database()
    found = database.close([database.packages["libapt-pkg6.0:amd64"]], database.is_left_out)
    assert keys(found) == ["dpkg:amd64", "libapt-pkg6.0:amd64", "tar:amd64"]


def test_packages_that_depend_on_each_other_end(machine: Machine) -> None:
    machine.install("libc6", Depends="libgcc-s1")
    machine.install("libgcc-s1", Depends="libc6 (>= 2.35)")
    database = machine.database()
    assert keys(database.close([database.packages["libc6:amd64"]], never)) == ["libc6:amd64", "libgcc-s1:amd64"]


def test_the_dependencies_of_a_foreign_package_are_foreign(machine: Machine) -> None:
    machine.install("dpkg")
    machine.install("libc6", "/lib/libc.so", exact=True)
    machine.install("libc6", "/lib32/libc.so", arch="i386", exact=True)
    machine.install("wine", arch="i386", Depends="libc6")
    database = machine.database()
    assert keys(database.close([database.packages["wine:i386"]], never)) == ["libc6:i386", "wine:i386"]
    native = database.named("libc6")
    assert native is not None
    assert native.architecture == "amd64"
    assert database.files(native) == ["/lib/libc.so"]


def test_removed_packages_are_not_there(machine: Machine) -> None:
    machine.install("gone", Status="deinstall ok config-files")
    machine.install("held", Status="hold ok installed")
    assert list(machine.database().packages) == ["held:amd64"]


def test_alternatives_with_their_slaves(machine: Machine) -> None:
    folder = machine.root / "var/lib/dpkg/alternatives"
    folder.mkdir()
    (folder / "awk").write_text("auto\n/usr/bin/awk\nnawk\n/usr/bin/nawk\n\n/usr/bin/mawk\n5\n/usr/bin/mawk\n\n")
    assert machine.database().alternatives() == (Alternative("awk", "/usr/bin/awk"), Alternative("nawk", "/usr/bin/nawk"))


def test_the_cut_status_file_is_read_as_the_same_packages(machine: Machine, tmp_path: Path) -> None:
    machine.install("b", Description="short\n long, ümläut\n .\n end")
    machine.install("a", Depends="b")
    machine.install("c")
    database = machine.database()
    kept = [database.packages["b:amd64"], database.packages["a:amd64"]]
    (machine.root / "var/lib/dpkg/status").write_bytes(database.kept(kept)["/var/lib/dpkg/status"])
    assert list(machine.database().packages.values()) == [kept[1], kept[0]]


def test_a_missing_file_list_is_named(machine: Machine) -> None:
    machine.install("half")
    (machine.root / "var/lib/dpkg/info/half.list").unlink()
    with pytest.raises(LockError, match="no list of the files of half"):
        machine.database().owners(["/usr/bin/x"])


def test_agrees_with_dpkg_about_this_machine() -> None:
    need(shutil.which("dpkg-query") and Path("/var/lib/dpkg/status").exists(), "a dpkg machine")
    database = Database()
    text = process.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}:${Architecture} ${Version}\n"]).stdout.decode()
    expected = dict(line.split()[1:] for line in text.splitlines() if line.startswith("installed "))
    assert {key: package.version for key, package in database.packages.items()} == expected
    libc = database.named("libc6")
    assert libc is not None
    listed = process.run(["dpkg-query", "-L", libc.key]).stdout.decode().splitlines()
    assert database.files(libc) == [line for line in listed if re.match("/[^.]", line)]
