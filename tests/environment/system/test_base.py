from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from repro_env.environment.python.distributions import InstalledDistribution, Scan
from repro_env.environment.python.sites import Site
from repro_env.environment.system import base, interpretertree, ldcache, loader
from repro_env.environment.system.libraries import Owners
from repro_env.environment.system.tree import LiveTree, Tree, real, within
from repro_env.io import process
from repro_env.oci import layer
from repro_env.oci.entry import members
from repro_env.schema.environment import Distribution
from repro_env.schema.errors import LockError, UsageError
from repro_env.store.hashes import FileHashes
from tests.environment.system import elves, roots
from tests.environment.system.conftest import Captured, make
from tests.environment.system.debian import Machine
from tests.parts import need

FACTS = """
import json, platform, ssl, sys, sysconfig, zoneinfo, mimetypes, socket, curses, locale, ctypes.util
curses.setupterm("xterm")
print(json.dumps([
    sys.version, sys.prefix, sys.base_prefix, sys.executable, sys._base_executable, sys.path, platform.libc_ver(),
    ssl.OPENSSL_VERSION, len(ssl.create_default_context().get_ca_certs()), sorted(ssl.get_default_verify_paths()),
    sorted(sysconfig.get_config_vars().items(), key=str), open(sysconfig.get_config_h_filename()).read(),
    zoneinfo.ZoneInfo("Europe/Berlin").utcoffset(__import__("datetime").datetime(2024, 7, 1)).seconds,
    mimetypes.guess_type("x.webp"), sorted(mimetypes.types_map), socket.getservbyname("https"), curses.tigetnum("colors"),
    locale.setlocale(locale.LC_ALL, ""), locale.localeconv(),
    [ctypes.util._findSoname_ldconfig(name) for name in ("c", "m", "ssl", "z", "nothing")],
], default=str))
"""
EXTENSIONS = """
import importlib, json, os, sys
found = {}
for directory in sys.path:
    if directory.endswith("lib-dynload"):
        for name in sorted({file.partition(".")[0] for file in os.listdir(directory) if ".so" in file}):
            try:
                importlib.import_module(name)
                found[name] = "imports"
            except ImportError as error:
                found[name] = type(error).__name__
print(json.dumps(found))
"""


def outside(captured: Captured, code: str) -> str:
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    result = process.run([captured.facts.command, "-W", "ignore", "-c", code], env=env)
    assert result.code == 0, result.stderr
    return result.stdout.decode()


def test_python_reports_the_same_facts_inside_and_outside(captured: Captured, root: Path) -> None:
    need(
        "pyconfig.h" in " ".join(entry.path for entry in captured.interpreter.entries),
        f"C headers of {captured.facts.interpreter.executable}",
    )
    inside = roots.run(root, captured.facts.command, "-W", "ignore", "-c", FACTS, LANG="C.UTF-8")
    assert inside == outside(captured, FACTS)


def test_extension_modules_that_import_outside_import_inside(captured: Captured, root: Path) -> None:
    inside = roots.run(root, captured.facts.command, "-W", "ignore", "-c", EXTENSIONS)
    assert inside == outside(captured, EXTENSIONS)
    assert '"_ssl": "imports"' in inside


def test_the_shell_and_its_programs_work(captured: Captured, root: Path) -> None:
    assert roots.run(root, "bash", "-c", "ls / | grep '^us' | sed s/u/U/ | awk '{print $1 1}'") == "Usr1\n"
    assert roots.run(root, "sh", "-c", "TZ=Asia/Tokyo date -d @0 +%H; env -S 'echo hi'") == "09\nhi\n"
    assert roots.run(root, "date", "+%Z") == process.run(["date", "+%Z"], env={"PATH": "/usr/bin:/bin"}).stdout.decode()
    assert roots.run(root, "sh", "-c", "printf x | gzip | gunzip; tar -c /etc/passwd 2>/dev/null | tar -t") == "xetc/passwd\n"
    assert roots.run(root, "sh", "-c", r"printf '\303\251' | iconv -f UTF-8 -t ISO-8859-1 | od -An -c").strip() == "351"
    assert roots.run(root, "getent", "passwd") == base.PASSWD.decode()


