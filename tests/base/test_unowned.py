from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec
import pytest

from repro_env.base import host, ldcache, libpath
from repro_env.base.closure import Loader, close
from repro_env.base.ldcache import Library
from repro_env.base.tree import Tree
from repro_env.base.unowned import merged
from repro_env.io import process
from repro_env.io.hashes import FileHashes
from tests.base import elves, roots
from tests.base.conftest import Cut
from tests.base.test_host import cache, held
from tests.parts import need

ABI = 0x0303


def compiled(folder: Path, name: str, code: str, *options: str) -> Path:
    """A library, or a program when its name has no `.so`, built from C."""
    need(shutil.which("gcc"), "gcc")
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{name}.c"
    source.write_text(code)
    kind = ["-shared", "-fPIC", f"-Wl,-soname,{name}"] if ".so" in name else []
    done = process.run(["gcc", *kind, "-o", str(folder / name), str(source), *options])
    assert done.code == 0, done.stderr
    source.unlink()
    return folder / name


def test_the_variables_are_read_as_the_loader_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "ld.so.preload"
    file.write_text("/lib/first.so\n")
    found = libpath.read(
        {"LD_LIBRARY_PATH": "/opt/a/:/opt/b;lib::/opt/x/../a:$ORIGIN/lib", "LD_PRELOAD": "libm.so.6 /opt/p.so:./q.so $LIB/r.so"},
        file,
    )
    assert found.folders == ("/opt/a", "/opt/b")
    assert found.preload == ("libm.so.6", "/opt/p.so", "/lib/first.so")
    assert [re.findall(r"has (an empty entry|a relative entry, lib|\S+),", line) for line in found.ignored] == [
        ["a relative entry, lib"], ["an empty entry"], ["$ORIGIN/lib"], ["'./q.so'"], ["'$LIB/r.so'"],
    ]  # fmt: skip
    odd = libpath.read({"LD_LIBRARY_PATH": "/opt/a\nb", "LD_PRELOAD": "/opt/\x1b[0m.so"}, tmp_path / "none")
    assert (odd.folders, odd.preload, len(odd.ignored)) == ((), (), 2)
    assert all(line.isprintable() for line in odd.ignored)
    assert libpath.read({}, tmp_path / "none") == libpath.LibPath()
    assert libpath.read({"LD_LIBRARY_PATH": "", "LD_PRELOAD": ""}, tmp_path / "none") == libpath.LibPath()


def test_the_loader_looks_at_rpath_then_the_variable_then_runpath_then_the_cache(tmp_path: Path) -> None:
    for folder in ("rpath", "variable", "runpath", "cache"):
        elves.place(tmp_path / folder / "liba.so", elves.elf())
    listed = [Library("liba.so", ABI, f"{tmp_path}/cache/liba.so")]
    for kind, folders, expected in (
        ("rpath", [f"{tmp_path}/variable"], "rpath"),
        ("runpath", [f"{tmp_path}/variable"], "variable"),
        ("runpath", [f"{tmp_path}/empty"], "runpath"),
        ("", [f"{tmp_path}/variable"], "variable"),
        ("", [], "cache"),
    ):
        place = f"{tmp_path}/{kind}"
        app = elves.elf(("liba.so",), rpath=place if kind == "rpath" else "", runpath=place if kind == "runpath" else "")
        start = elves.place(tmp_path / "app", app)
        found = close([start], Loader(listed, folders))
        assert found.libraries == (f"{tmp_path}/{expected}/liba.so",)
        assert found.found == {(start, "liba.so"): f"{tmp_path}/{expected}/liba.so"}


def test_variants_for_better_processors_lie_below_any_folder(tmp_path: Path) -> None:
    for folder in ("", "glibc-hwcaps/x86-64-v2", "glibc-hwcaps/x86-64-v3"):
        elves.place(tmp_path / folder / "liba.so", elves.elf())
    start = elves.place(tmp_path / "app", elves.elf(("liba.so",)))
    assert len(close([start], Loader((), [str(tmp_path)])).libraries) == 3


def test_what_the_variable_leads_to_comes_first_and_no_fast_variant_overtakes_it() -> None:
    first = [Library("liba.so", ABI, "/opt/liba.so")]
    others = [
        Library("liba.so", ABI, "/lib/liba.so"),
        Library("liba.so", ABI, "/lib/glibc-hwcaps/x86-64-v2/liba.so", "x86-64-v2"),
        Library("libb.so", ABI, "/lib/glibc-hwcaps/x86-64-v2/libb.so", "x86-64-v2"),
    ]
    assert merged(first, others) == (first[0], others[0], others[2])


