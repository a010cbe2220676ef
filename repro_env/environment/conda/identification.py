"""Identify installed conda packages as archives; the files of other packages are plain files of the environment.

Installers record the sha256 (or only the md5) of every archive, so there is one candidate, which is searched in the package
cache, in the store and at its URL. If a server supports ranges, `info/` of a `.conda` archive and the installed files are
enough to determine its content: each installed file is the packed one, or is as its record says that it was linked.
Executable bits and targets of symlinks, which are not in `info/`, are then taken from the installed files if there is no doubt
about them. Otherwise the whole archive is downloaded.

Files that were edited since they were installed are not compared here: they go to the overlay.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import BoundedSemaphore

from repro_env.environment import archives
from repro_env.environment.archives import IdentifiedPackage
from repro_env.environment.conda.metadata import Meta, Record
from repro_env.environment.python.sites import Site
from repro_env.io.files import chunks_of
from repro_env.io.http import RangesRefusedError
from repro_env.io.indexhttp import Session, local_path
from repro_env.oci import conda
from repro_env.oci.entry import Entry
from repro_env.schema import codec, redact
from repro_env.schema.artifact import CondaPackage
from repro_env.schema.environment import Bundled
from repro_env.schema.errors import ArtifactError, NetworkError
from repro_env.schema.progress import Tell
from repro_env.schema.spec import WheelHint
from repro_env.store.packages import condafile
from repro_env.store.store import Store

_RULE = 3
"""Part of the cache's key; increment it when proofs change."""
_PROGRAMS = ("bin/", "sbin/", "libexec/")
_LONGEST_PREFIX = 90
"""Maximum characters of a prefix with which installers change the first line of a script only by replacing the prefix."""


class _UnavailableError(Exception):
    """The reason why there is no archive, in one line."""


def identify(
    meta: Meta, site: Site, *, store: Store, environ: Mapping[str, str], tell: Tell
) -> tuple[tuple[IdentifiedPackage, ...], tuple[Bundled, ...]]:
    """Identify the packages of an environment. Returns those whose archive is available, sorted by name, and the others.

    The files of the others are plain files of the environment, and `tell` reports the reason.
    """
    if not meta.records:
        return (), ()
    label = f"identifying {len(meta.records):,} conda packages"
    with tell.progress(0, label), Session(prefix=site.layout.prefix) as session:
        answers = archives.identify_all(lambda: _Identifier(session, site, store, environ).identify, meta.records)
    tell.detail(f"{len(meta.records)} conda packages in {site.prefix}")
    identified = tuple(answer for answer in answers if not isinstance(answer, str))
    sizes = {file.path: file.size for file in site.found}
    plain_packages = [
        Bundled(
            name=record.name,
            version=record.version,
            why=redact.line(f"{answer}: its files are bundled as plain files"),
            size=sum(sizes.get(path, 0) for path in record.files),
        )
        for record, answer in zip(meta.records, answers, strict=True)
        if isinstance(answer, str)
    ]
    for item in plain_packages:
        tell.detail(f"conda package {item.name} {item.version}: {item.why}")
    return identified, tuple(plain_packages)


