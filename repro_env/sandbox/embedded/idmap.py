"""Run as a separate user when started by root: uid 0 in the run is an unprivileged uid on the host.

The run gets a user namespace in which uid 0 is `UID` on the host. It sees only the paths that it needs, as idmapped mounts
(mount_setattr(2), MOUNT_ATTR_IDMAP) in which the files of root belong to that uid. Everything else is the same as for a
plain user. If the kernel or a file system refuses this, `open_view` raises, and the caller must record it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

from repro_env.sandbox import kernel
from repro_env.sandbox.embedded import rootfs
from repro_env.schema.run import Gpus

UID = 2_100_000_000
"""The uid and gid on the host: above all ranges that systemd, SSSD and subordinate IDs use by default."""
_HOST_FILE_SYSTEMS = ("/proc", "/sys", "/dev")
"""File systems of the host that stay visible until the run has its own."""


class View:
    """The paths of the host that a run needs, with mapped owners. Made by root, before any namespace is entered."""

    def __init__(self, namespace: int, trees: tuple[tuple[str, int], ...], groups: Collection[int] = ()) -> None:
        self._namespace = namespace
        self._trees = trees
        self._groups = groups

    def close(self) -> None:
        for handle in (self._namespace, *(tree for _, tree in self._trees)):
            os.close(handle)

    def enter(self, target: Path) -> None:
        """In a child: hide all other paths of the host, and become uid 0 of the namespace.

        `target` is an empty directory. After this call, no further module can be imported. Raises `OSError`.
        """
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("tmpfs", str(target), "tmpfs", kernel.MS_NODEV | kernel.MS_NOSUID, f"mode=0755,uid={UID},gid={UID}")
        for path in _HOST_FILE_SYSTEMS:
            os.makedirs(f"{target}{path}", exist_ok=True)  # noqa: PTH103
            kernel.bind(path, f"{target}{path}")
        # A directory above a project in /dev/shm can be private to root.
        for covered in sorted({"/".join(path.split("/")[:3]) for path, _ in self._trees if path.startswith("/dev/")}):
            kernel.mount(
                "tmpfs", f"{target}{covered}", "tmpfs", kernel.MS_NODEV | kernel.MS_NOSUID, f"mode=0755,uid={UID},gid={UID}"
            )
        for path, tree in self._trees:
            _make_point(f"{target}{path}", is_directory=stat.S_ISDIR(os.fstat(tree).st_mode))
            kernel.attach(tree, f"{target}{path}")
        rootfs.detach_old_root(rootfs.change_root(target))
        os.setgroups(sorted(self._groups))
        kernel.enter_namespace(self._namespace)
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)


def open_view(paths: Iterable[str], gpus: Gpus = Gpus()) -> View:  # noqa: B008
    """Make a view of `paths` and all paths below them. They must be absolute and without symlinks. Raises `OSError`.

    The files of `gpus` keep their owners. Some device files are only for a group, of which the run becomes a member.
    """
    namespace = _make_namespace()
    trees: list[tuple[str, int]] = []
    view = None
    try:
        for path in sorted(set(paths), key=lambda path: (path.count("/"), path)):
            if any(path == above or path.startswith(above + "/") for above, _ in trees):
                continue
            tree = kernel.open_tree(path)
            trees.append((path, tree))
            try:
                kernel.map_owners(tree, namespace)
            except OSError as error:
                raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
        for path in dict.fromkeys(file.source for file in (*gpus.files, *gpus.nodes)):
            if not path.startswith("/dev/") and path not in dict(trees):
                trees.append((path, kernel.open_tree(path)))
        view = View(namespace, tuple(trees), groups_of(gpus))
    finally:
        if view is None:
            View(namespace, tuple(trees)).close()
    return view


def groups_of(gpus: Gpus) -> set[int]:
    """The groups that a process must be in to open the device files of GPUs."""
    modes = [os.stat(node.source) for node in gpus.nodes]  # noqa: PTH116
    return {mode.st_gid for mode in modes if mode.st_mode & 0o006 != 0o006}


def _make_namespace() -> int:
    """Make a user namespace in which uid and gid 0 are `UID` on the host. Returns its descriptor."""
    is_ready, ready = os.pipe2(os.O_CLOEXEC)
    is_done, done = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.close(done)
            kernel.unshare(kernel.CLONE_NEWUSER)
            os.write(ready, b"1")
            os.read(is_done, 1)  # the namespace must exist until this process has opened it
        finally:
            os._exit(0)
    os.close(ready)
    os.close(is_done)
    try:
        if not os.read(is_ready, 1):
            raise OSError(1, "the kernel refuses a user namespace")
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {UID} 1"), ("gid_map", f"0 {UID} 1")):
            with open(f"/proc/{child}/{name}", "w", encoding="ascii") as file:  # noqa: PTH123  the kernel requires a single write(2)
                file.write(text)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(is_ready)
        os.close(done)
        os.waitpid(child, 0)


def _make_point(path: str, *, is_directory: bool) -> None:
    if is_directory:
        os.makedirs(path, exist_ok=True)  # noqa: PTH103
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
