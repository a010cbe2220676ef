from __future__ import annotations

import re
import shutil
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from repro_env.environment.system import ldcache
from repro_env.environment.system.ldcache import Library
from repro_env.io import process
from tests.parts import need

LIBRARIES = st.lists(
    st.builds(
        Library,
        name=st.from_regex(r"\Alib[a-z0-9+._-]{1,12}\.so(\.[0-9]{1,3})?\Z"),
        flags=st.sampled_from([0x0303, 0x0003]),
        path=st.from_regex(r"\A/usr/lib/[a-z0-9./-]{1,12}\Z"),
        hwcaps=st.sampled_from(["", "", "x86-64-v2", "x86-64-v3"]),
    ),
    max_size=30,
)


@given(LIBRARIES)
def test_what_is_written_reads_back_in_the_same_order(libraries: list[Library]) -> None:
    assert ldcache.read(ldcache.write(libraries)) == tuple(libraries)


@given(st.binary(max_size=200), st.integers(0, 300))
def test_a_damaged_cache_does_not_raise(junk: bytes, at: int) -> None:
    good = ldcache.write([Library("liba.so.1", 0x0303, "/usr/lib/liba.so.1", "x86-64-v3"), Library("libb.so", 3, "/lib/libb.so")])
    ldcache.read(good[: at % len(good)])
    ldcache.read(good[: at % len(good)] + junk)
    ldcache.read(junk)


def test_ldconfig_reads_the_written_cache(tmp_path: Path) -> None:
    ldconfig = shutil.which("ldconfig", path="/usr/sbin:/sbin")
    need(ldconfig, "ldconfig (libc-bin)")
    assert ldconfig is not None
    libraries = [
        Library("libz.so.1", 0x0303, "/usr/lib/glibc-hwcaps/x86-64-v3/libz.so.1", "x86-64-v3"),
        Library("libz.so.1", 0x0303, "/usr/lib/libz.so.1"),
        Library("liba10.so", 0x0303, "/usr/lib/liba10.so"),
        Library("liba9.so", 0x0303, "/usr/lib/liba9.so"),
    ]
    (tmp_path / "cache").write_bytes(ldcache.write(libraries))
    done = process.run([ldconfig, "-p", "-C", str(tmp_path / "cache")])
    assert done.code == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith("4 libs found")
    assert [line.split(" ")[0].strip() for line in lines[1:]] == ["libz.so.1", "libz.so.1", "liba10.so", "liba9.so"]
    assert 'hwcap: "x86-64-v3"' in lines[1]


def test_this_machines_cache_is_read_as_by_ldconfig() -> None:
    cache, ldconfig = Path("/etc/ld.so.cache"), shutil.which("ldconfig", path="/usr/sbin:/sbin")
    need(cache.exists() and ldconfig, "/etc/ld.so.cache and ldconfig")
    assert ldconfig is not None
    text = process.run([ldconfig, "-p"]).stdout.decode()
    expected = re.findall(r"^\t(\S+) \(.*\) => (\S+)$", text, re.MULTILINE)
    libraries = ldcache.read(cache.read_bytes())
    assert [(library.name, library.path) for library in libraries] == expected
    assert ldcache.read(ldcache.write(libraries)) == libraries
    assert ldcache.read(ldcache.add(cache.read_bytes(), ())) == libraries, "its order is kept"


def test_added_libraries_are_sorted_and_never_replace_others() -> None:
    libraries = [Library("libz.so.1", 0x0303, "/usr/lib/libz.so.1"), Library("liba10.so", 0x0303, "/usr/lib/liba10.so")]
    more = [
        Library(name, 0x0303, f"/driver/{name}") for name in ("liba9.so", "liba.so", "libcuda.so.1", "libz.so.1", "liba100.so")
    ]
    added = ldcache.read(ldcache.add(ldcache.write(libraries), more))
    assert [library.path for library in added] == [
        "/usr/lib/libz.so.1",
        "/driver/libcuda.so.1",
        "/driver/liba100.so",
        "/usr/lib/liba10.so",
        "/driver/liba9.so",
        "/driver/liba.so",
    ]
    assert ldcache.read(ldcache.add(b"", more[:1])) == (more[0],)
