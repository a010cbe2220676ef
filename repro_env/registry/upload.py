"""Upload a blob: in one request if its bytes are in memory, else as a stream. An interrupted upload is started again."""

from __future__ import annotations

import contextlib
import hashlib
import urllib.parse
from collections.abc import Callable, Iterator

from repro_env.io.failures import LATER
from repro_env.io.registryhttp import TRIES, Source
from repro_env.io.response import Answer
from repro_env.io.urls import check, resolve
from repro_env.registry.server import Server
from repro_env.schema import redact
from repro_env.schema.errors import ArtifactError, NetworkError
from repro_env.schema.image import Blob

_OCTETS = {"Content-Type": "application/octet-stream"}


def send(
    server: Server,
    repository: str,
    read: Callable[[], Iterator[bytes]],
    expected: Blob | None,
    *,
    media_type: str,
    scope: tuple[str, ...],
) -> Blob:
    """See `Registry.upload`."""
    where = f"{server.host}/{repository}"
    error = None
    for attempt in range(TRIES):
        if attempt:
            server.web.pause(attempt)
        location = _begin(server, repository, scope)
        blob = _HashedBlob(expected, where)
        source = Source(blob.hashed(read()))
        try:
            with server.send("PATCH", location, scope=scope, headers=_OCTETS, body=source) as answer:
                status = answer.status
                error = None if status in (201, 202, 204) else server.status_error(answer, where, doing="push")
                if answer.headers.get("Location"):
                    location = _location(answer, location, server)
        except Exception as failure:
            if source.error is not None or not isinstance(failure, NetworkError):
                _cancel(server, location, scope)
                raise
            status, error = 0, failure
        if error is None:
            sent = blob.description(media_type)
            if _put(server, repository, location, b"", sent, scope):
                return sent
        elif status not in (0, 401, 408, 429) and status < 500:
            raise error
    raise error or _lost_error(where)


def send_small(server: Server, repository: str, data: bytes, blob: Blob, *, scope: tuple[str, ...]) -> None:
    """Send a blob in one request."""
    for attempt in range(TRIES):
        if attempt:
            server.web.pause(attempt)
        if _put(server, repository, _begin(server, repository, scope), data, blob, scope):
            return
    raise _lost_error(f"{server.host}/{repository}")


def mount(server: Server, repository: str, digest: str, source: str, *, scope: tuple[str, ...]) -> bool:
    """See `Registry.mount`."""
    query = urllib.parse.urlencode({"mount": digest, "from": source})
    url = server.url(f"{repository}/blobs/uploads/?{query}")
    try:
        with server.send("POST", url, scope=scope, body=b"") as answer:
            if answer.status == 201:
                return True
            if answer.status != 202:
                return False
            location = _location(answer, url, server)
    except NetworkError:
        # The user may be allowed to write here but not to read there. Other errors appear again when the blob is sent.
        return False
    _cancel(server, location, scope)
    return False


class _HashedBlob:
    """A blob that is hashed while it is read."""

    def __init__(self, expected: Blob | None, where: str) -> None:
        self._expected = expected
        self._where = where
        self._hasher = hashlib.sha256()
        self._size = 0

    def hashed(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the chunks. Raises `ArtifactError` before the end if the blob differs from the expected one."""
        pending = b""
        for chunk in chunks:
            self._hasher.update(chunk)
            self._size += len(chunk)
            if self._expected is not None and self._size > self._expected.size:
                break
            yield pending
            pending = chunk
        actual, expected = self.description(""), self._expected
        if expected is not None and (actual.digest, actual.size) != (expected.digest, expected.size):
            what = f"this blob is {actual.digest} with {actual.size:,} bytes, but {expected.size:,} bytes with another digest were expected"
            where = f"{self._where}: {expected.digest}"
            raise ArtifactError(what, where=where, hint="the source of this blob has changed; try again")
        yield pending

    def description(self, media_type: str) -> Blob:
        """The description of the bytes that were read."""
        return Blob(media_type=media_type, digest="sha256:" + self._hasher.hexdigest(), size=self._size)


def _begin(server: Server, repository: str, scope: tuple[str, ...]) -> str:
    url = server.url(f"{repository}/blobs/uploads/")
    with server.send("POST", url, scope=scope, body=b"") as answer:
        if answer.status != 202:
            raise server.status_error(answer, f"{server.host}/{repository}", doing="push")
        return _location(answer, url, server)


def _put(server: Server, repository: str, location: str, data: bytes, blob: Blob, scope: tuple[str, ...]) -> bool:
    """End an upload. False if the registry knows neither the upload nor the blob: after a lost response it may have the blob."""
    where = f"{server.host}/{repository}"
    url = location + ("&" if "?" in location else "?") + urllib.parse.urlencode({"digest": blob.digest})
    with server.send("PUT", url, scope=scope, headers=_OCTETS, body=data) as answer:
        if answer.status in (201, 204):
            stated_digest = answer.headers.get("Docker-Content-Digest", "")
            if stated_digest and stated_digest != blob.digest:
                what = f"the registry stored {redact.line(stated_digest)[:80]}, but {blob.digest} was sent"
                raise ArtifactError(what, where=where, hint="ask its administrator")
            return True
        if answer.status not in (404, 416):
            raise server.status_error(answer, where, doing="push")
    blob_url = server.url(f"{repository}/blobs/{blob.digest}")
    with server.send("HEAD", blob_url, scope=scope) as answer:
        return answer.status == 200


def _location(answer: Answer, url: str, server: Server) -> str:
    location = answer.headers.get("Location", "")
    if not location:
        raise NetworkError("the registry started an upload without giving its location", where=server.host, hint=LATER)
    target = resolve(url, location)
    check(target, given_by=url)
    return target


def _cancel(server: Server, location: str, scope: tuple[str, ...]) -> None:
    """Delete an unfinished upload; without this, the registry deletes it later."""
    with contextlib.suppress(NetworkError), server.send("DELETE", location, scope=scope, tries=1):
        pass


def _lost_error(where: str) -> NetworkError:
    return NetworkError("the registry lost each upload before its end", where=where, hint=LATER)
