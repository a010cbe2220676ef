"""Observe what this machine lets a run do, by trying it. `diagnosis` interprets the observations."""

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
from repro_env.sandbox import filesystem, kernel, overlay, scratch
from repro_env.sandbox.doctor.diagnosis import DOCKER, HOST, Directory, Observations, Step, alternatives, diagnose
from repro_env.sandbox.embedded import idmap, namespaces
from repro_env.schema.errors import SandboxError


def observe(store: Path, runs: Path) -> Observations:
    """Try everything that a run needs, in child processes. `store` and `runs` are existing directories."""
    status = Path("/proc/self/status").read_text()
    seccomp = re.search(r"^Seccomp:\s*(\d)", status, re.MULTILINE)
    disk = scratch.choose_directory(runs)
    with _temporary_directory(store) as in_store, _temporary_directory(runs) as in_runs, _temporary_directory(disk) as on_disk:
        tried: dict[Step, int] = {}
        if isinstance(in_store, Path) and isinstance(in_runs, Path):
            (in_store / "file").touch()
            tried["hard link"] = _attempt(lambda: os.link(in_store / "file", in_store / "link"))
            if namespaces.can_mount() and os.geteuid() == 0:
                tried["other user"] = _attempt(lambda: idmap.open_view([str(in_store.resolve()), str(in_runs.resolve())]).close())
            tried |= _try_in_namespaces(in_store, in_runs, on_disk if isinstance(on_disk, Path) else in_runs)
        return Observations(
            kernel=os.uname().release,
            uid=os.geteuid(),
            admin=namespaces.can_mount(),
            seccomp=int(seccomp[1]) if seccomp else 0,
            userns_clone=_setting("kernel/unprivileged_userns_clone"),
            max_user_namespaces=_setting("user/max_user_namespaces"),
            apparmor=_setting("kernel/apparmor_restrict_unprivileged_userns"),
            store=_directory(store, in_store),
            runs=_directory(runs, in_runs),
            tried=tried,
        )


def explain(error: SandboxError, store: Path, runs: Path) -> SandboxError:
    """Add the cause, its fix and the alternatives to an error. Returns the error unchanged if `diagnose` finds no cause."""
    findings = diagnose(observe(store, runs))
    blocked = next((finding for finding in findings if finding.state == "blocked"), None)
    if blocked is None:
        return error
    other = f"; alternatives: {DOCKER}, {HOST}" if alternatives(findings, engine=True) else ""
    return SandboxError(f"{error.what}; {blocked.name}: {blocked.text}", where=error.where, hint=f"{blocked.fix}{other}")


def _setting(name: str) -> int | None:
    """The number in a file of /proc/sys; None if the file does not exist."""
    try:
        return int(Path("/proc/sys", name).read_text())
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _temporary_directory(directory: Path) -> Iterator[Path | int]:
    """Yield a new directory in `directory`, or the errno if it cannot be made. Removes it afterwards."""
    path = directory / f".doctor-{secrets.token_hex(6)}"
    try:
        path.mkdir(mode=0o700)
    except OSError as error:
        yield error.errno or errno.EIO
        return
    try:
        yield path
    finally:
        files.remove_tree(path)


def _directory(path: Path, temporary: Path | int) -> Directory:
    size, inodes = files.free(path)
    number = temporary if isinstance(temporary, int) else 0
    return Directory(path=str(path), kind=filesystem.kind(path), errno=number, size=size, inodes=inodes)


def _attempt(act: Callable[[], object]) -> int:
    """The errno of a call; 0 if it worked."""
    try:
        act()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _try_in_namespaces(store: Path, runs: Path, disk: Path) -> dict[Step, int]:
    """Try the steps that need namespaces, in the order in which they depend on each other."""
    for name in ("lower", "target", "proc", "memory"):
        (store / name).mkdir()
    for directory in {runs, disk}:
        for name in ("upper", "work"):
            (directory / name).mkdir()
    read, write = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _enter_namespaces(store, runs, disk, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        lines = pipe.read().splitlines()
    os.waitpid(child, 0)
    return dict(msgspec.json.decode(line, type=tuple[Step, int]) for line in lines)


def _enter_namespaces(store: Path, runs: Path, disk: Path, write: int) -> NoReturn:
    """In the forked process: enter all namespaces. If that works, its child is PID 1 of the new PID namespace."""
    try:
        uid, gid = os.geteuid(), os.getegid()
        steps: dict[Step, Callable[[], object]] = {}
        if not namespaces.can_mount():
            steps["user namespace"] = lambda: kernel.unshare(kernel.CLONE_NEWUSER)
            steps["user map"] = lambda: namespaces.map_user(uid, gid)
        steps["namespaces"] = lambda: namespaces.enter(network=True)
        steps["network namespace"] = lambda: kernel.unshare(kernel.CLONE_NEWNET)
        if all(_report(write, step, act) for step, act in steps.items()):
            child = os.fork()
            if child == 0:
                _mount(store, runs, disk, write)
            os.waitpid(child, 0)
    finally:
        os._exit(0)


def _mount(store: Path, runs: Path, disk: Path, write: int) -> NoReturn:
    """In PID 1 of the new PID namespace: mount what a run needs."""
    try:
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        if _report(write, "mounts", namespaces.enter_mounts):
            _report(write, "memory", lambda: kernel.mount("tmpfs", str(store / "memory"), "tmpfs", flags))
            _report(write, "workspace", lambda: _overlay(store, runs, throw_away=False))
            _report(write, "root on disk", lambda: _overlay(store, disk, throw_away=True))
            _report(write, "removal", lambda: os.mknod(store / "removed", stat.S_IFCHR | 0o600, 0))
            _report(write, "loopback", namespaces.loopback_up)
            _report(write, "proc", lambda: kernel.mount("proc", str(store / "proc"), "proc", flags))
    finally:
        os._exit(0)


def _overlay(store: Path, side: Path, *, throw_away: bool) -> None:
    target = store / "target"
    overlay.mount(target, [store / "lower"], upper=side / "upper", work=side / "work", throw_away=throw_away)
    (target / "file").touch()
    (target / "file").unlink()
    kernel.detach(str(target))


def _report(write: int, step: Step, act: Callable[[], object]) -> bool:
    """Try a step and write the result to a pipe. Returns whether it worked."""
    number = _attempt(act)
    os.write(write, msgspec.json.encode((step, number)) + b"\n")
    return number == 0
