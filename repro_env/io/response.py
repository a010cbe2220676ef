"""The answer of an HTTP server: its body, and the headers that matter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from repro_env.io.failures import LATER, end_at_cut
from repro_env.io.files import CHUNK
from repro_env.schema import redact
from repro_env.schema.errors import NetworkError

_PART = 1 << 14
"""Compressed bytes to read at once. Decompressed, they can be a thousand times larger."""
_DRAIN = 1 << 16


class Answer:
    """The answer of a server, from `requests` or from pip's copy of it. Its body can be read once."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.status: int = response.status_code
        self.url: str = response.url
        """The URL after redirects. It may contain a signature: print only `redact.url(url)`."""
        self.headers: Mapping[str, str] = response.headers

    @property
    def length(self) -> int:
        """The value of Content-Length, or -1 if it is missing or invalid."""
        text = self.headers.get("Content-Length", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1

    @property
    def range(self) -> tuple[int, int]:
        """The offset of the first byte and the size of the complete file, or (-1, -1) without a valid Content-Range."""
        unit, _, numbers = self.headers.get("Content-Range", "").partition(" ")
        positions, _, total = numbers.partition("/")
        start = positions.partition("-")[0]
        if unit.lower() != "bytes" or not (start.isascii() and start.isdigit() and total.isascii() and total.isdigit()):
            return -1, -1
        return int(start), int(total)

    @property
    def strong_tag(self) -> str:
        """The ETag, or an empty string if it is missing or weak."""
        tag = self.headers.get("ETag", "")
        return tag if tag.startswith('"') else ""

    @property
    def content_type(self) -> str:
        """The media type without its parameters, in lower case."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it arrives. Ends without an error if the transfer is cut off."""
        with end_at_cut():
            yield from self._response.raw.stream(CHUNK, decode_content=False)

    def read(self, limit: int) -> bytes | None:
        """Return the body, or None if the transfer was cut off. Raises `NetworkError` if it has more than `limit` bytes."""
        body = bytearray()
        ended = False
        with end_at_cut():
            for chunk in self._response.iter_content(_PART) if self.length <= limit else ():
                body += chunk
                if len(body) > limit:
                    break
            ended = True
        if max(self.length, len(body)) > limit:
            raise NetworkError(f"the answer is larger than {limit:,} bytes", where=redact.url(self.url), hint=LATER)
        is_complete = getattr(self._response, "from_cache", False) or self._response.raw.tell() >= self.length
        return bytes(body) if ended and is_complete else None

    def read_exactly(self, size: int) -> bytes | None:
        """Return a body of exactly `size` bytes, or None if the transfer was cut off."""
        body = bytearray()
        for chunk in self.chunks():
            body += chunk
            if len(body) > size:
                return None
        return bytes(body) if len(body) == size else None

    def close(self) -> None:
        """End the answer. A short body is read first, so that the connection can be used again."""
        if 0 <= self.length <= _DRAIN or self._response.request.method == "HEAD":
            with end_at_cut():
                self._response.raw.read(_DRAIN)
        self._response.close()