def test_every_program_and_library_inside_finds_its_libraries(captured: Captured, root: Path) -> None:
    code = """
import os, subprocess, sys
for directory in ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec"):
    for where, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(where, name)
            if os.path.isfile(path) and open(path, "rb").read(4) == b"\\x7fELF":
                text = subprocess.run([sys.argv[1], "--list", path], capture_output=True, text=True).stdout
                print(*(f"{path}: {line.strip()}\\n" for line in text.splitlines() if "not found" in line), end="", sep="")
"""
    (loader,) = {
        entry.path
        for entry in captured.base.entries
        if re.search(r"/ld-linux-[a-z0-9-]+\.so\.\d$", entry.path) and entry.kind == "file"
    }
    assert roots.run(root, captured.facts.command, "-c", code, f"/{loader}") == ""


def test_the_loader_cache_lists_the_same_libraries_as_ldconfig(captured: Captured, root: Path) -> None:
    ours = roots.run(root, "ldconfig", "-p").splitlines()
    roots.run(root, "ldconfig", "-X", "-C", "/var/tmp/made.cache")
    made = roots.run(root, "ldconfig", "-p", "-C", "/var/tmp/made.cache").splitlines()
    # A libpython that the interpreter does not load is in a default directory, which the loader searches anyway.
    assert sorted(line for line in ours if "=>" in line) == sorted(
        line for line in made if "=>" in line and (line in ours or "libpython" not in line)
    )


def test_a_second_base_is_equal_and_its_contents_match_its_entries(captured: Captured, hashes: FileHashes) -> None:
    again, first = make(captured, hashes), captured.system_files
    assert (again.base.entries, again.packages, again.remarks) == (first.base.entries, first.packages, first.remarks)
    layer.diff_id(
        layer.check_contents(members(again.base.entries, again.base.contents))
    )  # raises if the content does not match its sha256


def test_the_order_of_mapped_and_listed_libraries_does_not_matter(captured: Captured, hashes: FileHashes) -> None:
    startup = msgspec.structs.replace(captured.startup, mapped=tuple(reversed(captured.startup.mapped)))
    libraries = captured.startup.mapped
    first = make(
        captured,
        hashes,
        startup=startup,
        libraries=libraries,
        programs=(
            "tar",
            "sed",
        ),
    )
    second = make(
        captured,
        hashes,
        libraries=libraries[::-1],
        programs=(
            "sed",
            "tar",
        ),
    )
    assert [first.base.entries, first.unpackaged, first.bundled, first.libraries] == [
        second.base.entries,
        None,
        (),
        second.libraries,
    ]


def test_machine_specific_files_are_not_in_the_base(captured: Captured) -> None:
    paths = {entry.path for entry in captured.base.entries}
    assert not paths & {"etc/shadow", "etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/machine-id", "etc/fstab"}
    assert {path.partition("/")[0] for path in paths} <= {
        "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "media", "mnt", "opt", "proc", "root", "run",
        "sbin", "srv", "sys", "tmp", "usr", "var",
    }  # fmt: skip
    assert not [path for path in paths if re.match(r"usr/share/(man|info|locale/..)/", path)]
    assert [path for path in paths if path.startswith("usr/share/doc/libc6/")] == ["usr/share/doc/libc6/copyright"]
    names = {package.name for package in captured.system_files.packages}
    assert {"bash", "libc6", "coreutils"} <= names
    assert not names & {"dpkg", "perl-base", "debconf", "apt"}


def test_no_path_goes_through_a_link(captured: Captured) -> None:
    for tree in (captured.base, captured.interpreter):
        links = {entry.path for entry in tree.entries if entry.kind == "link"}
        for entry in tree.entries:
            parts = entry.path.split("/")
            assert not links.intersection("/".join(parts[:depth]) for depth in range(1, len(parts)))


def test_interpreter_and_base_agree_where_they_overlap(captured: Captured) -> None:
    lower = {entry.path: entry for entry in captured.base.entries}
    assert [entry for entry in captured.interpreter.entries if lower.get(entry.path, entry) != entry] == []


