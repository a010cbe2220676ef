"""AMD's GPUs, as their kernel driver tells them in `/sys`: no library and no process is needed."""

from __future__ import annotations

import hashlib
from pathlib import Path

from repro_env.model import redact
from repro_env.model.accelerator import Accelerators, Device

NODES = "sys/class/kfd/kfd/topology/nodes"
_MODULE = "sys/module/amdgpu"
_ROCM = "opt/rocm/.info/version"
_ECC = 0x0010_0000
"""`HSA_CAP_MEM_EDCSUPPORTED` of a node's `capability`: errors in its memory are found and corrected."""
_OWN_MEMORY = (1, 2)
"""`heap_type` of memory on the device, seen by the host or not."""
_XGMI, _PCIE = 11, 2
"""`type` of a link between nodes."""
_WAYS = {_XGMI: "xgmi", _PCIE: "pcie"}


def accelerators(root: Path = Path("/")) -> Accelerators:
    """AMD's part, below `root`. GPUs that no compute driver serves are not in it."""
    nodes = {number: path for path in _folders(root / NODES) if (number := _number(path.name)) is not None}
    told = {number: _pairs(path / "properties") for number, path in sorted(nodes.items())}
    gpus = [number for number, said in told.items() if said.get("gfx_target_version", 0)]
    hidden = [number for number, said in told.items() if not said]
    driver = _read(root / _MODULE / "version") or ("of the kernel" if (root / _MODULE).is_dir() else "")
    why = "" if gpus else f"AMD's driver ({driver}) finds no GPU that computes" if driver else "no AMD driver in the kernel"
    return Accelerators(
        devices=tuple(_device(root, nodes[number], index, told[number], gpus) for index, number in enumerate(gpus)),
        amdgpu=driver,
        rocm=_read(root / _ROCM),
        why=why,
        # A container is shown only its own GPUs: the others' files are there and empty, or may not be read.
        unknown=tuple(f"AMD node {number}: its properties may not be read here" for number in hidden),
    )


def architecture(version: int) -> str:
    """`gfx90a` from 90010: the kernel packs major, minor and stepping as decimal pairs, names have the last two in hexadecimal."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _device(root: Path, path: Path, index: int, said: dict[str, int], gpus: list[int]) -> Device:
    card = root / f"sys/class/drm/renderD{said.get('drm_render_minor', 0)}/device"
    unknown = []
    per_unit = said.get("simd_per_cu", 0)
    units = said["simd_count"] // per_unit if per_unit and said.get("simd_count") else None
    if units is None:
        unknown.append("units: the driver does not tell how many there are")
    banks = [_pairs(bank / "properties") for bank in _folders(path / "mem_banks")]
    memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _OWN_MEMORY)
    memory = memory or said.get("local_mem_size", 0) or _number(_read(card / "mem_info_vram_total")) or 0
    if not memory:
        unknown.append("memory: the driver does not tell it")
    ways, unread = _topology(path, gpus)
    unique = said.get("unique_id", 0)
    if not unique:
        unknown.append("uuid: the device has none")
    return Device(
        index=index,
        vendor="amd",
        name=_read(card / "product_name") or _read(path / "name") or f"device {said.get('device_id', 0):#06x}",
        architecture=architecture(said["gfx_target_version"]),
        units=units,
        memory=memory or None,
        partition="/".join(
            filter(None, (_read(card / "current_compute_partition"), _read(card / "current_memory_partition"))),
        ),
        ecc=bool(said["capability"] & _ECC) if "capability" in said else None,
        uuid="sha256:" + hashlib.sha256(f"{unique:016x}".encode()).hexdigest() if unique else None,
        topology=ways if len(gpus) > 1 else (),
        unknown=(*unknown, *unread) if len(gpus) > 1 else tuple(unknown),
    )


def _topology(path: Path, gpus: list[int]) -> tuple[tuple[str, ...], list[str]]:
    """How this node reaches each GPU, and what is not told."""
    links: dict[int, int] = {}
    for folder in ("p2p_links", "io_links"):  # a direct link of the second kind is the nearer one
        for link in _folders(path / folder):
            said = _pairs(link / "properties")
            if "node_to" in said:
                links[said["node_to"]] = said.get("type", 0)
    own = int(path.name)
    ways, unknown = [], []
    for number, node in enumerate(gpus):
        kind = links.get(node, 0)
        ways.append("self" if node == own else _WAYS.get(kind, f"link of type {kind}" if kind else ""))
        if not ways[-1]:
            unknown.append(f"way to GPU {number}: the driver names no link")
    return tuple(ways), unknown


def _pairs(path: Path) -> dict[str, int]:
    """`name number` lines."""
    found = {}
    for row in _read(path, whole=True).splitlines():
        name, _, text = row.strip().partition(" ")
        number = _number(text)
        if number is not None:
            found[name] = number
    return found


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir(), key=lambda entry: (len(entry.name), entry.name))
    except OSError:
        return []


def _read(path: Path, *, whole: bool = False) -> str:
    """The first line of a small file, or all of it; empty when it cannot be read."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return ""
    return text if whole else redact.line(text.partition("\n")[0].strip())