class _Identifier:
    """Identifies the packages of an environment; its methods are called from several threads."""

    def __init__(self, session: Session, site: Site, store: Store, environ: Mapping[str, str]) -> None:
        self._session = session
        self._layout = site.layout
        self._prefix = site.layout.prefix
        self._found = {file.path: file for file in site.found}
        self._hashes = site.hashes
        self._store = store
        self._caches = tuple(_caches(site.prefix, environ))
        self._unpacking = BoundedSemaphore(len(os.sched_getaffinity(0)))
        self._has_plain_prefix = " " not in self._prefix and len(self._prefix) <= _LONGEST_PREFIX
        # conda writes these without that bit. If it is set, all modes were changed and do not show how files were packed.
        self._has_original_modes = not any(file.executable for file in site.found if file.path.startswith("conda-meta/"))

    def identify(self, record: Record) -> IdentifiedPackage | str:
        """The package, or the reason why it is not available."""
        record_fields = [record.name, record.version, record.build, record.filename, record.sha256, record.md5]
        key = codec.digest([_RULE, *record_fields, record.url, record.size, self._layout])
        cached = self._store.facts.recall("conda-proof", key, IdentifiedPackage)
        if cached is not None and cached.is_available(self._store):
            return cached
        try:
            identified = self._prove(record)
        except (_UnavailableError, ArtifactError) as reason:
            return str(reason)
        self._store.facts.put("conda-proof", key, codec.canonical(identified))
        return identified

    def _prove(self, record: Record) -> IdentifiedPackage:
        """Prove a package. Raises `_UnavailableError`, or `ArtifactError` for an archive that cannot be linked."""
        if not record.sha256 and not record.md5:
            raise _UnavailableError("its record has no hash")
        reasons: list[str] = []
        for path in self._local_archives(record):
            if digest := self._digest(path, record):
                return self._from_file(record, path, digest, local=True)
            reasons.append(f"{path} is a different file")
        reasons.append("the archive is not in the package cache")
        if not record.url.startswith(("http://", "https://")):
            shown = record.shown_url or "none is recorded"
            raise _UnavailableError("; ".join([*reasons, f"it cannot be downloaded from its URL ({shown})"]))
        try:
            return self._by_range(record) or self._fetch(record)
        except NetworkError as error:
            raise _UnavailableError("; ".join([*reasons, str(error)])) from None

    def _local_archives(self, record: Record) -> Iterator[Path]:
        """Paths on this machine where the archive may be."""
        if record.sha256:
            stored = self._store.blobs.path(f"sha256:{record.sha256}")
            if stored is not None:
                yield stored
        local = local_path(record.url)
        paths = [Path(record.archive), *(cache / record.filename for cache in self._caches), *([local] if local else [])]
        for path in dict.fromkeys(paths):
            if path.is_absolute() and path.name.endswith((".conda", ".tar.bz2")) and path.is_file():
                yield path

    def _digest(self, path: Path, record: Record) -> str:
        """The sha256 of a file if it is the recorded archive, else empty."""
        if record.size not in (-1, path.stat().st_size):
            return ""
        digest = self._store.hashes.of_file(path)
        matches = digest == record.sha256 if record.sha256 else condafile.md5_of(chunks_of(path.resolve())) == record.md5
        return f"sha256:{digest}" if matches else ""

    def _from_file(self, record: Record, path: Path, digest: str, *, local: bool) -> IdentifiedPackage:
        """The proof from an archive on this machine."""
        key = condafile.facts_key(digest, self._prefix)
        facts = self._store.facts.recall(condafile.FACTS, key, conda.Facts)
        if facts is None or facts.filename != record.filename:
            with self._unpacking, self._store.temp.directory() as directory:
                facts, _ = condafile.link(path, record.filename, self._prefix, directory)
            conda.canonical(facts, self._layout)
            self._store.facts.put(condafile.FACTS, key, codec.canonical(facts))
        size = path.stat().st_size
        why = archives.why_bundled(record.url) or (self._why_gone(record, size) if local else "")
        return _identified(record, facts, digest, size, why, str(path.resolve()) if why else "")

    def _why_gone(self, record: Record, size: int) -> str:
        """Why the archive cannot be downloaded from its URL any more; empty if it can."""
        try:
            with self._session.open_range(record.url) as file:
                remote_size = file.seek(0, os.SEEK_END)
                return "" if remote_size == size else f"{record.url} has a different file now"
        except RangesRefusedError:
            return ""  # the URL exists
        except NetworkError as error:
            return redact.line(f"the archive is available only from its URL, and {error}")

    def _fetch(self, record: Record) -> IdentifiedPackage:
        """Download the whole archive into the store. Raises `NetworkError`, or `ArtifactError` for other bytes."""
        content = self._session.download(record.url)
        if record.sha256:
            path = self._store.blobs.put(content, f"sha256:{record.sha256}", where=record.shown_url)
        else:
            path, _ = self._store.blobs.add(content)
        digest = self._digest(path, record)
        if not digest:
            raise ArtifactError("the file at this URL differs from the installed one", where=record.shown_url)
        return self._from_file(record, path, digest, local=False)

    def _by_range(self, record: Record) -> IdentifiedPackage | None:
        """The proof from `info/` and the installed files; None if there is a doubt. Raises `NetworkError`."""
        if (
            not record.sha256
            or not record.filename.endswith(".conda")
            or not self._has_original_modes
            or archives.why_bundled(record.url)
        ):
            return None
        try:
            with self._session.open_range(record.url) as file:
                size = file.seek(0, os.SEEK_END)
                info = condafile.info(file, record.filename)
        except (RangesRefusedError, ArtifactError):
            return None
        if record.size not in (-1, size):
            return None
        packed = {file.path: file for file in info.paths}
        linked = tuple(self._linked_file(file, record, info.noarch, packed) for file in info.paths)
        if not all(linked):
            return None
        facts = conda.Facts(record.filename, info, tuple(filter(None, linked)))
        try:
            conda.canonical(facts, self._layout)
        except ArtifactError:
            return None
        digest = f"sha256:{record.sha256}"
        key = f"{condafile.facts_key(digest, self._prefix)} {record.url}"  # the hash of the archive was not computed
        self._store.facts.put(condafile.FACTS, key, codec.canonical(facts))
        return _identified(record, facts, digest, size, "", "")

    def _linked_file(
        self, file: conda.PackagePath, record: Record, noarch: str, packed: Mapping[str, conda.PackagePath]
    ) -> Entry | None:
        """The installed form of a packed path; None if the installed file does not show it."""
        path = conda.install_path(file.path, noarch, self._layout)
        live = self._found.get(path)
        if file.kind == "dir":
            return Entry(file.path, "dir")
        if "__pycache__" in path.split("/"):
            return Entry(file.path, "file", False, file.size_in_bytes or 0, file.sha256 or "")
        if live is None or live.kind != file.kind:
            return None
        if file.kind == "link":
            target = packed.get(posixpath.normpath(posixpath.join(posixpath.dirname(file.path), live.target)))
            is_certain = target is not None and target.kind == "file" and file.sha256 == target.sha256 is not None
            return Entry(file.path, "link", target=live.target) if is_certain else None
        if file.placeholder:
            is_certain = self._hashes[path] == record.files.get(path) and self._has_plain_prefix
        else:
            is_certain = (self._hashes[path], live.size) == (file.sha256, file.size_in_bytes)
        if not is_certain or not _has_usual_mode(path, live.executable, Path(self._prefix, path)):
            return None
        return Entry(file.path, "file", live.executable, live.size, self._hashes[path])


