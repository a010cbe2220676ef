"""The least pace of a server. Time limits of single reads are kept by one that sends a byte now and then, for ever."""

from __future__ import annotations

import functools
import io
import time
from typing import Any

from repro_env.model.errors import NetworkError

PATIENCE = 30.0
"""Seconds that may be waited for the bytes of an answer, after the first one, whatever comes."""
LEAST = 1000
"""Bytes for each second that is waited longer."""
_MOST_HEADERS = 4 << 20
"""Bytes of an answer's headers, those that say "continue" included."""


def keep(session: Any) -> None:
    """Hold every server that a session of `requests`, pip's own too, talks to from now on to the least pace.

    An answer that comes slower raises `NetworkError`. Counted is the time spent waiting, not what is done with the bytes.
    """
    for adapter in session.adapters.values():
        for name in ("get_connection", "get_connection_with_tls_context"):
            if (inner := getattr(adapter, name, None)) is not None:
                setattr(adapter, name, functools.partial(_pool, inner))


def _pool(inner: Any, *args: Any, **named: Any) -> Any:
    pool = inner(*args, **named)
    pool.ConnectionCls = _paced(pool.ConnectionCls)
    return pool


@functools.cache
def _paced(kind: Any) -> Any:
    if issubclass(kind, _Paced):
        return kind
    return type(kind.__name__, (_Paced, kind), {})


class _Paced:
    """Of a connection: what `http.client` calls for each answer."""

    host: str
    port: int | None

    def response_class(self, *args: Any, **named: Any) -> Any:
        return _response()(f"{self.host}:{self.port}", *args, **named)


@functools.cache
def _response() -> Any:
    from http.client import HTTPResponse  # it imports `ssl`, which takes long

    class Response(HTTPResponse):
        def __init__(self, where: str, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self._waiting = _Waiting(self.fp.detach(), where)
            self.fp = io.BufferedReader(self._waiting)

        def begin(self) -> None:
            super().begin()
            self._waiting.in_headers = False

    return Response


class _Waiting(io.RawIOBase):
    """What a socket gives, and how long it is waited for."""

    def __init__(self, raw: Any, where: str) -> None:
        super().__init__()
        self._raw = raw
        self._where = where
        self._waited = 0.0
        self._count = 0
        self.in_headers = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:
        began = time.monotonic()
        count = self._raw.readinto(buffer)
        if self._count:  # to the first byte, the time limit of the read itself
            self._waited += time.monotonic() - began
        self._count += count or 0
        if self._waited > PATIENCE + self._count / LEAST:
            what = f"is too slow: {self._count:,} bytes in {self._waited:.0f} s"
            raise NetworkError(what, where=self._where, hint="try again; if it stays slow, contact the operator of that server")
        if self.in_headers and self._count > _MOST_HEADERS:
            raise NetworkError("sends endless headers", where=self._where, hint="contact the operator of that server")
        return count

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
