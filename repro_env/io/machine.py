"""This machine, as an image names it."""

from __future__ import annotations

import os

from repro_env.model.errors import PlatformError
from repro_env.model.spec import Platform


def platform() -> Platform:
    """The platform that images made here are for. Raises `PlatformError` where there is none."""
    here = os.uname()
    if here.sysname == "Linux" and here.machine == "x86_64":
        return Platform(os="linux", architecture="amd64")
    if here.sysname == "Linux" and here.machine == "aarch64":
        return Platform(os="linux", architecture="arm64")
    raise PlatformError(
        f"this machine is {here.sysname} on {here.machine}; repro-env captures and runs Linux on x86_64 or aarch64",
        hint="run it on the Linux machine that trains",
    )
