"""Find the wheel files that the configured indexes, find-links and lock files offer for a distribution, and read what they contain.

pip reads the pages. Yanked files (PEP 592) are treated like others, because they may be what is installed. Of a wheel, as
few bytes as possible are fetched, or the whole file if that is needed.
"""

from __future__ import annotations

import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import msgspec
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from repro_env.environment import archives
from repro_env.io import pip
from repro_env.io.http import RangesRefusedError
from repro_env.io.indexhttp import ABSENT, Page, Session, local_path
from repro_env.oci import wheel
from repro_env.schema import codec, redact
from repro_env.schema.errors import ArtifactError, LockError, NetworkError
from repro_env.store.packages import wheelfile
from repro_env.store.store import Store

_NAME = re.compile(r"[A-Za-z0-9_.!+-]{1,251}\.whl")  # schema.text.WheelName


class Candidate(msgspec.Struct, frozen=True):
    """A wheel file that an index offers."""

    filename: str
    url: str
    """http(s) or file, without a fragment. It may contain credentials or a signature: use it for requests only."""
    sha256: str
    """64 hexadecimal digits; empty if the index does not list it."""
    index: str
    """The redacted index or find-links location; empty for direct URLs."""

    @property
    def downloadable(self) -> bool:
        """Whether other machines can download it."""
        return archives.downloadable(self.url)


class Offers(msgspec.Struct, frozen=True):
    candidates: tuple[Candidate, ...]
    """Downloadable candidates first, then in the configured order, without duplicates."""
    refusals: tuple[str, ...]
    """Indexes that refused access (status 403): one redacted sentence each."""
    failures: tuple[NetworkError, ...]
    """Indexes that could not be reached."""


class Indexes:
    """The configured indexes, find-links and lock files. Safe to use from several threads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._find_links: tuple[list[Candidate], list[NetworkError]] | None = None
        self._lock = threading.Lock()
        self._unreachable: dict[str, NetworkError] = {}

    def offers(self, name: str, version: str) -> Offers:
        """The wheels of a distribution (normalized name) in one version (PEP 440 equality)."""
        links, failures = self._find_links_candidates()
        found = [candidate_from_url(file.url, file.index, file.sha256) for file in self._session.sources.files.get(name, ())]
        wanted_version = _parse_version(version)
        refusals: list[str] = []
        failures = list(failures)
        for index in self._session.configuration.indexes:
            if index in self._unreachable:  # pip's retries take long, so they are made for one distribution only
                failures.append(self._unreachable[index])
                continue
            try:
                page = self._session.get_page(f"{index.rstrip('/')}/{name}/")
            except NetworkError as error:
                self._unreachable[index] = error
                failures.append(error)
                continue
            found += candidates(page, redact.url(index), lambda filename: _matches(filename, name, wanted_version))
            if page.status == ABSENT[0]:
                refusals.append(f"{redact.url(index)} answered with status {page.status}")
        matching = [candidate for candidate in (*found, *links) if _matches(candidate.filename, name, wanted_version)]
        # Without a sha256, the whole file has to be downloaded.
        matching.sort(key=lambda candidate: (not candidate.downloadable, not candidate.sha256))
        unique: dict[tuple[str, str], Candidate] = {}
        for candidate in matching:
            unique.setdefault((candidate.filename, candidate.sha256 or candidate.url), candidate)
        return Offers(tuple(unique.values()), tuple(refusals), tuple(failures))

    def _find_links_candidates(self) -> tuple[list[Candidate], list[NetworkError]]:
        """The candidates in find-links, which are the same for all distributions and read once; and the errors."""
        with self._lock:
            if self._find_links is None:
                self._find_links = [], []
                for location in self._session.configuration.find_links:
                    try:
                        self._find_links[0].extend(self._candidates_at(location))
                    except NetworkError as error:  # noqa: PERF203 - each location has its own errors
                        self._find_links[1].append(error)
            return self._find_links

    def _candidates_at(self, location: str) -> Iterator[Candidate]:
        path = Path(location) if Path(location).exists() else local_path(location)
        url = location if path is None else path.absolute().as_uri()
        shown = redact.url(url if path is None or path.is_absolute() else location)
        if path is not None and path.is_dir():
            for entry in sorted(path.iterdir()):
                if entry.suffix in (".html", ".htm"):
                    yield from candidates(self._session.get_page(entry.absolute().as_uri()), shown)
                elif entry.suffix == ".whl":
                    yield Candidate(entry.name, entry.absolute().as_uri(), "", shown)
        elif url.endswith(".whl"):
            yield candidate_from_url(url, shown)
        elif path.is_file() if path is not None else "://" in location:
            yield from candidates(self._session.get_page(url), shown)


def candidates(page: Page, index: str, wanted: Callable[[str], bool] = lambda _: True) -> list[Candidate]:
    """The wheels on a page; none for a page that does not exist. Raises `LockError` if it is not an index page.

    `wanted`: the names of the files that are needed; others may be left out.
    """
    if page.status != 200:
        return []
    try:
        links = pip.links(page.body, page.content_type, page.url, wanted)
    except ValueError as error:
        raise LockError(
            f"this is not an index page: {redact.line(str(error))}",
            where=redact.url(page.url),
            hint="check the index URL in pip's configuration",
        ) from None
    schemes = ("http", "https", "file") if page.url.startswith("file:") else ("http", "https")
    found = [candidate_from_url(url, index, sha256) for url, sha256 in links if url.partition(":")[0] in schemes]
    return [candidate for candidate in found if candidate.filename.endswith(".whl")]


def candidate_from_url(url: str, index: str, sha256: str = "") -> Candidate:
    """A candidate from a URL, which may have a hash in its fragment."""
    url, _, fragment = url.partition("#")
    filename = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
    sha256 = (sha256 or urllib.parse.parse_qs(fragment).get("sha256", [""])[0]).lower()
    return Candidate(filename, url, sha256 if re.fullmatch(r"[0-9a-f]{64}", sha256) else "", index)


def tags_of(filename: str) -> tuple[frozenset[Tag], str]:
    """The tag set and the build number of a wheel's file name."""
    _, _, build, tags = parse_wheel_filename(filename)
    return tags, "".join(str(part) for part in build)