def test_the_package_database_inside_names_the_packages(captured: Captured) -> None:
    (entry,) = (entry for entry in captured.base.entries if entry.path == "var/lib/dpkg/status")
    text = b"".join(captured.base.contents.chunks(entry)).decode()
    assert sorted(re.findall(r"^Package: (.*)$", text, re.MULTILINE)) == [
        package.name for package in captured.system_files.packages
    ]


def test_a_program_includes_its_package_and_dependencies(captured: Captured, hashes: FileHashes) -> None:
    need(shutil.which("git", path="/usr/bin:/bin"), "git: apt-get install git")
    found = make(captured, hashes, programs=("git",))
    assert "git" in {package.name for package in found.packages} - {package.name for package in captured.system_files.packages}
    by_path = {entry.path: entry for entry in found.base.entries}
    assert by_path["usr/bin/git"].executable
    libraries = loader.host({}).resolve(["/usr/bin/git"]).libraries
    assert libraries
    assert {str(Path(library).resolve())[1:] for library in libraries} <= set(by_path)


def held(tree: Tree | None) -> dict[str, str]:
    """Absolute path -> link target or kind."""
    assert tree is not None
    return {f"/{entry.path}": entry.target or entry.kind for entry in tree.entries}


def cache(tree: Tree | None) -> tuple[ldcache.Library, ...]:
    assert tree is not None
    (entry,) = (entry for entry in tree.entries if entry.path == "etc/ld.so.cache")
    return ldcache.read(b"".join(tree.contents.chunks(entry)))


def test_an_unpackaged_program_is_bundled_and_listed(captured: Captured, hashes: FileHashes, tmp_path: Path) -> None:
    library = elves.place(tmp_path / "lib/libmine.so.1", elves.elf(soname="libmine.so.1"))
    program = tmp_path / "bin/tool-1"
    elves.place(program, elves.elf(("libmine.so.1", "libabsent.so.3"), runpath="$ORIGIN/../lib", interpreter="/lib64/ld-x.so.2"))
    program.chmod(0o755)
    (tmp_path / "bin/tool").symlink_to("tool-1")
    found = make(captured, hashes, programs=(f"{tmp_path}/bin/tool",))
    assert [(item.name, item.size) for item in found.bundled] == [
        (path, Path(path).stat().st_size) for path in (str(program), library)
    ]
    kinds = held(found.unpackaged)
    assert [kinds[f"{tmp_path}/{name}"] for name in ("bin/tool", "bin/tool-1", "lib/libmine.so.1")] == ["tool-1", "file", "file"]
    assert f"libabsent.so.3, needed by {program}, is not on this machine" in found.unknown
    assert found.base.entries == captured.base.entries  # unpackaged files do not change the base
    (owner,) = (item.owner for item in found.libraries if item.path == library)
    assert owner == ""


def test_libraries_that_a_framework_loads_are_bundled_like_those_that_python_maps(
    captured: Captured, hashes: FileHashes, tmp_path: Path
) -> None:
    near = elves.place(tmp_path / "lib/libnear.so.1", elves.elf(soname="libnear.so.1"))
    lazy = elves.place(tmp_path / "lib/liblazy.so.1", elves.elf(("libnear.so.1",), soname="liblazy.so.1", runpath="$ORIGIN"))
    found = make(captured, hashes, loaded=(lazy,))
    assert [item.name for item in found.bundled] == [lazy, near]
    assert "/etc/ld.so.cache" not in held(found.unpackaged)
    assert found.base.entries == captured.base.entries


