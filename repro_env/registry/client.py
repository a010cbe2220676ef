"""Images and blobs of one registry, by digest: what is read is checked as it comes, and what is there is not sent again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from repro_env.io.answer import LATER
from repro_env.io.files import CHUNK
from repro_env.io.target import origin
from repro_env.io.web import PAUSE, TRIES
from repro_env.model import redact
from repro_env.model.errors import ArtifactError, NetworkError
from repro_env.model.image import GZIP, Blob
from repro_env.registry import upload
from repro_env.registry.manifest import ACCEPT, LARGEST, Descriptor, Index, Manifest, choose, digest_of, is_digest, parse
from repro_env.registry.server import Server

DIGEST_HEADER = "Docker-Content-Digest"
_SMALL = 8 << 20
_DAMAGED = "the registry, or what stands before it, is damaged: ask who runs it"


class Registry:
    """One registry. For several threads, for forked processes, and to be pickled."""

    def __init__(self, host: str, *, pause: float = PAUSE, folder: Path | None = None) -> None:
        """`host`: as in a reference. `pause`: seconds before the second try of a request. Connects to nothing.

        `folder`: where what is being sent is held, in files without names; that of temporary files unless given.
        """
        self.host = host
        self._folder = folder
        self.server = Server(host, pause=pause)

    def manifest(self, repository: str, ref: str) -> tuple[bytes, str, str]:
        """(bytes, media type, digest) of a tag or digest, from one answer, so a tag may move meanwhile.

        Raises `NetworkError`; `ArtifactError` for other bytes than the digest that was asked for, or that the registry says.
        """
        url = self.server.url(f"{repository}/manifests/{ref}")
        where = self.where(repository, ref)
        for attempt in range(TRIES):
            with self.server.send("GET", url, scope=(pull(repository),), headers={"Accept": ACCEPT}) as answer:
                if answer.status != 200:
                    raise self.server.refused(answer, where, doing="pull")
                data = answer.whole(LARGEST)
                said = answer.headers.get(DIGEST_HEADER, "")
                media_type = answer.headers.get("Content-Type", "").partition(";")[0].strip()
            if data is not None:
                break
            self.server.web.pause(attempt)
        else:
            raise _cut(where)
        digest = digest_of(data)
        if is_digest(ref) and digest != ref:
            raise ArtifactError(f"answers with another manifest: its digest is {digest}", where=where, hint=_DAMAGED)
        if is_digest(said) and said != digest:
            raise ArtifactError(f"says that the digest is {said}, and that of its bytes is {digest}", where=where, hint=_DAMAGED)
        return data, media_type, digest

    def head(self, repository: str, ref: str) -> str | None:
        """The digest that a tag stands for now, as the registry says; None when there is none. To know it for sure: `manifest`."""
        url = self.server.url(f"{repository}/manifests/{ref}")
        with self.server.send("HEAD", url, scope=(pull(repository),), headers={"Accept": ACCEPT}) as answer:
            if answer.status == 404:
                return None
            if answer.status != 200:
                raise self.server.refused(answer, self.where(repository, ref), doing="pull")
            said = answer.headers.get(DIGEST_HEADER, "")
        return said if is_digest(said) else self.manifest(repository, ref)[2]

    def image(self, repository: str, ref: str, *, architecture: str, os: str = "linux") -> tuple[Manifest, bytes, str]:
        """The manifest of one image, its bytes and its digest; of an index, the image for this platform."""
        data, media_type, digest = self.manifest(repository, ref)
        where = self.where(repository, ref)
        found = parse(data, media_type, where=where)
        if isinstance(found, Index):
            chosen = choose(found, architecture=architecture, os=os, where=where)
            data, media_type, digest = self.manifest(repository, chosen.digest)
            where = self.where(repository, chosen.digest)
            found = parse(data, media_type, where=where)
            if isinstance(found, Index) or len(data) != chosen.size:
                what = "is an index within an index" if isinstance(found, Index) else "has another size than its index says"
                raise ArtifactError(what, where=where, hint="ask for the image by its own digest")
        return found, data, digest

    def blob(self, repository: str, digest: str, size: int) -> Iterator[bytes]:
        """The bytes of a blob. They are proven once the last one is given, not before: an error may follow any of them.

        A transfer that is cut goes on where it ended. Never more than `size` bytes. Raises `ArtifactError` for other
        bytes, `NetworkError`.
        """
        url = self.server.url(f"{repository}/blobs/{digest}")
        where = self.where(repository, digest)
        hasher = hashlib.sha256()
        done = failures = 0
        while True:
            start = done
            for chunk in self._part(url, repository, done, size, where):
                done += len(chunk)
                if done > size:
                    raise ArtifactError(f"is longer than the {size:,} bytes that were said", where=where, hint=_DAMAGED)
                hasher.update(chunk)
                if done == size:
                    found = "sha256:" + hasher.hexdigest()
                    if found != digest:
                        raise ArtifactError(f"has other bytes: their digest is {found}", where=where, hint=_DAMAGED)
                yield chunk
            if done == size:
                if not size and digest != digest_of(b""):
                    raise ArtifactError("is empty", where=where, hint=_DAMAGED)
                return
            # As long as much comes each time, it is worth to go on.
            failures = 0 if done - start >= CHUNK else failures + 1
            if failures == TRIES:
                raise _cut(where)
            self.server.web.pause(failures)

    def small(self, repository: str, one: Descriptor | Blob) -> bytes:
        """A blob as one value: a config, a document. Raises as `blob`, and for one of over 8 MiB."""
        if one.size > _SMALL:
            where = self.where(repository, one.digest)
            raise ArtifactError(
                f"has {one.size:,} bytes where at most {_SMALL:,} are taken", where=where, hint="look at that image"
            )
        return b"".join(self.blob(repository, one.digest, one.size))

    def has(self, repository: str, digest: str, size: int | None = None) -> bool:
        """Whether a blob is there, as the registry says, and of this size where both say one."""
        url = self.server.url(f"{repository}/blobs/{digest}")
        with self.server.send("HEAD", url, scope=(push(repository),)) as answer:
            if answer.status == 404:
                return False
            if answer.status == 403 and origin(answer.url) != origin(url):
                return True  # the registry has it, and gave the URL of its storage, which answers no HEAD
            if answer.status != 200:
                raise self.server.refused(answer, self.where(repository, digest), doing="pull")
            return size is None or answer.length in (-1, size)

    def upload(self, repository: str, chunks: Iterable[bytes], known: Blob | None = None, *, media_type: str = GZIP) -> Blob:
        """Send a blob and say what it was, over 8 MiB an iterator is held in a file meanwhile,
        and anything else is iterated again where it has to be. With `known`, nothing is kept unless it is that blob.

        Raises `ArtifactError` for other bytes than `known`, `NetworkError`. An exception of `chunks` passes through.
        """
        return upload.send(
            self.server, repository, chunks, known, media_type=media_type, scope=(push(repository),), folder=self._folder
        )

    def ensure(self, repository: str, data: bytes, media_type: str) -> Blob:
        """A small blob that is there afterwards: sent when it is not."""
        one = Blob(media_type=media_type, digest=digest_of(data), size=len(data))
        return one if self.has(repository, one.digest, one.size) else self.upload(repository, [data], one, media_type=media_type)

    def mount(self, repository: str, digest: str, source: str) -> bool:
        """Have a blob of another repository of this registry here too, without sending it; False where that is not done."""
        return upload.mount(self.server, repository, digest, source, scope=(push(repository), pull(source)))

    def put_manifest(self, repository: str, ref: str, data: bytes, media_type: str) -> str:
        """Keep a manifest under a tag or its digest, and give the digest. Raises `ArtifactError` when the registry says another one."""
        return self.put(repository, ref, data, media_type)[0]

    def put(self, repository: str, ref: str, data: bytes, media_type: str) -> tuple[str, str]:
        """As `put_manifest`; and the digest of its subject, if the registry says that it has taken note of that."""
        url = self.server.url(f"{repository}/manifests/{ref}")
        with self.server.send("PUT", url, scope=(push(repository),), headers={"Content-Type": media_type}, body=data) as answer:
            if answer.status != 201:
                raise self.server.refused(answer, self.where(repository, ref), doing="push")
            said = answer.headers.get(DIGEST_HEADER, "")
            subject = answer.headers.get("OCI-Subject", "")
        digest = digest_of(data)
        if said and said != digest:
            what = f"says that it keeps {redact.line(said)[:80]}, and {digest} was sent"
            raise ArtifactError(what, where=self.where(repository, ref), hint=_DAMAGED)
        return digest, subject

    def where(self, repository: str, ref: str) -> str:
        """An image, for people."""
        return f"{self.host}/{repository}{'@' if is_digest(ref) else ':'}{ref}"

    def close(self) -> None:
        """Close the connections of this thread."""
        self.server.close()

    def __enter__(self) -> Registry:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _part(self, url: str, repository: str, start: int, size: int, where: str) -> Iterator[bytes]:
        """From byte `start` on, as far as it comes."""
        headers = {"Range": f"bytes={start}-{size - 1}"} if start else {}
        with self.server.send("GET", url, scope=(pull(repository),), headers=headers) as answer:
            skip = start
            if start and answer.status == 206:
                if answer.range != (start, size):
                    raise NetworkError("answered with another part of the blob than asked", where=where, hint=LATER)
                skip = 0
            elif answer.status != 200:
                raise self.server.refused(answer, where, doing="pull")
            elif answer.length not in (-1, size):
                what = f"has {answer.length:,} bytes where {size:,} were said"
                raise ArtifactError(what, where=where, hint=_DAMAGED)
            for chunk in answer.chunks():
                part = chunk[skip:]
                skip = max(0, skip - len(chunk))
                if part:
                    yield part


def pull(repository: str) -> str:
    """What tokens call reading."""
    return f"repository:{repository}:pull"


def push(repository: str) -> str:
    """What tokens call reading and writing."""
    return f"repository:{repository}:pull,push"


def _cut(where: str) -> NetworkError:
    return NetworkError("breaks off each time before the end", where=where, hint=LATER)
