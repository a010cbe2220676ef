"""The machine's GPUs of every vendor. That there are none is a fact with its reason; nothing here fails a capture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from repro_env.capture import amd, nvidia
from repro_env.model.accelerator import Accelerators

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
