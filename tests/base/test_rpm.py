from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from repro_env.base import dpkg, host, packages, rpm
from repro_env.base.packages import Alternative, Package
from repro_env.model.errors import LockError
from tests.base.rpms import Machine
from tests.parts import need


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root", tmp_path / "work")


def names(found: tuple[Package, ...] | list[Package]) -> list[str]:
    return [package.name for package in found]


def never(name: str) -> bool:
    return False


def test_versions_architectures_and_names(machine: Machine) -> None:
    machine.add("glibc", version="2.39-6.fc40")
    machine.add("bash", version="1:5.2~rc1-3")
    machine.add("tzdata", arch="noarch")
    machine.add("glibc", version="2.39-6.fc40", arch="i686")
    database = machine.database()
    assert [(one.name, one.architecture, one.version) for one in database.packages] == [
        ("bash", "x86_64", "1:5.2~rc1-3"),
        ("glibc", "i686", "2.39-6.fc40"),
        ("glibc", "x86_64", "2.39-6.fc40"),
        ("tzdata", "noarch", "1.0-1"),
    ]
    assert [database.shown(one) for one in database.packages] == ["bash", "glibc.i686", "glibc", "tzdata"]
    native = database.named("glibc")
    assert native is not None
    assert native.architecture == "x86_64"
    assert database.named("libc.so.6") is None


def test_owners_by_the_spelling_from_before_folders_became_links(machine: Machine) -> None:
    (machine.root / "usr/lib64").mkdir(parents=True)
    (machine.root / "lib64").symlink_to("usr/lib64")
    machine.add("zlib", {"/lib64/libz.so.1.3": "z"}, tags=["Epoch: 2"])
    machine.add("other", {"/usr/lib64/libother.so": "o", "/opt/libz.so.1.3": "x"})
    paths = ["/usr/lib64/libz.so.1.3", "/usr/lib64/libother.so", "/usr/lib64/nobody.so", "/lib64/libz.so.1.3", "/opt/libz.so.1.3"]
    database = machine.database()
    found = database.owners(paths)
    assert {path: names(owners) for path, owners in found.items()} == {
        "/usr/lib64/libz.so.1.3": ["zlib"],
        "/usr/lib64/libother.so": ["other"],
        "/opt/libz.so.1.3": ["other"],
    }
    assert packages.words(database, paths[:3]) == {
        "/usr/lib64/libz.so.1.3": "rpm zlib 2:1.0-1",
        "/usr/lib64/libother.so": "rpm other 1.0-1",
        "/usr/lib64/nobody.so": "",
    }


def test_files_are_those_that_a_base_holds(machine: Machine) -> None:
    files = {
        "/usr/bin/tool": "x", "/etc/tool.conf": "c", "/etc/optional.conf": "o", "/etc/optional-gone.conf": "o",
        "/usr/share/doc/tool/README": "r", "/usr/share/licenses/tool/COPYING": "l", "/usr/share/doc/tool/LICENSE": "l",
        "/usr/share/x/a name with blanks, ümläut": "b",
    }  # fmt: skip
    marks = {
        "/etc/tool.conf": "%config(noreplace)", "/etc/optional.conf": "%config(missingok)",
        "/etc/optional-gone.conf": "%config(missingok)", "/usr/share/doc/tool/README": "%doc",
        "/usr/share/licenses/tool/COPYING": "%license", "/usr/share/doc/tool/LICENSE": "%license",
        "/var/log/tool.log": "%ghost", "/usr/bin/chosen": "%ghost", "/var/cache/none": "%ghost",
        "/etc/made.conf": "%ghost %config", "/etc/never-made.conf": "%ghost %config",
    }  # fmt: skip
    machine.add("tool", files, marks=marks)
    for path, text in (("etc/optional.conf", "o"), ("var/log/tool.log", "a machine's own"), ("etc/made.conf", "m")):
        (machine.root / path).parent.mkdir(parents=True, exist_ok=True)
        (machine.root / path).write_text(text)
    (machine.root / "usr/bin").mkdir(parents=True)
    (machine.root / "usr/bin/chosen").symlink_to("/etc/alternatives/chosen")
    database = machine.database()
    (tool,) = database.packages
    assert set(database.files(tool)) == {
        "/usr/bin/tool", "/usr/bin/chosen", "/etc/made.conf", "/etc/tool.conf", "/etc/optional.conf", "/usr/share/licenses/tool/COPYING",
        "/usr/share/doc/tool/LICENSE", "/usr/share/x/a name with blanks, ümläut",
    }  # fmt: skip
    sums = database.checksums(tool)
    assert set(sums) == set(database.files(tool)) - {"/usr/bin/chosen", "/etc/made.conf"}
    assert sums["/usr/bin/tool"] == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


@pytest.mark.root
def test_what_was_left_out_when_a_package_was_installed_is_not_missing(machine: Machine) -> None:
    need(os.getuid() == 0, "uid 0, to install a package")
    built = machine.build("tool", {"/usr/bin/tool": "x", "/usr/share/extra/file": "l"})
    machine.install(built, really=True, options=["--excludepath", "/usr/share/extra"])
    assert (machine.root / "usr/bin/tool").exists()
    assert not (machine.root / "usr/share/extra/file").exists()
    database = machine.database()
    assert database.files(database.packages[0]) == ["/usr/bin/tool"]
    assert list(database.checksums(database.packages[0])) == ["/usr/bin/tool"]


def test_old_packages_have_md5(machine: Machine) -> None:
    machine.add("tool", {"/usr/bin/tool": "x"}, tags=["%define _binary_filedigest_algorithm 1"])
    database = machine.database()
    assert database.checksums(database.packages[0]) == {"/usr/bin/tool": "9dd4e461268c8034f5c8564e155c67a6"}


