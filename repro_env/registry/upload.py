"""Sending one blob: as one request where it is short, else as a stream that goes on where it was cut.

Digest and size of a long blob may be known only when its last byte was made. The last bytes sent are held back in
memory, so that a stream can go on from what the registry says it has got.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import urllib.parse
from collections import deque
from collections.abc import Iterable, Iterator

from repro_env.io.answer import LATER
from repro_env.io.web import TRIES, Answer
from repro_env.model import redact
from repro_env.model.errors import ArtifactError, NetworkError
from repro_env.model.image import Blob
from repro_env.registry.server import Server

HELD = 16 << 20
"""Bytes. Of a blob up to this size everything; of a longer one the last ones sent: more than is on its way at any moment."""
_PART = 1 << 18
_OCTETS = {"Content-Type": "application/octet-stream"}
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,18})")


def send(
    server: Server, repository: str, chunks: Iterable[bytes], known: Blob | None, *, media_type: str, scope: tuple[str, ...]
) -> Blob:
    """See `Registry.upload`."""
    source = _Source(chunks, known, f"{server.host}/{repository}")
    first = source.head()
    if source.ended:
        source.check()
        made = Blob(media_type=media_type, digest=source.digest, size=source.done)
        _whole(server, repository, b"".join(first), made, scope)
        return made
    session = _Session(server, repository, scope)
    try:
        session.stream(source)
        source.check()
        made = Blob(media_type=media_type, digest=source.digest, size=source.done)
        session.commit(made)
    except BaseException:
        session.cancel()
        raise
    return made


def mount(server: Server, repository: str, digest: str, source: str, *, scope: tuple[str, ...]) -> bool:
    """See `Registry.mount`."""
    query = urllib.parse.urlencode({"mount": digest, "from": source})
    url = server.url(f"{repository}/blobs/uploads/?{query}")
    with server.send("POST", url, scope=scope, body=b"") as answer:
        if answer.status == 201:
            return True
        if answer.status in (401, 403, 404, 405):  # of the other repository: then the blob is sent as any other
            return False
        if answer.status != 202:
            raise server.refused(answer, url, doing="push")
        session = _Session(server, repository, scope, location=_location(answer, url, server))
    session.cancel()
    return False


class _Source:
    """Chunks that are read once, hashed and counted; the last of them held."""

    def __init__(self, chunks: Iterable[bytes], known: Blob | None, where: str) -> None:
        self._chunks = iter(chunks)
        self._known = known
        self._where = where
        self._hasher = hashlib.sha256()
        self._held: deque[bytes] = deque()
        self._start = 0
        """Where in the blob the first byte held stands."""
        self.done = 0
        """Bytes made."""
        self.ended = False
        self.error: BaseException | None = None
        """What went wrong in making the chunks: after it they may look as if they had ended."""

    @property
    def digest(self) -> str:
        return "sha256:" + self._hasher.hexdigest()

    def head(self) -> list[bytes]:
        """What is made until it is all, or more than what is held."""
        while not self.ended and self.done <= HELD:
            self._make()
        return list(self._held)

    def rest(self, position: int) -> Iterator[bytes]:
        """From `position` on, to the end: what is held again, then what is made."""
        at = self._start
        for chunk in list(self._held):
            if at + len(chunk) > position:
                yield chunk[max(0, position - at) :]
            at += len(chunk)
        while not self.ended:
            chunk = self._make()
            if chunk:
                yield chunk

    def holds(self, position: int) -> bool:
        """Whether it can go on from there."""
        return self._start <= position <= self.done

    def check(self) -> None:
        known = self._known
        if known is not None and (self.digest, self.done) != (known.digest, known.size):
            what = f"is not what was known of it: {self.digest}, {self.done:,} bytes, where {known.size:,} were expected"
            raise ArtifactError(
                what, where=f"{self._where}: {known.digest}", hint="the source of these bytes has changed; try again"
            )

    def _make(self) -> bytes:
        """The next bytes, of `_PART` at least but for the last: what is made may come in crumbs."""
        parts, size = [], 0
        try:
            while size < _PART:
                chunk = next(self._chunks, None)
                if chunk is None:
                    self.ended = True
                    break
                parts.append(chunk)
                size += len(chunk)
        except BaseException as error:
            self.error = error
            raise
        made = b"".join(parts)
        if not made:
            return b""
        self._hasher.update(made)
        self.done += len(made)
        if self._known is not None and self.done > self._known.size:
            self.check()
        self._held.append(made)
        while self.done - self._start - len(self._held[0]) > HELD:
            self._start += len(self._held.popleft())
        return made


class _Session:
    """One upload that the registry knows of."""

    def __init__(self, server: Server, repository: str, scope: tuple[str, ...], *, location: str = "") -> None:
        self._server = server
        self._repository = repository
        self._scope = scope
        self._location = location or _begin(server, repository, scope)

    def stream(self, source: _Source) -> None:
        position = failures = 0
        while True:
            before = source.done
            try:
                with self._server.send(
                    "PATCH", self._location, scope=self._scope, headers=_OCTETS, body=source.rest(position)
                ) as answer:
                    if answer.status in (202, 204, 201):
                        self._moved(answer)
                        return
                    error = self._server.refused(answer, self._location, doing="push")
                    passing = answer.status in (401, 408, 429) or answer.status >= 500
            except NetworkError as failed:
                if source.error is not None:
                    raise
                error, passing = failed, True
            failures = 0 if source.done > before + HELD else failures + 1
            if not passing or failures == TRIES:
                raise error
            self._server.web.pause(failures - 1 if failures else 0)
            position = self._received()
            if not source.holds(position):
                what = f"cut an upload and kept {position:,} bytes of {source.done:,} sent: too few to go on"
                raise NetworkError(what, where=f"{self._server.host}/{self._repository}", hint=LATER)

    def commit(self, made: Blob) -> None:
        if not _put(self._server, self._repository, self._location, b"", made, self._scope):
            raise NetworkError("lost an upload before its end", where=f"{self._server.host}/{self._repository}", hint=LATER)

    def cancel(self) -> None:
        """So that the registry keeps nothing half sent; it does so in time anyway."""
        with contextlib.suppress(NetworkError), self._server.send("DELETE", self._location, scope=self._scope, tries=1):
            pass

    def _received(self) -> int:
        """How many bytes the registry has got."""
        with self._server.send("GET", self._location, scope=self._scope) as answer:
            if answer.status not in (202, 204, 200):
                raise self._server.refused(answer, self._location, doing="push")
            said = _RANGE.fullmatch(answer.headers.get("Range", ""))
            self._moved(answer)
        if said is None:
            return 0
        # `0-0` is what is said of nothing, and of one byte too; sent is never one byte alone.
        return int(said[1]) + 1 if said[1] != "0" else 0

    def _moved(self, answer: Answer) -> None:
        if answer.headers.get("Location"):
            self._location = _location(answer, self._location, self._server)


def _whole(server: Server, repository: str, data: bytes, made: Blob, scope: tuple[str, ...]) -> None:
    """A blob in one request; begun anew when it fails, since it can be."""
    for attempt in range(TRIES):
        location = _begin(server, repository, scope)
        if _put(server, repository, location, data, made, scope):
            return
        server.web.pause(attempt)
    raise NetworkError("loses each upload before its end", where=f"{server.host}/{repository}", hint=LATER)


def _begin(server: Server, repository: str, scope: tuple[str, ...]) -> str:
    url = server.url(f"{repository}/blobs/uploads/")
    with server.send("POST", url, scope=scope, body=b"") as answer:
        if answer.status != 202:
            raise server.refused(answer, url, doing="push")
        return _location(answer, url, server)


def _put(server: Server, repository: str, location: str, data: bytes, made: Blob, scope: tuple[str, ...]) -> bool:
    """End an upload. False when the registry knows nothing of it, nor of the blob: an answer that was lost looks the same."""
    url = location + ("&" if "?" in location else "?") + urllib.parse.urlencode({"digest": made.digest})
    with server.send("PUT", url, scope=scope, headers=_OCTETS, body=data) as answer:
        if answer.status in (201, 204):
            said = answer.headers.get("Docker-Content-Digest", "")
            if said and said != made.digest:
                what = f"says that it keeps {redact.line(said)[:80]}, and {made.digest} was sent"
                raise ArtifactError(what, where=redact.url(location), hint="ask who runs that registry")
            return True
        if answer.status not in (404, 416):
            raise server.refused(answer, location, doing="push")
    blob = server.url(f"{repository}/blobs/{made.digest}")
    with server.send("HEAD", blob, scope=scope) as answer:
        return answer.status == 200


def _location(answer: Answer, url: str, server: Server) -> str:
    found = answer.headers.get("Location", "")
    if not found:
        raise NetworkError("begins an upload and does not say where", where=f"{server.host}: {redact.url(url)}", hint=LATER)
    return urllib.parse.urljoin(url, found)
