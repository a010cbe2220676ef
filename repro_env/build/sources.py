"""Where the bytes of each wheel may come from, nearest first; every claim is proven before it is used.

A place is either a whole wheel on this machine, whose sha256 was checked, or a tree of files that were
installed or unpacked from the wheel, each of which is checked while it is read.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from repro_env.build.giver import HINT
from repro_env.build.interface import Origin
from repro_env.image import wheel as rule
from repro_env.image.entry import Contents, Entry
from repro_env.image.layer import checked
from repro_env.io.files import FileContents, sha256_of
from repro_env.lock.layers import DistributionContents
from repro_env.model import codec, redact
from repro_env.model.artifact import CondaPackage, Wheel
from repro_env.model.errors import ArtifactError, LockError, NetworkError, ReproEnvError
from repro_env.model.spec import Spec
from repro_env.store.carried import Carried
from repro_env.store.store import Store
from repro_env.store.wheelfile import FACTS, WheelContents, open_facts

if TYPE_CHECKING:
    from repro_env.build.giver import Givers
    from repro_env.io.http import Session
    from repro_env.lock.index import Indexes


Artifact = Wheel | CondaPackage


class Place(msgspec.Struct, frozen=True):
    """One place that claims to have a wheel's or package's bytes; `Finder.take` proves it."""

    origin: Origin
    where: str
    """Of a whole wheel: its path or URL; of `live` and `uv`: the folder that holds its files."""

    @property
    def whole(self) -> bool:
        """The wheel itself, and not what was unpacked from it."""
        return self.origin not in ("live", "uv")

    @property
    def remote(self) -> bool:
        """Not on this machine: to be fetched first."""
        return self.where.startswith(("http://", "https://")) or (self.origin == "registry" and not self.where.startswith("/"))

    def __str__(self) -> str:
        return redact.url(self.where) if self.where.startswith("http") else self.where


class Finder:
    """Knows the places of a spec's wheels. Safe from several threads."""

    def __init__(self, spec: Spec, folder: Path, store: Store, givers: Givers | None = None) -> None:
        """`givers`: who else may have wheels that are carried, when they are not in `folder`."""
        self._spec = spec
        self._givers = givers
        self._only = spec.carried
        self._opened: Session | None = None
        self._asked: Indexes | None = None
        self._hints = {hint.sha256: hint for hint in (*spec.hints.wheels, *spec.hints.packages)}
        self._carried = Carried(folder / "blobs")
        self._store = store
        self._archives: dict[str, list[Path]] | None = None
        self._lock = Lock()
        self._stopped = False
        self._silent: set[str] = set()
        """Hosts that did not answer; empty for the indexes."""
        self.fetched = 0
        """Bytes that came over the network, or from an index on this machine."""

    def facts(self, one: Wheel) -> rule.Facts | None:
        """What the store knows of a wheel from an earlier capture or rebuild."""
        found = self._store.facts.recall(FACTS, one.sha256, rule.Facts)
        # The name is not in the wheel's bytes, and `canonical` compares it with what they say.
        return found if found is None or found.filename == one.filename else msgspec.structs.replace(found, filename=one.filename)

    def places(self, one: Artifact, facts: rule.Facts | None, failures: list[ReproEnvError]) -> Iterator[Place]:
        """Every claim, nearest first; what is far is asked for only when it is reached.

        Indexes that could not be asked are added to `failures`.
        """
        held = self._store.blobs.path(one.sha256)
        if held is not None:
            yield Place("blob", str(held))
        if facts is not None and isinstance(one, Wheel):
            yield from self._unpacked(one, facts)
        carried = self._carried.path(one.sha256)
        if carried is not None:
            yield Place("bundled", str(carried))
        if self._givers is not None and one.sha256 in self._only:
            offer = self._givers.offer(one.sha256)
            if offer is not None:
                yield Place("registry", offer.where)
            failures += self._givers.failures
        hint = self._hints.get(one.sha256)
        for url in hint.urls if hint else ():
            yield Place("url", url)
        if isinstance(one, Wheel):
            yield from self._on_indexes(one, failures)

    def learn(self, place: Place, one: Wheel) -> rule.Facts:
        """The facts of a whole wheel, kept for the next time. Raises `ArtifactError` for what is not a wheel."""
        found = open_facts(Path(place.where), one.filename)
        self._store.facts.put(FACTS, one.sha256, codec.canonical(found))
        return found

    def stop(self) -> None:
        """Let downloads that are under way end soon."""
        self._stopped = True

    def close(self) -> None:
        """Close connections; the next request opens new ones."""
        if self._opened is not None:
            self._opened.close()

    def take(self, place: Place, one: Artifact) -> Place:
        """Bring a place's bytes to this machine and check them. Raises `ArtifactError` or `NetworkError`."""
        if place.origin == "registry" and place.remote and self._givers is not None:
            self._givers.give(one.sha256, self._carried, size=one.size)
            return Place(place.origin, str(self._carried.file(one.sha256, one.size, self._store.blobs)))
        if place.remote:
            with self._answering(urlsplit(place.where).netloc, str(place)):
                path = self._store.blobs.put(self._bounded(place, one), one.sha256, where=str(place))
            return Place(place.origin, str(path))
        if place.origin == "bundled":
            file = self._carried.file(one.sha256, one.size, self._store.blobs)
            if file is None:
                raise ArtifactError("is no plain file", where=place.where, hint=_ELSEWHERE)
            place = Place(place.origin, str(file))
        if place.origin in ("bundled", "index"):
            _is(Path(place.where), one)
        return place

    @contextlib.contextmanager
    def _answering(self, host: str, where: str) -> Iterator[None]:
        """Where somebody else may have it all, a server that did not answer is not waited for again and again."""
        if host in self._silent:
            raise NetworkError("did not answer a moment ago", where=where, hint="look at the network and at `pip config list`")
        try:
            yield
        except NetworkError as error:
            if self._givers is not None and self._givers.layers and "(status " not in error.what:
                self._silent.add(host)
            raise

    def packed(self, one: Artifact) -> Path | None:
        """The blob beside the spec, where it is kept as gzip and is whole."""
        return self._carried.packed_file(one.sha256, self._store.facts)

    def ask(self, place: Place, one: Artifact) -> Place:
        """As `take`, but without bringing anything: a server is asked whether it would give the file."""
        if not place.remote:
            return self.take(place, one)
        if place.origin == "registry":
            return place  # its manifest was read: it says that the blob is there
        from repro_env.io.ranges import RangesRefusedError

        try:
            with self._answering(urlsplit(place.where).netloc, str(place)), self.session.open_range(place.where) as file:
                size = file.seek(0, os.SEEK_END)
        except RangesRefusedError:
            return place  # it is there; how long it is will be seen
        if size != one.size:
            raise ArtifactError(f"has {size} bytes where {one.filename} has {one.size}", where=str(place), hint=_OTHER)
        return place

    def drop(self, place: Place, one: Artifact) -> bool:
        """A place that was taken gave other bytes. True when that is so; the store's own damaged blob is deleted."""
        if not place.whole:
            return True
        try:
            _is(Path(place.where), one)
        except ArtifactError:
            held = self._store.blobs.path(one.sha256)
            if held is not None and str(held) == place.where:
                self._store.blobs.remove(one.sha256)
            return True
        return False

    def _bounded(self, place: Place, one: Artifact) -> Iterator[bytes]:
        """A server may send without end: not more than the wheel's size is taken."""
        left = one.size
        for chunk in self.session.download(place.where):
            left -= len(chunk)
            if self._stopped:
                raise NetworkError("stopped", where=str(place), hint="rebuild again")
            if left < 0:
                raise ArtifactError(f"gives more than the {one.size} bytes of {one.filename}", where=str(place), hint=_OTHER)
            with self._lock:
                self.fetched += len(chunk)
            yield chunk

    @property
    def session(self) -> Session:
        """Opened when the first server is asked: pip's insides take long to import."""
        with self._lock:
            if self._opened is None:
                from repro_env.capture import packagemanagers
                from repro_env.io.http import Session

                # The user's own settings of uv count, and not those of a project, which may be a stranger's.
                own = packagemanagers.look(None, os.environ)
                self._opened = Session(prefix=self._spec.identity.layout.prefix, cache=self._store.facts, sources=own)
            return self._opened

    def _on_indexes(self, one: Wheel, failures: list[ReproEnvError]) -> Iterator[Place]:
        """The same file name, and the same sha256 where one is said, on an index or find-links of this machine."""
        from repro_env.io.http import local_path

        try:
            with self._answering("", "the configured indexes"):
                offers = self._indexes.offers(one.name, one.version)
        except (LockError, NetworkError) as error:
            failures.append(error)
            return
        for offer in offers.candidates:
            if offer.filename == one.filename and offer.sha256 in ("", one.sha256.removeprefix("sha256:")):
                path = local_path(offer.url)
                yield Place("index", str(path) if path is not None else offer.url)
        failures += offers.failures
        if self._givers is not None and self._givers.layers and offers.failures and not offers.candidates:
            self._silent.add("")

    @property
    def _indexes(self) -> Indexes:
        session = self.session
        with self._lock:
            if self._asked is None:
                from repro_env.lock.index import Indexes

                self._asked = Indexes(session)
            return self._asked

    def _unpacked(self, one: Wheel, facts: rule.Facts) -> Iterator[Place]:
        """Trees that may hold the wheel's files, by their sizes: the captured environment, then uv's cache."""
        layout = self._spec.identity.layout_of(one)
        installed = rule.canonical(facts, layout, name=one.name)
        sizes = {entry.path: entry.size for entry in installed.entries if entry.path in installed.members}
        prefix = layout.prefix
        if _stands(prefix, sizes.items()):
            yield Place("live", prefix)
        info = rule.dist_info([file.name for file in facts.files], facts.filename)
        for archive in self._uv().get(info, ()):
            members = ((installed.members[path], size) for path, size in sizes.items())
            if _same(archive / info / "RECORD", facts.record) and _stands(str(archive), members):
                yield Place("uv", str(archive))

    def _uv(self) -> dict[str, list[Path]]:
        """Unpacked wheels of uv's cache, by their `.dist-info` folder."""
        with self._lock:
            if self._archives is None:
                self._archives = {}
                for archive in sorted(_uv_cache().glob("archive-v*/*")):
                    for info in _dist_infos(archive):
                        self._archives.setdefault(info, []).append(archive)
            return self._archives


