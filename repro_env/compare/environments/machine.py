"""Compare the machines of two captures. These observations are not part of an image, but some of them can change numbers."""

from __future__ import annotations

import operator
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from repro_env.compare.environments import numerics
from repro_env.compare.environments.difference import Difference, Level, compare_values
from repro_env.schema.environment import Host, SharedLibrary, SystemPackage
from repro_env.schema.frameworks import Device, Frameworks, Library, Threads
from repro_env.schema.spec import Observed

_NO_PACKAGE = ("", "driver")


def observations(left: Observed, right: Observed) -> tuple[Difference, ...]:
    """Compare machine, GPUs, loaded libraries and threads. `packages` compares the packages of the operating system."""
    return (
        *hosts(left.host, right.host),
        *frameworks(left.frameworks, right.frameworks),
        *libraries(left.libraries, right.libraries),
        *_startup(left, right),
    )


def hosts(left: Host, right: Host) -> Iterator[Difference]:
    yield from _fact("numerics", "CPU", left.cpu, right.cpu, "libraries may use other code on another CPU")
    missing, new = sorted(set(left.isa) - set(right.isa)), sorted(set(right.isa) - set(left.isa))
    if missing or new:
        why = "numeric libraries choose their code by them"
        yield Difference("numerics", "CPU flags", " ".join(missing), " ".join(new), why, counts=False)
    yield from _fact("numerics", "CPU cores", str(left.cores), str(right.cores), "they determine the default number of threads")
    yield from _fact(
        "numerics", "GPUs", counted(left.gpus), counted(right.gpus), "libraries choose other kernels for another GPU"
    )
    yield from _fact("numerics", "NVIDIA driver", left.nvidia, right.nvidia)
    yield from _fact("numerics", "AMD driver", left.amdgpu, right.amdgpu)
    yield from _fact("observed", "operating system", left.os, right.os)
    yield from _fact("observed", "kernel", left.kernel, right.kernel)
    yield from _fact("observed", "memory", f"{left.memory:,} bytes", f"{right.memory:,} bytes")


def frameworks(left: Frameworks, right: Frameworks) -> Iterator[Difference]:
    """Compare the loaded libraries, if the frameworks could be loaded on both sides."""
    yield from _fact("observed", "loading of frameworks", left.problem or "works", right.problem or "works")
    if any(side.problem and not side.libraries for side in (left, right)):
        return
    yield from _fact("numerics", "torch as loaded", left.torch, right.torch)
    yield from _fact("numerics", "torch's CPU code path", left.cpu_capability, right.cpu_capability, "chosen by the CPU's flags")
    yield from _fact("numerics", "GPUs of torch", *(counted(map(_device, side.devices)) for side in (left, right)))
    yield from compare_values(_loaded(left.libraries), _loaded(right.libraries), "numerics", "library as loaded", counts=False)
    yield from compare_values(
        _counts(left.threads), _counts(right.threads), "numerics", "the number of threads changes the order of sums", counts=False
    )


def _loaded(libraries: Sequence[Library]) -> dict[str, str]:
    """Describe libraries by name. If several files have the same name, the name of the file is added."""
    names = Counter(library.name for library in libraries)
    return {
        library.name if names[library.name] == 1 else f"{library.name} ({posixpath.basename(library.path)})": " ".join(
            part for part in (library.build, library.owner, (library.sha256 or "").removeprefix("sha256:")[:12]) if part
        )
        for library in libraries
    }


def _counts(threads: Iterable[Threads]) -> dict[str, str]:
    """Return the number of threads by library, with the name of its file if known."""
    return {
        f"threads of {item.library}" + (f" ({posixpath.basename(item.path)})" if item.path else ""): str(item.count)
        for item in threads
    }


def libraries(left: Iterable[SharedLibrary], right: Iterable[SharedLibrary]) -> Iterator[Difference]:
    """Compare the loaded shared libraries that belong to no package. The others are compared as files of their packages."""
    old = {library.path: library for library in left if library.owner in _NO_PACKAGE}
    new = {library.path: library for library in right if library.owner in _NO_PACKAGE}
    key = operator.attrgetter("sha256", "owner")
    return compare_values(old, new, "system", "loaded shared library", describe=_owner, key=key, counts=False)


def packages(left: Iterable[SystemPackage], right: Iterable[SystemPackage], *, counts: bool) -> Iterator[Difference]:
    """Compare the packages of the operating system. `counts`: whether the bases made of them differ."""
    old, new = {package.name: package.version for package in left}, {package.name: package.version for package in right}
    return compare_values(
        old, new, lambda name: "numerics" if numerics.package(name) else "system", "system package", counts=counts
    )


def _startup(left: Observed, right: Observed) -> Iterator[Difference]:
    yield from _fact("observed", "start of Python", left.startup.problem or "works", right.startup.problem or "works")
    yield from _fact("observed", "locale", left.startup.locale, right.startup.locale)
    yield from _fact("observed", "written by", left.tool, right.tool)


def _fact(level: Level, what: str, left: str, right: str, why: str = "") -> Iterator[Difference]:
    if left != right:
        yield Difference(level, what, left, right, why, counts=False)


def counted(names: Iterable[str]) -> str:
    """Return names with the number of each, such as `2 x NVIDIA H100 PCIe`; `none` without names."""
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in Counter(names).items()) or "none"


def _device(device: Device) -> str:
    return f"{device.name} ({device.architecture}, {device.units} multiprocessors)"


def _owner(library: SharedLibrary) -> str:
    owner = library.owner or "no package"
    return " ".join(part for part in (owner, (library.sha256 or "").removeprefix("sha256:")[:12]) if part)
