"""What a candidate is made of, with as few bytes fetched as it takes; and the whole of it when that is wanted."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from repro_env.image.wheel import Facts
from repro_env.io.files import room, walk
from repro_env.io.http import Session, local_path
from repro_env.io.ranges import RangesRefusedError
from repro_env.lock.index import Candidate
from repro_env.lock.repack import chunks_of
from repro_env.model import codec, redact
from repro_env.model.errors import ArtifactError, NetworkError
from repro_env.store.store import Store
from repro_env.store.wheelfile import facts as facts_of
from repro_env.store.wheelfile import open_facts


class Evidence(msgspec.Struct, frozen=True):
    facts: Facts
    digest: str
    """Of the whole wheel: computed, or as the index says when only ranges were read."""
    size: int
    path: Path | None
    """The whole wheel, when it was needed or is local anyway."""


class _Known(msgspec.Struct, frozen=True):
    """Facts as the store remembers them."""

    facts: Facts
    size: int


class Witness:
    """Looks at candidates. Safe to use from several threads."""

    def __init__(self, session: Session, store: Store) -> None:
        self._session = session
        self._store = store

    def look(self, one: Candidate) -> Evidence:
        """Raises `NetworkError` when it cannot be had, `ArtifactError` when it is no wheel or not the bytes that were named."""
        if local_path(one.url) is None and one.sha256:
            found = self._by_range(one)
            if found is not None:
                return found
        path, digest = self.fetch(one)
        known = self.recall(digest, one.filename) or self._remember(digest, open_facts(path, one.filename), path.stat().st_size)
        return Evidence(known.facts, digest, known.size, path)

    def fetch(self, one: Candidate) -> tuple[Path, str]:
        """The whole wheel, on this machine, and its digest. With a sha256 from the index, other bytes are refused."""
        local = local_path(one.url)
        if local is not None:
            path, digest = local.resolve(), self.digest_of(local)
            if one.sha256 and digest != "sha256:" + one.sha256:
                raise ArtifactError("has other bytes than its index says", where=str(path), hint="update the index")
            return path, digest
        if one.sha256:
            digest = "sha256:" + one.sha256
            path_known = self._store.blobs.path(digest)
            return path_known or self._store.blobs.put(self._session.download(one.url), digest, where=redact.url(one.url)), digest
        with self._store.temp.folder() as folder, room(self._store.root):
            hasher = hashlib.sha256()
            with (folder / "wheel").open("wb") as file:
                for chunk in self._session.download(one.url):
                    hasher.update(chunk)
                    file.write(chunk)
            digest = "sha256:" + hasher.hexdigest()
            return self._store.blobs.put(chunks_of(folder / "wheel"), digest, where=redact.url(one.url)), digest

    def digest_of(self, path: Path) -> str:
        """Of a local wheel; known without reading while the file stays as it is."""
        path = path.resolve()
        if not path.is_file():
            raise NetworkError("is not there", where=str(path), hint="name one that is")
        found = list(walk(path.parent, skip=lambda name, _: name != path.name))
        return "sha256:" + self._store.hashes.of(path.parent, found, workers=1)[path.name]

    def knows(self, digest: str, url: str) -> bool:
        """Whether `recall` will find something, as far as a look can tell."""
        return any(self._store.facts.has("evidence", key) for key in (digest, _by_url(digest, url)))

    def recall(self, digest: str, filename: str, url: str = "") -> _Known | None:
        """Facts seen before. Those read by ranges count only for the URL that they came from: nobody hashed the file."""
        for key in (digest, _by_url(digest, url)):
            known = self._store.facts.recall("evidence", key, _Known)
            if known is not None:
                # The same bytes may go by several names.
                return _Known(msgspec.structs.replace(known.facts, filename=filename), known.size)
        return None

    def _by_range(self, one: Candidate) -> Evidence | None:
        """None when the server does not give parts, or they make no sense: then the whole decides."""
        digest, url = "sha256:" + one.sha256, redact.url(one.url)
        known = self.recall(digest, one.filename, url)
        if known is None:
            try:
                with self._session.open_range(one.url) as file:
                    size: int = file.size  # type: ignore[attr-defined]
                    known = self._remember(_by_url(digest, url), facts_of(file, one.filename), size)
            except (RangesRefusedError, ArtifactError):
                return None
        return Evidence(known.facts, digest, known.size, None)

    def _remember(self, key: str, facts: Facts, size: int) -> _Known:
        known = _Known(facts, size)
        self._store.facts.put("evidence", key, codec.canonical(known))
        return known


def _by_url(digest: str, url: str) -> str:
    return f"{digest} {url}"
