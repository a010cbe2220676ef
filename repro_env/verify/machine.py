"""What two captures saw of their machines: observations, which no image holds, ordered by what they do to numbers."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from repro_env.model.accelerator import Accelerators, Device, Frameworks, Library, Threads
from repro_env.model.environment import Host, SharedLibrary, SystemPackage
from repro_env.model.spec import Hints, Observed
from repro_env.verify import numerics
from repro_env.verify.difference import Difference, Level

_NO_PACKAGE = ("", "driver")


def observations(left: Observed, right: Observed) -> tuple[Difference, ...]:
    """Machine, GPUs, loaded libraries and threads. The packages of the system have their own function, `packages`."""
    return (
        *hosts(left.host, right.host),
        *accelerators(left.accelerators, right.accelerators),
        *frameworks(left.frameworks, right.frameworks),
        *libraries(left.libraries, right.libraries),
        *_starts(left, right),
    )


def hosts(left: Host, right: Host) -> Iterator[Difference]:
    yield from _fact("numerics", "CPU", left.cpu, right.cpu, "another CPU may take other code paths")
    gone, new = sorted(set(left.isa) - set(right.isa)), sorted(set(right.isa) - set(left.isa))
    if gone or new:
        yield _seen("numerics", "CPU flags", " ".join(gone), " ".join(new), "numeric libraries choose their code by them")
    yield from _fact("numerics", "CPU cores", str(left.cores), str(right.cores), "the default number of threads follows them")
    yield from _fact("observed", "operating system", left.os, right.os)
    yield from _fact("observed", "libc", left.libc, right.libc)
    yield from _fact("observed", "kernel", left.kernel, right.kernel)
    yield from _fact("observed", "memory", f"{left.memory:,} bytes", f"{right.memory:,} bytes")
    if left.compilers != right.compilers:
        yield from _fact("observed", "compilers", "; ".join(left.compilers), "; ".join(right.compilers))


def accelerators(left: Accelerators, right: Accelerators) -> Iterator[Difference]:
    yield from _fact("numerics", "GPUs", _devices(left), _devices(right), "other kernels are chosen for another GPU")
    yield from _fact("numerics", "NVIDIA driver", left.driver, right.driver)
    yield from _fact("numerics", "AMD driver", left.amdgpu, right.amdgpu)
    yield from _fact("numerics", "ROCm", left.rocm, right.rocm)
    yield from _fact("observed", "newest CUDA of the driver", left.newest, right.newest)


def frameworks(left: Frameworks, right: Frameworks) -> Iterator[Difference]:
    """What was really loaded. Where a side has no answer, only that is said."""
    yield from _fact("observed", "loading of frameworks", left.problem or "works", right.problem or "works")
    if any(one.problem and not one.libraries for one in (left, right)):
        return
    yield from _fact("numerics", "torch as loaded", left.torch, right.torch)
    yield from _fact("numerics", "torch's commit", left.torch_git, right.torch_git)
    yield from _fact("numerics", "torch built for CUDA", left.cuda, right.cuda)
    yield from _fact("numerics", "torch built for ROCm", left.hip, right.hip)
    yield from _fact("numerics", "torch has code for", " ".join(left.arch), " ".join(right.arch))
    yield from _fact("numerics", "torch's CPU code path", left.cpu_capability, right.cpu_capability, "chosen by the CPU's flags")
    yield from _fact("numerics", "triton as loaded", left.triton, right.triton)
    yield from _fact("numerics", "numeric packages as loaded", "; ".join(left.versions), "; ".join(right.versions))
    yield from _facts("numerics", _loaded(left.libraries), _loaded(right.libraries), "library as loaded")
    yield from _facts(
        "numerics", _counts(left.threads), _counts(right.threads), "another number of threads sums in another order"
    )


def _loaded(found: Sequence[Library]) -> dict[str, str]:
    """By name; one that is loaded from several files also by its file's."""
    names = Counter(one.name for one in found)
    return {
        one.name if names[one.name] == 1 else f"{one.name} ({posixpath.basename(one.path)})": " ".join(
            part for part in (one.version, one.build, one.owner, (one.sha256 or "").removeprefix("sha256:")[:12]) if part
        )
        for one in found
    }