class Search:
    """The search for one wheel, place after place."""

    def __init__(self, finder: Finder, one: Artifact, facts: rule.Facts | None) -> None:
        self._wheel = one
        self._failures: list[ReproEnvError] = []
        self._places = finder.places(one, facts, self._failures)
        self._ahead: Place | None = None

    def peek(self, agree: Callable[[Place, Artifact], Place]) -> Place:
        """The first place that `agree` (say `Finder.ask`) lets pass. Raises as `take`; `take` starts from it."""
        if self._ahead is None:
            self._ahead, _ = self._next(agree)
        return self._ahead

    def take(self, prove: Callable[[Place, Artifact], Place]) -> Place:
        """What `prove` (`Finder.take`) makes of the next place that it agrees with.

        Raises `NetworkError` when those that are left did not answer, else `ArtifactError`; both with all that was tried.
        """
        _, proven = self._next(prove)
        return proven

    def _next(self, prove: Callable[[Place, Artifact], Place]) -> tuple[Place, Place]:
        while True:
            place, self._ahead = self._ahead or next(self._places, None), None
            if place is None:
                raise self._nowhere()
            try:
                return place, prove(place, self._wheel)
            except (ArtifactError, NetworkError) as error:
                self._failures.append(error)

    def failed(self, error: ReproEnvError) -> None:
        """A place that was taken turned out bad."""
        self._failures.append(error)

    def _nowhere(self) -> ReproEnvError:
        where = f"{self._wheel.name}=={self._wheel.version}"
        if not self._failures:
            return ArtifactError(
                f"{self._wheel.filename} is nowhere to be had: not on this machine, not carried, at no URL, on no configured index",
                where=where,
                hint=f"configure the index that has it in pip, {HINT}",
            )
        tried = "; ".join(dict.fromkeys(str(error) for error in self._failures))
        silent = all(isinstance(error, NetworkError) and not error.what.endswith(_GONE) for error in self._failures)
        if silent:
            return NetworkError(f"cannot be fetched: {tried}", where=where, hint=self._failures[0].hint)
        return ArtifactError(
            f"{self._wheel.filename} could not be had: {tried}",
            where=where,
            hint=f"configure an index that has this very file in pip, {HINT}",
        )


