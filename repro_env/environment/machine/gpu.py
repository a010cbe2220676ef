"""Find the machine's GPUs of all vendors. If there are none, the reason is recorded; no problem here fails a capture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.environment.machine import amd, nvidia
from repro_env.schema.accelerator import Accelerators, Device, VisibleDevice

_ABSENT = ("no NVIDIA driver", "no AMD driver")
"""Reasons with these beginnings mean only that the machine has no hardware of this vendor."""


def accelerators(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Accelerators:
    """Return the devices that NVIDIA's and AMD's drivers report now.

    `environ`: for the process that queries the driver. `root`: the directory with /proc, /sys and /opt.
    """
    return join(nvidia.accelerators(os.environ if environ is None else environ, root), amd.accelerators(root))


def join(nvidia: Accelerators, amd: Accelerators) -> Accelerators:
    """Combine the results of both vendors. If there are devices, only reasons that point to a problem are kept."""
    devices = (*nvidia.devices, *amd.devices)
    reasons = [result.why for result in (nvidia, amd) if result.why]
    problems = [why for why in reasons if not why.startswith(_ABSENT)]
    return Accelerators(
        devices=devices,
        driver=nvidia.driver,
        newest=nvidia.newest,
        amdgpu=amd.amdgpu,
        rocm=amd.rocm,
        why="" if devices else "; ".join(problems or reasons),
        unknown=(*nvidia.unknown, *amd.unknown, *(problems if devices else ())),
    )


def with_torch(found: Accelerators, torch_devices: Sequence[VisibleDevice]) -> Accelerators:
    """Add what only PyTorch reports: the number of multiprocessors, and the features of an AMD architecture.

    PyTorch numbers GPUs differently than the driver. So a value is used only if it is the same for all GPUs of a model.
    """
    return msgspec.structs.replace(found, devices=tuple(_with_torch(device, torch_devices) for device in found.devices))


def _with_torch(device: Device, torch_devices: Sequence[VisibleDevice]) -> Device:
    if device.instance is not None or device.partition == "on" or not device.architecture:
        return device  # PyTorch may see only the instances
    same_model = [gpu for gpu in torch_devices if gpu.architecture.partition(":")[0] == device.architecture]
    if device.vendor == "nvidia":
        same_model = [gpu for gpu in same_model if gpu.name == device.name]
    units, architectures = {gpu.units for gpu in same_model}, {gpu.architecture for gpu in same_model}
    if len(units) == 1:
        device = msgspec.structs.replace(device, units=units.pop())
    return msgspec.structs.replace(device, architecture=architectures.pop()) if len(architectures) == 1 else device
