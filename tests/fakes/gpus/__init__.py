"""Machines with GPUs: the files of drivers, device files that are /dev/null, and a library with the name of the driver's.

NVIDIA's version and information are those of a machine with an H100, with other UUIDs and addresses. The other texts are written
after public descriptions (NVIDIA's MIG guide, the kernel's kfd_topology.c).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from repro_env.environment.system import ldcache
from repro_env.environment.system.elf import MACHINES
from repro_env.environment.system.ldcache import FLAGS, Library
from tests.parts import need

SPEC = Path(__file__).with_name("nvidia.yaml")
UUID = "GPU-{0}{0}{0}{0}{0}{0}{0}{0}-aaaa-bbbb-cccc-0123456789ab"
_INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 41
GPU UUID: \t {uuid}
Video BIOS: \t 96.00.da.00.0c
Bus Type: \t PCIe
DMA Size: \t 52 bits
DMA Mask: \t 0xfffffffffffff
Bus Location: \t {address}
Device Minor: \t {minor}
GPU Firmware: \t 580.159.04
GPU Excluded:\t No
"""
_VERSION = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)\x20\x20
GCC version:  gcc version 15.3.0 (GCC)\x20
"""


def nvidia(root: Path, *, mig: bool = False, device_files: bool = True) -> Path:
    """A machine with two H100, of which the first has a MIG device if `mig`. Returns `root`."""
    proc = root / "proc/driver/nvidia"
    texts = {"version": _VERSION}
    for number, address in enumerate(("0000:07:00.0", "0000:0f:00.0"), 1):
        information = _INFORMATION.format(uuid=UUID.format(number), address=address, minor=number - 1)
        texts[f"gpus/{address}/information"] = information
    for path, minor in (("gi3/access", 30), ("gi3/ci0/access", 31)) if mig else ():
        texts[f"capabilities/gpu0/mig/{path}"] = f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
    _write(proc, texts)
    caps = ("nvidia-caps/nvidia-cap30", "nvidia-caps/nvidia-cap31") if mig else ()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", *caps) if device_files else ():
        device_file(root / "dev" / name)
    library = driver_library(root / "lib/libcuda.so.580.159.04")
    (root / "bin").mkdir(exist_ok=True)
    (root / "bin/nvidia-smi").write_text("#!/bin/sh\necho two GPUs\n")
    (root / "bin/nvidia-smi").chmod(0o755)
    link = library.with_name("libcuda.so.1")
    link.symlink_to(library.name)
    (root / "etc").mkdir(exist_ok=True)
    line = Library("libcuda.so.1", FLAGS[MACHINES[os.uname().machine]], str(link))
    (root / "etc/ld.so.cache").write_bytes(ldcache.write([line]))
    return root


def with_cdi(root: Path, text: str = SPEC.read_text()) -> Path:
    """Add a CDI spec to a machine. Returns `root`."""
    _write(root / "var/run/cdi", {"nvidia.yaml": text.replace("ROOT", str(root))})
    return root


def amd(root: Path) -> Path:
    """A machine with an MI300X. Returns `root`."""
    texts = {
        "class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 8\ngfx_target_version 0\n",
        "class/kfd/kfd/topology/nodes/1/properties": "gfx_target_version 90402\ndrm_render_minor 129\nunique_id 1234567\n",
        "class/drm/renderD129/device/product_name": "AMD Instinct MI300X\n",
        "module/amdgpu/version": "6.12.12\n",
    }
    _write(root / "sys", texts)
    for name in ("kfd", "dri/renderD129"):
        device_file(root / "dev" / name)
    return root


def device_file(path: Path) -> Path:
    """A device file that everybody may open and that is /dev/null."""
    need(os.getuid() == 0, "uid 0 to make device files")
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR, os.makedev(1, 3))
    path.chmod(0o666)
    return path


def driver_library(path: Path) -> Path:
    """A library with the soname `libcuda.so.1`: a copy of glibc's empty libutil, whose name has the same length."""
    found = [*Path("/").glob("lib*/*/libutil.so.1"), *Path("/").glob("lib64/libutil.so.1")]
    need(found, "libutil.so.1 (package libc6)")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(found[0].read_bytes().replace(b"libutil.so.1\0", b"libcuda.so.1\0"))
    return path


def _write(directory: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