def contents(place: Place, installed: rule.Installed) -> Contents:
    """The bytes of a wheel's canonical form from a place that was taken; entries relative to the prefix.

    Of a whole wheel nothing is checked again per file: its sha256 was, and the diff ID that is computed while
    the layer is written covers every byte. Files of a tree are checked each, so that the one to blame is known.
    """
    if place.whole:
        return WheelContents(Path(place.where), installed)
    files = FileContents(Path(place.where))
    tree = _Archive(files, installed) if place.origin == "uv" else files
    return _Checked(DistributionContents(installed, tree, frozenset(), None))


class _Archive:
    """Files as they lie in an unpacked wheel."""

    def __init__(self, files: Contents, installed: rule.Installed) -> None:
        self._files = files
        self._members = installed.members

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        return self._files.chunks(msgspec.structs.replace(entry, path=self._members[entry.path]))


class _Checked:
    def __init__(self, inner: Contents) -> None:
        self._inner = inner

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        for _, chunks in checked([(entry, self._inner.chunks(entry))]):
            yield from chunks


def _stands(root: str, sizes: Iterable[tuple[str, int]]) -> bool:
    """Whether regular files of these sizes lie there: quick, and no proof."""
    try:
        for path, size in sizes:
            facts = os.lstat(f"{root}/{path}")
            if facts.st_size != size or not stat.S_ISREG(facts.st_mode):
                return False
    except OSError:
        return False
    return True


