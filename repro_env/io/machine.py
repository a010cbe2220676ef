"""The platform of this machine, in the terms of an image."""

from __future__ import annotations

import os
from typing import Literal

from repro_env.schema.errors import PlatformError
from repro_env.schema.spec import Platform

ARCHITECTURES: dict[str, Literal["amd64", "arm64"]] = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's name of an architecture -> that of images (GOARCH)."""


def platform() -> Platform:
    """Return the platform of images that are captured on this machine. Raises `PlatformError` if it is not supported."""
    machine = os.uname()
    if machine.sysname == "Linux" and machine.machine in ARCHITECTURES:
        return Platform(os="linux", architecture=ARCHITECTURES[machine.machine])
    raise PlatformError(
        f"repro-env needs Linux on x86_64 or aarch64, but this machine runs {machine.sysname} on {machine.machine}",
        hint="run repro-env on the Linux machine that trains",
    )
