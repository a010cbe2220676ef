"""Which archive is this conda package? The one whose hash its record names; else nothing, and its files are plain files.

An installer notes the sha256 (or only the md5) of every archive, so there is one candidate and nothing to guess: it is
looked for in the package cache, in the store and at its URL. Of a `.conda` on a server that gives parts of files `info/`
is enough to tell what it becomes, together with the installed files: each is the one that was packed, or turns into it
when the prefix is taken out. What `info/` does not tell, executable bits and the targets of symlinks, is then taken from
the installed files where that is beyond doubt; where it is not, the whole archive is fetched.

Whether the installed files still are what the package brought is not asked here: what was edited goes to the overlay.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import BoundedSemaphore
from typing import Literal

import msgspec

from repro_env.capture.conda import Meta, Record
from repro_env.image import conda, stack
from repro_env.image.wheel import Installed
from repro_env.io.files import FileContents, keys_of, room, walk
from repro_env.io.http import Session, local_path
from repro_env.io.ranges import RangesRefusedError
from repro_env.lock import layers
from repro_env.lock.index import linkable
from repro_env.lock.places import Place
from repro_env.lock.repack import chunks_of
from repro_env.lock.search import Search
from repro_env.model import codec, redact
from repro_env.model.artifact import CondaPackage
from repro_env.model.environment import Carried
from repro_env.model.errors import ArtifactError, NetworkError
from repro_env.model.image import Layer
from repro_env.model.spec import WheelHint
from repro_env.model.talk import Tell
from repro_env.model.text import Url
from repro_env.store import condafile
from repro_env.store.store import Store

THREADS = 8
_RULE = 1
"""Part of the cache's key; a change of what a proof means needs the next number."""
_PROGRAMS = ("bin/", "sbin/", "libexec/")
_LOCAL = "from a local file, which no other machine can reach"
_LOOPBACK = "from a channel of this machine, which no other machine can reach"
_SIGNED = "its URL holds a token or signature, which is not written down"


class Identified(msgspec.Struct, frozen=True):
    """One package as an archive."""

    package: CondaPackage
    hint: WheelHint
    facts: conda.Facts
    file: Path | None
    """The archive, when it is on disk; always for one that is carried."""
    why: str
    """Why it is carried; empty when it is linked."""


class _Proof(msgspec.Struct, frozen=True):
    """A proven package, as the store remembers it."""

    package: CondaPackage
    origin: Literal["direct", "carried"]
    url: str
    why: str
    key: str
    """Of its facts."""
    file: str


class _NotHadError(Exception):
    """Why there is no archive, in one line."""


def identify(
    meta: Meta, place: Place, *, store: Store, environ: Mapping[str, str], tell: Tell
) -> tuple[tuple[Identified, ...], tuple[Carried, ...]]:
    """Every package of an environment whose archive can be had, sorted by name; and the others, with the reason.

    The files of the others are plain files of the environment, and `tell` says so.
    """
    if not meta.records:
        return (), ()
    label = f"identifying {len(meta.records):,} conda packages"
    with tell.progress(0, label), Session(prefix=place.layout.prefix, cache=store.facts) as session:
        search = _Search(session, place, store, environ)
        with ThreadPoolExecutor(THREADS, thread_name_prefix="conda") as pool:
            try:
                answers = list(pool.map(search.identified, meta.records))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    tell.detail(f"{len(meta.records)} conda packages in {place.prefix}")
    done = tuple(one for one in answers if isinstance(one, Identified))
    sizes = {one.path: one.size for one in place.found}
    plain = [
        Carried(
            name=record.name,
            version=record.version,
            why=redact.line(f"{answer}: its files are carried as they are"),
            size=sum(sizes.get(path, 0) for path in record.files),
        )
        for record, answer in zip(meta.records, answers, strict=True)
        if isinstance(answer, str)
    ]
    for one in plain:
        tell.detail(f"conda package {one.name} {one.version}: {one.why}")
    return done, tuple(plain)


def layers_of(
    groups: Sequence[stack.GroupLayer],
    installed: Mapping[str, Installed],
    packages: Sequence[Identified],
    altered: Mapping[str, frozenset[str]],
    place: Place,
    store: Store,
) -> tuple[Layer, ...]:
    """The layers of packages, from the installed files; from the archive what the environment does not show as it was."""
    live = FileContents(place.prefix, keys=keys_of(place.found))
    sources: dict[str, layers.DistributionContents] = {}
    needed = {name for group in groups if layers.known_layer(group, facts=store.facts) is None for name in group.names}
    with ExitStack() as opened:
        for one in packages:
            key = one.package.key
            changed, archive = altered[key] & set(installed[key].members), None
            if changed and key in needed:
                package = condafile.Unpacked(whole(one, store), one.package.filename, str(place.prefix), store.temp)
                archive = condafile.CondaContents(opened.enter_context(package), installed[key])
            sources[key] = layers.DistributionContents(installed[key], live, changed, archive)
        holds = {one.package.key: f"{one.package.key}=={one.package.version}" for one in packages}
        return layers.diff_ids(groups, sources, holds, facts=store.facts, kind="conda")


