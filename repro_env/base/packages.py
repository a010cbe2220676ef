"""What is asked of a machine's package database, whichever family it is of (`dpkg`, `rpm`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec


class Package(msgspec.Struct, frozen=True):
    """One installed package. What it depends on and what it holds, its database knows."""

    name: str
    architecture: str
    version: str

    @property
    def key(self) -> str:
        return f"{self.name}:{self.architecture}"

    @property
    def order(self) -> tuple[str, str, str]:
        return self.name, self.architecture, self.version


class Alternative(msgspec.Struct, frozen=True):
    """One name under `/etc/alternatives`, and the link that leads to it (update-alternatives(1))."""

    name: str
    link: str


class Database(Protocol):
    """The installed packages. Raises `LockError` for a database that contradicts its own format."""

    @property
    def family(self) -> str:
        """`deb` or `rpm`: the first word of an owner."""

    @property
    def shell(self) -> tuple[str, ...]:
        """Names of packages that are in every base, where the machine has them."""

    def is_left_out(self, name: str, /) -> bool:
        """Whether nothing is followed into a package of this name: package management, boot, perl, drivers."""

    def named(self, name: str, /) -> Package | None:
        """The installed package of this name; of the machine's own architecture where several are."""

    def shown(self, package: Package, /) -> str:
        """Its name as the family's tools show it: with the architecture where that is a foreign one."""

    def owners(self, paths: Iterable[str], /) -> dict[str, tuple[Package, ...]]:
        """Which packages own each real, absolute path; a path that nobody owns is not in the answer."""

    def files(self, package: Package, /) -> list[str]:
        """Absolute paths, folders included, that the package has on this machine as it spells them."""

    def checksums(self, package: Package, /) -> dict[str, str]:
        """Hex digest of each file as the package delivered it, by the spelling of `files`. Its length tells which hash."""

    def close(self, roots: Iterable[Package], leave_out: Callable[[str], bool], /) -> tuple[Package, ...]:
        """The roots and all they depend on, sorted; a name that is left out is not followed, unless it is a root."""

    def recommended(self, package: Package, leave_out: Callable[[str], bool], /) -> list[Package]:
        """The installed packages that this one recommends."""

    def alternatives(self) -> tuple[Alternative, ...]:
        """Every alternative and slave that is registered, sorted by file name."""

    def kept(self, packages: Iterable[Package], /) -> dict[str, bytes]:
        """The database as it is in a base of these packages: absolute path -> contents."""


def alternatives(folder: Path) -> tuple[Alternative, ...]:
    """What update-alternatives, of Debian or of chkconfig, keeps in its folder: mode, link, then pairs of slaves."""
    found: list[Alternative] = []
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        lines = file.read_text(errors="surrogateescape").split("\n")
        found.append(Alternative(file.name, lines[1] if len(lines) > 1 else ""))
        for name, link in zip(lines[2::2], lines[3::2], strict=False):
            if not name:
                break
            found.append(Alternative(name, link))
    return tuple(one for one in found if one.link.startswith("/"))


def words(system: Database, paths: Iterable[str]) -> dict[str, str]:
    """The owner of each real, absolute path in words, as `SharedLibrary.owner` has them; empty for one that nobody owns."""
    wanted = list(paths)
    owners = system.owners(wanted)
    return {path: word(system, owners[path][0]) if path in owners else "" for path in wanted}


def word(system: Database, package: Package) -> str:
    """A package as the owner of a file: `deb libssl3 3.0.11-1`."""
    return f"{system.family} {system.shown(package)} {package.version}"
