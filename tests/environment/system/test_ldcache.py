from __future__ import annotations

import functools
import re
import shutil
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from repro_env.environment.system import ldcache, ldconfig
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


def compare(first: str, second: str) -> int:
    """`_dl_cache_libcmp`, line by line as in glibc."""
    a, b, i, j = first + "\0", second + "\0", 0, 0
    while a[i] != "\0":
        if "0" <= a[i] <= "9":
            if not "0" <= b[j] <= "9":
                return 1
            left = re.match("[0-9]+", a[i:])
            right = re.match("[0-9]+", b[j:])
            assert left is not None
            assert right is not None
            if int(left[0]) != int(right[0]):
                return int(left[0]) - int(right[0])
            i, j = i + left.end(), j + right.end()
        elif "0" <= b[j] <= "9":
            return -1
        elif a[i] != b[j]:
            return ord(a[i]) - ord(b[j])
        else:
            i, j = i + 1, j + 1
    return ord(a[i]) - ord(b[j])


@given(LIBRARIES)
def test_what_is_written_reads_back_in_the_loaders_order(libraries: list[Library]) -> None:
    found = ldcache.read(ldcache.write(libraries))
    assert set(found) == set(libraries)
    assert len(found) == len(set(libraries))
    names = [library.name for library in found]
    assert names == sorted(names, key=functools.cmp_to_key(compare), reverse=True)


@given(LIBRARIES)
def test_of_equal_libraries_the_first_stays_first(libraries: list[Library]) -> None:
    found = ldcache.read(ldcache.write(libraries))
    for library in found:
        same = [
            it for it in libraries if (it.name, it.flags, bool(it.hwcaps)) == (library.name, library.flags, bool(library.hwcaps))
        ]
        kept = [it for it in found if it in same]
        assert kept == list(dict.fromkeys(same))


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
        Library("libz.so.1", 0x0303, "/usr/lib/libz.so.1"),
        Library("liba10.so", 0x0303, "/usr/lib/liba10.so"),
        Library("liba9.so", 0x0303, "/usr/lib/liba9.so"),
        Library("libz.so.1", 0x0303, "/usr/lib/glibc-hwcaps/x86-64-v3/libz.so.1", "x86-64-v3"),
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
    assert [(library.name, library.path) for library in ldcache.read(cache.read_bytes())] == expected


def test_search_directories_of_debian_and_fedora(tmp_path: Path) -> None:
    for path, text in (
        ("etc/ld.so.conf", "include ld.so.conf.d/*.conf\n# a comment\n/opt/last/\nhwcap 1 nosegneg\n"),
        ("etc/ld.so.conf.d/b.conf", "/usr/local/cuda/lib64 # in a comment\n"),
        ("etc/ld.so.conf.d/a.conf", "include /etc/more.conf\n"),
        ("etc/more.conf", "/opt/first\nrelative\n"),
        ("usr/lib64/ld-linux-x86-64.so.2", ""),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    configured = ["/opt/first", "/usr/local/cuda/lib64", "/opt/last"]
    assert list(ldconfig.search_directories(tmp_path)) == [*configured, "/lib", "/usr/lib"]
    (tmp_path / "usr/lib64/libc.so.6").write_text("")
    (tmp_path / "lib64").symlink_to("usr/lib64")
    assert list(ldconfig.search_directories(tmp_path)) == [*configured, "/lib", "/lib64", "/usr/lib", "/usr/lib64"]
    assert list(ldconfig.search_directories(tmp_path / "none")) == ["/lib", "/usr/lib"]
