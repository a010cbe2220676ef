"""RECORD: what a wheel says of its files (PyPA "Recording installed projects")."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable

import msgspec

from repro_env.image.entry import Entry
from repro_env.model.errors import ArtifactError

REWRITTEN = ("RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
"""Files of `.dist-info` that installers write for themselves: not part of what a wheel is."""
INSTALLER = b"repro-env\n"


class Row(msgspec.Struct, frozen=True, gc=False):
    path: str
    """As written: relative to site-packages, or to the wheel's root."""
    sha256: str
    """Hex, or empty when the row has no hash or one of another kind."""
    size: int
    """-1 when the row has none."""


_DIGITS = 19
_SHOWN = 100


def parse(data: bytes, *, where: str) -> list[Row]:
    """The rows of a RECORD, in order. Raises `ArtifactError` for what is not one."""
    try:
        text = data.decode()
        rows = [row for row in csv.reader(io.StringIO(text), strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ArtifactError(f"RECORD cannot be read: {error}", where=where) from None
    found = []
    for row in rows:
        if len(row) != 3 or not row[0]:
            raise ArtifactError(f"RECORD has a row of {len(row)} fields: {row[0][:_SHOWN]!r}", where=where)
        path, digest, size = row
        if size and not (size.isascii() and size.isdigit() and len(size) < _DIGITS):
            raise ArtifactError(f"RECORD has the size {size[:_DIGITS]!r}", where=where)
        found.append(Row(path, _sha256(digest, where), int(size) if size else -1))
    return found


def _sha256(field: str, where: str) -> str:
    kind, _, value = field.partition("=")
    if kind != "sha256":
        return ""
    try:
        raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise ArtifactError(f"RECORD has the hash {field[:_SHOWN]!r}", where=where)
    return raw.hex()


def write(entries: Iterable[Entry], *, own: str, site: str) -> bytes:
    """RECORD in canonical form: a row for each file, sorted by the path's bytes, its own row without a hash.

    `entries` and `own` (RECORD's own path) are relative to the prefix, rows to `site`.
    """
    up = "../" * len(site.split("/"))
    rows: list[tuple[str, str, str]] = []
    for entry in entries:
        path = entry.path.removeprefix(site + "/") if entry.path.startswith(site + "/") else up + entry.path
        digest = base64.urlsafe_b64encode(bytes.fromhex(entry.sha256)).rstrip(b"=").decode()
        rows.append((path, f"sha256={digest}", str(entry.size)))
    rows.append((own.removeprefix(site + "/"), "", ""))
    text = io.StringIO()
    rows.sort(key=lambda row: row[0].encode())
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