def roots_of(cut: Cut, found: host.Cut, folder: Path, more: list[Path]) -> Path:
    """A root of the base and what lies above it, with the files of `more` as they would travel with the environment."""
    trees = [found.base, *([found.unowned] if found.unowned else []), cut.interpreter]
    folder.mkdir()
    roots.write(folder, trees)
    for path in more:
        place = folder / str(path)[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    return folder


@pytest.mark.root
def test_a_module_found_by_the_variable_is_found_inside_without_it(cut: Cut, hashes: FileHashes, tmp_path: Path) -> None:
    """A vendor's library shadows the system's own, as a module of a cluster does; another is opened by a name of its own."""
    vendor = tmp_path / "sw/lib"
    compiled(vendor, "libz.so.1", 'const char *zlibVersion(void) { return "vendor"; }')
    compiled(vendor, "libnear.so.2.1", "int near(void) { return 42; }")
    (vendor / "libnear.so.2").symlink_to("libnear.so.2.1")
    compiled(vendor, "libunused.so.1", "int unused(void) { return 0; }")
    (tmp_path / "module").symlink_to("sw")
    spelled = tmp_path / "module/lib"
    main = '#include <stdio.h>\nconst char *zlibVersion(void); int near(void);\nint main(void) { printf("%s %d\\n", zlibVersion(), near()); }'
    program = compiled(tmp_path / "env", "program", main, str(vendor / "libz.so.1"), str(vendor / "libnear.so.2.1"))
    # The name that a program asks for is that of the link, which leads to another file name.
    program.write_bytes(program.read_bytes().replace(b"libnear.so.2.1\0", b"libnear.so.2\0\0\0"))
    environ = {"LD_LIBRARY_PATH": f"{spelled}:"}
    outside = process.run([str(program)], env=environ)
    assert outside.stdout == b"vendor 42\n", outside.stderr
    startup = msgspec.structs.replace(cut.startup, mapped=())
    found = host.cut(cut.facts, startup, libraries=[program], environ=environ, locale=cut.startup.locale, hashes=hashes)
    assert [one.name for one in found.carried] == [f"{vendor}/libnear.so.2.1", f"{vendor}/libz.so.1"]
    assert held(found.unowned)[f"{tmp_path}/module"] == "sw"
    left = f"LD_LIBRARY_PATH names {spelled}: 1 of its libraries, which nothing captured loads, are not held"
    assert [line for line in found.base.unknown if "LD_LIBRARY_PATH" in line] == [
        "LD_LIBRARY_PATH has an empty entry, which means another folder in every working directory: left out",
        f"{left}; a program that opens one of them by name does not find it (--with {spelled} holds them all)",
    ]
    assert not [one for one in found.base.entries if str(tmp_path)[1:] in one.path]
    inside = roots_of(cut, found, tmp_path / "root", [program])
    assert roots.run(inside, str(program)) == "vendor 42\n"
    assert "zlibVersion" not in roots.run(inside, "gzip", "--version")  # a system's program starts with the vendor's library too
    whole = host.cut(
        cut.facts,
        startup,
        libraries=[program],
        programs=[str(spelled)],
        environ=environ,
        locale=cut.startup.locale,
        hashes=hashes,
    )
    assert [one.name for one in whole.carried] == [str(vendor)]
    assert not [line for line in whole.base.unknown if "not held" in line]
    assert f"{vendor}/libunused.so.1" in held(whole.unowned)


def test_a_runpath_that_wins_inside_is_named(cut: Cut, hashes: FileHashes, tmp_path: Path) -> None:
    for folder in ("variable", "runpath"):
        elves.place(tmp_path / folder / "liba.so", elves.elf(soname="liba.so"))
    start = elves.place(tmp_path / "env/ext.so", elves.elf(("liba.so",), runpath=f"{tmp_path}/runpath"))
    environ = {"LD_LIBRARY_PATH": f"{tmp_path}/variable"}
    found = host.cut(cut.facts, cut.startup, libraries=[Path(start)], environ=environ, hashes=hashes)
    line = f"liba.so, needed by {start}: here LD_LIBRARY_PATH leads to {tmp_path}/variable/liba.so, in a run it is"
    assert f"{line} {tmp_path}/runpath/liba.so" in found.base.unknown


def test_folders_of_the_environment_on_the_variable_are_listed_whole(cut: Cut, hashes: FileHashes, tmp_path: Path) -> None:
    """Frameworks open such libraries by name when they need them (nvidia-*'s folders on LD_LIBRARY_PATH)."""
    wheel = Path(cut.facts.layout.prefix) / "lib/nvidia/cudnn/lib"
    lazy = elves.place(wheel / "libcudnn_ops.so.9", elves.elf(soname="libcudnn_ops.so.9"))
    try:
        found = host.cut(
            cut.facts, cut.startup, environ={"LD_LIBRARY_PATH": str(wheel)}, locale=cut.startup.locale, hashes=hashes
        )
        assert found.carried == ()
        assert [one.path for one in cache(found.unowned) if one.name == "libcudnn_ops.so.9"] == [lazy]
        assert set(held(found.unowned).values()) == {"dir", "file"}
        assert [path for path, kind in held(found.unowned).items() if kind == "file"] == ["/etc/ld.so.cache"]
        assert found.base.entries == cut.base.entries
    finally:
        shutil.rmtree(Path(cut.facts.layout.prefix) / "lib/nvidia")


def test_a_folder_that_the_loader_searches_anyway_changes_nothing(cut: Cut, hashes: FileHashes) -> None:
    libc = next(one for one in cut.startup.mapped if re.search(r"/libc\.so\.6\Z", one))
    environ = {"LD_LIBRARY_PATH": libc.rpartition("/")[0]}
    found = host.cut(cut.facts, cut.startup, environ=environ, locale=cut.startup.locale, hashes=hashes)
    assert found.unowned is None
    if not [line for line in found.base.unknown if line.startswith("libpython")]:
        # Else a libpython of the system's in that folder really would come before the one that this interpreter's RUNPATH names.
        assert (found.base.entries, found.base.unknown) == (cut.base.entries, cut.base.unknown)


def test_what_one_file_misses_is_one_line(cut: Cut, hashes: FileHashes, tmp_path: Path) -> None:
    many = elves.place(tmp_path / "many.so", elves.elf(("libb.so.9", "liba.so.9", "libcuda.so.1")))
    one = elves.place(tmp_path / "one.so", elves.elf(("libc.so.99",)))
    found = host.cut(cut.facts, cut.startup, libraries=[Path(many), Path(one)], hashes=hashes)
    assert set(found.base.unknown) - set(cut.base.unknown) == {
        f"liba.so.9, libb.so.9, needed by {many}, are not on this machine",
        f"libc.so.99, needed by {one}, is not on this machine",
    }
    assert f"libcuda.so.1, needed by {many}, is not on this machine" in found.base.notes


def test_a_driver_on_the_variable_is_neither_held_nor_missed(cut: Cut, hashes: FileHashes, tmp_path: Path) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        elves.place(tmp_path / "nvidia" / name, elves.elf(soname=name))
    environ = {"LD_LIBRARY_PATH": f"{tmp_path}/nvidia:{tmp_path}/gone"}
    found = host.cut(cut.facts, cut.startup, environ=environ, locale=cut.startup.locale, hashes=hashes)
    assert (found.unowned, found.base.unknown) == (None, cut.base.unknown)


def test_what_is_preloaded_is_held_and_named(cut: Cut, hashes: FileHashes, tmp_path: Path) -> None:
    mine = elves.place(tmp_path / "libmine.so", elves.elf(("libnear.so",), runpath="$ORIGIN"))
    near = elves.place(tmp_path / "libnear.so", elves.elf())
    found = host.cut(cut.facts, cut.startup, environ={"LD_PRELOAD": f"{mine} libm.so.6 libnowhere.so"}, hashes=hashes)
    assert [one.name for one in found.carried] == [mine, near]
    named = [line for line in found.base.unknown if "preload" in line]
    assert [line.split(" is ")[0].rpartition("/")[2] for line in named] == ["libm.so.6", "libmine.so", "libnowhere.so"]


def test_a_cache_of_its_own_hides_the_bases_and_lists_both(cut: Cut, hashes: FileHashes, tmp_path: Path) -> None:
    need(shutil.which("ldconfig", path="/usr/sbin:/sbin"), "ldconfig (libc-bin)")
    stray = elves.place(tmp_path / "libstray.so.1", elves.elf(soname="libstray.so.1"))
    startup = msgspec.structs.replace(cut.startup, mapped=(*cut.startup.mapped, stray))
    found = host.cut(cut.facts, startup, hashes=hashes)
    assert isinstance(found.unowned, Tree)
    assert set(cache(found.base)) < set(cache(found.unowned))
    (entry,) = (one for one in found.unowned.entries if one.path == "etc/ld.so.cache")
    data = b"".join(found.unowned.contents.chunks(entry))
    assert ldcache.write(ldcache.read(data)) == data