def test_an_unpackaged_directory_is_bundled_completely(captured: Captured, hashes: FileHashes, tmp_path: Path) -> None:
    elves.place(tmp_path / "tool/bin/run", elves.elf(("libz.so.1", "libnear.so"), runpath="$ORIGIN/../lib"))
    (tmp_path / "tool/bin/run").chmod(0o755)
    elves.place(tmp_path / "tool/lib/libnear.so", elves.elf(("libfar.so",), runpath=str(tmp_path / "far")))
    far = elves.place(tmp_path / "far/libfar.so", elves.elf())
    (tmp_path / "tool/share").mkdir()
    (tmp_path / "tool/share/data").write_text("x" * 100)
    (tmp_path / "tool/share/empty").mkdir()
    (tmp_path / "alias").symlink_to("tool")
    found = make(captured, hashes, programs=(f"{tmp_path}/alias",))
    kinds = held(found.unpackaged)
    assert {path.removeprefix(f"{tmp_path}/") for path in kinds if path.startswith(f"{tmp_path}/")} == {
        "alias", "far", "far/libfar.so", "tool", "tool/bin", "tool/bin/run", "tool/lib", "tool/lib/libnear.so", "tool/share",
        "tool/share/data", "tool/share/empty",
    }  # fmt: skip
    size = sum(path.stat().st_size for path in (tmp_path / "tool").rglob("*") if path.is_file())
    assert [(item.name, item.size) for item in found.bundled] == [(far, Path(far).stat().st_size), (f"{tmp_path}/tool", size)]
    assert "zlib1g" in {package.name for package in found.packages}


def test_the_interpreter_of_a_script_is_included(captured: Captured, hashes: FileHashes, tmp_path: Path) -> None:
    need(shutil.which("perl", path="/usr/bin:/bin"), "perl")
    for name, line in (
        ("direct", "#!/usr/bin/perl -w"),
        ("env", "#!/usr/bin/env -S perl -w"),
        ("script", f"#!{tmp_path}/direct"),
    ):
        (tmp_path / name).write_text(f"{line}\nprint 1;\n")
        (tmp_path / name).chmod(0o755)
        found = make(captured, hashes, programs=(f"{tmp_path}/{name}",))
        assert "perl-base" in {package.name for package in found.packages}
        names = {"script": ["direct", "script"]}.get(name, [name])
        assert [item.name for item in found.bundled] == [f"{tmp_path}/{name}" for name in names]


def test_modules_on_sys_path_and_libraries_of_the_environment_are_not_bundled(
    captured: Captured, hashes: FileHashes, tmp_path: Path
) -> None:
    module = elves.place(tmp_path / "project/fast.so", elves.elf())
    mine = elves.place(Path(captured.facts.layout.prefix) / "lib/libmine.so", elves.elf(("libpeer.so",), soname="libmine.so"))
    peer = elves.place(Path(captured.facts.layout.prefix) / "lib/deep/libpeer.so", elves.elf())
    startup = msgspec.structs.replace(
        captured.startup,
        mapped=(*captured.startup.mapped, module, mine),
        sys_path=(*captured.startup.sys_path, f"{tmp_path}/project"),
    )
    found = make(
        captured,
        hashes,
        startup=startup,
        libraries=(
            mine,
            peer,
        ),
    )
    assert (found.unpackaged, found.unknown) == (None, captured.system_files.unknown)
    assert found.base.entries == captured.base.entries


def test_a_driver_in_the_environment_belongs_to_its_wheel_and_another_to_the_driver(captured: Captured) -> None:
    wheel = InstalledDistribution(
        Distribution(
            name="nvidia", version="1", dist_info="lib/nvidia-1.dist-info", site="lib", tags=(), build="",
            direct_url="", editable=False, has_record=True,
        ),
        b"x/libcuda.so.1,,\n", b"", b"",
    )  # fmt: skip
    layout = msgspec.structs.replace(captured.facts.layout, prefix="/env")
    site = Site(0, layout, Scan((wheel,), ()), (), {"lib/x/libcuda.so.1": "1" * 64})
    owners = Owners([site], {}, (), captured.interpreter)
    assert owners.find("/env/lib/x/libcuda.so.1").owner == "wheel nvidia 1"
    assert owners.find("/env/lib/x/libcuda.so.1").sha256 == "sha256:" + "1" * 64
    assert (owners.find("/usr/lib/libcuda.so.1").owner, owners.find("/usr/lib/libcuda.so.1").sha256) == ("driver", None)
    assert owners.find(captured.facts.interpreter.executable).owner == "interpreter"


