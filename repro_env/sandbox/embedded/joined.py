"""Start a process in the root of another process of the run on the same machine (`schema.run.Member`).

It enters the user, network, IPC, UTS and mount namespaces of that process, so all of them have one root, one HOME, one /tmp and
/dev/shm, and one interface `lo`. It has its own PID namespace, so it lives and dies with its own supervisor.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from repro_env.io import files
from repro_env.sandbox import kernel
from repro_env.sandbox.embedded import idmap, namespaces, rootfs
from repro_env.sandbox.embedded.stage import Stage
from repro_env.sandbox.image import Image
from repro_env.sandbox.session import Connection
from repro_env.sandbox.streams import Streams
from repro_env.schema.errors import SandboxError, os_errors_as
from repro_env.schema.run import Launch

_KINDS = ("user", "net", "ipc", "uts", "mnt")
"""The namespaces that processes share, in the order in which they are entered. The first gives the permission for the others."""


class Neighbours:
    """The processes of a run on this machine. The first one makes the root, while the others wait."""

    def __init__(self, scratch: Path, rank: int, stack: contextlib.ExitStack) -> None:
        """Wait until no other process on this machine is starting. `scratch`: of this machine; `rank`: of this process."""
        self._scratch = scratch
        self._rank = rank
        self._lock = os.open(scratch / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stack.callback(self._release)
        files.lock(self._lock)
        self.rank = -1
        """The rank of the process whose root is used; -1 if there is none."""
        self.namespaces = self._find(stack)
        """Kind -> descriptor, of that process; empty if there is none."""

    def _find(self, stack: contextlib.ExitStack) -> Mapping[str, int]:
        for path in sorted(self._scratch.glob("*.pid")):
            pid, _, age = path.read_text().partition(" ")
            try:
                handles = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in _KINDS}
                is_same = age == _age(pid)
            except OSError:  # it has ended
                continue
            for handle in handles.values():
                stack.callback(os.close, handle)
            if is_same:
                self.rank = int(path.stem)
                return {
                    kind: handle
                    for kind, handle in handles.items()
                    if not os.path.samestat(os.fstat(handle), Path(f"/proc/self/ns/{kind}").stat())
                }
        return {}

    def started(self, first: int) -> None:
        """Let the other processes start, in the root of this one. `first`: the PID of its first process."""
        with contextlib.suppress(OSError):  # it has ended
            (self._scratch / f"{self._rank}.pid").write_text(f"{first} {_age(str(first))}")
        self._release()

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _age(pid: str) -> str:
    """When a process started (proc(5), field 22 of stat): a PID that is used again has another time. Raises `OSError`."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


class JoinedStage(Stage):
    """One attempt to start a process in the root of another one."""

    def __init__(self, launch: Launch, neighbours: Neighbours, image: Image, streams: Streams) -> None:
        self._launch = launch
        self._namespaces = dict(neighbours.namespaces)
        self._rank = neighbours.rank
        self.interpreter = image.interpreter
        self.streams = streams
        self.user = f"user: shared with rank {neighbours.rank}"
        self._becomes_root = "user" in self._namespaces and os.geteuid() == 0
        if self._becomes_root:
            streams.own(idmap.UID)

    @property
    def means(self) -> list[str]:
        """See `Stage`."""
        return [f"root: shared with rank {self._rank}"]

    def enter_namespaces(self) -> None:
        """See `Stage`."""
        with _entering():
            if self._becomes_root:
                os.setgroups(sorted(idmap.groups_of(self._launch.gpus)))
            for kind in _KINDS[:-1]:
                if kind in self._namespaces:
                    kernel.enter_namespace(self._namespaces[kind])
            if self._becomes_root:
                os.setresgid(0, 0, 0)
                os.setresuid(0, 0, 0)
            kernel.unshare(kernel.CLONE_NEWPID)

    def make_root(self, out: Connection) -> list[str]:  # noqa: ARG002
        """See `Stage`. The mounts are a copy, in which /proc is the one of this process."""
        os.umask(0o022)
        with _entering():
            kernel.enter_namespace(self._namespaces["mnt"])
            namespaces.enter_mounts()
        deviations = rootfs.mount_proc(None)
        rootfs.hide_machine()
        return deviations


def _entering() -> AbstractContextManager[None]:
    what = "this process cannot enter the root of another process of its run"
    return os_errors_as(SandboxError, what, hint="start one process on each machine, for example with torchrun")
