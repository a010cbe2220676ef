"""Judge whether this machine can run the image of a spec, and with the same numbers: one check after the other."""

from __future__ import annotations

from collections.abc import Iterator

from repro_env.compare.preflight import gpus
from repro_env.compare.preflight.check import Captured, Check, Machine, Verdict
from repro_env.compare.preflight.rules import baseline_of, kernel_for, rules, version

_LIBC = ("libc6", "glibc")
"""The names of the package with the C library: dpkg, rpm."""
_SAME = "for the same numbers, use a machine with the captured CPU"


def judge(captured: Captured, machine: Machine) -> tuple[Check, ...]:
    """Return all checks, in the order in which a run would meet them."""
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


def _architecture(captured: Captured, machine: Machine) -> Check:
    same = captured.architecture == machine.architecture
    return Check(
        name="architecture",
        captured=captured.architecture,
        here=machine.architecture,
        verdict="ok" if same else "blocked",
        why="" if same else "programs of the image are for another architecture",
        fix="" if same else f"use a machine that is {captured.architecture}, or capture here",
    )


def _kernel(captured: Captured, machine: Machine) -> Check:
    """The image has its own C library, so only the kernel counts that this library needs."""
    libc = next((captured.packages[name] for name in _LIBC if name in captured.packages), "")
    here = machine.host.kernel
    number = version(here.removeprefix("Linux "))
    row = kernel_for(libc)
    verdict: Verdict = "ok"
    why = fix = ""
    if row is not None and number < version(row.kernel):
        verdict, why, fix = "blocked", f"glibc {libc} needs Linux {row.kernel}", f"use Linux {row.kernel} or later"
    elif row is None and number < version(captured.host.kernel.removeprefix("Linux ")):
        verdict = "unknown"
        why = f"the kernel is older than at capture, and the rules do not list the kernel that the C library ({libc or 'unknown'}) needs"
    return Check(
        name="kernel",
        captured=f"glibc {libc}" if libc else captured.host.kernel,
        here=here,
        verdict=verdict,
        why=why,
        fix=fix,
        source=rules().sources[row.source] if row is not None else "",
    )


def _cpu(captured: Captured, machine: Machine) -> Check:
    old, new = captured.host.cpu, machine.host.cpu
    verdict: Verdict = "unknown" if not (old and new) else "ok" if old == new else "numerics may differ"
    why = {"ok": "", "unknown": "the kernel does not report the CPU"}.get(
        verdict, "libraries may choose other code for another CPU"
    )
    return Check(
        name="CPU",
        captured=old or "unknown",
        here=new or "unknown",
        verdict=verdict,
        why=why,
        fix=_SAME if verdict == "numerics may differ" else "",
    )


def _flags(captured: Captured, machine: Machine) -> Check:
    """The instruction sets by which numeric libraries choose their code, and those that the distribution of the image requires."""
    old, new = set(captured.host.isa), set(machine.host.isa)
    missing, more = sorted(old - new), sorted(new - old)
    torch = f" (torch: {captured.frameworks.cpu_capability})" if captured.frameworks.cpu_capability else ""
    row = next((row for name in _LIBC if (row := baseline_of(captured.packages.get(name, "")))), None)
    # A rebuild of a distribution may require less, so only flags that the CPU had at capture are required.
    required = sorted(old.intersection(row.flags) - new) if row is not None and captured.architecture == "amd64" else []
    verdict: Verdict = "blocked" if required else "numerics may differ" if missing or more else "ok"
    why, fix = "", _SAME if missing or more else ""
    if required and row is not None:
        why, fix = f"the C library of the image needs {row.level}, and this CPU lacks {' '.join(required)}", "use a newer CPU"
    elif missing or more:
        why = "numeric libraries choose their code by these flags"
    differences = ", ".join(
        f"{word} {' '.join(names)}" for word, names in (("without", missing), ("also", more)) if names and (missing or more)
    )
    return Check(
        name="CPU flags",
        captured=f"{len(old)} flags{torch}",
        here=differences or "the same",
        verdict=verdict,
        why=why,
        fix=fix,
        source=rules().sources[row.source] if required and row is not None else "",
    )


def _cores(captured: Captured, machine: Machine) -> Check:
    old, new = captured.host.cores, machine.host.cores
    most = max((threads.count for threads in captured.frameworks.threads), default=old)
    verdict: Verdict = "ok" if old == new or machine.replays_threads else "numerics may differ"
    why = fix = ""
    if verdict != "ok":
        why, fix = "the number of threads changes the order of sums", "leave out --determinism off"
    elif new < most:
        why = f"the run uses {most} threads on {new} cores, as captured, and is slower"
    captured_text = f"{old} cores" + (f", {most} threads" if captured.frameworks.threads else "")
    return Check(name="cores and threads", captured=captured_text, here=f"{new} cores", verdict=verdict, why=why, fix=fix)


def _shm(captured: Captured, machine: Machine) -> Iterator[Check]:
    """Workers of torch's DataLoader pass batches through /dev/shm."""
    if not captured.frameworks.torch:
        return
    limit = rules().shm
    small = machine.shm <= limit.size
    yield Check(
        name="/dev/shm",  # noqa: S108
        captured="not recorded",
        here=f"{machine.shm / (1 << 20):,.0f} MiB",
        verdict="unknown" if small else "ok",
        why="workers of a DataLoader may need more" if small else "",
        fix="make /dev/shm larger (Docker: --shm-size), or use num_workers=0" if small else "",
        source=rules().sources[limit.source] if small else "",
    )


def _disk(machine: Machine) -> Check:
    disk = machine.disk
    enough = disk.free >= disk.needed and disk.free_inodes >= disk.needed_inodes
    lacking = "bytes" if disk.free < disk.needed else "inodes"
    return Check(
        name="disk",
        captured=f"at least {disk.needed / 1e9:.2f} GB to write" if disk.needed else "the image is in the store",
        here=f"{disk.free / 1e9:.2f} GB free at {disk.path}",
        verdict="ok" if enough else "blocked",
        why="" if enough else f"there are not enough {lacking} for the image",
        fix="" if enough else "free some disk space there, or set REPRO_ENV_STORE to a directory on another disk",
    )
