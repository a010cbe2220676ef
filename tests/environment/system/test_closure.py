from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from repro_env.environment.system import closure, ldcache
from repro_env.environment.system.closure import Loader, resolve
from repro_env.io import process
from tests.environment.system import elves
from tests.parts import need


def names(found: closure.Closure) -> list[str]:
    return [Path(path).name for path in found.libraries]


def test_runpath_with_origin_is_followed_transitively(tmp_path: Path) -> None:
    start = elves.place(tmp_path / "app/ext.so", elves.elf(("liba.so.1",), runpath="$ORIGIN/../libs"))
    elves.place(tmp_path / "libs/liba.so.1", elves.elf(("libb.so",), runpath="${ORIGIN}"))
    elves.place(tmp_path / "libs/libb.so", elves.elf())
    found = resolve([start], Loader(()))
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
        assert names(resolve([start], Loader(()))) == expected


def test_a_runpath_hides_the_rpath_of_the_loading_files(tmp_path: Path) -> None:
    start = elves.place(tmp_path / "app", elves.elf(("liba.so",), rpath="$ORIGIN"))
    elves.place(tmp_path / "liba.so", elves.elf(("libb.so",), runpath="/nowhere"))
    elves.place(tmp_path / "libb.so", elves.elf())
    assert list(resolve([start], Loader(())).missing) == ["libb.so"]


def test_a_library_of_another_architecture_is_skipped(tmp_path: Path) -> None:
    elves.place(tmp_path / "one/liba.so", elves.elf(machine=183))
    right = elves.place(tmp_path / "two/liba.so", elves.elf())
    start = elves.place(tmp_path / "app", elves.elf(("liba.so",), runpath=f"{tmp_path}/one:{tmp_path}/two"))
    assert resolve([start], Loader(())).libraries == (right,)


def test_the_cache_provides_the_plain_library_and_its_variants(tmp_path: Path) -> None:
    plain = elves.place(tmp_path / "liba.so.1", elves.elf())
    fast = elves.place(tmp_path / "glibc-hwcaps/x86-64-v3/liba.so.1", elves.elf())
    later = elves.place(tmp_path / "later/liba.so.1", elves.elf())
    cache = [
        ldcache.Library("liba.so.1", 0x0303, fast, "x86-64-v3"),
        ldcache.Library("liba.so.1", 0x0303, plain),
        ldcache.Library("liba.so.1", 0x0303, later),
    ]
    start = elves.place(tmp_path / "app", elves.elf(("liba.so.1",)))
    assert set(resolve([start], Loader(cache)).libraries) == {plain, fast}


def test_a_missing_library_is_listed_once_unless_the_process_has_loaded_it(tmp_path: Path) -> None:
    for name in ("b.so", "a.so"):
        elves.place(tmp_path / name, elves.elf(("libgone.so.1", "libtorch.so")))
    found = resolve([str(tmp_path / "b.so"), str(tmp_path / "a.so")], Loader(()), loaded={"libtorch.so": ""})
    assert found.missing == {"libgone.so.1": str(tmp_path / "a.so")}


def test_a_damaged_library_is_reported_and_the_search_continues(tmp_path: Path) -> None:
    elves.place(tmp_path / "liba.so", b"\x7fELF\2\1\1")
    elves.place(tmp_path / "libb.so", elves.elf())
    start = elves.place(tmp_path / "app", elves.elf(("liba.so", "libb.so"), runpath="$ORIGIN"))
    loader = Loader(())
    assert names(resolve([start], loader)) == ["libb.so"]
    assert loader.damaged == {f"{tmp_path}/liba.so: this ELF file is damaged"}


def test_cyclic_needs_by_origin_terminate(tmp_path: Path) -> None:
    for name, needed in (("a", "b"), ("b", "a")):
        elves.place(tmp_path / name / f"lib{name}.so", elves.elf((f"lib{needed}.so",), runpath=f"$ORIGIN/../{needed}"))
    found = resolve([str(tmp_path / "a/liba.so")], Loader(()))
    assert names(found) == ["liba.so", "libb.so"]


@pytest.mark.parametrize("program", ["python", "bash", "git"])
def test_libraries_match_ldd(program: str) -> None:
    path = str(Path(sys.executable).resolve()) if program == "python" else shutil.which(program)
    need(path and shutil.which("ldd"), f"{program} and ldd")
    assert path is not None
    text = process.run(["ldd", path], env={"PATH": "/usr/bin:/bin"}).stdout.decode()
    expected = {Path(path).resolve() for path in re.findall(r"(/\S+) \(0x", text)}
    found = resolve([path], closure.host())
    assert {Path(path).resolve() for path in found.libraries} == expected
    assert found.missing == {}