@lru_cache(maxsize=65536)
def _parse_version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _matches(filename: str, name: str, version: Version | None) -> bool:
    # Cheap checks first: a page may list thousands of files.
    parts = filename.removesuffix(".whl").split("-")
    if version is None or len(parts) not in (5, 6) or not _NAME.fullmatch(filename):
        return False
    if _parse_version(parts[1].replace("_", "-")) != version or canonicalize_name(parts[0]) != name:
        return False
    try:
        parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    return True


class CandidateFacts(msgspec.Struct, frozen=True):
    """What a candidate contains. The cache has it in this form, by digest and URL."""

    facts: wheel.Facts
    digest: str
    """Of the whole wheel: computed, or as listed by the index if only ranges were read."""
    size: int


class CandidateReader:
    """Reads candidates. Safe to use from several threads."""

    def __init__(self, session: Session, store: Store) -> None:
        self._session = session
        self._store = store

    def read(self, candidate: Candidate) -> CandidateFacts:
        """The facts of a candidate.

        Raises `NetworkError` if it is not available, `ArtifactError` if it is not a wheel or has other bytes.
        """
        digest = f"sha256:{candidate.sha256}" if candidate.sha256 else self.fetch(candidate)[1]
        # The URL is part of the key, because the hash of a file of which only ranges were read was never computed.
        key = f"{digest} {redact.url(candidate.url)}"
        cached = self._store.facts.recall("evidence", key, CandidateFacts)
        if cached is None:
            cached = self._by_range(candidate, digest) or self._whole(candidate)
            self._store.facts.put("evidence", key, codec.canonical(cached))
        # The same file may have several names.
        return msgspec.structs.replace(cached, facts=cached.facts._replace(filename=candidate.filename))

    def fetch(self, candidate: Candidate) -> tuple[Path, str]:
        """The whole wheel as a local file, and its digest. If the index lists a sha256, a file with other bytes is rejected."""
        expected = f"sha256:{candidate.sha256}" if candidate.sha256 else ""
        local = local_path(candidate.url)
        if local is not None:
            path = local.resolve()
            if not path.is_file():
                raise NetworkError(
                    "this wheel does not exist", where=str(path), hint="check the configured find-links and direct URLs"
                )
            digest = "sha256:" + self._store.hashes.of_file(path)
            if expected and digest != expected:
                raise ArtifactError("this file differs from the sha256 in its index", where=str(path), hint="update the index")
            return path, digest
        if not expected:
            return self._store.blobs.add(self._session.download(candidate.url))
        stored = self._store.blobs.path(expected)
        return stored or self._store.blobs.put(
            self._session.download(candidate.url), expected, where=redact.url(candidate.url)
        ), expected

    def _by_range(self, candidate: Candidate, digest: str) -> CandidateFacts | None:
        """None if ranges are not enough: for a local file, or if the server does not support them or they make no sense."""
        if local_path(candidate.url) is not None or not candidate.sha256:
            return None
        try:
            with self._session.open_range(candidate.url) as file:
                size = file.seek(0, os.SEEK_END)
                return CandidateFacts(wheelfile.facts(file, candidate.filename), digest, size)
        except (RangesRefusedError, ArtifactError):
            return None

    def _whole(self, candidate: Candidate) -> CandidateFacts:
        path, digest = self.fetch(candidate)
        return CandidateFacts(wheelfile.open_facts(path, candidate.filename), digest, path.stat().st_size)
