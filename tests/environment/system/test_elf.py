from __future__ import annotations

import contextlib
import re
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repro_env.environment.system import elf
from repro_env.io import process
from repro_env.schema.errors import LockError
from tests.environment.system import elves
from tests.parts import need


def test_reads_every_fact(tmp_path: Path) -> None:
    data = elves.elf(
        ("liba.so.1", "libb.so"), soname="libme.so.2", rpath="/r:/s", runpath="$ORIGIN/../lib:", interpreter="/lib/ld.so.1",
        nodeflib=True, machine=183,
    )  # fmt: skip
    assert elf.read(elves.place(tmp_path / "x.so", data)) == elf.Elf(
        machine=183,
        interpreter="/lib/ld.so.1",
        soname="libme.so.2",
        needed=("liba.so.1", "libb.so"),
        rpath=("/r", "/s"),
        runpath=("$ORIGIN/../lib",),
    )


def test_a_file_that_is_not_elf_is_ignored(tmp_path: Path) -> None:
    for data in (b"", b"\x7fEL", b"/* GNU ld script */ INPUT(libc.so.6)", b"\x7fELF\1\1" + bytes(60)):
        assert elf.read(elves.place(tmp_path / "x.so", data)) is None


def test_a_truncated_file_is_rejected_unless_only_padding_is_missing(tmp_path: Path) -> None:
    data = elves.elf(("liba.so.1",), soname="libme.so.2")
    for length in range(4, len(data) - 10):
        path = elves.place(tmp_path / "x.so", data[:length])
        with pytest.raises(LockError, match="is damaged"):
            elf.read(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 400), byte=st.integers(0, 255))
def test_any_changed_byte_gives_facts_or_a_lock_error(tmp_path: Path, at: int, byte: int) -> None:
    data = bytearray(elves.elf(("liba.so.1", "libc.so.6"), soname="libme.so.2", runpath="/opt/x"))
    data[at % len(data)] = byte
    with contextlib.suppress(LockError):
        elf.read(elves.place(tmp_path / "x.so", bytes(data)))


def test_facts_of_this_python_match_readelf() -> None:
    need(shutil.which("readelf"), "readelf (binutils)")
    files = [Path(sys.executable).resolve(), *sorted(Path(shutil.__file__).parent.glob("lib-dynload/*.so"))[:10]]
    for file in files:
        text = process.run(["readelf", "-dlW", str(file)]).stdout.decode()
        found = elf.read(file)
        assert found is not None
        assert list(found.needed) == re.findall(r"\(NEEDED\).*\[(.*)\]", text)
        assert ":".join((*found.rpath, *found.runpath)) == "".join(re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", text))
        assert found.interpreter == "".join(re.findall(r"interpreter: (.*)\]", text))
