"""Find where the bytes of each wheel and conda package are, nearest first. Every location is checked before use.

A location is either a complete file, whose sha256 is checked, or the environment in which the wheel is installed. The
installed files are checked while they are read.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from repro_env.delivery.builder.blobsource import HINT
from repro_env.delivery.builder.plan import Origin
from repro_env.environment.wheels.layers import DistributionContents
from repro_env.io.files import FileContents, sha256_of
from repro_env.oci import wheel as rule
from repro_env.oci.entry import Contents, Entry
from repro_env.oci.layer import check_contents
from repro_env.schema import codec, redact
from repro_env.schema.artifact import CondaPackage, Wheel
from repro_env.schema.errors import ArtifactError, LockError, NetworkError, ReproEnvError
from repro_env.schema.spec import Spec
from repro_env.store.packages.wheelfile import FACTS, WheelContents, open_facts
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.delivery.builder.blobsource import BlobSources
    from repro_env.environment.wheels.index import Indexes
    from repro_env.io.indexhttp import Session


Artifact = Wheel | CondaPackage


class Location(msgspec.Struct, frozen=True):
    """A location that may have the bytes of a wheel or package; `Finder.fetch` checks it."""

    origin: Origin
    where: str
    """The path or URL of a complete file. For `live`, the prefix of the environment."""

    @property
    def is_file(self) -> bool:
        """Whether it is the file itself, not the installed files."""
        return self.origin != "live"

    @property
    def is_remote(self) -> bool:
        """Whether it has to be fetched from another machine."""
        return self.where.startswith(("http://", "https://")) or (self.origin == "registry" and not self.where.startswith("/"))

    def __str__(self) -> str:
        return redact.url(self.where) if self.where.startswith("http") else self.where


def accept_any(location: Location, artifact: Artifact) -> Location:  # noqa: ARG001
    """Accept every location without a check, for `Search.peek`."""
    return location


class Finder:
    """Finds and fetches the wheels and packages of a spec. Safe to use from several threads."""

    def __init__(self, spec: Spec, directory: Path, store: Store, blob_sources: BlobSources | None = None) -> None:
        """`blob_sources`: other sources of bundled wheels that are not in `directory`."""
        self._spec = spec
        self._blob_sources = blob_sources
        self._bundled_digests = spec.carried
        self._session: Session | None = None
        self._index_cache: Indexes | None = None
        self._hints = {hint.sha256: hint for hint in (*spec.hints.wheels, *spec.hints.packages)}
        self._spec_blobs = SpecBlobs(directory / "blobs")
        self._store = store
        self._lock = Lock()
        self._stopped = False
        self._unreachable_hosts: set[str] = set()
        """Hosts that did not answer. The empty name stands for the configured indexes."""
        self.fetched = 0
        """Bytes downloaded, including those of an index on this machine."""

    def locations(self, artifact: Artifact, facts: rule.Facts | None, failures: list[ReproEnvError]) -> Iterator[Location]:
        """Yield every possible location, nearest first. Servers are contacted only when the generator reaches them.

        The errors of indexes are added to `failures`.
        """
        blob = self._store.blobs.path(artifact.sha256)
        if blob is not None:
            yield Location("blob", str(blob))
        if facts is not None and isinstance(artifact, Wheel) and self._is_installed(artifact, facts):
            yield Location("live", self._spec.identity.layout_of(artifact).prefix)
        bundled = self._spec_blobs.path(artifact.sha256)
        if bundled is not None:
            yield Location("bundled", str(bundled))
        if self._blob_sources is not None and artifact.sha256 in self._bundled_digests:
            offer = self._blob_sources.offer(artifact.sha256)
            if offer is not None:
                yield Location("registry", offer.where)
            failures += self._blob_sources.failures
        hint = self._hints.get(artifact.sha256)
        for url in hint.urls if hint else ():
            yield Location("url", url)
        if isinstance(artifact, Wheel):
            yield from self._in_indexes(artifact, failures)

    def read_facts(self, location: Location, wheel: Wheel) -> rule.Facts:
        """Read the facts of a complete wheel and keep them in the store. Raises `ArtifactError` if it is not a wheel."""
        facts = open_facts(Path(location.where), wheel.filename)
        self._store.facts.put(FACTS, wheel.sha256, codec.canonical(facts))
        return facts

    def stop(self) -> None:
        """Make running downloads end soon."""
        self._stopped = True

    def close(self) -> None:
        """Close connections; the next request opens new ones."""
        if self._session is not None:
            self._session.close()

    def fetch(self, location: Location, artifact: Artifact) -> Location:
        """Fetch the bytes of a location to this machine and check them. Raises `ArtifactError`, `NetworkError`."""
        if location.origin == "registry" and location.is_remote and self._blob_sources is not None:
            self._blob_sources.fetch(artifact.sha256, self._spec_blobs, size=artifact.size)
            return Location(location.origin, str(self._spec_blobs.file(artifact.sha256, artifact.size, self._store.blobs)))
        if location.is_remote:
            with self._contact(urlsplit(location.where).netloc, str(location)):
                path = self._store.blobs.put(self._bounded(location, artifact), artifact.sha256, where=str(location))
            return Location(location.origin, str(path))
        if location.origin == "bundled":
            file = self._spec_blobs.file(artifact.sha256, artifact.size, self._store.blobs)
            if file is None:
                raise ArtifactError("the blob is not a regular file", where=location.where, hint=_COPY_HINT)
            location = Location(location.origin, str(file))
        if location.origin in ("bundled", "index"):
            _check_file(Path(location.where), artifact)
        return location

    @contextlib.contextmanager
    def _contact(self, host: str, where: str) -> Iterator[None]:
        """Contact a server. If blob sources have all layers, a server that did not answer is not contacted again."""
        if host in self._unreachable_hosts:
            raise NetworkError(
                "the server did not answer shortly before", where=where, hint="check the network and `pip config list`"
            )
        try:
            yield
        except NetworkError as error:
            if self._blob_sources is not None and self._blob_sources.layers and "(status " not in error.what:
                self._unreachable_hosts.add(host)
            raise

    def gzip_file(self, artifact: Artifact) -> Path | None:
        """Return the gzip file of a complete blob next to the spec, or None."""
        return self._spec_blobs.packed_file(artifact.sha256, self._store.facts)

    def probe(self, location: Location, artifact: Artifact) -> Location:
        """Check a location like `fetch`, but download nothing: only ask the server whether it has the file."""
        if not location.is_remote:
            return self.fetch(location, artifact)
        if location.origin == "registry":
            return location  # the manifest lists the blob
        from repro_env.io.ranges import RangesRefusedError

        try:
            with self._contact(urlsplit(location.where).netloc, str(location)), self.session.open_range(location.where) as file:
                size = file.seek(0, os.SEEK_END)
        except RangesRefusedError:
            return location  # the file exists; its size is checked when it is fetched
        if size != artifact.size:
            raise ArtifactError(
                f"the file has {size} bytes, and {artifact.filename} has {artifact.size}", where=str(location), hint=_CHANGED_HINT
            )
        return location

    def discard_damaged(self, location: Location, artifact: Artifact) -> bool:
        """Return whether a fetched location has wrong bytes. A damaged blob in the store is deleted."""
        if not location.is_file:
            return True
        try:
            _check_file(Path(location.where), artifact)
        except ArtifactError:
            blob = self._store.blobs.path(artifact.sha256)
            if blob is not None and str(blob) == location.where:
                self._store.blobs.remove(artifact.sha256)
            return True
        return False

    def _bounded(self, location: Location, artifact: Artifact) -> Iterator[bytes]:
        """Download at most as many bytes as the artifact has: a server may send without end."""
        remaining = artifact.size
        for chunk in self.session.download(location.where):
            remaining -= len(chunk)
            if self._stopped:
                raise NetworkError("the download was stopped", where=str(location), hint="rebuild again")
            if remaining < 0:
                raise ArtifactError(
                    f"the server sends more than the {artifact.size} bytes of {artifact.filename}",
                    where=str(location),
                    hint=_CHANGED_HINT,
                )
            with self._lock:
                self.fetched += len(chunk)
            yield chunk

    @property
    def session(self) -> Session:
        """The HTTP session. It is opened for the first server, because pip's modules take long to import."""
        with self._lock:
            if self._session is None:
                from repro_env.environment.python import packagemanagers
                from repro_env.io.indexhttp import Session

                # Only the user's own uv settings are used. Those of a project may be untrusted.
                own = packagemanagers.look(None, os.environ)
                self._session = Session(prefix=self._spec.identity.layout.prefix, cache=self._store.facts, sources=own)
            return self._session

    def _in_indexes(self, wheel: Wheel, failures: list[ReproEnvError]) -> Iterator[Location]:
        """Yield files with the same name (and sha256, if given) in the indexes and find-links of this machine."""
        from repro_env.io.indexhttp import local_path

        try:
            with self._contact("", "the configured indexes"):
                offers = self._indexes.offers(wheel.name, wheel.version)
        except (LockError, NetworkError) as error:
            failures.append(error)
            return
        for offer in offers.candidates:
            if offer.filename == wheel.filename and offer.sha256 in ("", wheel.sha256.removeprefix("sha256:")):
                path = local_path(offer.url)
                yield Location("index", str(path) if path is not None else offer.url)
        failures += offers.failures
        if self._blob_sources is not None and self._blob_sources.layers and offers.failures and not offers.candidates:
            self._unreachable_hosts.add("")

    @property
    def _indexes(self) -> Indexes:
        session = self.session
        with self._lock:
            if self._index_cache is None:
                from repro_env.environment.wheels.index import Indexes

                self._index_cache = Indexes(session)
            return self._index_cache

    def _is_installed(self, wheel: Wheel, facts: rule.Facts) -> bool:
        """Return whether the captured environment has regular files of the wheel's sizes: quick, but not a proof."""
        layout = self._spec.identity.layout_of(wheel)
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


