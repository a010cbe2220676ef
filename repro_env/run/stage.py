"""The root and the workspace of one attempt at a run, and all that is mounted in them.

The directories are made by the caller's process before any namespace is entered; the mounts are made by the first
process of the run, inside.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.image import layout
from repro_env.io import files
from repro_env.model.errors import DataError, SandboxError
from repro_env.model.run import Launch
from repro_env.run import idmap, kernel, merged, namespaces, outside, rootfs, scratch, workspace
from repro_env.run.channel import Refused, Writer
from repro_env.run.pycache import Pycache
from repro_env.run.redirection import open_logs, open_redirections, own_pipe
from repro_env.run.strategy import Strategy
from repro_env.run.terminal import Relay, open_terminal

_LONGEST = 1 << 18
"""Bytes of the message with the paths of a root in memory."""
_HANDLES = 253
"""The most that one message can hold (unix(7), SCM_MAX_FD); a root has a handful."""


class Stage:
    """Everything of one attempt that is decided and made before a name space is entered, and what is done inside it."""

    def __init__(
        self,
        launch: Launch,
        folder: Path,
        trees: Sequence[Path],
        snapshot: Path,
        strategy: Strategy,
        merged_trees: Path,
        bytecode: Path | None,
        interpreter: str,
        hidden: Collection[str] | None,
        stack: contextlib.ExitStack,
    ) -> None:
        """`trees`: of the layers, the lowest first, then of the siblings where the launch has some. `interpreter`: the image's
        Python, by its path inside. No path of this machine may hold a symlink.

        `hidden`: secret values, that the log of what the command prints must not hold; None for no log.
        """
        self._launch = launch
        self.interpreter = interpreter
        self._held = stack
        self.terminal = open_terminal()
        self.relays: list[Relay] = [*open_redirections(), *([] if self.terminal is None else [self.terminal])]
        """What stands for streams of the caller's."""
        for relay in self.relays:
            stack.callback(relay.close)
        logs = {} if hidden is None else open_logs(folder, hidden)
        for relay in self.relays:
            relay.log = next((logs[stream] for stream in relay.streams if stream in logs), None)
        for log in set(logs.values()):
            stack.callback(log.close)
        upper = folder / "files"
        upper.mkdir(mode=0o755, exist_ok=True)
        own = scratch.beside(folder)
        stack.callback(own.remove)
        disk = scratch.local(folder, own)
        if disk is not own:
            stack.callback(disk.remove)
        self._points = {name: own.folder(name) for name in ("root", "workspace", "pycache")}
        self._temporary = [(path, disk.folder(path.replace("/", "-"), 0o1777)) for path in ("/tmp", "/var/tmp")]  # noqa: S108
        rules = outside.rules_of(launch)
        self._written: list[outside.Source] = []
        if strategy.root != "disk":
            self._written += [outside.Source(path, place, is_covered=True) for path, place in self._temporary]
        self._memory = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in self._memory:
            stack.callback(end.close)
        self.root: rootfs.Root
        self._siblings: dict[str, Path] = {}
        if strategy.root == "links":
            layers, siblings = trees[: len(launch.layers)], trees[len(launch.layers) :]
            self.root = rootfs.LinkedRoot(merged.tree(layers, merged_trees / launch.image.removeprefix("sha256:")))
            for tree in siblings:  # what is linked cannot be written
                self._siblings = copy_siblings(launch, tree, disk.folder("siblings"))
            self._written += [outside.Source(path, copy) for path, copy in self._siblings.items()]
        elif strategy.root == "disk":
            written = outside.begin(folder, rules) if disk is own else disk.folder("upper")
            self._written.append(outside.Source("/", written))
            self.root = rootfs.OverlayRoot(trees, written, disk.folder("work"))
        else:
            self.root = rootfs.OverlayRoot(trees, None, None)
        self.pycache = Pycache(bytecode, disk.folder("own-pycache"), disk.folder("pycache-work"))
        needed = inside(launch)
        self.workspace: workspace.Workspace
        if strategy.workspace == "copy":
            self.workspace = workspace.CopiedWorkspace(snapshot, upper, needed=needed)
        else:
            work, points = own.folder("workspace-work"), own.folder("points")
            self.workspace = workspace.OverlayWorkspace(snapshot, upper, work=work, points=points, needed=needed)
        self.workspace.prepare()
        self._names = names() if launch.network else (None, b"")
        shown = [*trees, snapshot, merged_trees, folder, own.path, disk.path, *([bytecode] if bytecode else [])]
        self._view = self._look(stack, [*map(str, shown), launch.tools, launch.notes, *(one.source for one in launch.mounts)])

    def _look(self, stack: contextlib.ExitStack, paths: Sequence[str]) -> idmap.View | None:
        """As root: a view of these paths for a user that is not root outside. Sets `user`, for the record."""
        self._maps_user = not namespaces.can_mount() or os.geteuid() != 0
        if self._maps_user:
            self.user = "user: namespace"
            return None
        try:
            view = idmap.open_view(path for path in paths if os.path.lexists(path))
        except OSError as error:
            self.user = f"user: uid 0 inside is uid 0 outside ({error.filename or 'idmapped mounts'}: {error.strerror})"
            return None
        stack.callback(view.close)
        for relay in self.relays:
            os.fchown(relay.side, idmap.UID, idmap.UID)
        own_pipe(idmap.UID)
        self.user = f"user: namespace, uid 0 inside is uid {idmap.UID} outside"
        return view

    def between(self) -> None:
        """Enter every namespace except the mount namespace. Raises `SandboxError`."""
        try:
            if self._view is not None:
                self._view.enter(self._points["root"])
            elif self._maps_user:
                namespaces.enter_user()
            namespaces.enter(network=self._launch.network)
        except OSError as error:
            raise SandboxError(
                f"cannot enter a namespace of its own: {error.strerror}",
                hint="run `repro-env doctor` for the cause and its fix",
            ) from None

    def inner(self, out: Writer) -> list[str]:
        """Make the root and enter it, as the first process of the run. Returns notes for the record."""
        launch = self._launch
        os.umask(0o022)
        with rootfs.doing("have mounts of its own"):
            namespaces.enter_mounts()
        refused = [
            *_stack("root", self.root, self._points["root"]),
            *_stack("workspace", self.workspace, self._points["workspace"]),
        ]
        if refused:
            for one in refused:
                out.send(one)
            os._exit(0)
        shown = self._shown()
        temporary = [(path, _handle(str(place))) for path, place in self._temporary]
        hosts, resolv = self._names
        with rootfs.doing("change the root"):
            old = rootfs.change(self._points["root"])
        notes = rootfs.system(self.root, old, console="" if self.terminal is None else self.terminal.name)
        kernel.sethostname(launch.hostname)
        if not launch.network:
            with rootfs.doing("bring up the loopback interface"):
                namespaces.loopback_up()
        with rootfs.doing("write /etc"):
            rootfs.etc(self.root, launch.user, launch.hostname, hosts=hosts, resolv=resolv)
        if not f"{launch.user.home}/".startswith(f"{launch.workspace}/"):
            with rootfs.doing("make HOME"):
                self.root.open(launch.user.home)
        rootfs.places(self.root, temporary)
        shown |= {one.target: (_handle(one.root), False) for one in launch.trees}
        moved = {one.target for one in launch.trees if one.root != one.target}
        for target, (handle, read_only) in sorted(shown.items(), key=lambda one: one[0].count("/") if one[0] != "/" else 0):
            rootfs.show(self.root, target, handle, read_only=read_only, replace_link=target in moved)
        rootfs.leave(old)
        if self.root.memory:
            paths = msgspec.json.encode([path for path, _ in self.root.memory])
            socket.send_fds(self._memory[1], [paths], [handle for _, handle in self.root.memory])
        return notes

    def written(self) -> Iterator[outside.Source]:
        """The directories that hold what the command wrote outside its project. Once, after its end, while the stage is there."""
        yield from self._written
        with contextlib.suppress(BlockingIOError):
            self._memory[0].setblocking(False)
            paths, handles, _, _ = socket.recv_fds(self._memory[0], _LONGEST, _HANDLES)
            for path, handle in zip(msgspec.json.decode(paths, type=list[str]), handles, strict=True):
                self._held.callback(os.close, handle)
                covered = isinstance(self.root, rootfs.LinkedRoot)
                yield outside.Source(path, Path(f"/proc/self/fd/{handle}"), is_covered=covered)

    def _shown(self) -> dict[str, tuple[int, bool]]:
        """Target -> what is bound there, and whether read-only. The handles hold mounts of this name space."""
        launch = self._launch
        shown = {launch.workspace: (_handle(str(self._points["workspace"])), False)}
        shown |= {path: (_handle(str(copy)), False) for path, copy in self._siblings.items()}
        try:
            shown.update({mount.target: (_handle(mount.source), mount.read_only) for mount in launch.mounts})
        except OSError as error:
            raise DataError(f"cannot be opened: {error.strerror}", where=str(error.filename)) from None
        with rootfs.doing("show the bytecode"):
            kept = self.pycache.stack(self._points["pycache"])
            shown |= {layout.PYCACHE: (_handle(str(self._points["pycache"])), False)}
            if kept is not None:
                shown |= {layout.KEPT: (_handle(str(kept)), True)}
        with rootfs.doing("show the seeds"):
            shown |= {layout.SEEDS: (_handle(launch.tools), True), layout.NOTES: (_handle(launch.notes), False)}
        return shown


