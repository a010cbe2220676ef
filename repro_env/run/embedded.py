"""The embedded runner: name spaces, mounts and an init of our own; no engine, no daemon, no setuid program.

    supervisor (this process)      waits; passes signals on; never changes its own name spaces
      `- between                   enters user, process, IPC, host name and network name spaces
           `- inner (pid 1)        makes the root, reaps; everything inside dies with it
                `- the command

Each dies with the one above it (PR_SET_PDEATHSIG), so nothing survives a killed supervisor. When the inner one
reports the end, nothing else of the run lives; taking down its mounts, which flushes the disk that the workspace
lies on, is not waited for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from repro_env.image import layout
from repro_env.model.codec import Frozen
from repro_env.model.errors import CaptureError, DataError, RunError, SandboxError, StoreError
from repro_env.model.run import Launch, Outcome
from repro_env.run import channel, inner, kernel, memory, merged, namespaces, rootfs, scratch, workspace
from repro_env.run.channel import Ended, Failed, Inner, Reader, Refused, Signalled, Started, Writer
from repro_env.run.interface import Runner
from repro_env.run.pycache import Pycache

_GROUP = 0.05
"""Seconds to learn whether a signal went to the whole process group, before it is passed on."""
_RECENT = 1.0
"""Seconds after which such a word is about another signal."""
_AWAITED = inner.WATCHED | {signal.SIGIO}
_LOOK = 5.0
"""Seconds after which a child is looked at unasked: its SIGCHLD goes to the process, and another thread may have dropped it."""
_leaving: list[int] = []
"""Processes between whose run is over and whose mounts may still be coming down: reaped when the next run starts."""
_RESERVED = ("/", "/proc", "/sys", "/dev")


class Strategy(Frozen, frozen=True, kw_only=True):
    """How the image and the workspace are shown."""

    root: str
    """`disk`: overlay, its upper side on disk. `memory`: overlay, its upper side in memory. `links`: no overlay."""
    workspace: str
    """`overlay` or `copy`."""


BEST = Strategy(root="disk", workspace="overlay")
_NEXT = {"disk": "memory", "memory": "links"}


def choose(strategy: Strategy, refused: frozenset[str]) -> Strategy | None:
    """What to try after the kernel refused `root`, `workspace` or both of a strategy; None when nothing is left."""
    root = _NEXT.get(strategy.root, "") if "root" in refused else strategy.root
    work = ("copy" if strategy.workspace == "overlay" else "") if "workspace" in refused else strategy.workspace
    return Strategy(root=root, workspace=work) if root and work else None


class EmbeddedRunner:
    """Runs launches on this machine, from layers unpacked in the store."""

    def __init__(
        self,
        layers: Callable[[str], Path | None],
        *,
        merged: Path,
        strategy: Strategy | None = None,
        bytecode: Path | None = None,
    ) -> None:
        """`layers` gives the unpacked tree of a diff ID. `merged` is where trees of links are kept, on the same disk.

        With a `strategy` only that one is used; else the best that the kernel allows, found by trying. `bytecode`
        is a tree laid out as PYTHONPYCACHEPREFIX, for the image to start with; it is only read.
        """
        self._layers = layers
        self._merged = merged
        self._strategy = strategy
        self._bytecode = bytecode
        self.compiled: tuple[str, ...] = ()
        """After a run: the files that it wrote below PYTHONPYCACHEPREFIX. Names, from a place where a script may write too."""

    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        """See `interface.Runner`. Needs a process without other threads; not to be called twice for one folder."""
        check(launch)
        trees = [self._tree(diff_id) for diff_id in launch.layers]
        snapshot = self._tree(launch.snapshot)
        strategy: Strategy | None = self._strategy or BEST
        refusals: list[str] = []
        while strategy is not None:
            try:
                outcome = self._attempt(launch, folder, trees, snapshot, strategy)
            except SandboxError as error:
                from repro_env.run import doctor

                raise doctor.explain(error, self._merged.parent, folder) from None
            if isinstance(outcome, Outcome):
                return outcome
            refusals += [f"{one.what}: {one.why}" for one in outcome]
            strategy = None if self._strategy else choose(strategy, frozenset(one.what for one in outcome))
        raise SandboxError(
            f"the kernel refuses every way of mounting: {'; '.join(refusals)}",
            hint="run `repro-env doctor` for the cause and its fix",
        )

    def _tree(self, diff_id: str) -> Path:
        path = self._layers(diff_id)
        if path is None:
            raise StoreError("is not in the store", where=diff_id, hint="run `repro-env rebuild`")
        return path

    def _attempt(
        self, launch: Launch, folder: Path, trees: Sequence[Path], snapshot: Path, strategy: Strategy
    ) -> Outcome | list[Refused]:
        with contextlib.ExitStack() as stack:
            stage = _Stage(launch, folder, trees, snapshot, strategy, self._merged, self._bytecode, stack)
            before = memory.kills()
            supervised = _supervise(launch, stage)
            after = memory.kills()
            with contextlib.suppress(OSError, CaptureError):  # what a script did there must not cost the run its end
                self.compiled = tuple(stage.pycache.written())
        if not isinstance(supervised, _Supervised):
            return supervised
        code = os.waitstatus_to_exitcode(supervised.status)
        starved = code != 0 and before is not None and after is not None and after > before
        user = ["user: namespace"] if stage.in_user_namespace else []
        return Outcome(
            exit_code=code if code >= 0 else 128 - code,
            signal=max(0, -code),
            out_of_memory=starved,
            isolation="embedded",
            means=(
                f"root: {stage.root.means}",
                f"workspace: {stage.workspace.means}",
                stage.pycache.means,
                *user,
                *supervised.notes,
            ),
        )


_: type[Runner] = EmbeddedRunner


def check(launch: Launch) -> None:
    """Refuse what no runner can give. Raises `RunError`, `DataError`."""
    if (launch.user.uid, launch.user.gid) != (os.geteuid(), os.getegid()):
        raise RunError(
            f"asks for uid {launch.user.uid} and gid {launch.user.gid}, and only the caller's can be had",
            where=f"run {launch.run_id}",
            hint="start it as that user",
        )
    for mount in launch.mounts:
        if mount.target in _RESERVED:
            raise RunError("would hide what every program needs", where=mount.target, hint="name another place with SRC:DST")
        if not os.path.lexists(mount.source):
            raise DataError("is not there", where=mount.source)
    if launch.prefix == launch.workspace:
        raise RunError(
            "is both the environment and the source", where=launch.prefix, hint="keep the environment in a folder of its own"
        )


class _Stage:
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
        stack: contextlib.ExitStack,
    ) -> None:
        self._launch = launch
        self.in_user_namespace = not namespaces.can_mount()
        upper = folder / "files"
        upper.mkdir(mode=0o755, exist_ok=True)
        own = scratch.beside(folder)
        stack.callback(own.remove)
        disk = scratch.local(folder, own)
        if disk is not own:
            stack.callback(disk.remove)
        self._points = {name: own.folder(name) for name in ("root", "workspace", "pycache")}
        self._temporary = [(path, disk.folder(path.replace("/", "-"), 0o1777)) for path in ("/tmp", "/var/tmp")]  # noqa: S108
        self.root: rootfs.Root
        if strategy.root == "links":
            self.root = rootfs.LinkedRoot(merged.tree(trees, merged_trees / launch.image.removeprefix("sha256:")))
        elif strategy.root == "disk":
            self.root = rootfs.OverlayRoot(trees, disk.folder("upper"), disk.folder("work"))
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

    def between(self) -> None:
        """Enter every name space but that of mounts. Raises `SandboxError`."""
        try:
            if self.in_user_namespace:
                namespaces.enter_user()
            namespaces.enter(network=self._launch.network)
        except OSError as error:
            raise SandboxError(
                f"cannot enter a name space of its own: {error.strerror}",
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
        hosts, resolv = names() if launch.network else (None, b"")
        with rootfs.doing("change the root"):
            old = rootfs.change(self._points["root"])
        notes = rootfs.system(self.root, old)
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
        return notes

    def _shown(self) -> dict[str, tuple[int, bool]]:
        """Target -> what is bound there, and whether read-only. The handles hold mounts of this name space."""
        launch = self._launch
        shown = {launch.workspace: (_handle(str(self._points["workspace"])), False)}
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


def inside(launch: Launch) -> list[workspace.Point]:
    """What will be mounted inside the workspace."""
    below = launch.workspace + "/"
    points = [workspace.Point(one.target.removeprefix(below), True) for one in launch.trees if one.target.startswith(below)]
    targets = [mount for mount in launch.mounts if mount.target.startswith(below)]
    return points + [workspace.Point(mount.target.removeprefix(below), Path(mount.source).is_dir()) for mount in targets]


class _Supervised(Frozen, frozen=True, kw_only=True):
    status: int
    notes: tuple[str, ...]


def _supervise(launch: Launch, stage: _Stage) -> _Supervised | list[Refused]:
    """Start the processes, pass signals on, wait for the end of all of them. What the kernel refused, if it did."""
    _leaving[:] = [pid for pid in _leaving if not _gone(pid)]
    read, write = os.pipe2(os.O_CLOEXEC)
    reader = Reader(read)
    children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    kernel.owned_by_thread(read)  # another thread of ours blocks nothing: SIGIO would be its end, and with it this process'
    fcntl.fcntl(read, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)  # each message is a SIGIO
    foreground = _foreground()
    supervisor = os.getpid()
    try:
        between = os.fork()
        if between == 0:
            os.close(read)
            _between(launch, stage, Writer(write), supervisor=supervisor, mask=set(mask))
        os.close(write)
        messages = _wait(between, reader)
    finally:
        os.close(read)
        while signal.sigtimedwait({signal.SIGIO}, 0):
            pass  # it would end this process once it is let through
        _reclaim(foreground)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, children)
    refused = [message for message in messages if isinstance(message, Refused)]
    if refused:
        return refused
    for message in messages:
        if isinstance(message, Failed):
            raise channel.error(message)
    notes = next((message.notes for message in messages if isinstance(message, Started)), None)
    if notes is None:
        raise SandboxError("the run was killed while it was being set up", hint="was memory short? start it again")
    status = next((message.status for message in messages if isinstance(message, Ended)), int(signal.SIGKILL))
    return _Supervised(status=status, notes=notes)


def _wait(between: int, reader: Reader) -> list[channel.Message]:
    """Pass on what only this process got. Returns what the others said, once the command is over or they are gone."""
    heard: list[channel.Message] = []
    while True:
        told = signal.sigtimedwait(_AWAITED, _LOOK)
        number = told.si_signo if told else signal.SIGCHLD
        if number == signal.SIGIO:
            heard += reader.receive()
            if any(isinstance(message, Ended) for message in heard):
                _leaving.append(between)
                return heard
            continue
        if number == signal.SIGCHLD:
            if os.waitpid(between, os.WNOHANG)[0]:
                return heard + reader.receive()
            continue
        now = time.monotonic()
        while not (witness := _witness(heard, number, since=now - _RECENT)) and (left := now + _GROUP - time.monotonic()) > 0:
            heard += reader.receive(left)
        if witness:
            heard.remove(witness)
            continue  # the terminal, or whoever it was, sent it to the whole group: the command has it
        target = next((message.pid for message in heard if isinstance(message, Inner)), between)
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, number)


def _gone(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _witness(heard: Sequence[channel.Message], number: int, *, since: float) -> Signalled | None:
    """The word of the process between that it got this signal too."""
    for message in heard:
        if isinstance(message, Signalled) and message.number == number and message.at >= since:
            return message
    return None


def _between(launch: Launch, stage: _Stage, out: Writer, *, supervisor: int, mask: set[int]) -> NoReturn:
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        stage.between()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # again: new credentials clear it
        if os.getppid() != supervisor:
            os._exit(1)
        umask = os.umask(0o022)
        alive, held = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child == 0:
            os.close(held)
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            if select.select([alive], [], [], 0)[0]:
                os._exit(1)  # the one above died before it was watched
            inner.main(launch, lambda: stage.inner(out), out=out, mask=mask, umask=umask)
        out.send(Inner(child))
        _let_go(keep=(out.handle, held))
        while True:
            number = signal.sigwaitinfo(inner.WATCHED).si_signo
            if number != signal.SIGCHLD:
                out.send(Signalled(number, time.monotonic()))
            elif os.waitpid(child, os.WNOHANG)[0]:
                os._exit(0)
    except BaseException as error:  # noqa: BLE001  there is nobody above to raise to
        out.fail(error)


def _let_go(*, keep: Sequence[int]) -> None:
    """Hold nothing of the caller's open: whoever reads its output waits for the last one that could write there."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    for handle in [int(item.name) for item in Path("/proc/self/fd").iterdir()]:
        if handle > 2 and handle not in keep:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(handle)


def _foreground() -> int | None:
    """The terminal on stdin, when this process group has it."""
    try:
        return 0 if os.tcgetpgrp(0) == os.getpgrp() else None
    except OSError:
        return None


def _reclaim(terminal: int | None) -> None:
    """Take the terminal back from a shell inside that had its own process groups."""
    if terminal is None:
        return
    ignored = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        if os.tcgetpgrp(terminal) != os.getpgrp():
            os.tcsetpgrp(terminal, os.getpgrp())
    signal.signal(signal.SIGTTOU, ignored)