def test_the_cache_of_the_upper_layer_also_lists_unpackaged_libraries(
    captured: Captured, hashes: FileHashes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vendor's directory in ld.so.conf; the cache of this machine lists more than is captured."""
    vendor = [elves.place(tmp_path / name, elves.elf(soname=name)) for name in ("libused.so.1", "libother.so.1")]
    lines = (*loader.host_cache(), *(ldcache.Library(Path(path).name, 0x0303, path) for path in vendor))
    monkeypatch.setattr(loader, "host_cache", lambda: lines)
    start = elves.place(tmp_path / "env/start.so", elves.elf(("libused.so.1",)))
    found = make(captured, hashes, libraries=(start,))
    assert set(cache(found.unpackaged)) - set(cache(found.base)) == {ldcache.Library("libused.so.1", 0x0303, vendor[0])}
    assert set(cache(found.base)) < set(cache(found.unpackaged))
    assert found.base.entries == captured.base.entries


def test_a_gpu_driver_is_listed_but_not_captured(captured: Captured, hashes: FileHashes, tmp_path: Path) -> None:
    driver = elves.place(tmp_path / "libcuda.so.550.1", elves.elf(soname="libcuda.so.1"))
    runtime = elves.place(tmp_path / "libcudart.so.12", elves.elf(soname="libcudart.so.12"))
    startup = msgspec.structs.replace(captured.startup, mapped=(*captured.startup.mapped, driver, runtime))
    found = make(captured, hashes, startup=startup)
    assert [item.name for item in found.bundled] == [runtime]
    assert [note for note in found.remarks if driver in note]
    assert {library.path: (library.owner, library.sha256) for library in found.libraries}[driver] == ("driver", None)


def test_every_used_library_is_listed_with_its_owner(captured: Captured) -> None:
    by_path = {library.path: library for library in captured.system_files.libraries}
    (libc,) = (first for path, first in by_path.items() if re.search(r"/libc\.so\.6\Z", path))
    assert re.fullmatch(r"deb libc6 \S+", libc.owner)
    assert libc.sha256 == f"sha256:{hashlib.sha256(Path(libc.path).read_bytes()).hexdigest()}"
    assert list(by_path) == sorted(by_path)
    mapped = {
        path
        for path in captured.startup.mapped
        if not within(path, [captured.facts.interpreter.stdlib, captured.facts.layout.prefix])
    }
    inner = interpretertree.own_prefix(captured.facts)
    assert {path for path in mapped if not (inner and within(path, [inner]))} <= {*by_path, captured.facts.interpreter.libpython}


def test_packages_with_files_in_a_given_directory_are_in_the_base(captured: Captured, hashes: FileHashes, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "db")
    site = tmp_path / "dist-packages"
    (site / "numpy").mkdir(parents=True)
    (site / "numpy/core.py").write_text("x")
    (site / "mine.py").write_text("x")
    (tmp_path / "data").write_text("x")
    machine.install("dpkg")
    machine.install("python3-numpy", str(site), str(site / "numpy"), str(site / "numpy/core.py"), Depends="libdata")
    machine.install("python3-other", str(site))
    machine.install("libdata", str(tmp_path / "data"))
    startup = msgspec.structs.replace(captured.startup, mapped=())
    found = make(captured, hashes, startup=startup, system=machine.database(), directories=(str(site), f"{tmp_path}/none"))
    assert [package.name for package in found.packages] == ["libdata", "python3-numpy"]
    kinds = held(found.base)
    assert kinds[f"{site}/numpy/core.py"] == "file"
    assert f"{site}/mine.py" not in kinds


def test_fedoras_trust_store_is_included(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "extracted/pem").mkdir(parents=True)
    (tmp_path / "extracted/pem/bundle.pem").write_text("all")
    monkeypatch.setattr(base, "EXTRACTED", (f"{tmp_path}/extracted", f"{tmp_path}/none"))
    tree = LiveTree()
    base._add_certificates(tree)
    assert f"{tmp_path}/extracted/pem/bundle.pem" in tree


def test_an_unknown_program_is_rejected(captured: Captured, hashes: FileHashes) -> None:
    for name in ("no-such-program-anywhere", "/no/such/file", "/etc", "/"):
        with pytest.raises(UsageError, match=r"neither a program nor a package|directory that system packages share") as caught:
            make(captured, hashes, programs=(name,))
        assert caught.value.where == f"--with {name}"


def test_a_missing_locale_is_rejected_by_name(captured: Captured, hashes: FileHashes) -> None:
    with pytest.raises(LockError, match="xx_YY") as caught:
        make(captured, hashes, startup=msgspec.structs.replace(captured.startup, locale="xx_YY.UTF-8 UTF-8"))
    assert "locale-gen xx_YY.UTF-8" in caught.value.hint


def test_a_machine_without_dpkg_and_rpm_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "lib/apk/db/installed").mkdir(parents=True)
    with pytest.raises(LockError, match="dpkg or rpm database only"):
        base.database(tmp_path)