def whole(one: Identified, store: Store) -> Path:
    """The archive of an identified package, fetched into the store when it is not there yet."""
    path = one.file or store.blobs.path(one.package.sha256)
    if path is not None:
        return path
    url = next(iter(one.hint.urls), "")
    if not url:
        raise ArtifactError("is nowhere to be had", where=one.package.filename, hint="capture again where it is")
    with Session(cache=store.facts) as session:
        return store.blobs.put(session.download(url), one.package.sha256, where=url, size=one.package.size)


def search(
    looking: Search, packages: Sequence[Identified], installed: Mapping[str, Installed], prefix: Path, store: Store
) -> None:
    """Look for secrets in the packages that are carried and were built on this machine. What a server gave is not private."""
    for one in packages:
        if one.why in (_LOCAL, _LOOPBACK):
            becomes, name = installed[one.package.key], one.package.filename
            with condafile.Unpacked(whole(one, store), name, str(prefix), store.temp) as package:
                members = [entry for entry in becomes.entries if entry.path in becomes.members]
                looking.tree(members, condafile.CondaContents(package, becomes), f"{name}/".__add__)


class _Search:
    """The search for all packages of one environment; called from several threads."""

    def __init__(self, session: Session, place: Place, store: Store, environ: Mapping[str, str]) -> None:
        self._session = session
        self._layout = place.layout
        self._prefix = place.layout.prefix
        self._found = {one.path: one for one in place.found}
        self._hashes = place.hashes
        self._store = store
        self._caches = tuple(_caches(place.prefix, environ))
        self._unpacking = BoundedSemaphore(len(os.sched_getaffinity(0)))
        # conda writes them without that bit: a change of all modes cannot be told from how files were packed.
        self._modes = not any(one.executable for one in place.found if one.path.startswith("conda-meta/"))

    def identified(self, record: Record) -> Identified | str:
        """The package; or why there is none, in a few words."""
        told = [record.name, record.version, record.build, record.subdir, record.filename, record.sha256, record.md5]
        key = codec.digest([_RULE, *told, record.url, record.size, self._layout])
        known = self._known(key)
        if known is not None:
            return known
        try:
            proof, facts = self._proven(record)
        except _NotHadError as reason:
            return str(reason)
        except ArtifactError as error:
            return str(error)
        self._store.facts.put("conda-proof", key, codec.canonical(proof))
        return _identified(proof, facts)

    def _known(self, key: str) -> Identified | None:
        proof = self._store.facts.recall("conda-proof", key, _Proof)
        if proof is None:
            return None
        facts = self._store.facts.recall(condafile.FACTS, proof.key, conda.Facts)
        if facts is None or (proof.file and not self._is(Path(proof.file), proof.package.sha256)):
            return None
        return _identified(proof, facts)

    def _proven(self, record: Record) -> tuple[_Proof, conda.Facts]:
        """Raises `_NotHadError`, or `ArtifactError` for an archive that cannot be linked."""
        if not record.sha256 and not record.md5:
            raise _NotHadError("its record names no hash")
        reasons: list[str] = []
        for path in self._cached(record):
            digest, size = self._digest(path, record)
            if digest:
                return self._whole(record, path, digest, size, local=True)
            reasons.append(f"{path} is another file")
        if not record.url:
            raise _NotHadError("; ".join([*reasons, "its record names no URL, and it is not in the package cache"]))
        local = local_path(record.url)
        if local is not None:
            if not local.is_file():
                raise _NotHadError(f"{local} is gone, and it is not in the package cache")
            digest, size = self._digest(local, record)
            if not digest:
                raise _NotHadError(f"{local} is another file now, and it is not in the package cache")
            return self._whole(record, local, digest, size, local=True)
        if not record.url.startswith(("http://", "https://")):
            raise _NotHadError(f"its URL cannot be fetched ({record.shown_url}), and it is not in the package cache")
        try:
            return self._by_range(record) or self._fetched(record)
        except NetworkError as error:
            raise _NotHadError("; ".join([*reasons, f"it is not in the package cache, and {error}"])) from None

    def _cached(self, record: Record) -> Iterator[Path]:
        """Where the archive may lie on this machine."""
        if record.sha256:
            held = self._store.blobs.path(f"sha256:{record.sha256}")
            if held is not None:
                yield held
        places = [record.archive] if record.archive else []
        if record.unpacked:
            places.append(posixpath.join(posixpath.dirname(record.unpacked), record.filename))
        places += [str(cache / record.filename) for cache in self._caches]
        for place in dict.fromkeys(places):
            if place.startswith("/") and place.endswith((".conda", ".tar.bz2")) and Path(place).is_file():
                yield Path(place)

    def _digest(self, path: Path, record: Record) -> tuple[str, int]:
        """(its sha256, its size) if it is the recorded archive; else empty. Known without reading while the file stays."""
        path = path.resolve()
        (found,) = walk(path.parent, skip=lambda name, _: name != path.name)
        if record.size not in (-1, found.size):
            return "", 0
        digest = self._store.hashes.of(path.parent, [found], workers=1)[path.name]
        if record.sha256:
            return (f"sha256:{digest}", found.size) if digest == record.sha256 else ("", 0)
        _, md5, size = condafile.digests(chunks_of(path))
        return (f"sha256:{digest}", size) if md5 == record.md5 else ("", 0)

    def _is(self, path: Path, digest: str) -> bool:
        if not path.is_file():
            return False
        (found,) = walk(path.parent, skip=lambda name, _: name != path.name)
        return "sha256:" + self._store.hashes.of(path.parent, [found], workers=1)[path.name] == digest

    def _whole(self, record: Record, path: Path, digest: str, size: int, *, local: bool) -> tuple[_Proof, conda.Facts]:
        """The proof by an archive on this machine."""
        key = condafile.facts_key(digest, self._prefix)
        facts = self._store.facts.recall(condafile.FACTS, key, conda.Facts)
        if facts is None or facts.filename != record.filename:
            with self._unpacking, self._store.temp.folder() as folder:
                facts, _ = condafile.link(path, record.filename, self._prefix, folder, whole=False)
            conda.canonical(facts, self._layout)
            self._store.facts.put(condafile.FACTS, key, codec.canonical(facts))
        why = self._why(record, size, local=local)
        return self._proof(record, facts, digest, size, key, why, path.resolve() if why else None), facts

    def _why(self, record: Record, size: int, *, local: bool) -> str:
        """Why the archive has to be carried; empty when another machine can get it from its URL, which is asked."""
        if not record.url.startswith(("http://", "https://")):
            return _LOCAL
        if not linkable(record.url):
            return _LOOPBACK
        if not _is_url(record.shown_url) or record.shown_url != record.url:
            return _SIGNED
        if not local:
            return ""
        try:
            with self._session.open_range(record.url) as file:
                told: int = file.size  # type: ignore[attr-defined]
                return "" if told == size else f"{record.url} gives another file now"
        except RangesRefusedError:
            return ""  # it is there
        except NetworkError as error:
            return redact.line(f"only its URL is known, and {error}")

    def _fetched(self, record: Record) -> tuple[_Proof, conda.Facts]:
        """The whole archive from its URL, into the store. Raises `NetworkError`, or `ArtifactError` for other bytes."""
        if record.sha256:
            digest = f"sha256:{record.sha256}"
            path = self._store.blobs.put(self._session.download(record.url), digest, where=record.shown_url)
            return self._whole(record, path, digest, path.stat().st_size, local=False)
        with self._store.temp.folder() as folder, room(self._store.root):
            with (folder / "archive").open("wb") as file:
                for chunk in self._session.download(record.url):
                    file.write(chunk)
            digest, md5, size = condafile.digests(chunks_of(folder / "archive"))
            if md5 != record.md5:
                raise ArtifactError("gives other bytes than were installed", where=record.shown_url)
            path = self._store.blobs.put(chunks_of(folder / "archive"), digest, where=record.shown_url)
        return self._whole(record, path, digest, size, local=False)

    def _by_range(self, record: Record) -> tuple[_Proof, conda.Facts] | None:
        """The proof by `info/` and the installed files; None where that leaves a doubt. Raises `NetworkError`."""
        if not record.sha256 or not record.filename.endswith(".conda") or not self._modes or self._why(record, 0, local=False):
            return None
        try:
            with self._session.open_range(record.url) as file:
                size: int = file.size  # type: ignore[attr-defined]
                info = condafile.info(file, record.filename)
        except (RangesRefusedError, ArtifactError):
            return None
        if record.size not in (-1, size):
            return None
        linked = self._linked(info)
        if linked is None:
            return None
        facts = conda.Facts(record.filename, info, linked)
        try:
            conda.canonical(facts, self._layout)
        except ArtifactError:
            return None
        digest = f"sha256:{record.sha256}"
        key = f"{condafile.facts_key(digest, self._prefix)} {record.url}"  # nobody hashed the archive
        self._store.facts.put(condafile.FACTS, key, codec.canonical(facts))
        return self._proof(record, facts, digest, size, key, "", None), facts

    def _linked(self, info: conda.Info) -> tuple[conda.Linked, ...] | None:
        """What each path becomes, as the installed files show it; None when one leaves a doubt."""
        packed = {one.path: one for one in info.paths}
        done = []
        for one in info.paths:
            path = conda.placed(one.path, info.noarch, self._layout)
            made = self._one(one, path, packed)
            if made is None:
                return None
            done.append(made)
        return tuple(done)

    def _one(self, one: conda.Packed, path: str, packed: Mapping[str, conda.Packed]) -> conda.Linked | None:
        live = self._found.get(path)
        if one.kind == "dir":
            return conda.Linked(one.path, "dir", False, 0, "", "")
        if "__pycache__" in path.split("/"):
            return conda.Linked(one.path, "file", False, max(one.size, 0), one.sha256, "")
        if live is None or live.kind != one.kind:
            return None
        if one.kind == "link":
            other = packed.get(posixpath.normpath(posixpath.join(posixpath.dirname(one.path), live.target)))
            certain = other is not None and other.kind == "file" and one.sha256 == other.sha256 != ""
            return conda.Linked(one.path, "link", False, 0, "", live.target) if certain else None
        if not _usual(path, live.executable, Path(self._prefix, path)):
            return None
        if not one.placeholder:
            same = one.sha256 == self._hashes[path] and one.size == live.size
            return conda.Linked(one.path, "file", live.executable, one.size, one.sha256, "") if same else None
        relinked = self._relinked(one, Path(self._prefix, path))
        return conda.Linked(one.path, "file", live.executable, *relinked, "") if relinked is not None else None

    def _relinked(self, one: conda.Packed, path: Path) -> tuple[int, str] | None:
        """Size and sha256 of a file with the prefix in place, if taking it out gives what was packed."""
        with self._store.temp.folder() as folder:
            hasher = hashlib.sha256()
            with (folder / "packed").open("wb") as out, condafile.mapped(path) as data:
                restored = conda.restored(data, one, self._prefix)
                for chunk in restored or ():
                    hasher.update(chunk)
                    out.write(chunk)
            if restored is None or hasher.hexdigest() != one.sha256:
                return None
            again, size = hashlib.sha256(), 0
            with condafile.mapped(folder / "packed") as data:
                for chunk in conda.replaced(data, one, self._prefix):
                    again.update(chunk)
                    size += len(chunk)
        return size, again.hexdigest()

    def _proof(self, record: Record, facts: conda.Facts, digest: str, size: int, key: str, why: str, file: Path | None) -> _Proof:
        info = facts.info
        if (info.name, info.version, info.build) != (record.name, record.version, record.build):
            raise ArtifactError(f"holds {info.name} {info.version} {info.build}", where=record.filename)
        package = CondaPackage(
            name=record.name,
            version=record.version,
            build=record.build,
            subdir=record.subdir,
            filename=record.filename,
            sha256=digest,
            size=size,
        )
        return _Proof(package, "carried" if why else "direct", record.shown_url, why, key, str(file or ""))


