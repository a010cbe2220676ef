"""InfiniBand and RoCE for runs with a network: the device files that they get, and what is missing.

NCCL uses TCP without a message if it cannot use the adapters, which is several times slower.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterable
from pathlib import Path

from repro_env.sandbox.gpus import can_open
from repro_env.schema.codec import Frozen
from repro_env.schema.run import HostFile

DIRECTORY = "/dev/infiniband"
_NODES = ("uverbs*", "rdma_cm")
"""The files in it that programs use. The others administer the network."""
_LIBRARY = re.compile(r"libibverbs\d*|rdma-core")
"""Packages of the library that NCCL loads."""
_LOCKED = 1 << 30
"""Bytes of memory that a process must be able to lock: adapters read and write buffers in place."""


class Fabric(Frozen, frozen=True, kw_only=True):
    nodes: tuple[HostFile, ...] = ()
    problem: str = ""
    """Why a run cannot use this machine's adapters, as a sentence; empty if it can, or if there are none."""


def look(packages: Iterable[str], root: Path = Path("/")) -> Fabric:
    """Return what a run with a network gets of this machine's adapters. `packages`: those of the image. `root`: of /dev and /sys.

    Also raises the limit of locked memory of this process, which the processes of the run inherit, as far as it may.
    """
    found = sorted(path for pattern in _NODES for path in (root / DIRECTORY[1:]).glob(pattern))
    nodes = tuple(HostFile(source=str(path), target=f"{DIRECTORY}/{path.name}") for path in found if _is_usable(path))
    adapters = sorted(path.name for path in (root / "sys/class/infiniband").glob("*"))
    if not any("uverbs" in node.target for node in nodes):
        why = f"this process may not open the files in {DIRECTORY}, or they are missing: request them from the cluster"
        return Fabric(problem=_sentence(adapters, why) if adapters else "")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
    why = ""
    if not any(map(_LIBRARY.fullmatch, packages)):
        why = "the image has no libibverbs: install it here, and capture again with `--with ibverbs-providers` (rpm: `--with libibverbs`)"
    elif limit != resource.RLIM_INFINITY and limit < _LOCKED:
        why = f"processes may lock only {limit >> 10} KiB of memory: ask the administrators for `memlock unlimited`"
    return Fabric(nodes=nodes, problem=_sentence(adapters, why) if why else "")


def _sentence(adapters: list[str], why: str) -> str:
    names = f" ({', '.join(adapters)})" if adapters else ""
    return f"NCCL cannot use this machine's InfiniBand{names} in the run, and uses TCP: {why}"


def _is_usable(path: Path) -> bool:
    """Whether a run may open a device file. One of root's has not root's privileges, but all groups of such files."""
    if not can_open(str(path)):
        return False
    mode = path.stat().st_mode
    return os.geteuid() != 0 or mode & 0o006 == 0o006 or mode & 0o060 == 0o060