def test_closure_by_capability_by_path_and_by_rich_dependency(machine: Machine) -> None:
    machine.add("app", tags=[
        "Requires: libssl.so.3()(64bit)", "Requires: /usr/bin/sh", "Requires: (weak if absent)", "Requires: (gone or virtual >= 2)",
        "Requires: gone", "Requires(post): systemd", "Requires(post): onlyscript", "Requires(pre): shadow-utils", "Requires: perl-libs",
        "Recommends: nice", "Recommends: gone",
    ])  # fmt: skip
    machine.add("openssl-libs", tags=["Provides: libssl.so.3()(64bit)", "Requires: glibc"])
    machine.add("glibc", tags=["Requires: (glibc-extra if app)", "Requires: glibc"])
    machine.add("glibc-extra")
    machine.add("bash", {"/bin/sh": "x"})
    machine.add("provider", tags=["Provides: virtual = 2"])
    for name in ("weak", "onlyscript", "systemd", "shadow-utils", "perl-libs", "nice", "unrelated"):
        machine.add(name)
    (machine.root / "usr/bin").mkdir(parents=True)
    (machine.root / "bin").symlink_to("usr/bin")
    database = machine.database()
    app = database.named("app")
    assert app is not None
    found = database.close([app], database.is_left_out)
    assert names(found) == ["app", "bash", "glibc", "glibc-extra", "openssl-libs", "provider"]
    assert names(database.recommended(app, never)) == ["nice"]
    everything = database.close([app], never)
    assert "perl-libs" in names(everything)


def test_the_dependencies_of_a_foreign_package_are_foreign(machine: Machine) -> None:
    machine.add("wine", arch="i686", tags=["Requires: glibc"])
    machine.add("glibc", arch="i686")
    machine.add("glibc")
    machine.add("native")
    database = machine.database()
    wine, native = database.named("wine"), database.named("glibc")
    assert wine is not None
    assert native is not None
    assert [one.key for one in database.close([wine], never)] == ["glibc:i686", "wine:i686"]
    assert native.architecture == "x86_64"


def test_packages_that_depend_on_each_other_end(machine: Machine) -> None:
    machine.add("a", tags=["Requires: b"])
    machine.add("b", tags=["Requires: a"])
    database = machine.database()
    assert names(database.close([database.packages[0]], never)) == ["a", "b"]


def test_both_places_of_the_database(tmp_path: Path) -> None:
    for place in ("var/lib/rpm", "usr/lib/sysimage/rpm"):
        machine = Machine(tmp_path / place.replace("/", "-"), tmp_path / "work", place)
        assert not rpm.present(machine.root)
        machine.add("bash")
        assert names(machine.database().packages) == ["bash"]
        assert isinstance(host.database(machine.root), rpm.Database)


def test_the_dpkg_of_an_rpm_machine_is_not_its_database(machine: Machine) -> None:
    machine.add("bash")
    status = machine.root / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text("")
    assert isinstance(host.database(machine.root), rpm.Database)
    status.write_text("Package: a\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n")
    assert isinstance(host.database(machine.root), dpkg.Database)


def test_a_key_that_rpm_trusts_is_no_package(machine: Machine) -> None:
    machine.add("gpg-pubkey", {"/x": "y"})
    machine.add("bash", {"/usr/bin/bash": "x"})
    database = machine.database()
    assert names(database.packages) == ["bash"]
    assert list(database.owners(["/x", "/usr/bin/bash"])) == ["/usr/bin/bash"]


def test_alternatives_as_chkconfig_keeps_them(machine: Machine) -> None:
    machine.add("binutils", {"/usr/bin/ld.bfd": "x"})
    folder = machine.root / "var/lib/alternatives"
    folder.mkdir(parents=True)
    (folder / "ld").write_text("auto\n/usr/bin/ld\nld-man\n/usr/share/man/ld.1\n\n/usr/bin/ld.bfd\n50\n/usr/share/man/ld.bfd.1\n")
    assert machine.database().alternatives() == (Alternative("ld", "/usr/bin/ld"), Alternative("ld-man", "/usr/share/man/ld.1"))


def test_a_database_that_cannot_be_read_is_named(machine: Machine) -> None:
    with pytest.raises(LockError, match="has no rpm database"):
        machine.database()
    machine.add("bash")
    file = machine.root / "usr/lib/sysimage/rpm/rpmdb.sqlite"
    for extra in ("-wal", "-shm"):
        Path(f"{file}{extra}").unlink(missing_ok=True)
    file.write_bytes(b"no database at all" * 1000)
    with pytest.raises(LockError) as caught:
        machine.database()
    assert caught.value.where == str(file.parent)


def test_without_the_program_rpm_the_hint_says_so(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.add("bash")
    monkeypatch.setattr(rpm, "SYSTEM_PATH", str(machine.root))
    with pytest.raises(LockError, match="the program rpm is not here") as caught:
        machine.database()
    assert "dnf install rpm" in caught.value.hint


def test_an_answer_that_does_not_fit_is_an_error(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(shutil.which("sh"), "sh")
    machine.add("bash")
    fake = tmp_path / "bin/rpm"
    fake.parent.mkdir()
    for answer in (r"1\036bash\034", r"x\036bash\036(none)\0365\0361\036x86_64\036\036\036\034", "cut short"):
        fake.write_text(f"#!/bin/sh\nprintf '{answer}'\n")
        fake.chmod(0o755)
        monkeypatch.setattr(rpm, "SYSTEM_PATH", f"{fake.parent}:/usr/bin:/bin")
        with pytest.raises(LockError, match="cannot be read"):
            machine.database()
