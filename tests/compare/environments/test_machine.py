from __future__ import annotations

import msgspec

from repro_env.compare.environments import machine
from repro_env.compare.environments.difference import sort_differences
from repro_env.schema.environment import Host, SharedLibrary, SystemPackage
from repro_env.schema.frameworks import Frameworks, Library, Threads

HOST = Host(os="Debian 12", kernel="6.1", machine="x86_64", cpu="Fast", isa=("avx2", "fma"), cores=8, memory=1 << 30)


def test_differences_of_the_machine_are_sorted_and_do_not_count() -> None:
    other = Host(os="Debian 13", kernel="6.12", machine="x86_64", cpu="Slow", isa=("avx2", "sse2"), cores=4, memory=1 << 30)
    found = sort_differences(machine.hosts(HOST, other))
    assert [(difference.level, difference.what) for difference in found] == [
        ("numerics", "CPU"),
        ("numerics", "CPU cores"),
        ("numerics", "CPU flags"),
        ("observed", "kernel"),
        ("observed", "operating system"),
    ]
    assert (found[2].left, found[2].right) == ("fma", "sse2"), "only the flags that differ"
    assert not any(difference.counts for difference in found)


def test_the_same_host_has_no_differences() -> None:
    assert not list(machine.hosts(HOST, HOST))


def test_gpus_are_counted_by_kind() -> None:
    two = msgspec.structs.replace(HOST, gpus=("H100", "H100"), nvidia="550")
    found = {difference.what: (difference.left, difference.right) for difference in machine.hosts(two, HOST)}
    assert found == {"GPUs": ("2 x H100", "none"), "NVIDIA driver": ("550", "")}


def test_loaded_libraries_and_threads_are_compared_by_name() -> None:
    left = Frameworks(
        torch="2.3.0",
        libraries=(Library(name="cublas", path="/x/libcublas.so", owner="wheel nvidia-cublas-cu12 12.1"),),
        threads=(Threads(library="openmp", count=8),),
    )
    right = Frameworks(
        torch="2.3.0",
        libraries=(Library(name="cublas", path="/x/libcublas.so", owner="wheel nvidia-cublas-cu12 12.4"),),
        threads=(Threads(library="openmp", count=4),),
    )
    assert {difference.what for difference in machine.frameworks(left, right)} == {"cublas", "threads of openmp"}


def test_frameworks_that_could_not_be_loaded_are_one_difference() -> None:
    (only,) = machine.frameworks(Frameworks(torch="2.3.0"), Frameworks(problem="not installed"))
    assert (only.left, only.right) == ("works", "not installed")


def test_packages_count_if_the_bases_differ() -> None:
    left = (SystemPackage(name="libc6", version="2.36-9"), SystemPackage(name="libssl3", version="3.0.11"))
    right = (SystemPackage(name="libc6", version="2.36-10"), SystemPackage(name="libzstd1", version="1.5"))
    found = sort_differences(machine.packages(left, right, counts=True))
    assert [(difference.level, difference.what, difference.left, difference.right) for difference in found] == [
        ("numerics", "libc6", "2.36-9", "2.36-10"),
        ("system", "libssl3", "3.0.11", ""),
        ("system", "libzstd1", "", "1.5"),
    ]
    assert all(difference.counts for difference in found)
    assert not any(difference.counts for difference in machine.packages(left, right, counts=False))


def test_only_libraries_without_a_package_are_compared() -> None:
    def library(path: str, owner: str, digit: str) -> SharedLibrary:
        return SharedLibrary(path=path, owner=owner, sha256="sha256:" + digit * 64)

    left = (
        library("/lib/libssl.so.3", "deb libssl3 3.0.11", "1"),
        library("/opt/x/libx.so", "", "1"),
        library("/opt/x/liby.so", "", "1"),
    )
    right = (library("/lib/libssl.so.3", "deb libssl3 3.0.13", "2"), library("/opt/x/libx.so", "", "2"))
    found = [(difference.what, difference.counts) for difference in machine.libraries(left, right)]
    assert found == [("/opt/x/libx.so", False), ("/opt/x/liby.so", False)]
