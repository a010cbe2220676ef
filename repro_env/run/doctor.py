"""What this machine lets a run do: found by doing it, then told in words with the fix.

`observe` touches the world and decides nothing; `diagnose` is pure, so that every diagnosis is tested from
recorded numbers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from repro_env.io import files
from repro_env.model.codec import Frozen
from repro_env.model.errors import SandboxError
from repro_env.run import filesystem, kernel, namespaces, overlay, scratch

Step = Literal[
    "user namespace",
    "user map",
    "name spaces",
    "network namespace",
    "mounts",
    "proc",
    "loopback",
    "memory",
    "root on disk",
    "root in memory",
    "workspace",
    "removal",
    "hard link",
]
State = Literal["ok", "fallback", "blocked", "absent"]
"""`absent`: not there, and nothing that is asked for without a word needs it."""

_LOW = 1 << 30
"""Bytes: less than this is no room for an environment."""
_FEW = 50_000
"""Inodes: a larger environment has as many files."""


class Tried(Frozen, frozen=True, kw_only=True):
    what: Step
    errno: int
    """0: it works."""


class Folder(Frozen, frozen=True, kw_only=True):
    """A place and its file system."""

    path: str
    kind: str
    """`ext4`, `nfs4`, `overlay` ..."""
    errno: int
    """Of making a folder in it; 0: it works."""
    size: int
    """Bytes free for this user."""
    inodes: int


class Observations(Frozen, frozen=True, kw_only=True):
    kernel: str
    """Its release, e.g. `5.4.0-150-generic`."""
    uid: int
    admin: bool
    """May mount without a user namespace."""
    seccomp: int
    """`Seccomp:` of /proc/self/status: 2 is a filter, as container engines set one."""
    userns_clone: int | None
    """kernel.unprivileged_userns_clone (Debian, Ubuntu); None where there is no such switch."""
    max_user_namespaces: int | None
    apparmor: int | None
    """kernel.apparmor_restrict_unprivileged_userns (Ubuntu 23.10 and later)."""
    store: Folder
    runs: Folder
    tried: tuple[Tried, ...]
    """In order. What needs an earlier step that failed is not there."""


class Finding(Frozen, frozen=True, kw_only=True):
    """One line of the answer."""

    name: str
    state: State
    text: str
    fix: str
    """Empty when there is nothing to mend."""


def works(findings: tuple[Finding, ...]) -> bool:
    """Whether `exec` will run here, perhaps with a fall-back."""
    return all(finding.state != "blocked" for finding in findings)


# --- diagnosing: pure ---

_USERNS = "sysctl -w kernel.unprivileged_userns_clone=1 (as root)"
_MAX = "sysctl -w user.max_user_namespaces=15000 (as root)"
_APPARMOR = (
    "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (as root), or an AppArmor profile with `userns,` for your python"
)
_SECCOMP = (
    "start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined, or run outside of it"
)


def diagnose(seen: Observations) -> tuple[Finding, ...]:
    """The findings in the order in which a run needs the things."""
    tried = {one.what: one.errno for one in seen.tried}
    rooms = [_room("store", seen.store), _room("runs", seen.runs)]
    if seen.store.errno or seen.runs.errno:
        return tuple(rooms)  # there was no place to try anything
    found = [_user(seen, tried)]
    if found[-1].state != "blocked":
        found.append(_spaces(seen, tried))
    if found[-1].state != "blocked":
        found.append(_mounts(seen, tried))
    if found[-1].state != "blocked":
        found += [_proc(tried), _loopback(tried), _root(seen, tried), _workspace(seen, tried), _removal(tried)]
    return (*found, *rooms, _links(seen, tried))


def _user(seen: Observations, tried: dict[Step, int]) -> Finding:
    name = "user namespace"
    if seen.admin:
        return _ok(name, "not needed: this process may mount by itself")
    number = tried.get("user namespace", errno.ENOSYS)
    if number == 0:
        refused = tried.get("user map", 0)
        if refused == 0:
            return _ok(name, "can be made")
        if seen.apparmor == 1:
            return _blocked(name, "AppArmor takes every right from user namespaces of plain users", _APPARMOR)
        return _blocked(name, f"can be made, but uid {seen.uid} cannot be kept in it ({_name(refused)})", _outside(seen))
    if seen.userns_clone == 0:
        return _blocked(name, "plain users may not make one (kernel.unprivileged_userns_clone is 0)", _USERNS)
    if seen.max_user_namespaces == 0:
        return _blocked(name, "none may be made (user.max_user_namespaces is 0)", _MAX)
    if number == errno.ENOSPC:
        return _blocked(name, f"no more may be made here (limit {seen.max_user_namespaces}, or nested too deep)", _MAX)
    if number in (errno.EINVAL, errno.ENOSYS) or _version(seen.kernel) < (3, 8):
        return _blocked(name, f"Linux {seen.kernel} has none", "use a kernel with CONFIG_USER_NS, or run as root")
    if seen.apparmor == 1 and number in (errno.EPERM, errno.EACCES) and seen.seccomp != 2:
        return _blocked(name, "AppArmor refuses it to plain users", _APPARMOR)
    if seen.seccomp == 2:
        return _blocked(name, f"a seccomp filter refuses it ({_name(number)}), as container engines set one", _SECCOMP)
    return _blocked(
        name,
        f"refused ({_name(number)}): by a security module, or because this process is in a chroot",
        "run outside of it, or as root",
    )


def _spaces(seen: Observations, tried: dict[Step, int]) -> Finding:
    for what in ("name spaces", "network namespace"):
        number = tried.get(what, errno.ENOSYS)
        if number:
            text = f"{'those for processes, IPC and host name' if what == 'name spaces' else 'one for the network'} are refused ({_name(number)})"
            return _blocked(
                "name spaces", text, _MAX.replace("user.max_user", "user.max_pid") if number == errno.ENOSPC else _outside(seen)
            )
    return _ok("name spaces", "processes, IPC, host name and network can be apart")


def _mounts(seen: Observations, tried: dict[Step, int]) -> Finding:
    number = tried.get("mounts", errno.ENOSYS) or tried.get("memory", errno.ENOSYS)
    if number == 0:
        return _ok("mounts", "can be made")
    if seen.apparmor == 1 and not seen.admin:
        return _blocked("mounts", f"AppArmor takes every right from user namespaces of plain users ({_name(number)})", _APPARMOR)
    return _blocked("mounts", f"refused ({_name(number)}){' by a seccomp filter' if seen.seccomp == 2 else ''}", _outside(seen))


def _proc(tried: dict[Step, int]) -> Finding:
    number = tried.get("proc", 0)
    if number == 0:
        return _ok("/proc", "of its own")
    return Finding(
        name="/proc",
        state="fallback",
        text=f"the host's is shown: a fresh one is refused ({_name(number)})",
        fix="in a container: --security-opt systempaths=unconfined",
    )


def _loopback(tried: dict[Step, int]) -> Finding:
    number = tried.get("loopback", 0)
    return (
        _ok("loopback", "comes up")
        if number == 0
        else _blocked("loopback", f"does not come up ({_name(number)})", "run with --network")
    )


def _root(seen: Observations, tried: dict[Step, int]) -> Finding:
    disk, memory = tried.get("root on disk", errno.ENOSYS), tried.get("root in memory", errno.ENOSYS)
    if disk == 0:
        return _ok("root", "overlay")
    why, fix = _why(disk, seen, seen.runs.kind)
    if memory == 0:
        return Finding(
            name="root", state="fallback", text=f"overlay with its upper side in memory: on disk it is refused, {why}", fix=fix
        )
    how = "copied once" if tried.get("hard link") else "linked once"
    why, fix = _why(memory, seen, seen.store.kind)
    return Finding(
        name="root", state="fallback", text=f"a tree of all layers, {how} for each image: overlay is refused, {why}", fix=fix
    )


def _workspace(seen: Observations, tried: dict[Step, int]) -> Finding:
    number = tried.get("workspace", errno.ENOSYS)
    if number == 0:
        return _ok("workspace", f"overlay in {seen.runs.path} ({seen.runs.kind})")
    why, fix = _why(number, seen, seen.runs.kind)
    text = f"the source is copied for each run: overlay is refused in {seen.runs.path}, {why}"
    return Finding(name="workspace", state="fallback", text=text, fix=fix)


def _why(number: int, seen: Observations, kind: str) -> tuple[str, str]:
    """Why overlay is refused, and what helps."""
    if not seen.admin and _version(seen.kernel) < (5, 11):
        return f"Linux {seen.kernel} allows it to root alone", "use Linux 5.11 or later, or run as root"
    if number == errno.ENODEV:
        return "the kernel has no overlay file system", "modprobe overlay (as root)"
    if kind in filesystem.NETWORK or kind in ("overlay", "unknown"):
        return f"the file system {kind} cannot be its upper side", "keep runs on a local disk: exec --runs DIR"
    if seen.apparmor == 1 and not seen.admin and number in (errno.EPERM, errno.EACCES):
        return "by AppArmor", _APPARMOR
    return f"{_name(number)} on {kind}", "keep the store and the runs on ext4, xfs or btrfs"


def _removal(tried: dict[Step, int]) -> Finding:
    number = tried.get("removal", 0)
    if number == 0:
        return _ok("removal", "a layer can take away what a lower one has")
    text = f"an image with a layer that takes something away cannot be unpacked ({_name(number)})"
    return Finding(name="removal", state="fallback", text=text, fix="use Linux 5.8 or later, or run as root")


def _room(name: str, folder: Folder) -> Finding:
    if folder.errno in (errno.ENOSPC, errno.EDQUOT):
        return _blocked(name, f"{folder.path} is full ({folder.kind})", "free some room there")
    if folder.errno:
        return _blocked(
            name, f"{folder.path} cannot be written ({_name(folder.errno)})", "name another folder, or change its owner"
        )
    text = f"{folder.path} ({folder.kind}): {folder.size / (1 << 30):.1f} GiB free"
    if folder.size < _LOW:
        return Finding(
            name=name, state="fallback", text=text, fix="free some room there: an environment with torch takes several GiB"
        )
    if folder.inodes < _FEW:
        return Finding(
            name=name,
            state="fallback",
            text=f"{text}, {folder.inodes} inodes",
            fix="remove files there: it is nearly out of inodes",
        )
    return _ok(name, text)


def _links(seen: Observations, tried: dict[Step, int]) -> Finding:
    number = tried.get("hard link", 0)
    if number == 0:
        return _ok("hard links", f"work in {seen.store.path}")
    text = f"do not work in {seen.store.path} ({_name(number)}): without overlay, files are copied"
    return Finding(name="hard links", state="fallback", text=text, fix="keep the store on ext4, xfs or btrfs")


def _ok(name: str, text: str) -> Finding:
    return Finding(name=name, state="ok", text=text, fix="")


def _blocked(name: str, text: str, fix: str) -> Finding:
    return Finding(name=name, state="blocked", text=text, fix=fix)


def _outside(seen: Observations) -> str:
    return _SECCOMP if seen.seccomp == 2 else "run as root, or outside of the container or chroot"


def _name(number: int) -> str:
    return errno.errorcode.get(number, str(number))


def _version(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


# --- observing ---


def observe(store: Path, runs: Path) -> Observations:
    """Try everything that a run needs, in processes of their own. `store` and `runs` are folders that exist."""
    status = Path("/proc/self/status").read_text()
    seccomp = re.search(r"^Seccomp:\s*(\d)", status, re.MULTILINE)
    with _corner(store) as in_store, _corner(runs) as in_runs, _corner(scratch.disk(runs)) as on_disk:
        tried = []
        if isinstance(in_store, Path) and isinstance(in_runs, Path):
            tried.append(_attempt("hard link", lambda: _link(in_store)))
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
    """The error with what blocks and how to mend it, when that can be told."""
    blocked = next((finding for finding in diagnose(observe(store, runs)) if finding.state == "blocked"), None)
    if blocked is None:
        return error
    return SandboxError(f"{error.what}; {blocked.name}: {blocked.text}", where=error.where, hint=blocked.fix)


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
