"""Judge whether this machine can run the image of a spec, and with the same numbers: one fact after the other."""

from __future__ import annotations

from collections.abc import Iterator

from repro_env.compare.preflight import gpus
from repro_env.compare.preflight.compatibility import baseline_of, compatibility, kernel_for, version
from repro_env.compare.preflight.finding import Captured, Finding, Machine, finding_of

_LIBC = ("libc6", "glibc")
"""The names of the package with the C library: dpkg, rpm."""
_SAME = "for the same numbers, use a machine with the captured CPU"


def judge(captured: Captured, machine: Machine) -> tuple[Finding, ...]:
    """Return all findings, in the order in which a run would meet them."""
    return (
        _architecture(captured, machine),
        _kernel(captured, machine),
        _cpu(captured, machine),
        _flags(captured, machine),
        _cores(captured, machine),
        *gpus.check_gpus(captured, machine),
        *_shm(captured, machine),
        _disk(machine),
    )


def _architecture(captured: Captured, machine: Machine) -> Finding:
    result = finding_of("architecture", captured.architecture, machine.architecture)
    if captured.architecture == machine.architecture:
        return result("ok")
    fix = f"use a machine that is {captured.architecture}, or capture here"
    return result("blocked", "", "programs of the image are for another architecture", fix)


def _kernel(captured: Captured, machine: Machine) -> Finding:
    """The image has its own C library, so only the kernel counts that this library needs."""
    libc = next((captured.packages[name] for name in _LIBC if name in captured.packages), "")
    number = version(machine.host.kernel.removeprefix("Linux "))
    row = kernel_for(libc)
    result = finding_of("kernel", f"glibc {libc}" if libc else captured.host.kernel, machine.host.kernel)
    if row is None and number < version(captured.host.kernel.removeprefix("Linux ")):
        why = f"the kernel is older than at capture, and the table does not list the kernel that the C library ({libc or 'unknown'}) needs"
        return result("unknown", "", why)
    if row is None:
        return result("ok")
    if number < version(row.kernel):
        return result("blocked", row.source, f"glibc {libc} needs Linux {row.kernel}", f"use Linux {row.kernel} or later")
    return result("ok", row.source)


def _cpu(captured: Captured, machine: Machine) -> Finding:
    old, new = captured.host.cpu, machine.host.cpu
    result = finding_of("CPU", old or "unknown", new or "unknown")
    if not (old and new):
        return result("unknown", "", "the kernel does not report the CPU")
    if old == new:
        return result("ok")
    return result("numerics may differ", "", "libraries may choose other code for another CPU", _SAME)


def _flags(captured: Captured, machine: Machine) -> Finding:
    """The instruction sets by which numeric libraries choose their code, and those that the distribution of the image requires."""
    old, new = set(captured.host.isa), set(machine.host.isa)
    differences = (("without", sorted(old - new)), ("also", sorted(new - old)))
    here = ", ".join(f"{word} {' '.join(flags)}" for word, flags in differences if flags)
    torch = f" (torch: {captured.frameworks.cpu_capability})" if captured.frameworks.cpu_capability else ""
    result = finding_of("CPU flags", f"{len(old)} flags{torch}", here or "the same")
    row = next((row for name in _LIBC if (row := baseline_of(captured.packages.get(name, "")))), None)
    # A rebuild of a distribution may require less, so only flags that the CPU had at capture are required.
    required = sorted(old.intersection(row.flags) - new) if row is not None and captured.architecture == "amd64" else []
    if row is not None and required:
        why = f"the C library of the image needs {row.level}, and this CPU lacks {' '.join(required)}"
        return result("blocked", row.source, why, "use a newer CPU")
    if old != new:
        return result("numerics may differ", "", "numeric libraries choose their code by these flags", _SAME)
    return result("ok")


def _cores(captured: Captured, machine: Machine) -> Finding:
    old, new = captured.host.cores, machine.host.cores
    most = max((threads.count for threads in captured.frameworks.threads), default=old)
    captured_text = f"{old} cores" + (f", {most} threads" if captured.frameworks.threads else "")
    result = finding_of("cores and threads", captured_text, f"{new} cores")
    if old != new and not machine.replays_threads:
        why = "the number of threads changes the order of sums"
        return result("numerics may differ", "", why, "leave out --determinism off")
    return result("ok", "", f"the run uses {most} threads on {new} cores, as captured, and is slower" if new < most else "")


def _shm(captured: Captured, machine: Machine) -> Iterator[Finding]:
    """Workers of torch's DataLoader pass batches through /dev/shm."""
    if not captured.frameworks.torch:
        return
    limit = compatibility().shm
    result = finding_of("/dev/shm", "not recorded", f"{machine.shm / (1 << 20):,.0f} MiB")  # noqa: S108
    if machine.shm > limit.size:
        yield result("ok")
        return
    fix = "make /dev/shm larger (Docker: --shm-size), or use num_workers=0"
    yield result("unknown", limit.source, "workers of a DataLoader may need more", fix)


def _disk(machine: Machine) -> Finding:
    disk = machine.disk
    captured = f"at least {disk.needed / 1e9:.2f} GB to write" if disk.needed else "the image is in the store"
    result = finding_of("disk", captured, f"{disk.free / 1e9:.2f} GB free at {disk.path}")
    if disk.free >= disk.needed and disk.free_inodes >= disk.needed_inodes:
        return result("ok")
    lacking = "bytes" if disk.free < disk.needed else "inodes"
    fix = "free some disk space there, or set REPRO_ENV_STORE to a directory on another disk"
    return result("blocked", "", f"there are not enough {lacking} for the image", fix)