def _counts(found: Iterable[Threads]) -> dict[str, str]:
    """By library, and its file's name where there is one."""
    return {
        f"threads of {one.library}" + (f" ({posixpath.basename(one.path)})" if one.path else ""): str(one.count) for one in found
    }


def libraries(left: Iterable[SharedLibrary], right: Iterable[SharedLibrary]) -> Iterator[Difference]:
    """Shared libraries in use that no package answers for: all others are compared as files of their packages."""
    old = {one.path: one for one in left if one.owner in _NO_PACKAGE}
    new = {one.path: one for one in right if one.owner in _NO_PACKAGE}
    for path in sorted(old.keys() | new.keys()):
        was, now = old.get(path), new.get(path)
        if was is None or now is None or (was.sha256, was.owner) != (now.sha256, now.owner):
            yield _seen("system", path, _owned(was), _owned(now), "shared library in use")


def packages(left: Iterable[SystemPackage], right: Iterable[SystemPackage], *, counts: bool) -> Iterator[Difference]:
    """Packages of the operating system that a base was cut from. `counts`: the bases differ."""
    old, new = {one.name: one.version for one in left}, {one.name: one.version for one in right}
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            level: Level = "numerics" if numerics.package(name) else "system"
            yield Difference(
                level=level,
                what=name,
                left=old.get(name, ""),
                right=new.get(name, ""),
                why="package of the system",
                counts=counts,
            )


def hints(left: Hints, right: Hints) -> Iterator[Difference]:
    """Where things may be had."""
    yield from _fact("observed", "indexes", ", ".join(left.indexes), ", ".join(right.indexes))
    old = {one.sha256: one.origin for one in (*left.wheels, *left.packages)}
    new = {one.sha256: one.origin for one in (*right.wheels, *right.packages)}
    other = sum(old[digest] != new[digest] for digest in old.keys() & new.keys())
    if other:
        yield _seen("observed", "origin of artifacts", "", f"{other} are linked here and carried there, or carried otherwise")


def _starts(left: Observed, right: Observed) -> Iterator[Difference]:
    yield from _fact("observed", "start of Python", left.startup.problem or "works", right.startup.problem or "works")
    yield from _fact("observed", "locale", left.startup.locale, right.startup.locale)
    yield from _fact("observed", "written by", left.tool, right.tool)


def _fact(level: Level, what: str, left: str, right: str, why: str = "") -> Iterator[Difference]:
    if left != right:
        yield _seen(level, what, left, right, why)


def _facts(level: Level, left: Mapping[str, str], right: Mapping[str, str], why: str) -> Iterator[Difference]:
    for name in sorted(left.keys() | right.keys()):
        yield from _fact(level, name, left.get(name, ""), right.get(name, ""), why)


def _seen(level: Level, what: str, left: str, right: str, why: str = "") -> Difference:
    return Difference(level=level, what=what, left=left, right=right, why=why, counts=False)


def _devices(found: Accelerators) -> str:
    counted: dict[str, int] = {}
    for device in found.devices:
        counted[_device(device)] = counted.get(_device(device), 0) + 1
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counted.items()) or found.why or "none"


def _device(one: Device) -> str:
    """A GPU, or an instance of one, by what decides its kernels."""
    return (
        f"{one.name} ({', '.join(part for part in (one.architecture, one.partition) if part)})" if one.architecture else one.name
    )


def _owned(one: SharedLibrary | None) -> str:
    if one is None:
        return ""
    return " ".join(part for part in (one.owner or "nobody's", (one.sha256 or "").removeprefix("sha256:")[:12]) if part)
