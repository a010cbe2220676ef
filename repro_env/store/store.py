"""The store: the local, content-addressed cache of one user.

Everything in it can be made again, except for two things: the source of a recorded run that is in no commit, and the
list of the directories that hold runs.
"""

from __future__ import annotations

import os
from pathlib import Path

from repro_env.io.files import room
from repro_env.schema.errors import StoreError, os_errors_as
from repro_env.store.blobs import Blobs
from repro_env.store.bootmarks import Boot
from repro_env.store.facts import FactCache
from repro_env.store.hashes import FileHashes
from repro_env.store.layers import Layers
from repro_env.store.leases import Lease
from repro_env.store.rundirectories import RunDirectories
from repro_env.store.specs.directories import SpecDirectories
from repro_env.store.temporary import Temp

_DIRECTORIES = ("blobs", "boot", "facts", "images", "layers", "locks", "runs", "specs", "temp", "uses")
_CACHE_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n"
"""The content of CACHEDIR.TAG (the Cache Directory Tagging Specification): backups and captures leave out the directory."""
_HINT = "set REPRO_ENV_STORE to a directory on a local disk that belongs to you"


class Store:
    """A store that only its owner can read. Safe to use from several processes at the same time."""

    def __init__(self, root: Path) -> None:
        """Use `Store.open` instead."""
        self.root = root
        self.temp = Temp(root / "temp")
        self.boot = Boot(root / "boot")
        self.lease = Lease(root / "uses")
        self.blobs = Blobs(root / "blobs", temp=self.temp, boot=self.boot)
        self.images = Blobs(root / "images", temp=self.temp, boot=self.boot)
        """The configs of images, by image ID. A config is added last: it means that all layers are there."""
        self.layers = Layers(root, temp=self.temp, boot=self.boot)
        self.spec_directories = SpecDirectories(root, temp=self.temp, boot=self.boot)
        self.facts = FactCache(root / "facts")
        self.hashes = FileHashes(self.facts)
        self.run_directories = RunDirectories(root / "runs")

    def __reduce__(self) -> tuple[type[Store], tuple[Path]]:
        """A copy in another process has a lease of its own."""
        return Store, (self.root,)

    @staticmethod
    def open(root: Path | None = None) -> Store:
        """Open `root`, else $REPRO_ENV_STORE, else $XDG_CACHE_HOME/repro-env, else ~/.cache/repro-env. Create it if missing.

        Removes what killed processes left behind. Raises `StoreError` if the store cannot be used, belongs to another
        user, or can be written by others.
        """
        directory = (root or _default()).absolute()
        with os_errors_as(StoreError, "the store cannot be used", where=directory, hint=_HINT), room(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = directory.stat()
            if facts.st_uid != os.geteuid():
                raise StoreError(f"the store belongs to another user (UID {facts.st_uid})", where=str(directory), hint=_HINT)
            if facts.st_mode & 0o022:
                raise StoreError(
                    "the store can be written by other users", where=str(directory), hint=f"run `chmod 700 {directory}`"
                )
            for name in _DIRECTORIES:
                (directory / name).mkdir(mode=0o700, exist_ok=True)
            tag = directory / "CACHEDIR.TAG"
            if not tag.exists():
                tag.write_bytes(_CACHE_TAG)
            if not os.access(directory, os.W_OK | os.X_OK):
                raise StoreError("the store cannot be written", where=str(directory), hint=_HINT)
            store = Store(directory.resolve())
            store.temp.clean()
        return store


def _default() -> Path:
    if configured := os.environ.get("REPRO_ENV_STORE"):
        return Path(configured)
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if cache.startswith("/"):  # the XDG Base Directory Specification says to ignore a relative path
        return Path(cache) / "repro-env"
    try:
        return Path.home() / ".cache" / "repro-env"
    except RuntimeError:
        raise StoreError(
            "the default location of the store is in the home directory, but this user has no home directory",
            where="the store",
            hint=_HINT,
        ) from None
