"""Two outputs of one name: the same, and at which level? Pure: bytes and answers come in, a `File` comes out.

Bytes first. Where they differ, what the format tells: tensors, JSON, tables, event files, lines of text. A difference
counts unless its own form says that it is a time, a host, a process or the like (`masks`), and those are told too.
"""

from __future__ import annotations

import re
import zlib

import msgspec

from repro_env.verify import events, hdf5
from repro_env.verify.answers import Answer, TensorDifference, answers
from repro_env.verify.closeness import CLOSE, close
from repro_env.verify.compared import HEIGHT, File, Sameness, renamed
from repro_env.verify.jsons import of_json
from repro_env.verify.kinds import Kind, holds_tensors, kind_of, matches
from repro_env.verify.links import of_links
from repro_env.verify.tables import of_table
from repro_env.verify.tensors import NEAR, describe, of_tensors
from repro_env.verify.texts import of_text

__all__ = [
    "CLOSE",
    "HEIGHT",
    "LARGEST",
    "NEAR",
    "Answer",
    "File",
    "Kind",
    "Sameness",
    "TensorDifference",
    "answers",
    "close",
    "describe",
    "equal",
    "holds_tensors",
    "kind_of",
    "matches",
    "of_bytes",
    "of_links",
    "of_tensors",
    "renamed",
]
LARGEST = 64 << 20
"""Bytes of a file that is compared as text."""
_TIMED = (".srt", ".vtt", ".ass", ".lrc", ".rttm", ".ctm", ".textgrid")
"""Times are what such a file is about."""
_BINARY = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")
"""What is in no text: small numbers that happen to be UTF-8."""


def equal(path: str, now: str, kind: Kind) -> File:
    """Two files whose sha256 is the same."""
    return File(path=path, now=now, kind=kind, level="bitwise", apart=renamed(path, now))


def of_bytes(path: str, now: str, kind: Kind, left: bytes, right: bytes, *, masked: bool = True) -> File:
    """Of files whose bytes differ and that hold no tensors: by the format that their name and bytes show."""
    name = path.rpartition("/")[2].lower()
    if name.startswith("events.out.tfevents"):
        found = of_events(path, now, kind, left, right)
        if found is not None:
            return found
    if name.endswith((".gz", ".svgz")):
        found = _packed(path, now, kind, left, right, masked=masked)
        if found is not None:
            return found
    if masked and left[:8] == right[:8] == hdf5.MAGIC:
        (bare, count), (there, _) = hdf5.timeless(left), hdf5.timeless(right)
        if bare == there:
            apart = (
                *renamed(path, now),
                f"when {count:,} object{'s' * (count != 1)} of it {'were' if count != 1 else 'was'} changed",
            )
            return File(path=path, now=now, kind=kind, level="bitwise", apart=apart)
    masked = masked and not name.endswith(_TIMED)
    coding = "latin-1" if name.endswith(".pdf") else "utf-8"
    try:
        one, other = left.decode(coding), right.decode(coding)
        text = coding == "latin-1" or not any(_BINARY.search(side) or (side and not side.strip()) for side in (one, other))
    except UnicodeDecodeError:
        one = other = ""
        text = False
    if not text:
        sizes = f"{len(left):,} bytes" if len(left) == len(right) else f"{len(left):,} bytes, now {len(right):,}"
        return File(path=path, now=now, kind=kind, level="different", why=f"its bytes differ ({sizes})", apart=renamed(path, now))
    found = None
    if name.endswith((".json", ".jsonl", ".ndjson", ".ipynb")):
        found = of_json(path, now, kind, one, other, masked=masked)
    elif name.endswith((".csv", ".tsv")):
        found = of_table(path, now, kind, one, other, masked=masked)
    return found or of_text(path, now, kind, one, other, masked=masked)


def _packed(path: str, now: str, kind: Kind, left: bytes, right: bytes, *, masked: bool) -> File | None:
    """Of what gzip packed, whose header has the time; None where it cannot be unpacked, or is too large then."""
    one, other = _unpacked(left), _unpacked(right)
    if one is None or other is None:
        return None
    if one == other:
        apart = (*renamed(path, now), "only when and how it was packed differs")
        return File(path=path, now=now, kind=kind, level="bitwise", apart=apart)
    plain = path[: -len("z")] if path.lower().endswith(".svgz") else path[: -len(".gz")]
    found = of_bytes(plain, now, kind, one, other, masked=masked)
    apart = tuple(line for line in found.apart if not line.startswith("its path is"))
    return msgspec.structs.replace(found, path=path, apart=(*renamed(path, now), *apart))


def _unpacked(data: bytes) -> bytes | None:
    unpacker = zlib.decompressobj(31)
    try:
        made = unpacker.decompress(data, LARGEST)
    except zlib.error:
        return None
    return made if unpacker.eof and not unpacker.unused_data else None


def of_events(path: str, now: str, kind: Kind, left: bytes, right: bytes) -> File | None:
    one, other = events.timeless(left), events.timeless(right)
    if one is None or other is None:
        return None
    # The first record names the version of the format, and the writer.
    number = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    if one == other:
        return File(
            path=path,
            now=now,
            kind=kind,
            level="bitwise",
            by="events",
            apart=(*renamed(path, now), f"when {len(one):,} events were written, and scalars that are times"),
        )
    why = f"events differ from number {number} of {len(one):,}" + (f" (now {len(other):,})" if len(one) != len(other) else "")
    return File(path=path, now=now, kind=kind, level="different", by="events", why=why, apart=renamed(path, now))
