"""List this machine's GPUs and their drivers' libraries, from files of the kernel and the loader. No driver is started.

NVIDIA: `/proc/driver/nvidia` (the driver's README, "The /proc File System Interface", and NVIDIA's MIG guide, "Device Nodes and
Capabilities"). AMD: the compute driver's topology in sysfs (kernel, drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from repro_env.environment.system import elf, ldcache
from repro_env.io.files import read_text
from repro_env.schema import redact
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import LockError
from repro_env.schema.patterns import lazy

_VERSION = lazy(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_FIELD = lazy(r"^(Model|GPU UUID|Device Minor):[ \t]*(.*)$", re.MULTILINE)
_CAPABILITY = lazy(r"^DeviceFileMinor:\s*(\d+)$", re.MULTILINE)

_DRIVER = lazy(
    r"lib(?:cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[\w.-]+|(?:GLX|EGL|GLESv1_CM|GLESv2|vdpau)_nvidia|dxcore|d3d12(?:core)?)\.so(?:\.[\w.]+)?"
)
"""Libraries that belong to a kernel driver and work only with its version. NVIDIA's container runtime mounts exactly these;
the last two are those of WSL2."""


class MigDevice(Frozen, frozen=True, kw_only=True):
    """A part of a GPU that is partitioned with MIG."""

    name: str
    """`gpu instance 1, compute instance 0`."""
    nodes: tuple[str, ...]
    """The device files that give access to it."""


class Gpu(Frozen, frozen=True, kw_only=True):
    vendor: Literal["nvidia", "amd"]
    name: str
    node: str
    """Its device file, such as `/dev/nvidia0`; empty if the driver does not report it."""
    uuid: str
    """As the driver reports it, or empty. It identifies the machine, so records have only its digest."""
    mig: tuple[MigDevice, ...] = ()


def is_driver(path: str) -> bool:
    """Whether a library belongs to a kernel driver, by its file name. These are not captured, since every machine has its own."""
    return _DRIVER.fullmatch(path.rpartition("/")[2]) is not None


def look(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """Return the GPUs that the drivers list: NVIDIA's in the order of their PCI addresses, then AMD's. `root`: of /proc and /sys."""
    return (*_nvidia(root / "proc/driver/nvidia"), *_amd(root))


def nvidia_driver(root: Path = Path("/")) -> str:
    """Return the version of NVIDIA's kernel driver, or ""."""
    match = _VERSION.search(read_text(root / "proc/driver/nvidia/version") + "\n")
    return match[1] if match else ""


def amd_driver(root: Path = Path("/")) -> str:
    """Return the version of AMD's kernel driver, `of the kernel` for the built-in one, or ""."""
    module = root / "sys/module/amdgpu"
    return redact.line(read_text(module / "version").strip() or ("of the kernel" if module.is_dir() else ""))


def _nvidia(directory: Path) -> Iterator[Gpu]:
    for path in sorted(directory.glob("gpus/*/information")):
        fields = dict(_FIELD.findall(read_text(path)))
        if "Model" in fields:
            minor = fields.get("Device Minor", "").strip()
            yield Gpu(
                vendor="nvidia",
                name=redact.line(fields["Model"].strip()),
                node=f"/dev/nvidia{minor}" if minor.isdigit() else "",
                uuid=fields.get("GPU UUID", "").strip(),
                mig=tuple(_mig_devices(directory / f"capabilities/gpu{minor}/mig")),
            )


def _mig_devices(directory: Path) -> Iterator[MigDevice]:
    for path in sorted(directory.glob("gi*/ci*/access"), key=lambda path: (len(str(path)), path)):
        minors = [_CAPABILITY.findall(read_text(access)) for access in (path.parents[1] / "access", path)]
        instance, part = path.parents[1].name[2:], path.parent.name[2:]
        yield MigDevice(
            name=f"gpu instance {instance}, compute instance {part}",
            nodes=tuple(f"/dev/nvidia-caps/nvidia-cap{number}" for numbers in minors for number in numbers),
        )


def _amd(root: Path) -> Iterator[Gpu]:
    for node in sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*"), key=lambda path: (len(path.name), path.name)):
        properties = dict(line.split(maxsplit=1) for line in read_text(node / "properties").splitlines() if " " in line)
        if properties.get("gfx_target_version", "0") != "0":  # else it is a CPU
            minor, unique = properties.get("drm_render_minor", "").strip(), properties.get("unique_id", "0").strip()
            card = root / f"sys/class/drm/renderD{minor}/device"
            yield Gpu(
                vendor="amd",
                name=redact.line((read_text(card / "product_name") or read_text(node / "name")).strip() or "AMD GPU"),
                node=f"/dev/dri/renderD{minor}" if minor.isdigit() else "",
                uuid="" if unique == "0" else unique,
            )


def driver_libraries(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, str]:
    """Return the libraries of NVIDIA's driver as the loader finds them: name -> real path.

    The loader searches LD_LIBRARY_PATH, then its cache; it can also open each file by its own name. `root`: of the cache.
    """
    cache = root / "etc/ld.so.cache"
    lines = ldcache.read(cache.read_bytes() if cache.is_file() else b"")
    found = [line.path for line in lines if line.flags == ldcache.FLAGS.get(_machine()) and is_driver(line.path)]
    for directory in filter(os.path.isabs, reversed(environ.get("LD_LIBRARY_PATH", "").split(":"))):
        with contextlib.suppress(OSError):
            found[:0] = [f"{directory}/{name}" for name in sorted(os.listdir(directory)) if is_driver(name)]  # noqa: PTH208
    libraries: dict[str, str] = {}
    for path in reversed(found):  # the loader uses the first
        real = os.path.realpath(path)
        if soname(real):
            libraries |= {os.path.basename(path): real, os.path.basename(real): real}  # noqa: PTH119
    return libraries


def soname(path: str) -> str:
    """Return the name under which the loader looks for a library of this machine's architecture; "" for any other file."""
    try:
        facts = elf.read(path)
    except (OSError, LockError, ValueError):
        return ""
    return facts.soname if facts is not None and facts.machine == _machine() else ""


def _machine() -> int:
    return elf.MACHINES.get(platform.machine(), 0)
