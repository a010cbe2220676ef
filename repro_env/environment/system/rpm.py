"""The package database of Fedora, RHEL and their relatives, queried through rpm(8) with our own query formats.

The database is in sqlite, ndb or Berkeley DB format, and only rpm reads all three. Fields in rpm's output are separated by
control characters that no name contains, and output of another form is an error.

A base has no rpm database: no fixed rule could write it. The spec lists the packages that the base was made from.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import msgspec

from repro_env.environment.system import packages
from repro_env.environment.system.packages import Package, Relations
from repro_env.io import process
from repro_env.oci.paths import SYSTEM_PATH
from repro_env.schema.errors import LockError

SHELL = (
    "basesystem", "bash", "ca-certificates", "ca-certificates-mozilla", "coreutils", "coreutils-single", "filesystem", "findutils",
    "gawk", "glibc", "glibc-common", "glibc-gconv-extra", "glibc-minimal-langpack", "grep", "gzip", "hostname", "mailcap",
    "ncurses-base", "netcfg", "openssl", "sed", "setup", "tar", "terminfo-base", "timezone", "tzdata", "util-linux",
    "util-linux-core",
)  # fmt: skip
"""The names of Fedora, RHEL and SUSE."""
EXCLUDED = re.compile(
    r"\A(?:rpm|rpm-.*|dnf.*|yum.*|microdnf|libdnf.*|libzypp|zypper.*|systemd|systemd-udev|systemd-pam|systemd-networkd"
    r"|systemd-resolved|systemd-standalone-.*|udev|dracut.*|grub2?.*|grubby|kernel.*|shadow-utils|shadow|e2fsprogs|info"
    r"|perl|perl-.*|xorg-x11-drv-nvidia.*|nvidia-.*|libnvidia-.*|kmod-nvidia.*|akmod-nvidia.*|cuda-drivers.*)\Z"
)
_DIRECTORIES = ("usr/lib/sysimage/rpm", "var/lib/rpm")
_FILES = ("rpmdb.sqlite", "Packages.db", "Packages")
_PACKAGE_END, _FIELD, _ITEM_END, _PART = "\x1c", "\x1e", "\x1f", "\x1d"
"""End of a package, between its fields, end of an item of a list, between an item's parts."""
_FORM = _FIELD.join(
    (
        "%{NAME}", "%{EPOCH}", "%{VERSION}", "%{RELEASE}", "%{ARCH}", f"[%{{REQUIRENAME}}{_PART}%{{REQUIREFLAGS}}{_ITEM_END}]",
        f"[%{{PROVIDENAME}}{_ITEM_END}]", f"[%{{RECOMMENDNAME}}{_ITEM_END}]",
        f"[%{{FILENAMES}}{_PART}%{{FILEFLAGS}}{_PART}%{{FILESTATES}}{_ITEM_END}]",
    )
) + _PACKAGE_END  # fmt: skip
_WORD = re.compile(r"[()]|[^\s()]+(?:\([^\s()]*\)[^\s()]*)*")
"""A parenthesis, or a word; a word may contain its own parentheses, like `libc.so.6()(64bit)`."""
_SIGN = re.compile(r"[<>=]+")
_CONDITION = re.compile(r" (?:if|unless|without) .*?(?= else |\Z)")
_OPERATORS = frozenset({"(", ")", "and", "or", "with", "else"})
_NONE = "(none)"
_SCRIPTS = sum(1 << bit for bit in (5, 7, 9, 10, 11, 12, 13, 20, 21))
"""RPMSENSE_SCRIPT_* and *TRANS: needed only while the package is installed or removed."""
_RPMLIB = 1 << 24
_CONFIG, _DOC, _MISSINGOK, _GHOST, _LICENSE = 1 << 0, 1 << 1, 1 << 3, 1 << 6, 1 << 7
"""RPMFILE_*."""
_NORMAL = "0"
"""RPMFILE_STATE_NORMAL. Files in other states were not installed (`--nodocs`) or belong to another package."""
_MAX_OUTPUT = 1 << 30
_TIMEOUT = 300.0


class File(msgspec.Struct, frozen=True):
    """A file of a package."""

    path: str
    flags: int
    state: str