def _identified(record: Record, facts: conda.Facts, digest: str, size: int, why: str, file: str) -> IdentifiedPackage:
    info = facts.info
    if (info.name, info.version, info.build) != (record.name, record.version, record.build):
        raise ArtifactError(f"this archive contains {info.name} {info.version} {info.build}", where=record.filename)
    package = CondaPackage(
        name=record.name,
        version=record.version,
        build=record.build,
        subdir=info.subdir,
        filename=record.filename,
        sha256=digest,
        size=size,
    )
    hint = WheelHint(
        sha256=digest,
        origin="bundled" if why else "direct",
        urls=() if why else (record.url,),
        index="" if why else redact.line(record.url.rpartition("/")[0].rpartition("/")[0]),  # the channel
    )
    return IdentifiedPackage(package, hint, facts, file, why)


def _has_usual_mode(path: str, executable: bool, file: Path) -> bool:
    """Whether a file has the mode that such files usually have, as far as this can be known without the archive."""
    if not executable:
        return not path.startswith(_PROGRAMS)
    if path.startswith(_PROGRAMS) or ".so" in path.rpartition("/")[2]:
        return True
    with file.open("rb") as opened:
        return opened.read(4).startswith((b"\x7fELF", b"#!"))


def _caches(prefix: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """The package caches that conda, mamba and micromamba use by default or by configuration."""
    yield from (Path(path) for path in environ.get("CONDA_PKGS_DIRS", "").split(os.pathsep) if path.startswith("/"))
    names = (".conda", "micromamba", ".mamba", "miniconda3", "miniforge3", "anaconda3")
    roots = (environ.get("MAMBA_ROOT_PREFIX", ""), *(f"{environ.get('HOME', '')}/{name}" for name in names))
    for root in (str(prefix), str(prefix.parent.parent), *roots):
        if root.startswith("/"):
            yield Path(root, "pkgs")
