"""Find AMD GPUs. Their kernel driver lists them in `/sys`, so no library and no process is needed."""

from __future__ import annotations

import hashlib
from pathlib import Path

from repro_env.io.files import read_text
from repro_env.schema import redact
from repro_env.schema.accelerator import Accelerators, Device

NODES = "sys/class/kfd/kfd/topology/nodes"
_MODULE = "sys/module/amdgpu"
_ROCM = "opt/rocm/.info/version"
_ECC = 0x0010_0000
"""`HSA_CAP_MEM_EDCSUPPORTED` of a node's `capability`: the node detects and corrects memory errors."""
_DEVICE_MEMORY = (1, 2)
"""`heap_type` of memory on the device, whether the host can access it or not."""


def accelerators(root: Path = Path("/")) -> Accelerators:
    """Return AMD's GPUs and driver, as listed below `root`. GPUs without a compute driver are not included."""
    nodes = [(path, _pairs(path / "properties")) for path in _directories(root / NODES)]
    gpus = [(path, properties) for path, properties in nodes if properties.get("gfx_target_version", 0)]
    driver = _line(root / _MODULE / "version") or ("of the kernel" if (root / _MODULE).is_dir() else "")
    no_gpu = f"AMD's driver ({driver}) found no compute GPU" if driver else "no AMD driver is loaded"
    return Accelerators(
        devices=tuple(_device(root, path, index, properties) for index, (path, properties) in enumerate(gpus)),
        amdgpu=driver,
        rocm=_line(root / _ROCM),
        why="" if gpus else no_gpu,
        # A container sees only its own GPUs. The files of other GPUs exist, but are empty or unreadable.
        unknown=tuple(
            f"AMD node {path.name}: its properties cannot be read here" for path, properties in nodes if not properties
        ),
    )


def architecture(version: int) -> str:
    """Return the name of an architecture: `gfx90a` for 90010.

    The kernel packs major, minor and stepping as decimal pairs; the name has minor and stepping in hexadecimal.
    """
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _device(root: Path, path: Path, index: int, properties: dict[str, int]) -> Device:
    card = root / f"sys/class/drm/renderD{properties.get('drm_render_minor', 0)}/device"
    banks = [_pairs(bank / "properties") for bank in _directories(path / "mem_banks")]
    memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _DEVICE_MEMORY)
    total = _line(card / "mem_info_vram_total")
    memory = memory or properties.get("local_mem_size", 0) or (int(total) if total.isdecimal() else 0)
    unique = properties.get("unique_id", 0)
    missing = {"memory: the driver does not report its size": memory, "uuid: the device has none": unique}
    return Device(
        index=index,
        vendor="amd",
        name=_line(card / "product_name") or _line(path / "name") or f"device {properties.get('device_id', 0):#06x}",
        architecture=architecture(properties["gfx_target_version"]),
        memory=memory or None,
        partition="/".join(
            filter(None, (_line(card / "current_compute_partition"), _line(card / "current_memory_partition"))),
        ),
        ecc=bool(properties["capability"] & _ECC) if "capability" in properties else None,
        uuid="sha256:" + hashlib.sha256(f"{unique:016x}".encode()).hexdigest() if unique else None,
        unknown=tuple(why for why, value in missing.items() if not value),
    )


def _pairs(path: Path) -> dict[str, int]:
    """Return the numbers of a file with lines of the form `name number`."""
    words = [line.split() for line in read_text(path).splitlines()]
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdecimal()}


def _directories(path: Path) -> list[Path]:
    """Return the numbered directories in a directory, in the order of their numbers."""
    try:
        return sorted((entry for entry in path.iterdir() if entry.name.isdecimal()), key=lambda entry: int(entry.name))
    except OSError:
        return []


def _line(path: Path) -> str:
    """Return the first line of a small file. It is empty if the file cannot be read."""
    return redact.line(read_text(path).partition("\n")[0].strip())
