from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec
import pytest

from repro_env.environment.system import host, ldcache, libpath
from repro_env.environment.system.closure import Loader, resolve
from repro_env.environment.system.ldcache import Library
from repro_env.environment.system.tree import Tree
from repro_env.environment.system.unpackaged import merge
from repro_env.io import process
from repro_env.io.hashes import FileHashes
from tests.environment.system import elves, roots
from tests.environment.system.conftest import Captured
from tests.environment.system.test_host import cache, held
from tests.parts import need

ABI = 0x0303


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


def test_loader_variables_are_parsed_as_the_loader_does(tmp_path: Path) -> None:
    file = tmp_path / "ld.so.preload"
    file.write_text("/lib/first.so\n")
    found = libpath.read(
        {"LD_LIBRARY_PATH": "/opt/a/:/opt/b;lib::/opt/x/../a:$ORIGIN/lib", "LD_PRELOAD": "libm.so.6 /opt/p.so:./q.so $LIB/r.so"},
        file,
    )
    assert found.directories == ("/opt/a", "/opt/b")
    assert found.preload == ("libm.so.6", "/opt/p.so", "/lib/first.so")
    assert [re.findall(r"has '(\S*)',", line) for line in found.ignored] == [
        ["lib"],
        [""],
        ["$ORIGIN/lib"],
        ["./q.so"],
        ["$LIB/r.so"],
    ]
    odd = libpath.read({"LD_LIBRARY_PATH": "/opt/a\nb", "LD_PRELOAD": "/opt/\x1b[0m.so"}, tmp_path / "none")
    assert (odd.directories, odd.preload, len(odd.ignored)) == ((), (), 2)
    assert all(line.isprintable() for line in odd.ignored)
    assert libpath.read({}, tmp_path / "none") == libpath.LibPath()
    assert libpath.read({"LD_LIBRARY_PATH": "", "LD_PRELOAD": ""}, tmp_path / "none") == libpath.LibPath()


def test_the_search_order_is_rpath_variable_runpath_cache(tmp_path: Path) -> None:
    for directory in ("rpath", "variable", "runpath", "cache"):
        elves.place(tmp_path / directory / "liba.so", elves.elf())
    listed = [Library("liba.so", ABI, f"{tmp_path}/cache/liba.so")]
    for kind, directories, expected in (
        ("rpath", [f"{tmp_path}/variable"], "rpath"),
        ("runpath", [f"{tmp_path}/variable"], "variable"),
        ("runpath", [f"{tmp_path}/empty"], "runpath"),
        ("", [f"{tmp_path}/variable"], "variable"),
        ("", [], "cache"),
    ):
        place = f"{tmp_path}/{kind}"
        app = elves.elf(("liba.so",), rpath=place if kind == "rpath" else "", runpath=place if kind == "runpath" else "")
        start = elves.place(tmp_path / "app", app)
        found = resolve([start], Loader(listed, directories))
        assert found.libraries == (f"{tmp_path}/{expected}/liba.so",)
        assert found.chosen == {(start, "liba.so"): f"{tmp_path}/{expected}/liba.so"}


def test_hwcaps_variants_are_found_below_any_directory(tmp_path: Path) -> None:
    for directory in ("", "glibc-hwcaps/x86-64-v2", "glibc-hwcaps/x86-64-v3"):
        elves.place(tmp_path / directory / "liba.so", elves.elf())
    start = elves.place(tmp_path / "app", elves.elf(("liba.so",)))
    assert len(resolve([start], Loader((), [str(tmp_path)])).libraries) == 3


def test_libraries_of_the_variable_come_before_all_variants() -> None:
    first = [Library("liba.so", ABI, "/opt/liba.so")]
    others = [
        Library("liba.so", ABI, "/lib/liba.so"),
        Library("liba.so", ABI, "/lib/glibc-hwcaps/x86-64-v2/liba.so", "x86-64-v2"),
        Library("libb.so", ABI, "/lib/glibc-hwcaps/x86-64-v2/libb.so", "x86-64-v2"),
    ]
    assert merge(first, others) == (first[0], others[0], others[2])