class Database(packages.Database):
    family = "rpm"
    shell = SHELL
    excluded = EXCLUDED
    universal = "noarch"
    separator = "."

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = "" if root == Path("/") else os.path.realpath(root)
        directory = _database_directory(root)
        if directory is None:
            hint = f"expected {' or '.join(_DIRECTORIES)} with {_FILES[0]}"
            raise LockError("this machine has no rpm database", where=str(root), hint=hint)
        self._directory = directory
        self._files: dict[Package, tuple[File, ...]] = {}
        relations = {package: described for package, described in map(self._parse, self._query()) if package.name != "gpg-pubkey"}
        if not relations:  # rpm stores trusted signing keys like packages
            raise LockError("the rpm database has no packages", where=str(directory), hint="try rpm --rebuilddb")
        super().__init__(relations, os.uname().machine)
        self._real_directories: dict[str, str] = {}

    def owners(self, paths: Iterable[str]) -> dict[str, tuple[Package, ...]]:
        requested = set(paths)
        names = {path.rpartition("/")[2] for path in requested}
        owners: dict[str, list[Package]] = {}
        for package in self.packages:
            for file in self._files[package]:
                if file.path.rpartition("/")[2] in names and (real_path := self._real(file.path)) in requested:
                    owners.setdefault(real_path, []).append(package)
        return {path: tuple(dict.fromkeys(packages)) for path, packages in owners.items()}

    def files(self, package: Package) -> list[str]:
        """As in the base class, without documentation (except licenses) and ghosts (except links and configuration).

        Other ghosts are this machine's state (logs, caches, seeds). A ghost link selects an alternative, and a tool of the package
        writes ghost configuration (crypto-policies).
        """
        return [file.path for file in self._files[package] if self._is_installed(file)]

    def database_files(self, packages: Iterable[Package]) -> dict[str, bytes]:  # noqa: ARG002
        """Empty; the reason is in this module's docstring."""
        return {}

    def _providing(self, name: str) -> list[Package]:
        return self._providers.get(name, []) or list(self._by_path.get(name, ()))

    @cached_property
    def _by_path(self) -> dict[str, tuple[Package, ...]]:
        """The owners of the paths that packages require."""
        groups = (group for relations in self._relations.values() for group in (*relations.requires, *relations.recommends))
        paths = {name: self._real(name) for group in groups for name in group if name.startswith("/")}
        owners = self.owners(paths.values())
        return {path: owners.get(real_path, ()) for path, real_path in paths.items()}

    def _is_installed(self, file: File) -> bool:
        if file.state != _NORMAL or (file.flags & _DOC and not file.flags & _LICENSE):
            return False
        if file.flags & (_GHOST | _MISSINGOK):
            try:
                mode = os.lstat(self._root + file.path).st_mode
            except OSError:
                return False
            return stat.S_ISLNK(mode) or not file.flags & _GHOST or bool(file.flags & _CONFIG)
        return True

    def _real(self, path: str) -> str:
        """The path with its directory resolved."""
        directory, _, name = path.rpartition("/")
        if directory not in self._real_directories:
            self._real_directories[directory] = os.path.realpath(self._root + directory)[len(self._root) :].rstrip("/")
        return f"{self._real_directories[directory]}/{name}"

    def _parse(self, fields: list[str]) -> tuple[Package, Relations]:
        """A package and its relations; its files are stored."""
        try:
            name, epoch, version, release, architecture, requires, provides, recommends, files = fields
            package = Package(name, architecture, (f"{epoch}:" if epoch != _NONE else "") + f"{version}-{release}")
            requirements = [item.split(_PART) for item in _items(requires)]
            names = dict.fromkeys(name for name, flags in requirements if not int(flags) & (_SCRIPTS | _RPMLIB))
            self._files[package] = tuple(
                File(path, int(flags), _NORMAL if state == _NONE else state)
                for path, flags, state in (item.split(_PART) for item in _items(files))
            )
        except ValueError:
            raise self._unreadable(f"unexpected output of rpm: {_FIELD.join(fields)[:80]!r}") from None
        relations = Relations(
            requires=tuple((part,) for name in names for part in capabilities(name)),
            provides=tuple(_items(provides)),
            recommends=tuple((part,) for name in _items(recommends) for part in capabilities(name)),
        )
        return package, relations

    def _query(self) -> Iterator[list[str]]:
        """The fields of each package in the output of rpm."""
        argv = ["rpm", "--dbpath", str(self._directory), "--query", "--queryformat", _FORM, "-a"]
        try:
            result = process.run(argv, env={"PATH": SYSTEM_PATH, "LC_ALL": "C", "HOME": "/"}, timeout=_TIMEOUT, limit=_MAX_OUTPUT)
        except FileNotFoundError:
            raise LockError(
                "the program rpm, which reads this machine's package database, is not installed",
                where=str(self._directory),
                hint="install it (dnf install rpm), or run capture in an image that has it",
            ) from None
        if result.code != 0 or len(result.stdout) >= _MAX_OUTPUT:
            errors = result.stderr.decode(errors="replace").strip().splitlines()
            raise self._unreadable(f"rpm failed with {errors[0]!r}" if errors else f"rpm failed with exit status {result.code}")
        text = result.stdout.decode(errors="surrogateescape")
        if not text.endswith(_PACKAGE_END) and text:
            raise self._unreadable("the output of rpm is incomplete")
        return (package.split(_FIELD) for package in text.split(_PACKAGE_END)[:-1])

    def _unreadable(self, why: str) -> LockError:
        return LockError(
            f"the rpm database cannot be read: {why}", where=str(self._directory), hint="check it with rpm --verifydb"
        )


def capabilities(requirement: str) -> list[str]:
    """The names in a requirement, without versions. It is one name, or a boolean expression ("rich dependency").

    Of an expression, all names count except those in a condition: rpm checked it, so what is installed of the others may be
    needed.
    """
    if not requirement.startswith("("):
        return [requirement]
    words = _WORD.findall(_CONDITION.sub("", requirement))
    pairs = zip(["", *words], words, strict=False)
    return [
        word for before, word in pairs if not _SIGN.fullmatch(word) and not _SIGN.fullmatch(before) and word not in _OPERATORS
    ]


def present(root: Path) -> bool:
    """Whether this machine has an rpm database."""
    return _database_directory(root) is not None


def _database_directory(root: Path) -> Path | None:
    return next((root / place for place in _DIRECTORIES if any((root / place / file).exists() for file in _FILES)), None)


def _items(text: str) -> list[str]:
    """The items of a list; rpm prints a placeholder for a list that does not exist."""
    return [item for item in text.split(_ITEM_END)[:-1] if item.partition(_PART)[0] != _NONE]
