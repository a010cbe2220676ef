from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from repro_env.environment.system import loader
from repro_env.environment.system.ldcache import Library
from repro_env.environment.system.loader import Closure, Loader
from repro_env.io import process
from tests.environment.system import elves
from tests.parts import need


def names(found: Closure) -> list[str]:
    return [Path(path).name for path in found.libraries]


def test_runpath_with_origin_is_followed_transitively(tmp_path: Path) -> None:
    start = elves.place(tmp_path / "app/ext.so", elves.elf(("liba.so.1",), runpath="$ORIGIN/../libs"))
    elves.place(tmp_path / "libs/liba.so.1", elves.elf(("libb.so",), runpath="${ORIGIN}"))
    elves.place(tmp_path / "libs/libb.so", elves.elf())
    found = Loader(()).resolve([start])
    assert names(found) == ["liba.so.1", "libb.so"]
    assert found.missing == {}
    assert all(".." not in path for path in found.libraries)


def test_rpath_is_inherited_and_runpath_is_not(tmp_path: Path) -> None:
    for kind, expected in (("rpath", ["liba.so", "libb.so"]), ("runpath", ["liba.so"])):
        directory = tmp_path / kind
        start = elves.place(directory / "app", elves.elf(("liba.so",), rpath="$ORIGIN" if kind == "rpath" else "",
                                                      runpath="$ORIGIN" if kind == "runpath" else ""))  # fmt: skip
        elves.place(directory / "liba.so", elves.elf(("libb.so",)))
        elves.place(directory / "libb.so", elves.elf())
        assert names(Loader(()).resolve([start])) == expected


def test_a_runpath_hides_the_rpath_of_the_loading_files(tmp_path: Path) -> None:
    start = elves.place(tmp_path / "app", elves.elf(("liba.so",), rpath="$ORIGIN"))
    elves.place(tmp_path / "liba.so", elves.elf(("libb.so",), runpath="/nowhere"))
    elves.place(tmp_path / "libb.so", elves.elf())
    assert list(Loader(()).resolve([start]).missing) == ["libb.so"]


def test_a_library_of_another_architecture_is_skipped(tmp_path: Path) -> None:
    elves.place(tmp_path / "one/liba.so", elves.elf(machine=183))
    right = elves.place(tmp_path / "two/liba.so", elves.elf())
    start = elves.place(tmp_path / "app", elves.elf(("liba.so",), runpath=f"{tmp_path}/one:{tmp_path}/two"))
    assert Loader(()).resolve([start]).libraries == (right,)


def test_the_cache_provides_the_plain_library_and_its_variants(tmp_path: Path) -> None:
    plain = elves.place(tmp_path / "liba.so.1", elves.elf())
    fast = elves.place(tmp_path / "glibc-hwcaps/x86-64-v3/liba.so.1", elves.elf())
    later = elves.place(tmp_path / "later/liba.so.1", elves.elf())
    cache = [
        Library("liba.so.1", 0x0303, fast, "x86-64-v3"),
        Library("liba.so.1", 0x0303, plain),
        Library("liba.so.1", 0x0303, later),
    ]
    start = elves.place(tmp_path / "app", elves.elf(("liba.so.1",)))
    assert set(Loader(cache).resolve([start]).libraries) == {plain, fast}


def test_a_missing_library_is_listed_once_unless_the_process_has_loaded_it(tmp_path: Path) -> None:
    for name in ("b.so", "a.so"):
        elves.place(tmp_path / name, elves.elf(("libgone.so.1", "libtorch.so")))
    found = Loader(()).resolve([str(tmp_path / "b.so"), str(tmp_path / "a.so")], loaded=["libtorch.so"])
    assert found.missing == {"libgone.so.1": str(tmp_path / "a.so")}


def test_a_damaged_library_is_reported_and_the_search_continues(tmp_path: Path) -> None:
    elves.place(tmp_path / "liba.so", b"\x7fELF\2\1\1")
    elves.place(tmp_path / "libb.so", elves.elf())
    start = elves.place(tmp_path / "app", elves.elf(("liba.so", "libb.so"), runpath="$ORIGIN"))
    machine = Loader(())
    assert names(machine.resolve([start])) == ["libb.so"]
    assert machine.damaged == {f"{tmp_path}/liba.so: this ELF file is damaged"}


def test_cyclic_needs_by_origin_terminate(tmp_path: Path) -> None:
    for name, needed in (("a", "b"), ("b", "a")):
        elves.place(tmp_path / name / f"lib{name}.so", elves.elf((f"lib{needed}.so",), runpath=f"$ORIGIN/../{needed}"))
    found = Loader(()).resolve([str(tmp_path / "a/liba.so")])
    assert names(found) == ["liba.so", "libb.so"]


@pytest.mark.parametrize("program", ["python", "bash", "git"])
def test_libraries_match_ldd(program: str) -> None:
    path = str(Path(sys.executable).resolve()) if program == "python" else shutil.which(program)
    need(path and shutil.which("ldd"), f"{program} and ldd")
    assert path is not None
    text = process.run(["ldd", path], env={"PATH": "/usr/bin:/bin"}).stdout.decode()
    expected = {Path(path).resolve() for path in re.findall(r"(/\S+) \(0x", text)}
    found = loader.host({}).resolve([path])
    assert {Path(path).resolve() for path in found.libraries} == expected
    assert found.missing == {}


def test_the_variable_is_parsed_as_the_loader_does() -> None:
    directories, ignored = loader.library_path({"LD_LIBRARY_PATH": "/opt/a/:/opt/b;lib::/opt/x/../a:$ORIGIN/lib"})
    assert directories == ("/opt/a", "/opt/b")
    assert [re.findall(r"has '(\S*)',", line) for line in ignored] == [["lib"], [""], ["$ORIGIN/lib"]]
    directories, ignored = loader.library_path({"LD_LIBRARY_PATH": "/opt/a\nb"})
    assert (directories, len(ignored)) == ((), 1)
    assert ignored[0].isprintable()
    assert loader.library_path({}) == loader.library_path({"LD_LIBRARY_PATH": ""}) == ((), ())


def test_the_search_order_is_rpath_variable_runpath_cache(tmp_path: Path) -> None:
    for directory in ("rpath", "variable", "runpath", "cache"):
        elves.place(tmp_path / directory / "liba.so", elves.elf())
    listed = [Library("liba.so", 0x0303, f"{tmp_path}/cache/liba.so")]
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
        assert Loader(listed, directories).resolve([start]).libraries == (f"{tmp_path}/{expected}/liba.so",)


def test_hwcaps_variants_are_found_below_any_directory(tmp_path: Path) -> None:
    for directory in ("", "glibc-hwcaps/x86-64-v2", "glibc-hwcaps/x86-64-v3"):
        elves.place(tmp_path / directory / "liba.so", elves.elf())
    start = elves.place(tmp_path / "app", elves.elf(("liba.so",)))
    assert len(Loader((), [str(tmp_path)]).resolve([start]).libraries) == 3
