"""Read and write images and blobs of a registry by digest: downloads are verified, and existing blobs are not sent again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from repro_env.io.failures import LATER
from repro_env.io.files import CHUNK
from repro_env.io.registryhttp import PAUSE, TRIES
from repro_env.io.urls import origin
from repro_env.oci.manifest import (
    ACCEPT,
    MAX_SIZE,
    Descriptor,
    Index,
    Manifest,
    blob_of,
    choose,
    digest_of,
    is_digest,
    parse,
)
from repro_env.registry import upload
from repro_env.registry.server import Server
from repro_env.schema import redact
from repro_env.schema.errors import ArtifactError, NetworkError
from repro_env.schema.image import GZIP, Blob

DIGEST_HEADER = "Docker-Content-Digest"
_MAX_SMALL = 8 << 20
_DAMAGED = "the registry, or a proxy in front of it, is faulty: ask its administrator"


class Registry:
    """A client of one registry. It may be used from several threads and in forked processes, and it can be pickled."""

    def __init__(self, host: str, *, pause: float = PAUSE) -> None:
        """`host`: as in a reference. `pause`: seconds before the first retry of a request. Does not connect yet."""
        self.host = host
        self.server = Server(host, pause=pause)

    def manifest(self, repository: str, ref: str) -> tuple[bytes, str, str]:
        """(bytes, media type, digest) of a tag or digest, from one response, so that they agree even if the tag moves.

        Raises `NetworkError`, or `ArtifactError` if the bytes do not have the requested digest or the one that the registry states.
        """
        url = self.server.url(f"{repository}/manifests/{ref}")
        where = self.where(repository, ref)
        for attempt in range(TRIES):
            with self.server.send("GET", url, scope=(pull(repository),), headers={"Accept": ACCEPT}) as answer:
                if answer.status != 200:
                    raise self.server.status_error(answer, where, doing="pull")
                data = answer.read(MAX_SIZE)
                stated_digest = answer.headers.get(DIGEST_HEADER, "")
                media_type = answer.content_type
            if data is not None:
                break
            self.server.web.pause(attempt)
        else:
            raise _incomplete(where)
        digest = digest_of(data)
        if is_digest(ref) and digest != ref:
            raise ArtifactError(f"the registry returned another manifest, with the digest {digest}", where=where, hint=_DAMAGED)
        if is_digest(stated_digest) and stated_digest != digest:
            what = f"the registry states the digest {stated_digest}, but the manifest has the digest {digest}"
            raise ArtifactError(what, where=where, hint=_DAMAGED)
        return data, media_type, digest

    def head(self, repository: str, ref: str) -> str | None:
        """The digest that a tag points to, as stated by the registry; None if there is no such tag. `manifest` verifies it."""
        url = self.server.url(f"{repository}/manifests/{ref}")
        with self.server.send("HEAD", url, scope=(pull(repository),), headers={"Accept": ACCEPT}) as answer:
            if answer.status == 404:
                return None
            if answer.status != 200:
                raise self.server.status_error(answer, self.where(repository, ref), doing="pull")
            stated_digest = answer.headers.get(DIGEST_HEADER, "")
        return stated_digest if is_digest(stated_digest) else self.manifest(repository, ref)[2]

    def image(self, repository: str, ref: str, *, architecture: str, os: str = "linux") -> tuple[Manifest, bytes, str]:
        """The manifest of an image, its bytes and its digest; from an index, those of the image for this platform."""
        data, media_type, digest = self.manifest(repository, ref)
        where = self.where(repository, ref)
        manifest = parse(data, media_type, where=where)
        if isinstance(manifest, Index):
            chosen = choose(manifest, architecture=architecture, os=os, where=where)
            data, media_type, digest = self.manifest(repository, chosen.digest)
            where = self.where(repository, chosen.digest)
            manifest = parse(data, media_type, where=where)
            if isinstance(manifest, Index) or len(data) != chosen.size:
                what = (
                    "this is an index within an index"
                    if isinstance(manifest, Index)
                    else "this manifest does not have the size in its index"
                )
                raise ArtifactError(what, where=where, hint="use the digest of the image itself")
        return manifest, data, digest

    def blob(self, repository: str, digest: str, size: int) -> Iterator[bytes]:
        """The bytes of a blob. The digest is verified after the last chunk, so an error may follow any chunk.

        An interrupted transfer is resumed. Never yields more than `size` bytes. Raises `NetworkError`, or `ArtifactError` for other
        bytes.
        """
        url = self.server.url(f"{repository}/blobs/{digest}")
        where = self.where(repository, digest)
        hasher = hashlib.sha256()
        received = failures = 0
        while True:
            start = received
            for chunk in self._part(url, repository, received, size, where):
                received += len(chunk)
                if received > size:
                    raise ArtifactError(f"this blob is longer than the stated {size:,} bytes", where=where, hint=_DAMAGED)
                hasher.update(chunk)
                if received == size:
                    actual_digest = "sha256:" + hasher.hexdigest()
                    if actual_digest != digest:
                        raise ArtifactError(
                            f"this blob has other bytes, with the digest {actual_digest}", where=where, hint=_DAMAGED
                        )
                yield chunk
            if received == size:
                if not size and digest != digest_of(b""):
                    raise ArtifactError("this blob is empty", where=where, hint=_DAMAGED)
                return
            # Retries are unlimited as long as each one makes progress.
            failures = 0 if received - start >= CHUNK else failures + 1
            if failures == TRIES:
                raise _incomplete(where)
            self.server.web.pause(failures)

    def small(self, repository: str, descriptor: Descriptor | Blob) -> bytes:
        """A small blob, such as a config or document. Raises as `blob`, and for a blob of more than 8 MiB."""
        if descriptor.size > _MAX_SMALL:
            where = self.where(repository, descriptor.digest)
            raise ArtifactError(
                f"this blob has {descriptor.size:,} bytes, but at most {_MAX_SMALL:,} are allowed",
                where=where,
                hint="check that image",
            )
        return b"".join(self.blob(repository, descriptor.digest, descriptor.size))

    def has(self, repository: str, digest: str, size: int | None = None) -> bool:
        """Whether the registry has a blob, of this size if both sizes are known."""
        url = self.server.url(f"{repository}/blobs/{digest}")
        with self.server.send("HEAD", url, scope=(push(repository),)) as answer:
            if answer.status == 404:
                return False
            if answer.status == 403 and origin(answer.url) != origin(url):
                return True  # the registry has the blob and redirects to its storage, which does not support HEAD
            if answer.status != 200:
                raise self.server.status_error(answer, self.where(repository, digest), doing="pull")
            return size is None or answer.length in (-1, size)

    def upload(
        self, repository: str, read: Callable[[], Iterator[bytes]], expected: Blob | None = None, *, media_type: str = GZIP
    ) -> Blob:
        """Send a blob and return its description. `expected`: another blob than this is not stored.

        `read` returns the bytes of the blob, and is called again if the upload was interrupted. Raises `NetworkError`, or
        `ArtifactError` for another blob than `expected`. Exceptions of the iterator are passed through.
        """
        return upload.send(self.server, repository, read, expected, media_type=media_type, scope=(push(repository),))

    def ensure(self, repository: str, data: bytes, media_type: str) -> Blob:
        """Make sure that the registry has a small blob: it is sent if necessary."""
        blob = blob_of(data, media_type)
        if not self.has(repository, blob.digest, blob.size):
            upload.send_small(self.server, repository, data, blob, scope=(push(repository),))
        return blob

    def mount(self, repository: str, digest: str, source: str) -> bool:
        """Copy a blob from another repository of this registry without sending it. False if the registry did not."""
        return upload.mount(self.server, repository, digest, source, scope=(push(repository), pull(source)))

    def put_manifest(self, repository: str, ref: str, data: bytes, media_type: str) -> tuple[str, str]:
        """Store a manifest under a tag or its digest.

        Returns its digest, and the digest of its subject if the registry confirms the subject. Raises `ArtifactError` if the
        registry states another digest of the manifest.
        """
        url = self.server.url(f"{repository}/manifests/{ref}")
        with self.server.send("PUT", url, scope=(push(repository),), headers={"Content-Type": media_type}, body=data) as answer:
            if answer.status != 201:
                raise self.server.status_error(answer, self.where(repository, ref), doing="push")
            stated_digest = answer.headers.get(DIGEST_HEADER, "")
            subject = answer.headers.get("OCI-Subject", "")
        digest = digest_of(data)
        if stated_digest and stated_digest != digest:
            what = f"the registry stored {redact.line(stated_digest)[:80]}, but {digest} was sent"
            raise ArtifactError(what, where=self.where(repository, ref), hint=_DAMAGED)
        return digest, subject

    def where(self, repository: str, ref: str) -> str:
        """The name of an image, for messages."""
        return f"{self.host}/{repository}{'@' if is_digest(ref) else ':'}{ref}"

    def close(self) -> None:
        """Close the connections of this thread."""
        self.server.close()

    def __enter__(self) -> Registry:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _part(self, url: str, repository: str, start: int, size: int, where: str) -> Iterator[bytes]:
        """The bytes from `start` on, as far as one response contains them."""
        headers = {"Range": f"bytes={start}-{size - 1}"} if start else {}
        with self.server.send("GET", url, scope=(pull(repository),), headers=headers) as answer:
            skip = start
            if start and answer.status == 206:
                if answer.range != (start, size):
                    raise NetworkError(
                        "the registry returned a different part of the blob than the requested one", where=where, hint=LATER
                    )
                skip = 0
            elif answer.status != 200:
                raise self.server.status_error(answer, where, doing="pull")
            elif answer.length not in (-1, size):
                what = f"this blob has {answer.length:,} bytes instead of the stated {size:,}"
                raise ArtifactError(what, where=where, hint=_DAMAGED)
            for chunk in answer.chunks():
                part = chunk[skip:]
                skip = max(0, skip - len(chunk))
                if part:
                    yield part


def pull(repository: str) -> str:
    """The scope of a token for reading."""
    return f"repository:{repository}:pull"


def push(repository: str) -> str:
    """The scope of a token for reading and writing."""
    return f"repository:{repository}:pull,push"


def _incomplete(where: str) -> NetworkError:
    return NetworkError("the transfer was interrupted each time before the end", where=where, hint=LATER)
