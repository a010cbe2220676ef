"""The machine's GPUs of every vendor. That there are none is a fact with its reason; nothing here fails a capture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.capture import amd, nvidia
from repro_env.model.accelerator import Accelerators, Device, Seen

_ABSENT = ("no NVIDIA driver", "no AMD driver")
"""How a reason begins that says no more than that this vendor has nothing here."""


def accelerators(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Accelerators:
    """What NVIDIA's and AMD's drivers tell, asked now. `environ` is for the process that asks; `root` is where /proc, /sys and /opt lie."""
    return join(nvidia.accelerators(os.environ if environ is None else environ, root), amd.accelerators(root))


def join(one: Accelerators, other: Accelerators) -> Accelerators:
    """NVIDIA's part and AMD's as one: where one has devices, the other's reason is told only if something is wrong there."""
    devices = (*one.devices, *other.devices)
    reasons = [part.why for part in (one, other) if part.why]
    telling = [why for why in reasons if not why.startswith(_ABSENT)]
    return Accelerators(
        devices=devices,
        driver=one.driver,
        newest=one.newest,
        amdgpu=other.amdgpu,
        rocm=other.rocm,
        why="" if devices else "; ".join(telling or reasons),
        unknown=(*one.unknown, *other.unknown, *(telling if devices else ())),
    )


def filled(found: Accelerators, seen: Sequence[Seen]) -> Accelerators:
    """With what torch tells and the driver does not: multiprocessors, and the features of an AMD architecture.

    Torch numbers GPUs in its own way, so its word is taken only where all that it says of GPUs of one kind is the same.
    """
    return msgspec.structs.replace(found, devices=tuple(_filled(device, seen) for device in found.devices))


def _filled(device: Device, seen: Sequence[Seen]) -> Device:
    if device.instance is not None or device.partition == "on" or not device.architecture:
        return device  # torch may see the parts only
    alike = [one for one in seen if one.architecture.partition(":")[0] == device.architecture]
    if device.vendor == "nvidia":
        alike = [one for one in alike if one.name == device.name]
    units, architectures = {one.units for one in alike}, {one.architecture for one in alike}
    if device.units is None and len(units) == 1:
        unknown = tuple(row for row in device.unknown if not row.startswith("units: "))
        device = msgspec.structs.replace(device, units=units.pop(), unknown=unknown)
    return msgspec.structs.replace(device, architecture=architectures.pop()) if len(architectures) == 1 else device
