from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from repro_env.base import closure, ldcache
from repro_env.base.closure import Loader, close
from repro_env.io import process
from tests.base import elves
from tests.parts import need


def names(found: closure.Closure) -> list[str]:
    return [Path(path).name for path in found.libraries]


def test_follows_runpath_with_origin_and_on(tmp_path: Path) -> None:
    start = elves.place(tmp_path / "app/ext.so", elves.elf(("liba.so.1",), runpath="$ORIGIN/../libs"))
    elves.place(tmp_path / "libs/liba.so.1", elves.elf(("libb.so",), runpath="${ORIGIN}"))
    elves.place(tmp_path / "libs/libb.so", elves.elf())
    found = close([start], Loader(()))
    assert names(found) == ["liba.so.1", "libb.so"]
    assert found.missing == ()
    assert all(".." not in path for path in found.libraries)


def test_rpath_is_inherited_and_runpath_is_not(tmp_path: Path) -> None:
    for kind, expected in (("rpath", ["liba.so", "libb.so"]), ("runpath", ["liba.so"])):
        folder = tmp_path / kind
        start = elves.place(folder / "app", elves.elf(("liba.so",), rpath="$ORIGIN" if kind == "rpath" else "",
                                                      runpath="$ORIGIN" if kind == "runpath" else ""))  # fmt: skip
        elves.place(folder / "liba.so", elves.elf(("libb.so",)))
        elves.place(folder / "libb.so", elves.elf())
        assert names(close([start], Loader(()))) == expected


def test_a_runpath_hides_the_rpath_of_those_that_loaded_it(tmp_path: Path) -> None:
    start = elves.place(tmp_path / "app", elves.elf(("liba.so",), rpath="$ORIGIN"))
    elves.place(tmp_path / "liba.so", elves.elf(("libb.so",), runpath="/nowhere"))
    elves.place(tmp_path / "libb.so", elves.elf())
    assert [one.name for one in close([start], Loader(())).missing] == ["libb.so"]


def test_a_library_of_another_architecture_is_passed_over(tmp_path: Path) -> None:
    elves.place(tmp_path / "one/liba.so", elves.elf(bits=32, machine=3))
    right = elves.place(tmp_path / "two/liba.so", elves.elf())
    start = elves.place(tmp_path / "app", elves.elf(("liba.so",), runpath=f"{tmp_path}/one:{tmp_path}/two"))
    assert close([start], Loader(())).libraries == (right,)


def test_the_cache_gives_the_plain_library_and_its_variants(tmp_path: Path) -> None:
    plain = elves.place(tmp_path / "liba.so.1", elves.elf())
    fast = elves.place(tmp_path / "glibc-hwcaps/x86-64-v3/liba.so.1", elves.elf())
    later = elves.place(tmp_path / "later/liba.so.1", elves.elf())
    cache = [
        ldcache.Library("liba.so.1", 0x0303, fast, "x86-64-v3"),
        ldcache.Library("liba.so.1", 0x0303, plain),
        ldcache.Library("liba.so.1", 0x0303, later),
    ]
    start = elves.place(tmp_path / "app", elves.elf(("liba.so.1",)))
    assert set(close([start], Loader(cache)).libraries) == {plain, fast}


def test_what_is_missing_is_named_once_unless_it_is_loaded_by_somebody_else(tmp_path: Path) -> None:
    for name in ("b.so", "a.so"):
        elves.place(tmp_path / name, elves.elf(("libgone.so.1", "libtorch.so")))
    found = close([str(tmp_path / "b.so"), str(tmp_path / "a.so")], Loader(()), loaded={"libtorch.so": ""})
    assert found.missing == (closure.Missing("libgone.so.1", str(tmp_path / "a.so")),)


def test_a_damaged_library_is_named_and_does_not_stop_the_rest(tmp_path: Path) -> None:
    elves.place(tmp_path / "liba.so", b"\x7fELF\2\1\1")
    elves.place(tmp_path / "libb.so", elves.elf())
    start = elves.place(tmp_path / "app", elves.elf(("liba.so", "libb.so"), runpath="$ORIGIN"))
    found = close([start], Loader(()))
    assert names(found) == ["libb.so"]
    assert found.damaged == (f"{tmp_path}/liba.so: is a damaged ELF file: its header cannot be read",)


def test_libraries_that_need_each_other_by_origin_end(tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        elves.place(tmp_path / one / f"lib{one}.so", elves.elf((f"lib{other}.so",), runpath=f"$ORIGIN/../{other}"))
    found = close([str(tmp_path / "a/liba.so")], Loader(()))
    assert names(found) == ["liba.so", "libb.so"]


@pytest.mark.parametrize("program", ["python", "bash", "git"])
def test_agrees_with_ldd(program: str) -> None:
    path = str(Path(sys.executable).resolve()) if program == "python" else shutil.which(program)
    need(path and shutil.which("ldd"), f"{program} and ldd")
    assert path is not None
    text = process.run(["ldd", path], env={"PATH": "/usr/bin:/bin"}).stdout.decode()
    expected = {Path(one).resolve() for one in re.findall(r"(/\S+) \(0x", text)}
    found = close([path], closure.host())
    assert {Path(one).resolve() for one in (*found.libraries, *found.interpreters)} == expected
    assert found.missing == ()
