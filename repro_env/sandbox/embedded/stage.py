"""Prepare the root and the workspace of one attempt to start a run, and mount everything in them.

The caller's process makes the directories before any namespace is entered. The first process of the run makes the mounts.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.io import files
from repro_env.oci import paths as layout
from repro_env.sandbox import externaloutputs, kernel, scratch, workspace
from repro_env.sandbox.embedded import idmap, namespaces, rootfs
from repro_env.sandbox.embedded.channel import Refused, Writer
from repro_env.sandbox.redirection import Relays
from repro_env.sandbox.runner import Image
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import DataError, SandboxError
from repro_env.schema.run import Launch

_MAX_MESSAGE = 1 << 18
"""Bytes of the message with the paths of a root in memory."""
_MAX_HANDLES = 253
"""The most descriptors that a message can have (unix(7), SCM_MAX_FD). A root needs only a few."""


class Strategy(Frozen, frozen=True, kw_only=True):
    """A way to mount the image and the workspace."""

    root: str
    """`disk`: overlay with its upper layer on disk. `memory`: overlay with its upper layer in memory. `links`: no overlay."""
    workspace: str
    """`overlay` or `copy`."""


BEST = Strategy(root="disk", workspace="overlay")
_NEXT = {"disk": "memory", "memory": "links"}


def choose(strategy: Strategy, refused: frozenset[str]) -> Strategy | None:
    """The next strategy to try after the kernel refused `root`, `workspace` or both; None if all were tried."""
    root = _NEXT.get(strategy.root, "") if "root" in refused else strategy.root
    work = ("copy" if strategy.workspace == "overlay" else "") if "workspace" in refused else strategy.workspace
    return Strategy(root=root, workspace=work) if root and work else None


class Stage:
    """One attempt to start a run with a strategy: what is prepared before namespaces are entered, and what is done in them."""

    def __init__(
        self,
        launch: Launch,
        directory: Path,
        image: Image,
        strategy: Strategy,
        hidden: Collection[str] | None,
        stack: contextlib.ExitStack,
    ) -> None:
        """Prepare all directories. They are removed, and all descriptors closed, at the end of `stack`.

        The path of `directory`, which is the run's, may not contain a symlink. `hidden` is as in `Runner`.
        """
        self._launch = launch
        self.interpreter = image.interpreter
        self._exit_stack = stack
        self.relays = Relays(directory, hidden, stack)
        upper = directory / "files"
        upper.mkdir(mode=0o755, exist_ok=True)
        own, disk = scratch.in_run_and_on_local_disk(directory, stack)
        self._points = {name: own.directory(name) for name in ("root", "workspace")}
        self._temporary = [(path, disk.directory(path.replace("/", "-"), 0o1777)) for path in ("/tmp", "/var/tmp")]  # noqa: S108
        trees, snapshot = image.trees(launch), image.tree(launch.snapshot)
        rules = externaloutputs.rules_of(launch)
        self._sources: list[externaloutputs.Source] = []
        if strategy.root != "disk":
            self._sources += [externaloutputs.Source(path, temporary, is_covered=True) for path, temporary in self._temporary]
        self._memory = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in self._memory:
            stack.callback(end.close)
        self.root: rootfs.Root
        self._siblings: dict[str, Path] = {}
        if strategy.root == "links":
            merged = image.merge(launch)
            trees.append(merged)
            self.root = rootfs.LinkedRoot(merged)
            if launch.siblings is not None:  # hard-linked files must not be written
                self._siblings = copy_siblings(launch, image.tree(launch.siblings), disk.directory("siblings"))
            self._sources += [externaloutputs.Source(path, copy) for path, copy in self._siblings.items()]
        elif strategy.root == "disk":
            root_upper = externaloutputs.begin(directory, rules) if disk is own else disk.directory("upper")
            self._sources.append(externaloutputs.Source("/", root_upper))
            self.root = rootfs.OverlayRoot(trees, root_upper, disk.directory("work"))
        else:
            self.root = rootfs.OverlayRoot(trees, None, None)
        self._bytecode = image.bytecode
        needed = mount_points(launch)
        self.workspace: workspace.Workspace
        if strategy.workspace == "copy":
            self.workspace = workspace.CopiedWorkspace(snapshot, upper, needed=needed)
        else:
            work, points = own.directory("workspace-work"), own.directory("points")
            self.workspace = workspace.OverlayWorkspace(snapshot, upper, work=work, points=points, needed=needed)
        self.workspace.prepare()
        self._resolver_files = resolver_files() if launch.network else (None, b"")
        paths = [*trees, snapshot, directory, own.path, disk.path, *([image.bytecode] if image.bytecode else [])]
        sources = [mount.source for mount in launch.mounts]
        self._view = self._open_view(stack, [*map(str, paths), launch.tools, launch.notes, *sources])

    def _open_view(self, stack: contextlib.ExitStack, paths: Sequence[str]) -> idmap.View | None:
        """Open a view of the paths if this process is root, so that the run gets a separate uid. Sets `user` for the record."""
        self._maps_user = not namespaces.can_mount() or os.geteuid() != 0
        if self._maps_user:
            self.user = "user: namespace"
            return None
        try:
            view = idmap.open_view(path for path in paths if os.path.lexists(path))
        except OSError as error:
            self.user = f"user: uid 0 in the run is uid 0 on the host ({error.filename or 'idmapped mounts'}: {error.strerror})"
            return None
        stack.callback(view.close)
        self.relays.own(idmap.UID)
        self.user = f"user: namespace, uid 0 in the run is uid {idmap.UID} on the host"
        return view

    def enter_namespaces(self) -> None:
        """Enter every namespace except the mount namespace. Raises `SandboxError`."""
        try:
            if self._view is not None:
                self._view.enter(self._points["root"])
            elif self._maps_user:
                namespaces.enter_user()
            namespaces.enter(network=self._launch.network)
        except OSError as error:
            raise SandboxError(
                f"the run cannot enter new namespaces: {error.strerror}",
                hint="run `repro-env doctor` for the cause and its fix",
            ) from None

    def make_root(self, out: Writer) -> list[str]:
        """Make the root and enter it, as the first process of the run. Returns notes for the record."""
        launch = self._launch
        os.umask(0o022)
        with rootfs.attempt("enter a mount namespace"):
            namespaces.enter_mounts()
        refused = [
            *_stack("root", self.root, self._points["root"]),
            *_stack("workspace", self.workspace, self._points["workspace"]),
        ]
        if refused:
            for refusal in refused:
                out.send(refusal)
            os._exit(0)
        mounts = self._open_mounts()
        temporary = [(path, _handle(str(directory))) for path, directory in self._temporary]
        hosts, resolv = self._resolver_files
        with rootfs.attempt("change the root"):
            old = rootfs.change_root(self._points["root"])
        notes = rootfs.mount_system(self.root, old, console="" if self.relays.terminal is None else self.relays.terminal.name)
        kernel.sethostname(launch.hostname)
        if not launch.network:
            with rootfs.attempt("enable the loopback interface"):
                namespaces.loopback_up()
        with rootfs.attempt("write /etc"):
            rootfs.write_etc(self.root, launch.user, launch.hostname, hosts=hosts, resolv=resolv)
        if not f"{launch.user.home}/".startswith(f"{launch.workspace}/"):
            with rootfs.attempt("make HOME"):
                self.root.make_writable(launch.user.home)
        rootfs.mount_temporary(self.root, temporary)
        mounts |= {tree.target: (_handle(tree.root), False) for tree in launch.trees}
        relocated = {tree.target for tree in launch.trees if tree.root != tree.target}
        for target in sorted(mounts, key=lambda path: path.count("/")):
            handle, read_only = mounts[target]
            rootfs.bind_handle(self.root, target, handle, read_only=read_only, replace_link=target in relocated)
        rootfs.detach_old_root(old)
        if self.root.memory:
            paths = msgspec.json.encode([path for path, _ in self.root.memory])
            socket.send_fds(self._memory[1], [paths], [handle for _, handle in self.root.memory])
        return notes

    def sources(self) -> Iterator[externaloutputs.Source]:
        """The directories with the files that the command wrote outside its project. Call this once, after its end."""
        yield from self._sources
        with contextlib.suppress(BlockingIOError):
            self._memory[0].setblocking(False)
            paths, handles, _, _ = socket.recv_fds(self._memory[0], _MAX_MESSAGE, _MAX_HANDLES)
            for path, handle in zip(msgspec.json.decode(paths, type=list[str]), handles, strict=True):
                self._exit_stack.callback(os.close, handle)
                is_covered = isinstance(self.root, rootfs.LinkedRoot)
                yield externaloutputs.Source(path, Path(f"/proc/self/fd/{handle}"), is_covered=is_covered)

    def _open_mounts(self) -> dict[str, tuple[int, bool]]:
        """Open everything that will be mounted, while the host's files are visible. Returns target -> descriptor, is read-only."""
        launch = self._launch
        mounts = {launch.workspace: (_handle(str(self._points["workspace"])), False)}
        mounts |= {path: (_handle(str(copy)), False) for path, copy in self._siblings.items()}
        try:
            mounts.update({mount.target: (_handle(mount.source), mount.read_only) for mount in launch.mounts})
        except OSError as error:
            raise DataError(
                f"this path cannot be mounted: {error.strerror}", where=str(error.filename), hint="check its permissions"
            ) from None
        if self._bytecode is not None:
            with rootfs.attempt("mount the bytecode"):
                mounts |= {layout.PYCACHE: (_handle(str(self._bytecode)), True)}
        with rootfs.attempt("mount the files of repro-env"):
            mounts |= {layout.SEEDS: (_handle(launch.tools), True), layout.NOTES: (_handle(launch.notes), False)}
        return mounts