def _stack(what: str, one: rootfs.Root | workspace.Workspace, target: Path) -> Iterator[Refused]:
    try:
        one.stack(target)
    except OSError as error:
        yield Refused(what, f"{one.means}: {error.strerror}")


def _handle(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def names() -> tuple[bytes, bytes]:
    """The host's /etc/hosts and /etc/resolv.conf, empty where there are none."""
    return rootfs.read("/etc/hosts"), rootfs.read("/etc/resolv.conf")


def copy_siblings(launch: Launch, tree: Path, target: Path) -> dict[str, Path]:
    """Copy the directories beside the source, of which `tree` is made. Returns the copy of each by its path inside. Raises `DiskError`."""
    with files.room(target):
        workspace.copy_tree(tree, target)
    parent = Path(launch.workspace).parent
    return {str(parent / path.name): path for path in sorted(Path(f"{target}{parent}").iterdir())}


def inside(launch: Launch) -> list[workspace.Point]:
    """What will be mounted inside the workspace."""
    below = launch.workspace + "/"
    trees = [one for one in launch.trees if one.target.startswith(below)]
    points = [workspace.Point(one.target.removeprefix(below), not one.root.startswith(layout.HOME)) for one in trees]
    targets = [mount for mount in launch.mounts if mount.target.startswith(below)]
    return points + [workspace.Point(mount.target.removeprefix(below), Path(mount.source).is_dir()) for mount in targets]
