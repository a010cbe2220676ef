from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from repro_env.environment.system import base, dpkg, rpm
from repro_env.environment.system.packages import Package
from repro_env.schema.errors import LockError
from tests.environment.system.rpms import Machine
from tests.parts import need


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root", tmp_path / "work")


def names(found: tuple[Package, ...] | list[Package]) -> list[str]:
    return [package.name for package in found]


def test_versions_architectures_and_names_are_read(machine: Machine) -> None:
    machine.add("glibc", version="2.39-6.fc40")
    machine.add("bash", version="1:5.2~rc1-3")
    machine.add("tzdata", arch="noarch")
    machine.add("glibc", version="2.39-6.fc40", arch="i686")
    database = machine.database()
    assert [(package.name, package.architecture, package.version) for package in database.packages] == [
        ("bash", "x86_64", "1:5.2~rc1-3"),
        ("glibc", "i686", "2.39-6.fc40"),
        ("glibc", "x86_64", "2.39-6.fc40"),
        ("tzdata", "noarch", "1.0-1"),
    ]
    assert [database.display_name(package) for package in database.packages] == ["bash", "glibc.i686", "glibc", "tzdata"]
    native = database.find("glibc")
    assert native is not None
    assert native.architecture == "x86_64"
    assert database.find("libc.so.6") is None


def test_owners_are_found_by_paths_from_before_directories_became_links(machine: Machine) -> None:
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
    assert database.owner_name(found["/usr/lib64/libz.so.1.3"][0]) == "rpm zlib 2:1.0-1"


def test_files_are_those_that_belong_in_a_base(machine: Machine) -> None:
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


def test_files_excluded_at_installation_are_not_reported_as_missing(machine: Machine) -> None:
    need(os.getuid() == 0, "uid 0, to install a package")
    built = machine.build("tool", {"/usr/bin/tool": "x", "/usr/share/extra/file": "l"})
    machine.install(built, really=True, options=["--excludepath", "/usr/share/extra"])
    assert (machine.root / "usr/bin/tool").exists()
    assert not (machine.root / "usr/share/extra/file").exists()
    database = machine.database()
    assert database.files(database.packages[0]) == ["/usr/bin/tool"]


def test_closure_by_capability_by_path_and_by_rich_dependency(machine: Machine) -> None:
    machine.add("app", tags=[
        "Requires: libssl.so.3()(64bit)", "Requires: /usr/bin/sh", "Requires: (virtual if absent)", "Requires: (gone or virtual >= 2)",
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
    app = database.find("app")
    assert app is not None
    found = database.with_dependencies([app])
    assert names(found) == ["app", "bash", "glibc", "glibc-extra", "openssl-libs", "provider"]
    assert names(database.recommendations(app)) == ["nice"]


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("bash", ["bash"]),
        ("libc.so.6()(64bit)", ["libc.so.6()(64bit)"]),
        ("(bash)", ["bash"]),
        ("(zsh or fish or bash >= 5:1.2~rc1)", ["zsh", "fish", "bash"]),
        ("(bash and pkg(x) = 2)", ["bash", "pkg(x)"]),
        ("(cc if bash)", ["cc"]),
        ("(cc if bash else pkg(x))", ["cc", "pkg(x)"]),
        ("(cc unless bash >= 2 else pkg(x))", ["cc", "pkg(x)"]),
        ("(cc with c++)", ["cc", "c++"]),
        ("(cc without c++)", ["cc"]),
        ("((bash or zsh) if (libc.so.6()(64bit) and zsh))", ["bash", "zsh"]),
        ("(cc if (a and (b or c)) else d)", ["cc", "d"]),
    ],
)
def test_conditions_of_a_rich_dependency_are_not_needed(requirement: str, expected: list[str]) -> None:
    assert rpm.capabilities(requirement) == expected


def test_the_dependencies_of_a_foreign_package_are_foreign(machine: Machine) -> None:
    machine.add("wine", arch="i686", tags=["Requires: glibc"])
    machine.add("glibc", arch="i686")
    machine.add("glibc")
    machine.add("native")
    database = machine.database()
    wine, native = database.find("wine"), database.find("glibc")
    assert wine is not None
    assert native is not None
    assert [(package.name, package.architecture) for package in database.with_dependencies([wine])] == [
        ("glibc", "i686"),
        ("wine", "i686"),
    ]
    assert native.architecture == "x86_64"


def test_cyclic_dependencies_terminate(machine: Machine) -> None:
    machine.add("a", tags=["Requires: b"])
    machine.add("b", tags=["Requires: a"])
    database = machine.database()
    assert names(database.with_dependencies([database.packages[0]])) == ["a", "b"]


def test_the_database_is_found_in_both_directories(tmp_path: Path) -> None:
    for place in ("var/lib/rpm", "usr/lib/sysimage/rpm"):
        machine = Machine(tmp_path / place.replace("/", "-"), tmp_path / "work", place)
        assert not rpm.present(machine.root)
        machine.add("bash")
        assert names(machine.database().packages) == ["bash"]
        assert isinstance(base.database(machine.root), rpm.Database)


def test_an_empty_dpkg_database_on_an_rpm_machine_is_ignored(machine: Machine) -> None:
    machine.add("bash")
    status = machine.root / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text("")
    assert isinstance(base.database(machine.root), rpm.Database)
    status.write_text("Package: a\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n")
    assert isinstance(base.database(machine.root), dpkg.Database)


def test_a_trusted_signing_key_is_not_a_package(machine: Machine) -> None:
    machine.add("gpg-pubkey", {"/x": "y"})
    machine.add("bash", {"/usr/bin/bash": "x"})
    database = machine.database()
    assert names(database.packages) == ["bash"]
    assert list(database.owners(["/x", "/usr/bin/bash"])) == ["/usr/bin/bash"]


def test_an_unreadable_database_is_named(machine: Machine) -> None:
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


def test_a_missing_rpm_program_is_reported(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.add("bash")
    monkeypatch.setattr(rpm, "SYSTEM_PATH", str(machine.root))
    with pytest.raises(LockError, match=r"the program rpm, .* is not installed") as caught:
        machine.database()
    assert "dnf install rpm" in caught.value.hint


def test_unexpected_output_of_rpm_is_an_error(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(shutil.which("sh"), "sh")
    machine.add("bash")
    fake = tmp_path / "bin/rpm"
    fake.parent.mkdir()
    for answer in (r"1\036bash\034", r"bash\036(none)\0365\0361\036x86_64\036a\035x\037\036\036\036\034", "cut short"):
        fake.write_text(f"#!/bin/sh\nprintf '{answer}'\n")
        fake.chmod(0o755)
        monkeypatch.setattr(rpm, "SYSTEM_PATH", f"{fake.parent}:/usr/bin:/bin")
        with pytest.raises(LockError, match="cannot be read"):
            machine.database()
