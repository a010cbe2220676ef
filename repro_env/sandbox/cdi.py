"""Read this machine's CDI specs of GPUs: which files and variables give access to a device.

Format: the Container Device Interface's SPEC.md, versions 0.3 to 1.1. The specs are files of the machine's administrator, made by
`nvidia-ctk cdi generate` or `amd-ctk cdi generate`. Hooks are programs for container engines; they are never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from repro_env.io.files import read_regular
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import RunError
from repro_env.schema.text import AbsPath

KINDS = ("nvidia.com/gpu", "amd.com/gpu")
_DIRECTORIES = ("var/run/cdi", "etc/cdi")
"""Of two specs for a device, that of the first directory counts, because it is made when the machine starts."""
_MOST = 4 << 20
_DevPath = Annotated[str, Meta(pattern=r"\A/dev(?:/(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f]+)+\Z", max_length=4000)]
_Setting = Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*=[^\x00-\x1f\x7f]*\Z", max_length=20_000)]


class Node(Frozen, frozen=True, kw_only=True, rename="camel"):
    """A device file. The type, numbers and owner in a spec are for engines that create device files."""

    path: _DevPath
    """In a container."""
    host_path: AbsPath | None = None
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None

    @property
    def source(self) -> str:
        """On this machine."""
        return self.host_path or self.path


class Mount(Frozen, frozen=True, kw_only=True, rename="camel"):
    host_path: AbsPath
    container_path: AbsPath
    options: tuple[str, ...] = ()
    type: str = ""


class Edits(Frozen, frozen=True, kw_only=True, rename="camel"):
    """What is added to a container."""

    env: tuple[_Setting, ...] = ()
    device_nodes: tuple[Node, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Any, ...] = ()
    """Links and settings that engines make; `gpus` makes what a run needs of them."""
    net_devices: tuple[Any, ...] = ()
    intel_rdt: Any = None
    additional_gids: tuple[int, ...] = msgspec.field(name="additionalGids", default=())


class Device(Frozen, frozen=True, kw_only=True, rename="camel"):
    name: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.:-]*\Z")]
    annotations: Mapping[str, str] = {}
    container_edits: Edits


class Spec(Frozen, frozen=True, kw_only=True, rename="camel"):
    cdi_version: Annotated[str, Meta(pattern=r"\A(?:0\.[3-9]|1\.[01])\.\d+\Z")]
    kind: str
    annotations: Mapping[str, str] = {}
    devices: tuple[Device, ...]
    container_edits: Edits = Edits()
    """Added with any of the devices."""


def read(root: Path = Path("/")) -> tuple[Spec, ...]:
    """Return the specs of GPUs, at most one for each kind. `root`: of the directories. Raises `RunError` for an invalid one."""
    specs: dict[str, Spec] = {}
    for directory in _DIRECTORIES:
        for path in sorted((root / directory).glob("*")):
            if path.suffix in (".yaml", ".json") and (spec := _read(path)) is not None:
                specs.setdefault(spec.kind, spec)
    return tuple(specs[kind] for kind in KINDS if kind in specs)


def _read(path: Path) -> Spec | None:
    """Parse a file; None if it is about another kind of device."""
    try:
        value = msgspec.yaml.decode(read_regular(path.resolve(), _MOST))
        if isinstance(value, dict) and value.get("kind") not in KINDS:
            return None
        return msgspec.convert(value, Spec)
    except OSError as error:
        problem = error.strerror or str(error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = " ".join(str(error).split())
    raise RunError(
        f"this CDI spec cannot be used: {problem}",
        where=str(path),
        hint="generate it again (nvidia-ctk cdi generate --output=FILE), or pass --gpus none",
    )