def _same(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def _uv_cache() -> Path:
    """Where uv keeps it (uv, "Cache directory")."""
    if given := os.environ.get("UV_CACHE_DIR"):
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path("~/.cache").expanduser()) / "uv"


def _dist_infos(archive: Path) -> list[str]:
    try:
        return [name for name in os.listdir(archive) if name.endswith(".dist-info")]  # noqa: PTH208
    except OSError:
        return []


def _is(path: Path, one: Artifact) -> None:
    """Check a whole wheel. Raises `ArtifactError`."""
    try:
        found = "sha256:" + sha256_of(path)
    except OSError as error:
        raise ArtifactError(f"cannot be read: {error.strerror}", where=str(path), hint="restore it, or capture again") from None
    if found != one.sha256:
        raise ArtifactError(
            f"is not {one.filename} as captured: its sha256 is {found[7:19]}… and not {one.sha256[7:19]}…",
            where=str(path),
            hint="it is damaged; copy it again from where it was captured, or capture again",
        )


_GONE = ("(status 404)", "(status 410)")
"""How `io.http` ends its sentence when a server answered that it does not have the file: an answer, and no silence."""
_OTHER = "the server has other bytes now than when it was captured"
_ELSEWHERE = "copy the blobs/ folder of the capture beside the spec, or capture again"