def _identified(proof: _Proof, facts: conda.Facts) -> Identified:
    linked = proof.origin == "direct"
    channel = proof.url.rpartition("/")[0].rpartition("/")[0]
    hint = WheelHint(
        sha256=proof.package.sha256,
        origin=proof.origin,
        urls=(proof.url,) if linked else (),
        index=redact.line(channel) if linked else "",
    )
    return Identified(proof.package, hint, facts, Path(proof.file) if proof.file else None, proof.why)


def _usual(path: str, executable: bool, file: Path) -> bool:
    """Whether a file has the mode that such files are packed with, as far as one can tell without the archive."""
    if not executable:
        return not path.startswith(_PROGRAMS)
    if path.startswith(_PROGRAMS) or ".so" in path.rpartition("/")[2]:
        return True
    with file.open("rb") as opened:
        return opened.read(4).startswith((b"\x7fELF", b"#!"))


def _caches(prefix: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Package caches that conda, mamba and micromamba use by default or are told of."""
    for path in environ.get("CONDA_PKGS_DIRS", "").split(os.pathsep):
        if path.startswith("/"):
            yield Path(path)
    yield prefix / "pkgs"
    yield prefix.parent.parent / "pkgs"
    if environ.get("MAMBA_ROOT_PREFIX", "").startswith("/"):
        yield Path(environ["MAMBA_ROOT_PREFIX"], "pkgs")
    if environ.get("HOME", "").startswith("/"):
        for name in (".conda", "micromamba", ".mamba", "miniconda3", "miniforge3", "anaconda3"):
            yield Path(environ["HOME"], name, "pkgs")


def _is_url(text: str) -> bool:
    try:
        msgspec.convert(text, type=Url)
    except msgspec.ValidationError:
        return False
    return True