def test_secret_and_machine_specific_files_are_left_out_for_every_user(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "db")
    for name, mode in (("open", 0o644), ("secret", 0o640), ("tool", 0o4711)):
        (tmp_path / name).write_text("x")
        (tmp_path / name).chmod(mode)
    own = ["/etc/passwd", "/etc/passwd-", "/etc/shadow", "/etc/gshadow", "/etc/hosts", "/etc/hostname", "/etc/fstab"]
    machine.install("setup", *(f"{tmp_path}/{name}" for name in ("open", "secret", "tool")), *own)
    database, tree = machine.database(), LiveTree()
    excluded = base._collect(tree, database, database.packages[0], frozenset(), real)
    assert excluded == [f"{tmp_path}/{name} (setup) is not readable by all users and is left out" for name in ("secret", "tool")]
    assert {path for path in tree.keys if not within(f"/{path}", [str(tmp_path)])} == set()
    assert f"{tmp_path}/open" in tree


def test_a_system_file_that_was_replaced_by_a_link_brings_its_target(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "db")
    (tmp_path / "made-a-link").symlink_to("elsewhere")
    (tmp_path / "elsewhere").write_text("own\n")
    machine.install("tool", *(f"{tmp_path}/{name}" for name in ("made-a-link", "gone")))
    database, tree = machine.database(), LiveTree()
    excluded = base._collect(tree, database, database.packages[0], frozenset(), real)
    assert excluded == [f"{tmp_path}/gone (tool) is missing or cannot be reached"]
    assert all(f"{tmp_path}/{name}" in tree for name in ("made-a-link", "elsewhere"))


def compiled(directory: Path, name: str, code: str, *options: str) -> Path:
    """Compile a library, or a program if its name has no `.so`, from C."""
    need(shutil.which("gcc"), "gcc")
    directory.mkdir(parents=True, exist_ok=True)
    source = directory / f"{name}.c"
    source.write_text(code)
    kind = ["-shared", "-fPIC", f"-Wl,-soname,{name}"] if ".so" in name else []
    done = process.run(["gcc", *kind, "-o", str(directory / name), str(source), *options])
    assert done.code == 0, done.stderr
    source.unlink()
    return directory / name