def roots_of(captured: Captured, found: host.SystemFiles, directory: Path, more: list[Path]) -> Path:
    """A root with the base and the tree above it, and with the files of `more`, which would be in other layers."""
    trees = [found.base, *([found.unpackaged] if found.unpackaged else []), captured.interpreter]
    directory.mkdir()
    roots.write(directory, trees)
    for path in more:
        place = directory / str(path)[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    return directory


@pytest.mark.root
def test_a_library_found_by_the_variable_is_found_inside_without_it(
    captured: Captured, hashes: FileHashes, tmp_path: Path
) -> None:
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
    found = host.system_files(
        captured.facts, startup, libraries=[program], environ=environ, locale=captured.startup.locale, hashes=hashes
    )
    assert [item.name for item in found.bundled] == [f"{vendor}/libnear.so.2.1", f"{vendor}/libz.so.1"]
    assert held(found.unpackaged)[f"{tmp_path}/module"] == "sw"
    uncaptured = f"LD_LIBRARY_PATH names {spelled}: 1 of its libraries are not captured, because nothing captured loads them"
    assert [line for line in found.base.unknown if "LD_LIBRARY_PATH" in line] == [
        "LD_LIBRARY_PATH has '', whose meaning depends on the program or the working directory: ignored",
        f"{uncaptured}; a program that opens one of them by name does not find it (to capture all: --with {spelled})",
    ]
    assert not [entry for entry in found.base.entries if str(tmp_path)[1:] in entry.path]
    inside = roots_of(captured, found, tmp_path / "root", [program])
    assert roots.run(inside, str(program)) == "vendor 42\n"
    assert "zlibVersion" not in roots.run(inside, "gzip", "--version")  # system programs use the vendor's library too
    complete = host.system_files(
        captured.facts,
        startup,
        libraries=[program],
        programs=[str(spelled)],
        environ=environ,
        locale=captured.startup.locale,
        hashes=hashes,
    )
    assert [item.name for item in complete.bundled] == [str(vendor)]
    assert not [line for line in complete.base.unknown if "not captured" in line]
    assert f"{vendor}/libunused.so.1" in held(complete.unpackaged)


def test_a_runpath_that_takes_precedence_inside_is_reported(captured: Captured, hashes: FileHashes, tmp_path: Path) -> None:
    for directory in ("variable", "runpath"):
        elves.place(tmp_path / directory / "liba.so", elves.elf(soname="liba.so"))
    start = elves.place(tmp_path / "env/ext.so", elves.elf(("liba.so",), runpath=f"{tmp_path}/runpath"))
    environ = {"LD_LIBRARY_PATH": f"{tmp_path}/variable"}
    found = host.system_files(captured.facts, captured.startup, libraries=[Path(start)], environ=environ, hashes=hashes)
    line = f"liba.so, needed by {start}: LD_LIBRARY_PATH leads to {tmp_path}/variable/liba.so, but a run loads"
    assert f"{line} {tmp_path}/runpath/liba.so" in found.base.unknown


def test_all_libraries_in_environment_directories_of_the_variable_are_listed(
    captured: Captured, hashes: FileHashes, tmp_path: Path
) -> None:
    """Frameworks open such libraries by name when they need them (nvidia-*'s directories on LD_LIBRARY_PATH)."""
    wheel = Path(captured.facts.layout.prefix) / "lib/nvidia/cudnn/lib"
    lazy = elves.place(wheel / "libcudnn_ops.so.9", elves.elf(soname="libcudnn_ops.so.9"))
    try:
        found = host.system_files(
            captured.facts,
            captured.startup,
            environ={"LD_LIBRARY_PATH": str(wheel)},
            locale=captured.startup.locale,
            hashes=hashes,
        )
        assert found.bundled == ()
        assert [library.path for library in cache(found.unpackaged) if library.name == "libcudnn_ops.so.9"] == [lazy]
        assert set(held(found.unpackaged).values()) == {"dir", "file"}
        assert [path for path, kind in held(found.unpackaged).items() if kind == "file"] == ["/etc/ld.so.cache"]
        assert found.base.entries == captured.base.entries
    finally:
        shutil.rmtree(Path(captured.facts.layout.prefix) / "lib/nvidia")


def test_a_default_directory_in_the_variable_changes_nothing(captured: Captured, hashes: FileHashes) -> None:
    libc = next(path for path in captured.startup.mapped if re.search(r"/libc\.so\.6\Z", path))
    environ = {"LD_LIBRARY_PATH": libc.rpartition("/")[0]}
    found = host.system_files(captured.facts, captured.startup, environ=environ, locale=captured.startup.locale, hashes=hashes)
    assert found.unpackaged is None
    if not [line for line in found.base.unknown if line.startswith("libpython")]:
        # Otherwise, a libpython of the system in that directory would come before the one in this interpreter's RUNPATH.
        assert (found.base.entries, found.base.unknown) == (captured.base.entries, captured.base.unknown)


def test_missing_libraries_of_a_file_are_reported_in_one_line(captured: Captured, hashes: FileHashes, tmp_path: Path) -> None:
    many = elves.place(tmp_path / "many.so", elves.elf(("libb.so.9", "liba.so.9", "libcuda.so.1")))
    single = elves.place(tmp_path / "one.so", elves.elf(("libc.so.99",)))
    found = host.system_files(captured.facts, captured.startup, libraries=[Path(many), Path(single)], hashes=hashes)
    assert set(found.base.unknown) - set(captured.base.unknown) == {
        f"liba.so.9, libb.so.9, needed by {many}, are not on this machine",
        f"libc.so.99, needed by {single}, is not on this machine",
    }
    assert f"libcuda.so.1, needed by {many}, is not on this machine" in found.base.notes


def test_a_driver_in_the_variable_is_neither_captured_nor_reported(
    captured: Captured, hashes: FileHashes, tmp_path: Path
) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        elves.place(tmp_path / "nvidia" / name, elves.elf(soname=name))
    environ = {"LD_LIBRARY_PATH": f"{tmp_path}/nvidia:{tmp_path}/gone"}
    found = host.system_files(captured.facts, captured.startup, environ=environ, locale=captured.startup.locale, hashes=hashes)
    assert (found.unpackaged, found.base.unknown) == (None, captured.base.unknown)


def test_preloaded_libraries_are_bundled_and_reported(captured: Captured, hashes: FileHashes, tmp_path: Path) -> None:
    mine = elves.place(tmp_path / "libmine.so", elves.elf(("libnear.so",), runpath="$ORIGIN"))
    near = elves.place(tmp_path / "libnear.so", elves.elf())
    found = host.system_files(
        captured.facts, captured.startup, environ={"LD_PRELOAD": f"{mine} libm.so.6 libnowhere.so"}, hashes=hashes
    )
    assert [item.name for item in found.bundled] == [mine, near]
    named = [line for line in found.base.unknown if "preload" in line]
    assert [re.split(" is | should ", line)[0].rpartition("/")[2] for line in named] == [
        "libm.so.6",
        "libmine.so",
        "libnowhere.so",
    ]


def test_the_upper_cache_lists_the_libraries_of_both_trees(captured: Captured, hashes: FileHashes, tmp_path: Path) -> None:
    need(shutil.which("ldconfig", path="/usr/sbin:/sbin"), "ldconfig (libc-bin)")
    stray = elves.place(tmp_path / "libstray.so.1", elves.elf(soname="libstray.so.1"))
    startup = msgspec.structs.replace(captured.startup, mapped=(*captured.startup.mapped, stray))
    found = host.system_files(captured.facts, startup, hashes=hashes)
    assert isinstance(found.unpackaged, Tree)
    assert set(cache(found.base)) < set(cache(found.unpackaged))
    (entry,) = (entry for entry in found.unpackaged.entries if entry.path == "etc/ld.so.cache")
    data = b"".join(found.unpackaged.contents.chunks(entry))
    assert ldcache.write(ldcache.read(data)) == data
