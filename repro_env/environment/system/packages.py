"""The interface of a machine's package database, and what is common to `dpkg` and `rpm`, which implement it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

import msgspec


class Package(msgspec.Struct, frozen=True, order=True):
    """An installed package."""

    name: str
    architecture: str
    version: str


class Relations(msgspec.Struct, frozen=True, kw_only=True):
    """What the database contains about the relations of a package. Versions are dropped: the package manager checked them."""

    requires: tuple[tuple[str, ...], ...]
    """Groups of names, of which one must be provided. Requirements of installation scripts alone are left out."""
    recommends: tuple[tuple[str, ...], ...]
    provides: tuple[str, ...]


class Database(ABC):
    """The installed packages. Raises `LockError` if the database is damaged."""

    family: ClassVar[str]
    """`deb` or `rpm`: the first word of an owner's name."""
    shell: ClassVar[tuple[str, ...]]
    """Names of the packages that belong to every base if the machine has them."""
    excluded: ClassVar[re.Pattern[str]]
    """Dependencies on these are ignored: package management, boot, perl, drivers. `--with` adds their programs."""
    undeclared: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(start of a package's name, dependency that these packages do not declare)."""
    universal: ClassVar[str]
    """The architecture of packages that run on every machine."""
    separator: ClassVar[str]
    """Between the name and the architecture of a foreign package."""

    def __init__(self, relations: Mapping[Package, Relations], native: str) -> None:
        """`native`: the machine's own architecture."""
        self._relations = relations
        self._native = native
        self.packages = tuple(sorted(relations))
        self._providers: dict[str, list[Package]] = {}
        for package in self.packages:
            for name in dict.fromkeys((package.name, *relations[package].provides)):
                self._providers.setdefault(name, []).append(package)

    @abstractmethod
    def owners(self, paths: Iterable[str]) -> dict[str, tuple[Package, ...]]:
        """The packages that own each real, absolute path. A path without an owner is not in the result."""

    @abstractmethod
    def files(self, package: Package) -> list[str]:
        """Absolute paths, including directories, that the package has on this machine, as the package spells them."""

    @abstractmethod
    def database_files(self, packages: Iterable[Package]) -> dict[str, bytes]:
        """The package database of a base with these packages: absolute path -> contents."""

    def find(self, name: str) -> Package | None:
        """The installed package of this name: of the machine's own architecture if possible, and of several versions the last."""
        named = [package for package in self._providers.get(name, []) if package.name == name]
        return min(reversed(named), key=lambda package: self._rank(package, self._native), default=None)

    def display_name(self, package: Package) -> str:
        """The name as the package manager displays it: with the architecture if that is a foreign one."""
        is_foreign = package.architecture not in (self._native, self.universal)
        return f"{package.name}{self.separator}{package.architecture}" if is_foreign else package.name

    def owner_name(self, package: Package) -> str:
        """The name of a package as the owner of a file: `deb libssl3 3.0.11-1`."""
        return f"{self.family} {self.display_name(package)} {package.version}"

    def with_dependencies(self, roots: Iterable[Package]) -> tuple[Package, ...]:
        """The packages and all their dependencies, sorted. Dependencies on excluded packages are ignored."""
        packages: set[Package] = set()
        pending = list(roots)
        while pending:
            package = pending.pop()
            if package not in packages:
                packages.add(package)
                pending += self._meet(self._relations[package].requires, package)
                undeclared = (self.find(name) for start, name in self.undeclared if package.name.startswith(start))
                pending += [dependency for dependency in undeclared if dependency is not None]
        return tuple(sorted(packages))

    def recommendations(self, package: Package) -> list[Package]:
        """The installed packages that this package recommends."""
        return self._meet(self._relations[package].recommends, package)

    def _meet(self, groups: Iterable[tuple[str, ...]], package: Package) -> list[Package]:
        """The best provider of the first name in each group that has one."""
        met = []
        for group in groups:
            providers = (self._best_provider(name, package) for name in group)
            met += [provider for provider in providers if provider is not None][:1]
        return met

    def _best_provider(self, name: str, package: Package) -> Package | None:
        """The package itself, else a package of this name, else one of the package's own architecture."""

        def rank(provider: Package) -> tuple[bool, bool, int, Package]:
            return provider != package, provider.name != name, self._rank(provider, package.architecture), provider

        providers = [provider for provider in self._providing(name) if not self.excluded.match(provider.name)]
        return min(providers, key=rank, default=None)

    def _providing(self, name: str) -> list[Package]:
        return self._providers.get(name, [])

    def _rank(self, package: Package, architecture: str) -> int:
        return {self._native: 2, self.universal: 1, architecture: 0}.get(package.architecture, 3)
