"""Mount the root of a run and everything in it, in one attempt to start the run.

The caller's process decides what is mounted before any namespace is entered. The first process of the run makes the mounts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from repro_env.sandbox import kernel, session, workspace
from repro_env.sandbox.embedded import idmap, namespaces, rootfs
from repro_env.sandbox.image import Image
from repro_env.sandbox.session import Connection, Refused
from repro_env.sandbox.streams import Streams
from repro_env.schema.errors import DataError, SandboxError, os_errors_as
from repro_env.schema.run import Launch
from repro_env.schema.rundirectory import OUTSIDE, SCRATCH


class Stage:
    """One attempt to start a run: what is prepared before namespaces are entered, and what is done in them."""

    def __init__(
        self, launch: Launch, directory: Path, image: Image, streams: Streams, stack: contextlib.ExitStack, *, overlay: bool
    ) -> None:
        """Prepare the mounts. All descriptors are closed at the end of `stack`.

        The path of `directory`, which is the run's and which `workspace.prepare` has prepared, may not contain a symlink.
        `overlay`: whether the root is an overlay, or else a merged tree of links.
        """
        self._launch = launch
        self.interpreter = image.interpreter
        self.streams = streams
        host = launch.member.host_directory(directory)
        outside = host / OUTSIDE
        scratch = host / SCRATCH / str(launch.member.rank)  # overlay refuses a work directory that another mount has used
        self._point, work = scratch / "root", scratch / "work"
        for path in (self._point, work):
            path.mkdir(parents=True, exist_ok=True)
        trees = [image.tree(diff_id) for diff_id in launch.layers] if overlay else [image.merge(launch)]
        self.root = rootfs.Root(trees, outside, work=work if overlay else None)
        self._mounts = image.mounts(launch, directory)
        self._resolver = rootfs.resolver_files(launch)
        own = [
            source for target, (source, _) in self._mounts.items() if target not in {file.target for file in launch.gpus.files}
        ]
        self._view = self._open_view(stack, [*map(str, trees), str(directory), *own])

    def _open_view(self, stack: contextlib.ExitStack, paths: Sequence[str]) -> idmap.View | None:
        """Open a view of the paths if this process is root, so that the run gets a separate uid. Sets `user` for the record."""
        self._maps_user = not namespaces.can_mount() or os.geteuid() != 0
        if self._maps_user:
            self.user = "user: namespace"
            return None
        try:
            view = idmap.open_view((path for path in paths if os.path.lexists(path)), self._launch.gpus)
        except OSError as error:
            self.user = f"user: uid 0 in the run is uid 0 on the host ({error.filename or 'idmapped mounts'}: {error.strerror})"
            return None
        stack.callback(view.close)
        self.streams.own(idmap.UID)
        self.user = f"user: namespace, uid 0 in the run is uid {idmap.UID} on the host"
        return view

    @property
    def means(self) -> list[str]:
        """How the root is mounted, for the record."""
        return [f"root: {self.root.means}"]

    def enter_namespaces(self) -> None:
        """Enter every namespace except the mount namespace. Raises `SandboxError`."""
        hint = "run `repro-env doctor` for the cause and its fix"
        with os_errors_as(SandboxError, "the run cannot enter new namespaces", hint=hint):
            if self._view is not None:
                self._view.enter(self._point)
            elif self._maps_user:
                namespaces.enter_user()
            namespaces.enter(network=self._launch.network)

    def make_root(self, out: Connection) -> list[str]:
        """Make the root and enter it, as the first process of the run. Returns deviations for the record."""
        launch = self._launch
        os.umask(0o022)
        with rootfs.attempt("enter a mount namespace"):
            namespaces.enter_mounts()
        try:
            self.root.stack(self._point)
        except OSError as error:
            session.send(out, Refused(f"{self.root.means}: {error.strerror}"))
            os._exit(0)
        with os_errors_as(DataError, "this path cannot be mounted", hint="check its permissions"):
            mounts = {target: (_handle(source), read_only) for target, (source, read_only) in self._mounts.items()}
            devices = {node.target: _handle(node.source) for node in launch.gpus.nodes}
        with rootfs.attempt("change the root"):
            old = rootfs.change_root(self._point)
        deviations = rootfs.mount_system(self.root, old, console=self.streams.terminal)
        with rootfs.attempt("make the device files of the GPUs"):
            for target, handle in devices.items():
                rootfs.bind_device(target, handle)
        kernel.sethostname(launch.hostname)
        if not launch.network:
            with rootfs.attempt("enable the loopback interface"):
                namespaces.loopback_up()
        with rootfs.attempt("write /etc"):
            rootfs.write_etc(self.root, launch, self._resolver)
        with rootfs.attempt("make HOME and the directories for temporary files"):
            if not f"{launch.user.home}/".startswith(f"{launch.workspace}/"):
                self.root.make_writable(launch.user.home)
            for path in workspace.TEMPORARY:
                self.root.make_writable(path)
                os.chmod(path, 0o1777)  # noqa: PTH101, S103
        if launch.site in mounts:  # before a tree of the image, which is read-only, is mounted above it
            self.root.make_directory(launch.site)
        mounts |= {tree.target: (_handle(tree.root), False) for tree in launch.trees}
        relocated = {tree.target for tree in launch.trees if tree.root != tree.target}
        for target in sorted(mounts, key=lambda path: path.count("/")):
            handle, read_only = mounts[target]
            rootfs.bind_handle(self.root, target, handle, read_only=read_only, replace_link=target in relocated)
        rootfs.detach_old_root(old)
        return deviations


def _handle(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)