class Search:
    """The search for one wheel or package, location by location."""

    def __init__(self, finder: Finder, artifact: Artifact, facts: rule.Facts | None) -> None:
        self._artifact = artifact
        self._failures: list[ReproEnvError] = []
        self._locations = finder.locations(artifact, facts, self._failures)
        self._next_location: Location | None = None

    def peek(self, accept: Callable[[Location, Artifact], Location]) -> Location:
        """Return the first location that `accept` (such as `Finder.probe`) accepts. A later `take` starts there. Raises as `take`."""
        if self._next_location is None:
            self._next_location, _ = self._next(accept)
        return self._next_location

    def take(self, prove: Callable[[Location, Artifact], Location]) -> Location:
        """Return what `prove` (`Finder.fetch`) returns for the next location that it accepts.

        Raises `NetworkError` if no remaining server answered, else `ArtifactError`; both list all attempts.
        """
        _, proven = self._next(prove)
        return proven

    def _next(self, prove: Callable[[Location, Artifact], Location]) -> tuple[Location, Location]:
        while True:
            location, self._next_location = self._next_location or next(self._locations, None), None
            if location is None:
                raise self._not_found()
            try:
                return location, prove(location, self._artifact)
            except (ArtifactError, NetworkError) as error:
                self._failures.append(error)

    def add_failure(self, error: ReproEnvError) -> None:
        """Record that a fetched location has wrong bytes."""
        self._failures.append(error)

    def _not_found(self) -> ReproEnvError:
        where = f"{self._artifact.name}=={self._artifact.version}"
        if not self._failures:
            return ArtifactError(
                f"{self._artifact.filename} was not found: not on this machine, not bundled, at no URL, and in no configured index",
                where=where,
                hint=f"configure an index that has it in pip, {HINT}",
            )
        failures = "; ".join(dict.fromkeys(str(error) for error in self._failures))
        is_network = all(isinstance(error, NetworkError) and not error.what.endswith(_GONE) for error in self._failures)
        if is_network:
            return NetworkError(f"the file cannot be downloaded: {failures}", where=where, hint=self._failures[0].hint)
        return ArtifactError(
            f"{self._artifact.filename} could not be found or fetched: {failures}",
            where=where,
            hint=f"configure an index that has this very file in pip, {HINT}",
        )