def roots_of(captured: Captured, found: base.SystemFiles, directory: Path, more: list[Path]) -> Path:
    """A root with the base and the tree above it, and with the files of `more`, which would be in other layers."""
    trees = [found.base, *([found.unpackaged] if found.unpackaged else []), captured.interpreter]
    directory.mkdir()
    roots.write(directory, trees)
    for path in more:
        place = directory / str(path)[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    return directory


def test_a_library_found_by_the_variable_is_found_inside(captured: Captured, hashes: FileHashes, tmp_path: Path) -> None:
    """A vendor's library shadows the system's, like a module of a cluster; another library is opened by name."""
    vendor = tmp_path / "sw/lib"
    compiled(vendor, "libz.so.1", 'const char *zlibVersion(void) { return "vendor"; }')
    compiled(vendor, "libnear.so.2.1", "int near(void) { return 42; }")
    (vendor / "libnear.so.2").symlink_to("libnear.so.2.1")
    compiled(vendor, "libunused.so.1", "int unused(void) { return 0; }")
    (tmp_path / "module").symlink_to("sw")
    spelled = tmp_path / "module/lib"
    main = '#include <stdio.h>\nconst char *zlibVersion(void); int near(void);\nint main(void) { printf("%s %d\\n", zlibVersion(), near()); }'
    program = compiled(tmp_path / "env", "program", main, str(vendor / "libz.so.1"), str(vendor / "libnear.so.2.1"))
    # The program asks for the name of the link, which leads to another file name.
    program.write_bytes(program.read_bytes().replace(b"libnear.so.2.1\0", b"libnear.so.2\0\0\0"))
    environ = {"LD_LIBRARY_PATH": f"{spelled}:"}
    outside = process.run([str(program)], env=environ)
    assert outside.stdout == b"vendor 42\n", outside.stderr
    startup = msgspec.structs.replace(captured.startup, mapped=())
    found = make(captured, hashes, startup=startup, libraries=(str(program),), environ=environ)
    assert [item.name for item in found.bundled] == [f"{vendor}/libnear.so.2.1", f"{vendor}/libz.so.1"]
    assert held(found.unpackaged)[f"{tmp_path}/module"] == "sw"
    uncaptured = f"LD_LIBRARY_PATH names {spelled}: 1 of its libraries are not captured, because nothing captured loads them"
    assert [line for line in found.unknown if "LD_LIBRARY_PATH" in line] == [
        "LD_LIBRARY_PATH has '', whose meaning depends on the program or the working directory: ignored",
        f"{uncaptured}; a program that opens one of them by name does not find it (to capture all: --with {spelled})",
    ]
    assert not [entry for entry in found.base.entries if str(tmp_path)[1:] in entry.path]
    inside = roots_of(captured, found, tmp_path / "root", [program])
    assert found.library_path == str(spelled)
    assert roots.run(inside, str(program), LD_LIBRARY_PATH=found.library_path) == "vendor 42\n"
    complete = make(captured, hashes, startup=startup, libraries=(str(program),), programs=(str(spelled),), environ=environ)
    assert [item.name for item in complete.bundled] == [str(vendor)]
    assert not [line for line in complete.unknown if "not captured" in line]
    assert f"{vendor}/libunused.so.1" in held(complete.unpackaged)


def test_directories_of_the_environment_stay_in_the_variable(captured: Captured, hashes: FileHashes, tmp_path: Path) -> None:
    """Frameworks open libraries by name when they need them (nvidia-*'s directories on LD_LIBRARY_PATH)."""
    wheel = f"{captured.facts.layout.prefix}/lib/nvidia/cudnn/lib"
    found = make(captured, hashes, environ={"LD_LIBRARY_PATH": f"{tmp_path}/gone:{wheel}"})
    assert (found.library_path, found.unpackaged, found.unknown) == (wheel, None, captured.system_files.unknown)


def test_missing_libraries_of_a_file_are_reported_in_one_line(captured: Captured, hashes: FileHashes, tmp_path: Path) -> None:
    many = elves.place(tmp_path / "many.so", elves.elf(("libb.so.9", "liba.so.9", "libcuda.so.1")))
    single = elves.place(tmp_path / "one.so", elves.elf(("libc.so.99",)))
    found = make(
        captured,
        hashes,
        libraries=(
            many,
            single,
        ),
    )
    assert set(found.unknown) - set(captured.system_files.unknown) == {
        f"liba.so.9, libb.so.9, needed by {many}, are not on this machine",
        f"libc.so.99, needed by {single}, is not on this machine",
    }
    assert f"libcuda.so.1, needed by {many}, is not on this machine" in found.remarks


def test_preloaded_libraries_are_reported(captured: Captured, hashes: FileHashes) -> None:
    found = make(captured, hashes, environ={"LD_PRELOAD": "/opt/libmine.so libm.so.6"})
    assert [line.split(" is ")[0] for line in found.unknown if "preload" in line] == ["/opt/libmine.so", "libm.so.6"]


def test_a_driver_in_the_variable_is_neither_captured_nor_reported(
    captured: Captured, hashes: FileHashes, tmp_path: Path
) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        elves.place(tmp_path / "nvidia" / name, elves.elf(soname=name))
    environ = {"LD_LIBRARY_PATH": f"{tmp_path}/nvidia:{tmp_path}/gone"}
    found = make(captured, hashes, environ=environ)
    assert (found.unpackaged, found.unknown) == (None, captured.system_files.unknown)
