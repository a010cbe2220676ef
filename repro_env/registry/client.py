"""Read and write images and blobs of a registry by digest: downloads are verified, and existing blobs are not sent again."""

from __future__ import annotations

import contextlib
import re
import urllib.parse
from collections.abc import Callable, Collection, Generator, Iterator
from itertools import chain, count

import msgspec

from repro_env.io.http import LATER, TRIES, Answer, cut_error, download
from repro_env.io.registryhttp import PAUSE, Source
from repro_env.io.urls import check, origin, resolve
from repro_env.oci.layer import Measured
from repro_env.oci.manifest import ACCEPT, MAX_SIZE, Descriptor, Index, Manifest, blob_of, choose, is_digest, parse
from repro_env.registry.server import Server
from repro_env.schema import codec, redact
from repro_env.schema.errors import ArtifactError, NetworkError, SpecError
from repro_env.schema.image import GZIP, Blob

DIGEST_HEADER = "Docker-Content-Digest"
_OCTETS = {"Content-Type": "application/octet-stream"}
_MAX_SMALL = 8 << 20
_MAX_PAGES = 100
_NEXT = re.compile(r'\s*<([^<>]*)>\s*;\s*rel="?next"?')
_DAMAGED = "the registry, or a proxy in front of it, is faulty: ask its administrator"


_BLOB_MISSING = ("MANIFEST_BLOB_UNKNOWN", "DIGEST_INVALID")
"""Answers of a registry on a file system while another program sends the same blob: for a moment it cannot find its own copy."""


class _Tags(msgspec.Struct, frozen=True):
    tags: tuple[str, ...] | None = None