def contents(location: Location, installed: rule.Installed) -> Contents:
    """Return the content of a wheel's canonical form from a fetched location; entries are relative to the prefix.

    The files of a complete wheel are not checked again: its sha256 was, and the diff ID covers every byte of the layer.
    The files of a tree are checked one by one, so that an error names the file.
    """
    if location.is_file:
        return WheelContents(Path(location.where), installed)
    return _CheckedContents(DistributionContents(installed, FileContents(Path(location.where)), frozenset(), None))


class _CheckedContents:
    def __init__(self, inner: Contents) -> None:
        self._inner = inner

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        for _, chunks in check_contents([(entry, self._inner.chunks(entry))]):
            yield from chunks


def _check_file(path: Path, artifact: Artifact) -> None:
    """Check the sha256 of a complete file. Raises `ArtifactError`."""
    try:
        digest = "sha256:" + sha256_of(path)
    except OSError as error:
        raise ArtifactError(
            f"the file cannot be read: {error.strerror}", where=str(path), hint="restore it, or capture again"
        ) from None
    if digest != artifact.sha256:
        raise ArtifactError(
            f"the file is not {artifact.filename} as captured: its sha256 is {digest[7:19]}…, not {artifact.sha256[7:19]}…",
            where=str(path),
            hint="the file is damaged; copy it again from the capture, or capture again",
        )


_GONE = ("(status 404)", "(status 410)")
"""How `io.indexhttp` ends its message if a server answered that it does not have the file."""
_CHANGED_HINT = "the file on the server has changed since the capture"
_COPY_HINT = "copy the blobs/ directory of the capture next to the spec, or capture again"
