"""The platform of this machine, in the terms of an image."""

from __future__ import annotations

import os

from repro_env.schema.errors import PlatformError
from repro_env.schema.spec import Platform


def platform() -> Platform:
    """Return the platform of images that are captured on this machine. Raises `PlatformError` if it is not supported."""
    machine = os.uname()
    if machine.sysname == "Linux" and machine.machine == "x86_64":
        return Platform(os="linux", architecture="amd64")
    if machine.sysname == "Linux" and machine.machine == "aarch64":
        return Platform(os="linux", architecture="arm64")
    raise PlatformError(
        f"repro-env needs Linux on x86_64 or aarch64, but this machine runs {machine.sysname} on {machine.machine}",
        hint="run repro-env on the Linux machine that trains",
    )
