"""Read what a candidate wheel contains, fetching as few bytes as possible, or the whole file if that is needed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from repro_env.environment.wheels.index import Candidate
from repro_env.io.indexhttp import Session, local_path
from repro_env.io.ranges import RangesRefusedError
from repro_env.oci.wheel import Facts
from repro_env.schema import codec, redact
from repro_env.schema.errors import ArtifactError, NetworkError
from repro_env.store.facts import FactCache
from repro_env.store.packages.wheelfile import facts as facts_of
from repro_env.store.packages.wheelfile import open_facts
from repro_env.store.store import Store

_KIND = "evidence"
"""Kind of the cached facts."""


class CandidateFacts(msgspec.Struct, frozen=True):
    facts: Facts
    digest: str
    """Of the whole wheel: computed, or as listed by the index if only ranges were read."""
    size: int
    path: Path | None
    """The whole wheel, if it was needed or is a local file."""


class CachedFacts(msgspec.Struct, frozen=True):
    """Cached facts."""

    facts: Facts
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
        if local_path(candidate.url) is None and candidate.sha256:
            found = self._by_range(candidate)
            if found is not None:
                return found
        path, digest = self.fetch(candidate)
        cached = recall(self._store.facts, digest, candidate.filename) or self._remember(
            digest, open_facts(path, candidate.filename), path.stat().st_size
        )
        return CandidateFacts(cached.facts, digest, cached.size, path)

    def fetch(self, candidate: Candidate) -> tuple[Path, str]:
        """The whole wheel as a local file, and its digest. If the index lists a sha256, a file with other bytes is rejected."""
        local = local_path(candidate.url)
        if local is not None:
            path = local.resolve()
            if not path.is_file():
                raise NetworkError(
                    "this wheel does not exist", where=str(path), hint="check the configured find-links and direct URLs"
                )
            digest = "sha256:" + self._store.hashes.of_file(path)
            if candidate.sha256 and digest != "sha256:" + candidate.sha256:
                raise ArtifactError("this file differs from the sha256 in its index", where=str(path), hint="update the index")
            return path, digest
        if candidate.sha256:
            digest = "sha256:" + candidate.sha256
            path_cached = self._store.blobs.path(digest)
            return path_cached or self._store.blobs.put(
                self._session.download(candidate.url), digest, where=redact.url(candidate.url)
            ), digest
        return self._store.blobs.add(self._session.download(candidate.url))

    def _by_range(self, candidate: Candidate) -> CandidateFacts | None:
        """None if the server does not support ranges or they make no sense: then the whole file decides."""
        digest, url = "sha256:" + candidate.sha256, redact.url(candidate.url)
        cached = recall(self._store.facts, digest, candidate.filename, url)
        if cached is None:
            try:
                with self._session.open_range(candidate.url) as file:
                    size: int = file.size  # type: ignore[attr-defined]
                    cached = self._remember(_by_url(digest, url), facts_of(file, candidate.filename), size)
            except (RangesRefusedError, ArtifactError):
                return None
        return CandidateFacts(cached.facts, digest, cached.size, None)

    def _remember(self, key: str, facts: Facts, size: int) -> CachedFacts:
        cached = CachedFacts(facts, size)
        self._store.facts.put(_KIND, key, codec.canonical(cached))
        return cached


def is_cached(cache: FactCache, digest: str, url: str) -> bool:
    """Whether `recall` probably finds something."""
    return any(cache.has(_KIND, key) for key in (digest, _by_url(digest, url)))


def recall(cache: FactCache, digest: str, filename: str, url: str = "") -> CachedFacts | None:
    """Cached facts. Facts from ranges are valid only for their URL, because the hash of that file was never computed."""
    for key in (digest, _by_url(digest, url)):
        cached = cache.recall(_KIND, key, CachedFacts)
        if cached is not None:
            # The same file may have several names.
            return CachedFacts(cached.facts._replace(filename=filename), cached.size)
    return None


def _by_url(digest: str, url: str) -> str:
    return f"{digest} {url}"