def _stack(what: str, tree: rootfs.Root | workspace.Workspace, target: Path) -> Iterator[Refused]:
    try:
        tree.stack(target)
    except OSError as error:
        yield Refused(what, f"{tree.means}: {error.strerror}")


def _handle(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def resolver_files() -> tuple[bytes, bytes]:
    """The host's /etc/hosts and /etc/resolv.conf; empty if they do not exist."""
    return rootfs.read("/etc/hosts"), rootfs.read("/etc/resolv.conf")


def copy_siblings(launch: Launch, tree: Path, target: Path) -> dict[str, Path]:
    """Copy the sibling directories of the source from `tree` to `target`. Returns path inside the run -> copy. Raises `DiskError`."""
    with files.room(target):
        workspace.copy_tree(tree, target)
    parent = Path(launch.workspace).parent
    return {str(parent / path.name): path for path in sorted(Path(f"{target}{parent}").iterdir())}


def mount_points(launch: Launch) -> list[workspace.MountPoint]:
    """The mount points inside the workspace."""
    kinds = {mount.target: Path(mount.source).is_dir() for mount in launch.mounts}
    kinds |= {tree.target: not tree.root.startswith(layout.HOME) for tree in launch.trees}
    below = launch.workspace + "/"
    return [
        workspace.MountPoint(target.removeprefix(below), is_directory)
        for target, is_directory in kinds.items()
        if target.startswith(below)
    ]
