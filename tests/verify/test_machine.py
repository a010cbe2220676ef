from __future__ import annotations

from repro_env.model.accelerator import Accelerators, Device, Frameworks, Library, Threads
from repro_env.model.environment import Host, SharedLibrary, SystemPackage
from repro_env.verify import machine
from repro_env.verify.difference import ordered

HOST = Host(os="Debian 12", kernel="6.1", machine="x86_64", cpu="Fast", isa=("avx2", "fma"), cores=8, memory=1 << 30)


def gpu(name: str, architecture: str) -> Device:
    return Device(
        index=0, vendor="nvidia", name=name, architecture=architecture, units=1, memory=1, partition="", ecc=None, uuid=None
    )


def test_the_cpu_comes_before_the_kernel_and_neither_counts() -> None:
    other = Host(os="Debian 13", kernel="6.12", machine="x86_64", cpu="Slow", isa=("avx2", "sse2"), cores=4, memory=1 << 30)
    found = ordered(machine.hosts(HOST, other))
    assert [(one.level, one.what) for one in found] == [
        ("numerics", "CPU"),
        ("numerics", "CPU cores"),
        ("numerics", "CPU flags"),
        ("observed", "kernel"),
        ("observed", "operating system"),
    ]
    assert (found[2].left, found[2].right) == ("fma", "sse2"), "only the flags that differ"
    assert not any(one.counts for one in found)


def test_the_same_host_differs_in_nothing() -> None:
    assert not list(machine.hosts(HOST, HOST))


def test_gpus_are_counted_by_kind() -> None:
    two = Accelerators(devices=(gpu("H100", "9.0"), gpu("H100", "9.0")), driver="550")
    none = Accelerators(why="no driver")
    found = {one.what: (one.left, one.right) for one in machine.accelerators(two, none)}
    assert found == {"GPUs": ("2 x H100 (9.0)", "no driver"), "NVIDIA driver": ("550", "")}


def test_loaded_libraries_and_threads_by_name() -> None:
    left = Frameworks(
        torch="2.3.0",
        libraries=(Library(name="cublas", version="12.1", path="/x/libcublas.so", owner="wheel nvidia-cublas-cu12 12.1"),),
        threads=(Threads(library="openmp", count=8),),
    )
    right = Frameworks(
        torch="2.3.0",
        libraries=(Library(name="cublas", version="12.4", path="/x/libcublas.so", owner="wheel nvidia-cublas-cu12 12.4"),),
        threads=(Threads(library="openmp", count=4),),
    )
    assert {one.what for one in machine.frameworks(left, right)} == {"cublas", "threads of openmp"}


def test_a_side_without_an_answer_is_not_compared_fact_by_fact() -> None:
    (only,) = machine.frameworks(Frameworks(torch="2.3.0"), Frameworks(problem="not installed"))
    assert (only.left, only.right) == ("works", "not installed")


def test_packages_count_where_the_bases_differ() -> None:
    left = (SystemPackage(name="libc6", version="2.36-9"), SystemPackage(name="libssl3", version="3.0.11"))
    right = (SystemPackage(name="libc6", version="2.36-10"), SystemPackage(name="libzstd1", version="1.5"))
    found = ordered(machine.packages(left, right, counts=True))
    assert [(one.level, one.what, one.left, one.right) for one in found] == [
        ("numerics", "libc6", "2.36-9", "2.36-10"),
        ("system", "libssl3", "3.0.11", ""),
        ("system", "libzstd1", "", "1.5"),
    ]
    assert all(one.counts for one in found)
    assert not any(one.counts for one in machine.packages(left, right, counts=False))


def test_libraries_that_a_package_answers_for_are_left_to_it() -> None:
    def used(path: str, owner: str, digit: str) -> SharedLibrary:
        return SharedLibrary(path=path, owner=owner, sha256="sha256:" + digit * 64)

    left = (used("/lib/libssl.so.3", "deb libssl3 3.0.11", "1"), used("/opt/x/libx.so", "", "1"), used("/opt/x/liby.so", "", "1"))
    right = (used("/lib/libssl.so.3", "deb libssl3 3.0.13", "2"), used("/opt/x/libx.so", "", "2"))
    found = [(one.what, one.counts) for one in machine.libraries(left, right)]
    assert found == [("/opt/x/libx.so", False), ("/opt/x/liby.so", False)]
