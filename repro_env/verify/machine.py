"""What two captures saw of their machines: observations, which no image holds, ordered by what they do to numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from repro_env.model.accelerator import Accelerators, Device, Frameworks
from repro_env.model.environment import Host, SharedLibrary, SystemPackage
from repro_env.model.spec import Hints, Observed
from repro_env.verify import numerics
from repro_env.verify.difference import Difference, Level


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
    yield from _fact("numerics", "GPU driver", left.driver, right.driver)
    yield from _fact("observed", "newest CUDA or ROCm of the driver", left.newest, right.newest)


def frameworks(left: Frameworks, right: Frameworks) -> Iterator[Difference]:
    """What was really loaded. Where one side has no answer, only that is said."""
    if left.problem or right.problem:
        yield from _fact("observed", "loading PyTorch", left.problem or "loads", right.problem or "loads")
        return
    yield from _fact("numerics", "torch as loaded", left.torch, right.torch)
    yield from _fact("numerics", "torch's commit", left.torch_git, right.torch_git)
    yield from _fact("numerics", "torch built for CUDA", left.cuda, right.cuda)
    yield from _fact("numerics", "torch built for ROCm", left.hip, right.hip)
    yield from _fact("numerics", "torch has code for", " ".join(left.arch), " ".join(right.arch))
    yield from _fact("numerics", "torch's CPU code path", left.cpu_capability, right.cpu_capability, "chosen by the CPU's flags")
    yield from _fact("numerics", "triton as loaded", left.triton, right.triton)
    old = {one.name: f"{one.version} {one.owner}".strip() or one.path for one in left.libraries}
    new = {one.name: f"{one.version} {one.owner}".strip() or one.path for one in right.libraries}
    yield from _facts("numerics", old, new, "library as loaded")
    counts = {f"threads of {one.library}": str(one.count) for one in left.threads}
    now = {f"threads of {one.library}": str(one.count) for one in right.threads}
    yield from _facts("numerics", counts, now, "another number of threads sums in another order")


def libraries(left: Iterable[SharedLibrary], right: Iterable[SharedLibrary]) -> Iterator[Difference]:
    """Shared libraries from outside the environment's own files, by path."""
    old, new = {one.path: one for one in left}, {one.path: one for one in right}
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
    return f"{one.name} ({one.architecture})" if one.architecture else one.name


def _owned(one: SharedLibrary | None) -> str:
    if one is None:
        return ""
    return " ".join(part for part in (one.owner or "nobody's", (one.sha256 or "").removeprefix("sha256:")[:12]) if part)
