"""Sources of packages in addition to those in pip's configuration."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from repro_env.schema.codec import Frozen


class LockedFile(msgspec.Struct, frozen=True):
    """A wheel in a lock file."""

    url: str
    sha256: str
    """64 hexadecimal digits."""
    index: str
    """The index in the lock file, or empty."""


class PackageSources(msgspec.Struct, frozen=True):
    """Indexes, find-links and locked files. They only provide candidates: a wheel is verified before it is used."""

    indexes: tuple[str, ...] = ()
    """URLs of the simple API. May contain credentials: use them only for requests."""
    find_links: tuple[str, ...] = ()
    """URLs and absolute paths. May contain credentials."""
    replaces_default: bool = False
    """Whether one of the indexes replaces pip's built-in default index."""
    files: Mapping[str, tuple[LockedFile, ...]] = {}
    """By normalized name of the distribution."""
    problems: tuple[str, ...] = ()
    """What could not be read or used, one sentence each."""


NONE = PackageSources()


class Package(Frozen, frozen=True, kw_only=True):
    """What an index says about a distribution."""

    name: str
    version: str
    vulnerabilities: tuple[str, ...] = ()
    """IDs of advisories."""
    yanked: str | None = None
    """The reason; None if it is not yanked."""
