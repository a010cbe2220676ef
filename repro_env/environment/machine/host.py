"""Collect facts about the machine, its GPUs and its operating system, but nothing that identifies the machine."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from repro_env.io.files import read_text
from repro_env.schema import redact
from repro_env.schema.environment import Host

_NUMERIC = re.compile(
    r"sse\d?(?:_\d)?|ssse3|sse4[a_]?\w*|pni|avx\w*|fma4?|f16c|amx\w*|bmi[12]|popcnt"
    r"|neon|asimd\w*|fphp|sve\w*|sme(?:[a-z]*\d\w*)?|i8mm|bf16|fcma"
)
"""Flags of `/proc/cpuinfo` by which numeric libraries choose their code (x86 and arm64)."""
_NVIDIA_DRIVER = re.compile(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_NVIDIA_MODEL = re.compile(r"^Model:\s*(.*)$", re.MULTILINE)


def host(root: Path = Path("/")) -> Host:
    """Return the facts about this machine. A fact that the kernel does not report is empty or 0.

    GPUs are those that the drivers list in /proc and /sys; a container sees only its own. `root`: the directory of these.
    """
    cpu = read_text(root / "proc/cpuinfo")
    nvidia, amd = root / "proc/driver/nvidia", root / "sys/module/amdgpu"
    driver = _NVIDIA_DRIVER.search(read_text(nvidia / "version") + "\n")
    return Host(
        os=redact.line(_os_name()),
        kernel=redact.line(f"{platform.system()} {platform.release()}"),
        machine=redact.line(platform.machine()),
        cpu=redact.line(_first(cpu, "model name") or _arm(cpu)),
        isa=isa(_first(cpu, "flags") or _first(cpu, "Features")),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        gpus=tuple(map(redact.line, (*_nvidia_gpus(nvidia), *_amd_gpus(root)))),
        nvidia=driver[1] if driver else "",
        amdgpu=redact.line(read_text(amd / "version").strip() or ("of the kernel" if amd.is_dir() else "")),
    )


def _nvidia_gpus(directory: Path) -> Iterator[str]:
    for path in sorted(directory.glob("gpus/*/information")):
        yield from _NVIDIA_MODEL.findall(read_text(path))[:1]


def _amd_gpus(root: Path) -> Iterator[str]:
    """Yield the names of the nodes of the compute driver that are GPUs."""
    for node in sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*"), key=lambda path: (len(path.name), path.name)):
        properties = dict(line.split(maxsplit=1) for line in read_text(node / "properties").splitlines() if " " in line)
        if properties.get("gfx_target_version", "0") != "0":
            card = root / f"sys/class/drm/renderD{properties.get('drm_render_minor')}/device"
            yield (read_text(card / "product_name") or read_text(node / "name")).strip() or "AMD GPU"


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
