"""The machine and its operating system: facts, never identity."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from repro_env.model import redact
from repro_env.model.environment import Host

_NUMERIC = re.compile(
    r"sse\d?(?:_\d)?|ssse3|sse4[a_]?\w*|pni|avx\w*|fma4?|f16c|amx\w*|bmi[12]|popcnt"
    r"|neon|asimd\w*|fphp|sve\w*|sme(?:[a-z]*\d\w*)?|i8mm|bf16|fcma"
)
"""Flags of `/proc/cpuinfo` that numeric libraries choose their code by (x86 and arm64)."""


def host() -> Host:
    """What this machine is. A fact that the kernel does not give is empty or 0."""
    cpu = _read(Path("/proc/cpuinfo"))
    return Host(
        os=redact.line(_os_name()),
        kernel=redact.line(f"{platform.system()} {platform.release()}"),
        machine=redact.line(platform.machine()),
        cpu=redact.line(_first(cpu, "model name") or _arm(cpu)),
        isa=isa(_first(cpu, "flags") or _first(cpu, "Features")),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )


def isa(flags: str) -> tuple[str, ...]:
    """Those of the kernel's CPU flags that numeric libraries dispatch on, sorted."""
    return tuple(sorted({flag for flag in flags.split() if _NUMERIC.fullmatch(flag)}))


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _arm(cpu: str) -> str:
    """arm64 kernels give numbers for a name."""
    parts = [f"{key} {value}" for key in ("CPU implementer", "CPU part") if (value := _first(cpu, key))]
    return ", ".join(parts)


def _first(text: str, key: str) -> str:
    for row in text.splitlines():
        name, colon, value = row.partition(":")
        if colon and name.strip() == key:
            return value.strip()
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
