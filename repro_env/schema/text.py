"""The types of strings in stored values. Decoding rejects a string that does not match its pattern.

The patterns are enclosed in `\\A ... \\Z` because `$` also matches before a trailing newline. A spec may come from an
untrusted source, so no pattern but `Word` allows control characters.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Digest = Annotated[str, Meta(pattern=r"\Asha256:[0-9a-f]{64}\Z")]
"""`sha256:` and 64 lower-case hexadecimal digits (OCI image spec, descriptor)."""

Name = Annotated[str, Meta(pattern=r"\A[a-z0-9]+(?:-[a-z0-9]+)*\Z", max_length=200)]
"""A distribution's normalized name (PEP 503)."""

Version = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9.!+_-]*\Z", max_length=200)]
"""A distribution's version, as spelled in its metadata."""

WheelName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.!+-]+\.whl\Z", max_length=255)]
"""A wheel's file name (PEP 427)."""

CondaName = Annotated[str, Meta(pattern=r"\A[a-z0-9_][a-z0-9_.-]*\Z", max_length=200)]
"""The name of a conda package, or of a subdirectory of a channel (CEP 26)."""

CondaFile = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.!+-]+\.(?:conda|tar\.bz2)\Z", max_length=255)]
"""A conda package's file name."""

AbsPath = Annotated[str, Meta(pattern=r"\A(?:/(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f]+)+\Z", max_length=4000)]
"""An absolute, normalized path: no `.`, `..`, empty part, trailing slash or control character."""

RelPath = Annotated[str, Meta(pattern=r"\A(?!/)(?:(?:\A|/)(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f]+)+\Z", max_length=4000)]
"""A relative, normalized path that does not leave its directory."""

FilePath = Annotated[str, Meta(pattern=r"\A(?:(?:\A|/)(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f]+)+\Z", max_length=4000)]
"""An `AbsPath` or a `RelPath`."""

FromHere = Annotated[
    str,
    Meta(
        pattern=r"\A(?:\.|(?:\.\./)*(?:\.\.|(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f]+(?:/(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f]+)*))\Z",
        max_length=4000,
    ),
]
"""A relative, normalized path that may start with `..` parts: `.`, `..`, `../../src`."""

FileNote = Annotated[
    str, Meta(pattern=r"\A(?:(?:file|program) [0-9]{1,15} [0-9a-f]{64}|link [^\x00-\x1f\x7f]*)\Z", max_length=20_000)
]
"""A summary of a tree entry: `file SIZE SHA256`, `program SIZE SHA256` for an executable file, or `link TARGET`."""

EnvName = Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z", max_length=200)]
"""The name of an environment variable."""

Line = Annotated[str, Meta(pattern=r"\A[^\x00-\x1f\x7f]*\Z", max_length=20_000)]
"""One line of text without control characters."""

Word = Annotated[str, Meta(pattern=r"\A[^\x00\ud800-\udfff]*\Z", max_length=20_000)]
"""An argument of a command, which may have line ends and control characters: never print it as it is."""

Timestamp = Annotated[str, Meta(pattern=r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z\Z")]
"""A date and time in UTC (RFC 3339), to the second."""

Url = Annotated[str, Meta(pattern=r"\Ahttps?://[^/@\s\x00-\x1f\x7f]+(?:/[^\s\x00-\x1f\x7f]*)?\Z", max_length=4000)]
"""An http(s) URL without userinfo or white space."""
