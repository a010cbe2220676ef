"""A minimum transfer rate for servers. A time limit on single reads does not stop a server that sends a byte now and then."""

from __future__ import annotations

import functools
import io
import time
from typing import Any

from repro_env.schema.errors import NetworkError

PATIENCE = 30.0
"""Seconds of waiting that are always allowed for a response, after its first byte."""
MIN_RATE = 1000
"""Bytes that must arrive for each further second of waiting."""
_MAX_HEADERS = 4 << 20
"""Bytes of a response's headers, including those of "100 Continue"."""


def enforce(session: Any) -> None:
    """Enforce the minimum transfer rate in a session of `requests` (also pip's), for every later response.

    A slower response raises `NetworkError`. Only the time spent waiting counts, not the time spent processing the bytes.
    """
    for adapter in session.adapters.values():
        for name in ("get_connection", "get_connection_with_tls_context"):
            if (inner := getattr(adapter, name, None)) is not None:
                setattr(adapter, name, functools.partial(_pool, inner))


def _pool(inner: Any, *args: Any, **options: Any) -> Any:
    pool = inner(*args, **options)
    pool.ConnectionCls = _paced(pool.ConnectionCls)
    return pool


@functools.cache
def _paced(kind: Any) -> Any:
    if issubclass(kind, _Paced):
        return kind
    return type(kind.__name__, (_Paced, kind), {})


class _Paced:
    """Mixin of a connection: `http.client` calls `response_class` for each response."""

    host: str
    port: int | None

    def response_class(self, *args: Any, **options: Any) -> Any:
        return _response()(f"{self.host}:{self.port}", *args, **options)


@functools.cache
def _response() -> Any:
    from http.client import HTTPResponse  # it imports `ssl`, which takes long

    class Response(HTTPResponse):
        def __init__(self, where: str, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._timed = _TimedReader(self.fp.detach(), where)
            self.fp = io.BufferedReader(self._timed)

        def begin(self) -> None:
            super().begin()
            self._timed.in_headers = False

    return Response


class _TimedReader(io.RawIOBase):
    """The bytes of a socket; measures how long the reader waits for them."""

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
        if self._count:  # until the first byte, the time limit of the read itself applies
            self._waited += time.monotonic() - began
        self._count += count or 0
        if self._waited > PATIENCE + self._count / MIN_RATE:
            what = f"the server is too slow: {self._count:,} bytes in {self._waited:.0f} s"
            raise NetworkError(
                what, where=self._where, hint="try again; if the problem persists, contact the operator of that server"
            )
        if self.in_headers and self._count > _MAX_HEADERS:
            raise NetworkError("the server sends endless headers", where=self._where, hint="contact the operator of that server")
        return count

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
