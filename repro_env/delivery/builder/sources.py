"""Find where the bytes of each wheel, conda package and bundled tree are, nearest first. Every location is checked before use.

A wheel is either a complete file, whose sha256 is checked, or its installed files, which are checked while they are read.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock, Semaphore
from typing import TYPE_CHECKING, Literal

import msgspec

from repro_env.delivery.builder.remote import HINT, Copies
from repro_env.io.files import sha256_of
from repro_env.oci import tar
from repro_env.oci import wheel as rule
from repro_env.schema import redact
from repro_env.schema.artifact import Artifact, Size, TreeBlob, Wheel
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import ArtifactError, LockError, NetworkError, ReproEnvError, StoreError, os_errors_as
from repro_env.schema.progress import Advance
from repro_env.schema.spec import Spec
from repro_env.schema.text import Line
from repro_env.store.specs.blobs import SpecBlobs, compress_chunks
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.environment.wheels.index import Indexes
    from repro_env.io.indexhttp import Session

DOWNLOADS = 6
"""Most downloads at the same time."""
Origin = Literal["layer", "blob", "live", "bundled", "url", "index", "registry", "output", "nowhere"]
"""Where the bytes of an artifact come from, nearest first.

- `layer`: a layer that is already unpacked in the store.
- `blob`: a wheel in the store.
- `live`: installed files of this machine, each checked by sha256.
- `bundled`: a blob next to the spec.
- `url`: a URL in the spec's hints.
- `index`: an index configured on this machine.
- `registry`: where the spec was pushed to or opened from. A layer whose wheels are not found is fetched complete.
- `output`: the destination of the image has it already.
- `nowhere`: not found. Only for the source, which is not part of the image.
"""


class Item(Frozen, frozen=True, kw_only=True):
    """One artifact of a plan."""

    what: Line
    """`name==version` of a distribution, or `base`, `interpreter`, `overlay`, `source`."""
    origin: Origin
    where: Line = ""
    """Path or URL without credentials; empty for `layer`."""
    size: Size
    """Size of the artifact in bytes."""


class Location(msgspec.Struct, frozen=True):
    """Where the bytes of a wheel or package may be."""

    origin: Origin
    where: str
    """The path or URL of a complete file. For `live`, the prefix of the environment."""

    @property
    def is_remote(self) -> bool:
        """Whether it has to be fetched from another machine."""
        return self.where.startswith(("http://", "https://")) or (self.origin == "registry" and not self.where.startswith("/"))

    def __str__(self) -> str:
        return redact.url(self.where) if self.where.startswith("http") else self.where


Accept = Callable[[Location, Artifact], Location]


class StoppedError(Exception):
    """The build was stopped, because the user interrupted it or because another layer failed."""


class Counter:
    """Counts the bytes of several threads, and ends them."""

    def __init__(self) -> None:
        self.total = 0
        self.advance: Advance = lambda _count: None
        """Called with each number of bytes."""
        self.is_stopped = False
        """If this is set, the next `add` of each thread raises `StoppedError`."""
        self._lock = Lock()

    def add(self, count: int, /) -> None:
        if self.is_stopped:
            raise StoppedError
        with self._lock:
            self.total += count
        self.advance(count)


class Sources(contextlib.AbstractContextManager["Sources"]):
    """Finds and fetches what the image of a spec is made of. Safe to use from several threads."""

    def __init__(self, spec: Spec, directory: Path, store: Store) -> None:
        """`directory` holds the spec and `blobs/`."""
        self.blobs = SpecBlobs(directory / "blobs")
        self.received = Counter()
        """Bytes downloaded, including those of an index on this machine."""
        self.copies = Copies(directory, self.received.add)
        """The registries in `remote.json`."""
        self._spec = spec
        self._store = store
        self._hints = {hint.sha256: hint for hint in (*spec.hints.wheels, *spec.hints.packages)}
        self._session_cache: Session | None = None
        self._index_cache: Indexes | None = None
        self._lock = Lock()
        self._downloads = Semaphore(DOWNLOADS)
        self._is_offline = False
        """Whether a server did not answer. Then no other server is contacted if registries have all layers."""

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections; the next request opens new ones."""
        self.copies.close()
        if self._session_cache is not None:
            self._session_cache.close()

    # Wheels and conda packages

    def peek(self, artifact: Artifact, facts: rule.Facts | None, *, ask: bool) -> Location:
        """Return the nearest location of an artifact. `ask`: also ask the server whether it has the file. Raises as `fetch`."""
        return self._first(artifact, facts, self._probe if ask else lambda location, _: location, [])

    def fetch(self, artifact: Artifact, facts: rule.Facts | None = None, *, after: ReproEnvError | None = None) -> Location:
        """Return a complete, checked file of an artifact on this machine, or with `facts` also the prefix with its installed files.

        `after`: the error after which all files are checked again. Raises `NetworkError` if no server answered, else
        `ArtifactError`; both list all attempts.
        """
        if after is not None:
            self._store.blobs.path(artifact.sha256, again=True)
        return self._first(artifact, None if after is not None else facts, self._fetch, [after] if after is not None else [])

    def gzip_or_file(self, artifact: Artifact) -> Path:
        """Return the gzip of a bundled artifact next to the spec if it is undamaged, else as `fetch`."""
        return self.blobs.packed_file(artifact.sha256, self._store.facts) or Path(self.fetch(artifact).where)

    def _first(self, artifact: Artifact, facts: rule.Facts | None, accept: Accept, failures: list[ReproEnvError]) -> Location:
        for location in self._locations(artifact, facts, failures):
            try:
                return accept(location, artifact)
            except (ArtifactError, NetworkError) as error:  # noqa: PERF203 the next location may have it
                failures.append(error)
        where = artifact.label
        if not failures:
            what = f"{artifact.filename} was not found: not on this machine, not bundled, at no URL, and in no configured index"
            raise ArtifactError(what, where=where, hint=f"configure an index that has it in pip, {HINT}")
        texts = "; ".join(dict.fromkeys(map(str, failures)))
        if all(isinstance(error, NetworkError) and not error.what.endswith(_GONE) for error in failures):
            raise NetworkError(f"the file cannot be downloaded: {texts}", where=where, hint=failures[0].hint)
        hint = f"configure an index that has this very file in pip, {HINT}"
        raise ArtifactError(f"{artifact.filename} could not be found or fetched: {texts}", where=where, hint=hint)

    def _locations(self, artifact: Artifact, facts: rule.Facts | None, failures: list[ReproEnvError]) -> Iterator[Location]:
        """Yield every possible location, nearest first. Servers are contacted only when the generator reaches them."""
        if (blob := self._store.blobs.path(artifact.sha256)) is not None:
            yield Location("blob", str(blob))
        if facts is not None and isinstance(artifact, Wheel) and self._is_installed(artifact, facts):
            yield Location("live", self._spec.identity.layout_of(artifact).prefix)
        if (bundled := self.blobs.path(artifact.sha256)) is not None:
            yield Location("bundled", str(bundled))
        if artifact.sha256 in self._spec.bundled:
            if (offer := self.copies.offer(artifact.sha256)) is not None:
                yield Location("registry", offer.where)
            failures += self.copies.failures
        for url in self._hints[artifact.sha256].urls if artifact.sha256 in self._hints else ():
            yield Location("url", url)
        if isinstance(artifact, Wheel):
            yield from self._in_indexes(artifact, failures)

    def _in_indexes(self, wheel: Wheel, failures: list[ReproEnvError]) -> Iterator[Location]:
        """Yield files with the same name (and sha256, if given) in the indexes and find-links of this machine."""
        from repro_env.io.indexhttp import local_path

        try:
            with self._contact("the configured indexes"):
                offers = self._indexes.offers(wheel.name, wheel.version)
        except (LockError, NetworkError) as error:
            failures.append(error)
            return
        for offer in offers.candidates:
            if offer.filename == wheel.filename and offer.sha256 in ("", wheel.sha256.removeprefix("sha256:")):
                path = local_path(offer.url)
                yield Location("index", str(path) if path is not None else offer.url)
        failures += offers.failures
        self._is_offline = self._is_offline or bool(offers.failures and not offers.candidates)

    def _fetch(self, location: Location, artifact: Artifact) -> Location:
        """Bring the bytes of a location to this machine and check them. Raises `ArtifactError`, `NetworkError`."""
        if location.origin == "registry":
            self.copies.fetch(artifact.sha256, self.blobs, size=artifact.size)
        elif location.is_remote:
            with self._downloads, self._contact(str(location)):
                path = self._store.blobs.put(self._download(location, artifact), artifact.sha256, where=str(location))
            return Location(location.origin, str(path))
        if location.origin in ("bundled", "registry"):
            file = self.blobs.file(artifact.sha256, artifact.size, self._store.blobs)
            if file is None:
                hint = "copy the blobs/ directory of the capture next to the spec, or capture again"
                raise ArtifactError("the blob is not a regular file", where=location.where, hint=hint)
            location = Location(location.origin, str(file))
        if location.origin in ("bundled", "index"):
            _check_file(Path(location.where), artifact)
        return location

    def _probe(self, location: Location, artifact: Artifact) -> Location:
        """Check a location like `_fetch`, but download nothing: only ask the server whether it has the file."""
        if not location.is_remote:
            return self._fetch(location, artifact)
        if location.origin == "registry":
            return location  # the manifest lists the blob
        from repro_env.io.http import RangesRefusedError

        try:
            with self._contact(str(location)), self._session.open_range(location.where) as file:
                size = file.seek(0, os.SEEK_END)
        except RangesRefusedError:
            return location  # the file exists; its size is checked when it is fetched
        if size != artifact.size:
            what = f"the file has {size} bytes, and {artifact.filename} has {artifact.size}"
            raise ArtifactError(what, where=str(location), hint=_CHANGED)
        return location

    @contextlib.contextmanager
    def _contact(self, where: str) -> Iterator[None]:
        """Contact a server. After one did not answer, none is contacted if registries have the layers: it takes long to fail."""
        if self._is_offline and self.copies.exist:
            raise NetworkError(
                "a server did not answer shortly before", where=where, hint="check the network and `pip config list`"
            )
        try:
            yield
        except NetworkError as error:
            self._is_offline = self._is_offline or "(status " not in error.what
            raise

    def _download(self, location: Location, artifact: Artifact) -> Iterator[bytes]:
        """Download at most as many bytes as the artifact has: a server may send without end."""
        remaining = artifact.size
        with contextlib.closing(self._session.download(location.where)) as chunks:
            for chunk in chunks:
                remaining -= len(chunk)
                if remaining < 0:
                    what = f"the server sends more than the {artifact.size} bytes of {artifact.filename}"
                    raise ArtifactError(what, where=str(location), hint=_CHANGED)
                self.received.add(len(chunk))
                yield chunk

    @property
    def _session(self) -> Session:
        """The HTTP session. It is opened for the first server, because pip's modules take long to import."""
        with self._lock:
            if self._session_cache is None:
                from repro_env.environment.python import packagemanagers
                from repro_env.io.indexhttp import Session

                # Only the user's own uv settings are used. Those of a project may be untrusted.
                own = packagemanagers.look(None, os.environ)
                self._session_cache = Session(prefix=self._spec.identity.layout.prefix, sources=own)
            return self._session_cache

    @property
    def _indexes(self) -> Indexes:
        session = self._session
        with self._lock:
            if self._index_cache is None:
                from repro_env.environment.wheels.index import Indexes

                self._index_cache = Indexes(session)
            return self._index_cache

    def _is_installed(self, wheel: Wheel, facts: rule.Facts) -> bool:
        """Return whether the captured environment has regular files of the wheel's sizes: quick, but not a proof."""
        layout = self._spec.identity.layout_of(wheel)
        if not os.path.isdir(layout.prefix):  # noqa: PTH112 - most often, and the rule takes long
            return False
        installed = rule.canonical(facts, layout, name=wheel.name)
        try:
            for entry in installed.entries:
                if entry.path in installed.members:
                    status = os.lstat(f"{layout.prefix}/{entry.path}")
                    if status.st_size != entry.size or not stat.S_ISREG(status.st_mode):
                        return False
        except OSError:
            return False
        return True

    # Bundled trees

    def peek_tree(self, what: str, tree: TreeBlob, *, ask: bool = False) -> Item:
        """Return where a tree is. `ask`: also check the bytes of a blob. Raises `ArtifactError` if it is not found."""
        if (path := self.blobs.path(tree.sha256)) is not None:
            if ask:
                self.blobs.check(tree.sha256, self._store.facts, is_noted=False)
            return Item(what=what, origin="bundled", where=str(path), size=tree.size)
        if self._store.layers.path(tree.sha256) is not None:
            return Item(what=what, origin="layer", size=tree.size)
        if (offer := self.copies.offer(tree.sha256)) is not None:
            return Item(what=what, origin="registry", where=offer.where, size=offer.size)
        if what == "source":
            # The source is not part of the image. A run can use the live source; if it cannot, it reports what is missing.
            return Item(what=what, origin="nowhere", size=tree.size)
        raise self._not_found(what, tree)

    def bring_tree(self, what: str, tree: TreeBlob, *, after: ReproEnvError | None = None) -> Path:
        """Return the blob's file next to the spec. It is fetched if it is missing, and after an error in any case.

        Raises `ArtifactError` if it is not found, `NetworkError`, `DiskError`, and `after` if there is no other copy.
        """
        path = self.blobs.path(tree.sha256)
        if path is not None and after is None:
            return path
        if not self._restore_from_layer(tree):
            if self.copies.offer(tree.sha256) is None:
                raise after or self._not_found(what, tree)
            with self._downloads:
                self.copies.fetch(tree.sha256, self.blobs, size=tree.size)
        return self.blobs.path(tree.sha256) or self.blobs.directory

    def checked_tree(self, what: str, tree: TreeBlob) -> Path:
        """Return the blob's file as `bring_tree` does, after a check of its bytes. A damaged one is fetched again."""
        path = self.bring_tree(what, tree)
        try:
            self.blobs.check(tree.sha256, self._store.facts)
        except ArtifactError as error:
            path = self.bring_tree(what, tree, after=error)
        return path

    def _restore_from_layer(self, tree: TreeBlob) -> bool:
        """Write the blob from the unpacked layer in the store. Returns False if the layer is missing or was changed."""
        if self._store.layers.path(tree.sha256) is None:
            return False
        packed = compress_chunks(tar.write(self._store.layers.members(tree.sha256)))
        try:
            self.blobs.restore(tree.sha256, packed, is_gzip=True, size=tree.size, where="the layer in the store")
        except (ArtifactError, StoreError):
            return False
        return True

    def _not_found(self, what: str, tree: TreeBlob) -> ReproEnvError:
        name = tree.sha256.removeprefix("sha256:")[:12]
        missing = f"the {what} was not found: neither the blob {name}… nor its layer in the store"
        return self.copies.explain(ArtifactError(missing, where=str(self.blobs.directory), hint=HINT))


def _check_file(path: Path, artifact: Artifact) -> None:
    """Check the sha256 of a complete file. Raises `ArtifactError`."""
    with os_errors_as(ArtifactError, "the file cannot be read", where=path, hint="restore it, or capture again"):
        digest = "sha256:" + sha256_of(path)
    if digest != artifact.sha256:
        raise ArtifactError(
            f"the file is not {artifact.filename} as captured: its sha256 is {digest[7:19]}…, not {artifact.sha256[7:19]}…",
            where=str(path),
            hint="the file is damaged; copy it again from the capture, or capture again",
        )


_GONE = ("(status 404)", "(status 410)")
"""How `io.indexhttp` ends its message if a server answered that it does not have the file."""
_CHANGED = "the file on the server has changed since the capture"
