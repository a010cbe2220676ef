"""Collect facts about the machine, its GPUs and its operating system, but nothing that identifies the machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from repro_env.environment.machine import gpus
from repro_env.io.files import read_text
from repro_env.schema import redact
from repro_env.schema.environment import Host
from repro_env.schema.patterns import lazy

_NUMERIC = lazy(
    r"sse\d?(?:_\d)?|ssse3|sse4[a_]?\w*|pni|avx\w*|fma4?|f16c|amx\w*|bmi[12]|popcnt"
    r"|neon|asimd\w*|fphp|sve\w*|sme(?:[a-z]*\d\w*)?|i8mm|bf16|fcma"
)
"""Flags of `/proc/cpuinfo` by which numeric libraries choose their code (x86 and arm64)."""


def host(root: Path = Path("/")) -> Host:
    """Return the facts about this machine. A fact that the kernel does not report is empty or 0.

    GPUs are those that the drivers list in /proc and /sys; a container sees only its own. `root`: the directory of these.
    """
    cpu = read_text(root / "proc/cpuinfo")
    return Host(
        os=redact.line(_os_name()),
        kernel=redact.line(f"{platform.system()} {platform.release()}"),
        machine=redact.line(platform.machine()),
        cpu=redact.line(_first(cpu, "model name") or _arm(cpu)),
        isa=isa(_first(cpu, "flags") or _first(cpu, "Features")),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        gpus=tuple(gpu.name for gpu in gpus.look(root)),
        nvidia=gpus.nvidia_driver(root),
        amdgpu=gpus.amd_driver(root),
    )


def isa(flags: str) -> tuple[str, ...]:
    """Return the CPU flags by which numeric libraries choose their code, sorted."""
    return tuple(sorted({flag for flag in flags.split() if _NUMERIC.fullmatch(flag)}))


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _arm(cpu: str) -> str:
    """Return the numbers that arm64 kernels report instead of a name."""
    parts = [f"{key} {value}" for key in ("CPU implementer", "CPU part") if (value := _first(cpu, key))]
    return ", ".join(parts)


def _first(text: str, key: str) -> str:
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == key:
            return value.strip()
    return ""