class Registry(contextlib.AbstractContextManager["Registry"]):
    """A client of one registry. It may be used from several threads."""

    def __init__(self, host: str, *, pause: float = PAUSE) -> None:
        """`host`: as in a reference. `pause`: seconds before the first retry of a request. Does not connect yet."""
        self.host = host
        self.server = Server(host, pause=pause)

    def where(self, repository: str, ref: str = "") -> str:
        """The name of an image, for messages."""
        return f"{self.host}/{repository}" + (f"{'@' if is_digest(ref) else ':'}{ref}" if ref else "")

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        self.server.web.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    # Manifests

    def manifest(self, repository: str, ref: str) -> tuple[bytes, str, str]:
        """(bytes, media type, digest) of a tag or digest, from one response, so that they agree even if the tag moves.

        Raises `NetworkError`, or `ArtifactError` if the bytes do not have the requested digest or the one that the registry states.
        """
        url = self.server.url(f"{repository}/manifests/{ref}")
        where = self.where(repository, ref)
        for attempt in range(TRIES):
            with self.server.send("GET", url, scope=pull(repository), headers={"Accept": ACCEPT}) as answer:
                if answer.status != 200:
                    raise self.server.status_error(answer, where, doing="pull")
                data = answer.read(MAX_SIZE)
                stated, media_type = answer.headers.get(DIGEST_HEADER, ""), answer.content_type
            if data is not None:
                break
            self.server.web.pause(attempt)
        else:
            raise cut_error(where)
        digest = codec.digest_of(data)
        if is_digest(ref) and digest != ref:
            raise ArtifactError(f"the registry returned another manifest, with the digest {digest}", where=where, hint=_DAMAGED)
        if is_digest(stated) and stated != digest:
            what = f"the registry states the digest {stated}, but the manifest has the digest {digest}"
            raise ArtifactError(what, where=where, hint=_DAMAGED)
        return data, media_type, digest

    def head(self, repository: str, ref: str) -> str | None:
        """The digest that a tag points to, as stated by the registry; None if there is no such tag. `manifest` verifies it."""
        url = self.server.url(f"{repository}/manifests/{ref}")
        with self.server.send("HEAD", url, scope=pull(repository), headers={"Accept": ACCEPT}) as answer:
            if answer.status == 404:
                return None
            if answer.status != 200:
                raise self.server.status_error(answer, self.where(repository, ref), doing="pull")
            stated = answer.headers.get(DIGEST_HEADER, "")
        return stated if is_digest(stated) else self.manifest(repository, ref)[2]

    def parsed(self, repository: str, ref: str) -> tuple[Manifest | Index, bytes, str]:
        """A manifest or index, its bytes and its digest. Raises as `manifest`, and `ArtifactError` if it is invalid."""
        data, media_type, digest = self.manifest(repository, ref)
        return parse(data, media_type, where=self.where(repository, ref)), data, digest

    def image(self, repository: str, ref: str, *, architecture: str) -> tuple[Manifest, bytes, str]:
        """The manifest of an image, its bytes and its digest; from an index, those of the image for this platform."""
        manifest, data, digest = self.parsed(repository, ref)
        if isinstance(manifest, Index):
            chosen = choose(manifest, architecture=architecture, where=self.where(repository, ref))
            manifest, data, digest = self.parsed(repository, chosen.digest)
            if isinstance(manifest, Index):
                what = "this is an index within an index"
                raise ArtifactError(what, where=self.where(repository, digest), hint="use the digest of the image itself")
        return manifest, data, digest

    def put_manifest(self, repository: str, ref: str, data: bytes, media_type: str) -> tuple[str, str]:
        """Store a manifest under a tag or its digest.

        Returns its digest, and the digest of its subject if the registry confirms the subject. Raises `NetworkError`, also if the
        registry lacks a blob of the manifest, and `ArtifactError` if it states another digest of the manifest.
        """
        url, where = self.server.url(f"{repository}/manifests/{ref}"), self.where(repository, ref)
        headers = {"Content-Type": media_type}
        for attempt in count():
            with self.server.send("PUT", url, scope=push(repository), headers=headers, body=data) as answer:
                if answer.status == 201:
                    _check_stated(answer, codec.digest_of(data), where)
                    return codec.digest_of(data), answer.headers.get("OCI-Subject", "")
                error = self.server.status_error(answer, where, doing="push")
            if attempt == TRIES - 1 or not any(code in error.what for code in _BLOB_MISSING):
                raise error
            self.server.web.pause(attempt)
        raise AssertionError

    # Lists

    def tags(self, repository: str) -> list[str]:
        """All tags of a repository; empty if it does not exist. Raises `NetworkError`, also for an answer that is not a list."""
        where, tags = self.where(repository), list[str]()
        try:
            for data in self.pages(repository, "tags/list?n=1000", where=where, absent=(404,)):
                tags += codec.decode(data, _Tags, where=where).tags or ()
        except SpecError as error:
            raise NetworkError(f"the list of tags is invalid: {error.what}", where=where, hint=_DAMAGED) from None
        return tags

    def pages(self, repository: str, path: str, *, where: str, absent: Collection[int], media_type: str = "") -> Iterator[bytes]:
        """Yield the pages of a list. It ends at a status in `absent`, and at an answer of another media type than `media_type`."""
        first = url = self.server.url(f"{repository}/{path}")
        headers = {"Accept": media_type} if media_type else None
        for _ in range(_MAX_PAGES):
            with self.server.send("GET", url, scope=pull(repository), headers=headers) as answer:
                if answer.status in absent or (answer.status == 200 and media_type not in ("", answer.content_type)):
                    return
                if answer.status != 200:
                    raise self.server.status_error(answer, where, doing="pull")
                data = answer.read(MAX_SIZE)
                next_page = _NEXT.match(answer.headers.get("Link", ""))
            if data is None:
                raise NetworkError("the list was incomplete", where=where, hint="try again")
            yield data
            if next_page is None:
                return
            url = urllib.parse.urljoin(url, next_page[1])
            if origin(url) != origin(first):
                raise NetworkError("the next page of the list is on another server", where=where, hint="ask its administrator")
        raise NetworkError(f"the list has more than {_MAX_PAGES} pages", where=where, hint="delete old entries")

    # Blobs

    def blob(self, repository: str, digest: str, size: int) -> Generator[bytes, None, None]:
        """The bytes of a blob. The digest is verified after the last chunk, so an error may follow any chunk.

        An interrupted transfer is resumed. Never yields more than `size` bytes. Raises `NetworkError`, or `ArtifactError` for other
        bytes.
        """
        url, where = self.server.url(f"{repository}/blobs/{digest}"), self.where(repository, digest)

        @contextlib.contextmanager
        def get(headers: dict[str, str]) -> Iterator[Answer]:
            with self.server.send("GET", url, scope=pull(repository), headers=headers) as answer:
                if answer.status not in (200, 206):
                    raise self.server.status_error(answer, where, doing="pull")
                if answer.status == 200 and answer.length not in (-1, size):
                    what = f"this blob has {answer.length:,} bytes instead of the stated {size:,}"
                    raise ArtifactError(what, where=where, hint=_DAMAGED)
                yield answer

        # Closed here, because the answer of an error would otherwise stay open as long as the error.
        with contextlib.closing(download(get, where, size, self.server.web.pause)) as chunks:
            received = Measured(chunks)
            for chunk in chain(received, (b"",)):  # so that an empty blob is checked too
                if received.size > size:
                    raise ArtifactError(f"this blob is longer than the stated {size:,} bytes", where=where, hint=_DAMAGED)
                if received.size == size and received.digest != digest:
                    what = f"this blob has other bytes, with the digest {received.digest}"
                    raise ArtifactError(what, where=where, hint=_DAMAGED)
                yield chunk

    def small(self, repository: str, descriptor: Descriptor | Blob) -> bytes:
        """A small blob, such as a config or document. Raises as `blob`, and for a blob of more than 8 MiB."""
        if descriptor.size > _MAX_SMALL:
            what = f"this blob has {descriptor.size:,} bytes, but at most {_MAX_SMALL:,} are allowed"
            raise ArtifactError(what, where=self.where(repository, descriptor.digest), hint="check that image")
        return b"".join(self.blob(repository, descriptor.digest, descriptor.size))

    def has(self, repository: str, digest: str, size: int | None = None) -> bool:
        """Whether the registry has a blob, of this size if both sizes are known."""
        url = self.server.url(f"{repository}/blobs/{digest}")
        with self.server.send("HEAD", url, scope=push(repository)) as answer:
            if answer.status == 404:
                return False
            if answer.status == 403 and origin(answer.url) != origin(url):
                return True  # the registry has the blob and redirects to its storage, which does not support HEAD
            if answer.status != 200:
                raise self.server.status_error(answer, self.where(repository, digest), doing="pull")
            return size is None or answer.length in (-1, size)

    def ensure(self, repository: str, data: bytes, media_type: str) -> Blob:
        """Make sure that the registry has a small blob: it is sent if necessary."""
        blob = blob_of(data, media_type)
        if not self.has(repository, blob.digest, blob.size):
            self.upload(repository, lambda: iter((data,)), blob)
        return blob

    def upload(self, repository: str, read: Callable[[], Iterator[bytes]], expected: Blob | None = None) -> Blob:
        """Send a blob and return its description. `expected`: another blob than this is not stored.

        `read` returns the bytes of the blob, and is called again if the upload was interrupted. Raises `NetworkError`, or
        `ArtifactError` for another blob than `expected`. Exceptions of the iterator are passed through.
        """
        where, scope = self.where(repository), push(repository)
        error = NetworkError("the registry lost each upload before its end", where=where, hint=LATER)
        for attempt in range(TRIES):
            if attempt:
                self.server.web.pause(attempt)
            location = self._begin(repository)
            sent = Measured(read())
            source = Source(sent)
            try:
                with self.server.send("PATCH", location, scope=scope, headers=_OCTETS, body=source) as answer:
                    if answer.status not in (201, 202, 204):
                        error = self.server.status_error(answer, where, doing="push")
                        if answer.status in (401, 408, 429) or answer.status >= 500:
                            continue
                        raise error
                    location = self._location(answer, location) if answer.headers.get("Location") else location
            except NetworkError as failure:
                if source.error is not None or failure is error:
                    self._cancel(location, scope)
                    raise
                error = failure
                continue
            except Exception:
                self._cancel(location, scope)
                raise
            blob = Blob(media_type=GZIP, digest=sent.digest, size=sent.size)
            if expected is not None and (blob.digest, blob.size) != (expected.digest, expected.size):
                self._cancel(location, scope)
                what = f"this blob is {blob.digest} with {blob.size:,} bytes, but {expected.size:,} bytes with another digest were expected"
                raise ArtifactError(what, where=f"{where}: {expected.digest}", hint="its file has changed; try again")
            if self._end(repository, location, blob.digest):
                return expected or blob
        raise error

    def check_push(self, repository: str) -> None:
        """Start an upload and cancel it. Raises `NetworkError` if this user may not push."""
        self._cancel(self._begin(repository), push(repository))

    def _begin(self, repository: str) -> str:
        url = self.server.url(f"{repository}/blobs/uploads/")
        with self.server.send("POST", url, scope=push(repository), body=b"") as answer:
            if answer.status != 202:
                raise self.server.status_error(answer, self.where(repository), doing="push")
            return self._location(answer, url)

    def _end(self, repository: str, location: str, digest: str) -> bool:
        """End an upload. False if the registry knows neither the upload nor the blob: after a lost response it may have the blob."""
        where, scope = self.where(repository), push(repository)
        url = location + ("&" if "?" in location else "?") + urllib.parse.urlencode({"digest": digest})
        with self.server.send("PUT", url, scope=scope, headers=_OCTETS, body=b"") as answer:
            if answer.status in (201, 204):
                _check_stated(answer, digest, where)
                return True
            if answer.status not in (404, 416):
                raise self.server.status_error(answer, where, doing="push")
        return self.has(repository, digest)

    def _location(self, answer: Answer, url: str) -> str:
        location = answer.headers.get("Location", "")
        if not location:
            raise NetworkError("the registry started an upload without giving its location", where=self.host, hint=LATER)
        target = resolve(url, location)
        check(target, given_by=url)
        return target

    def _cancel(self, location: str, scope: str) -> None:
        """Delete an unfinished upload; without this, the registry deletes it later."""
        with contextlib.suppress(NetworkError), self.server.send("DELETE", location, scope=scope, tries=1):
            pass


def pull(repository: str) -> str:
    """The scope of a token for reading."""
    return f"repository:{repository}:pull"


def push(repository: str) -> str:
    """The scope of a token for reading and writing."""
    return f"repository:{repository}:pull,push"


def _check_stated(answer: Answer, digest: str, where: str) -> None:
    """Check the digest that a registry states of what it stored."""
    stated = answer.headers.get(DIGEST_HEADER, "")
    if stated not in ("", digest):
        what = f"the registry stored {redact.line(stated)[:80]}, but {digest} was sent"
        raise ArtifactError(what, where=where, hint=_DAMAGED)
