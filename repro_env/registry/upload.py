"""Sending one blob: as one request where it is short, else as a stream, that goes on or begins anew when it is cut.

Digest and size of a long blob may be known only when its last byte was made. An iterator makes its bytes once: they are
held, first in memory, then in a file without a name, until the registry has the whole. What can be iterated again is not held.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
import urllib.parse
from collections.abc import Iterable, Iterator
from pathlib import Path

from repro_env.io.answer import LATER
from repro_env.io.files import room
from repro_env.io.target import joined
from repro_env.io.web import TRIES, Answer
from repro_env.model import redact
from repro_env.model.errors import ArtifactError, NetworkError
from repro_env.model.image import Blob
from repro_env.registry.server import Server

HELD = 8 << 20
"""Bytes of a blob that are held in memory; up to this size it is sent in one request."""
_PART = 1 << 18
_OCTETS = {"Content-Type": "application/octet-stream"}
_RANGE = re.compile(r"(?:bytes=)?0-([0-9]{1,18})")


def send(
    server: Server,
    repository: str,
    chunks: Iterable[bytes],
    known: Blob | None,
    *,
    media_type: str,
    scope: tuple[str, ...],
    folder: Path | None = None,
) -> Blob:
    """See `Registry.upload`."""
    where = f"{server.host}/{repository}"
    with contextlib.closing(_Source(chunks, known, where, folder)) as source:
        if source.is_short():
            _whole(server, repository, source.made(), scope)
            return source.blob(media_type)
        for attempt in range(TRIES):
            if attempt:
                server.web.pause(attempt)
            session = _Session(server, repository, scope)
            try:
                session.stream(source)
                if session.commit(source.blob(media_type)):
                    return source.blob(media_type)
            except _LostError:
                pass
            except Exception:
                if source.error is not None:  # else the registry has had its chance
                    session.cancel()
                raise
        raise NetworkError("loses each upload before its end", where=where, hint=LATER)


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
            session = _Session(server, repository, scope, location=_location(answer, url, server))
    except NetworkError:
        # Who may not read there may still write here. What else is wrong is told when the blob is sent as any other.
        return False
    session.cancel()
    return False


class _Source:
    """Chunks that are hashed and counted as they are made; held, or made again when they are asked for again."""

    def __init__(self, chunks: Iterable[bytes], known: Blob | None, where: str, folder: Path | None) -> None:
        self._from = chunks
        self._chunks = iter(chunks)
        self._once = self._chunks is chunks
        self._known = known
        self._where = where
        self._hasher = hashlib.sha256()
        self._folder = folder or Path(tempfile.gettempdir())
        self._held = tempfile.SpooledTemporaryFile(max_size=2 * HELD, dir=str(self._folder))  # noqa: SIM115 - closed by `close`
        self._holds = True
        """Whether all that was made is held."""
        self._ended = False
        self.done = 0
        """Bytes made."""
        self.error: BaseException | None = None
        """What went wrong in making the chunks: after it they may look as if they had ended."""

    def is_short(self) -> bool:
        """Whether it is all made, in memory."""
        while not self._ended and self.done <= HELD:
            self._make()
        return self._ended

    def made(self) -> bytes:
        self._held.seek(0)
        return bytes(self._held.read())

    def rest(self, position: int) -> Iterator[bytes]:
        """From `position` on, to the end: what is held, then what is made."""
        if self._holds:
            while position < self.done:
                self._held.seek(position)
                chunk = bytes(self._held.read(_PART))
                position += len(chunk)
                yield chunk
            self._holds = self._once
        elif position < self.done:
            self._chunks = iter(self._from)
            self._hasher, self.done, self._ended = hashlib.sha256(), 0, False
        while not self._ended:
            before = self.done
            chunk = self._make()[max(0, position - before) :]
            if chunk:
                yield chunk

    def blob(self, media_type: str) -> Blob:
        """What it was, when all is made."""
        return Blob(media_type=media_type, digest="sha256:" + self._hasher.hexdigest(), size=self.done)

    def close(self) -> None:
        self._held.close()

    def _make(self) -> bytes:
        """The next bytes, of `_PART` at least but for the last: what is made may come in crumbs."""
        parts: list[bytes] = []
        size = 0
        try:
            while size < _PART:
                chunk = next(self._chunks, None)
                if chunk is None:
                    self._ended = True
                    break
                parts.append(chunk)
                size += len(chunk)
            made = b"".join(parts)
            self._hasher.update(made)
            self.done += len(made)
            self._check()
            if self._holds:
                with room(self._folder):
                    self._held.seek(0, 2)
                    self._held.write(made)
        except BaseException as error:
            self.error = error
            raise
        return made

    def _check(self) -> None:
        """Nothing but what is known is sent to its end."""
        known = self._known
        if known is None or (not self._ended and self.done <= known.size):
            return
        found = self.blob(known.media_type)
        if found != known:
            what = f"is not what was known of it: {found.digest}, {found.size:,} bytes, where {known.size:,} were expected"
            raise ArtifactError(
                what, where=f"{self._where}: {known.digest}", hint="the source of these bytes has changed; try again"
            )


class _LostError(Exception):
    """The registry knows no more of an upload, or not what is needed to go on with it."""


class _Session:
    """One upload that the registry knows of."""

    def __init__(self, server: Server, repository: str, scope: tuple[str, ...], *, location: str = "") -> None:
        self._server = server
        self._repository = repository
        self._scope = scope
        self._where = f"{server.host}/{repository}"
        self._location = location or _begin(server, repository, scope)

    def stream(self, source: _Source) -> None:
        position = failures = 0
        while True:
            before = source.done
            try:
                body = source.rest(position)
                with self._server.send("PATCH", self._location, scope=self._scope, headers=_OCTETS, body=body) as answer:
                    if answer.status in (201, 202, 204):
                        self._moved(answer)
                        return
                    error = self._server.refused(answer, self._where, doing="push")
                    passing = answer.status in (401, 408, 429) or answer.status >= 500
            except NetworkError as failed:
                if source.error is not None:
                    raise
                error, passing = failed, True
            failures = 0 if source.done > before + HELD else failures + 1
            if not passing or failures == TRIES:
                raise error
            self._server.web.pause(failures)
            position = min(self._received(), source.done)

    def commit(self, made: Blob) -> bool:
        """False when the registry lost it."""
        return _put(self._server, self._repository, self._location, b"", made, self._scope)

    def cancel(self) -> None:
        """So that the registry keeps nothing half sent; it does so in time anyway."""
        with contextlib.suppress(NetworkError), self._server.send("DELETE", self._location, scope=self._scope, tries=1):
            pass

    def _received(self) -> int:
        """How many bytes the registry has got. Raises `_LostError`: some know that only of uploads that were not cut."""
        with self._server.send("GET", self._location, scope=self._scope) as answer:
            if answer.status not in (200, 202, 204):
                raise _LostError
            said = _RANGE.fullmatch(answer.headers.get("Range", ""))
            self._moved(answer)
        # `0-0` is what is said of nothing, and of one byte too; what is sent is never one byte alone.
        return int(said[1]) + 1 if said is not None and said[1] != "0" else 0

    def _moved(self, answer: Answer) -> None:
        if answer.headers.get("Location"):
            self._location = _location(answer, self._location, self._server)


def _whole(server: Server, repository: str, data: bytes, scope: tuple[str, ...]) -> None:
    """A blob in one request; begun anew when it fails, since it can be."""
    made = Blob(media_type="application/octet-stream", digest="sha256:" + hashlib.sha256(data).hexdigest(), size=len(data))
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
            raise server.refused(answer, f"{server.host}/{repository}", doing="push")
        return _location(answer, url, server)


def _put(server: Server, repository: str, location: str, data: bytes, made: Blob, scope: tuple[str, ...]) -> bool:
    """End an upload. False when the registry knows nothing of it, nor of the blob: an answer that was lost looks the same."""
    where = f"{server.host}/{repository}"
    url = location + ("&" if "?" in location else "?") + urllib.parse.urlencode({"digest": made.digest})
    with server.send("PUT", url, scope=scope, headers=_OCTETS, body=data) as answer:
        if answer.status in (201, 204):
            said = answer.headers.get("Docker-Content-Digest", "")
            if said and said != made.digest:
                what = f"says that it keeps {redact.line(said)[:80]}, and {made.digest} was sent"
                raise ArtifactError(what, where=where, hint="ask who runs that registry")
            return True
        if answer.status not in (404, 416):
            raise server.refused(answer, where, doing="push")
    blob = server.url(f"{repository}/blobs/{made.digest}")
    with server.send("HEAD", blob, scope=scope) as answer:
        return answer.status == 200


def _location(answer: Answer, url: str, server: Server) -> str:
    found = answer.headers.get("Location", "")
    if not found:
        raise NetworkError("begins an upload and does not say where", where=server.host, hint=LATER)
    return joined(url, found)
