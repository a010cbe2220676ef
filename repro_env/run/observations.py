"""What was seen of a machine when all that a run needs was tried on it: numbers, and no word about what they mean."""

from __future__ import annotations

from typing import Literal

from repro_env.model.codec import Frozen

Step = Literal[
    "user namespace",
    "user map",
    "other user",
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
