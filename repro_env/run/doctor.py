"""What this machine lets a run do: found by doing it. What that means is for `diagnosis`."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import msgspec

from repro_env.io import files
from repro_env.model.errors import SandboxError
from repro_env.run import filesystem, idmap, kernel, namespaces, overlay, scratch
from repro_env.run.diagnosis import DOCKER, HOST, alternatives, diagnose
from repro_env.run.observations import Folder, Observations, Step, Tried


def observe(store: Path, runs: Path) -> Observations:
    """Try everything that a run needs, in processes of their own. `store` and `runs` are folders that exist."""
    status = Path("/proc/self/status").read_text()
    seccomp = re.search(r"^Seccomp:\s*(\d)", status, re.MULTILINE)
    with _corner(store) as in_store, _corner(runs) as in_runs, _corner(scratch.disk(runs)) as on_disk:
        tried = []
        if isinstance(in_store, Path) and isinstance(in_runs, Path):
            tried.append(_attempt("hard link", lambda: _link(in_store)))
            if namespaces.can_mount() and os.geteuid() == 0:
                tried.append(_attempt("other user", lambda: _view(in_store, in_runs)))
            tried += _in_name_spaces(in_store, in_runs, on_disk if isinstance(on_disk, Path) else in_runs)
        return Observations(
            kernel=os.uname().release,
            uid=os.geteuid(),
            admin=namespaces.can_mount(),
            seccomp=int(seccomp[1]) if seccomp else 0,
            userns_clone=_switch("kernel/unprivileged_userns_clone"),
            max_user_namespaces=_switch("user/max_user_namespaces"),
            apparmor=_switch("kernel/apparmor_restrict_unprivileged_userns"),
            store=_folder(store, in_store),
            runs=_folder(runs, in_runs),
            tried=tuple(tried),
        )


def explain(error: SandboxError, store: Path, runs: Path) -> SandboxError:
    """The error with what blocks, how to fix it and what works without, when that can be told."""
    findings = diagnose(observe(store, runs))
    blocked = next((finding for finding in findings if finding.state == "blocked"), None)
    if blocked is None:
        return error
    instead = f"; without that: {DOCKER}, {HOST}" if alternatives(findings, engine=True) else ""
    return SandboxError(f"{error.what}; {blocked.name}: {blocked.text}", where=error.where, hint=f"{blocked.fix}{instead}")


def _switch(name: str) -> int | None:
    try:
        return int(Path("/proc/sys", name).read_text())
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _corner(folder: Path) -> Iterator[Path | int]:
    """A throw-away folder in `folder`, or the number of the error."""
    path = folder / f".doctor-{secrets.token_hex(6)}"
    try:
        path.mkdir(mode=0o700)
    except OSError as error:
        yield error.errno or errno.EIO
        return
    try:
        yield path
    finally:
        files.remove_tree(path)


def _folder(path: Path, made: Path | int) -> Folder:
    size, inodes = files.free(path)
    return Folder(
        path=str(path), kind=filesystem.kind(path), errno=made if isinstance(made, int) else 0, size=size, inodes=inodes
    )


def _attempt(what: Step, act: Callable[[], object]) -> Tried:
    try:
        act()
    except OSError as error:
        return Tried(what=what, errno=error.errno or errno.EIO)
    return Tried(what=what, errno=0)


def _link(folder: Path) -> None:
    (folder / "one").touch()
    os.link(folder / "one", folder / "two")


def _view(*folders: Path) -> None:
    idmap.open_view(str(folder.resolve()) for folder in folders).close()


def _in_name_spaces(store: Path, runs: Path, disk: Path) -> list[Tried]:
    """What works inside, each step after those it needs."""
    for name in ("lower", "target", "proc", "memory"):
        (store / name).mkdir()
    for folder in {runs, disk}:
        for name in ("upper", "work"):
            (folder / name).mkdir()
    read, write = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _outer(store, runs, disk, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        lines = pipe.read().splitlines()
    os.waitpid(child, 0)
    return [msgspec.json.decode(line, type=Tried) for line in lines]


def _outer(store: Path, runs: Path, disk: Path, write: int) -> NoReturn:
    """The forked process: enters what can be entered. Its child is the first in its process namespace."""
    try:
        good = True
        uid, gid = os.geteuid(), os.getegid()
        if not namespaces.can_mount():
            good = _tell(write, "user namespace", lambda: kernel.unshare(kernel.CLONE_NEWUSER))
            good = good and _tell(write, "user map", lambda: namespaces.map_user(uid, gid))
        good = good and _tell(write, "name spaces", lambda: namespaces.enter(network=True))
        good = good and _tell(write, "network namespace", lambda: kernel.unshare(kernel.CLONE_NEWNET))
        if good:
            child = os.fork()
            if child == 0:
                _inner(store, runs, disk, write)
            os.waitpid(child, 0)
    finally:
        os._exit(0)


def _inner(store: Path, runs: Path, disk: Path, write: int) -> NoReturn:
    try:
        if _tell(write, "mounts", namespaces.enter_mounts):
            memory, target = store / "memory", store / "target"
            _tell(write, "memory", lambda: kernel.mount("tmpfs", str(memory), "tmpfs", kernel.MS_NODEV | kernel.MS_NOSUID))
            _tell(write, "root in memory", lambda: _overlay_in_memory(store, memory))
            _tell(write, "workspace", lambda: _overlay(store, runs, target, throw_away=False))
            _tell(write, "root on disk", lambda: _overlay(store, disk, target, throw_away=True))
            _tell(write, "removal", lambda: os.mknod(store / "gone", stat.S_IFCHR | 0o600, 0))
            _tell(write, "loopback", namespaces.loopback_up)
            _tell(write, "proc", lambda: kernel.mount("proc", str(store / "proc"), "proc", kernel.MS_NOSUID | kernel.MS_NODEV))
    finally:
        os._exit(0)


def _overlay(store: Path, side: Path, target: Path, *, throw_away: bool) -> None:
    overlay.mount(target, [store / "lower"], upper=side / "upper", work=side / "work", throw_away=throw_away)
    (target / "file").touch()
    (target / "file").unlink()
    kernel.detach(str(target))


def _overlay_in_memory(store: Path, memory: Path) -> None:
    for name in ("upper", "work", "on"):
        (memory / name).mkdir()
    overlay.mount(memory / "on", [store / "lower"], upper=memory / "upper", work=memory / "work", throw_away=True)


def _tell(write: int, what: Step, act: Callable[[], object]) -> bool:
    tried = _attempt(what, act)
    os.write(write, msgspec.json.encode(tried) + b"\n")
    return tried.errno == 0
