"""The package database of Fedora, RHEL and their relatives, queried through rpm(8) with our own query formats.

The database is in sqlite, ndb or Berkeley DB format, and only rpm reads all three. Fields in rpm's output are separated by
control characters that no name contains, and output of another form is an error.

A base has no rpm database: no fixed rule could write it. The spec lists the packages that the base was made from.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
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
_HEADERS = (
    _FIELD.join(["%{DBINSTANCE}", "%{NAME}", "%{EPOCH}", "%{VERSION}", "%{RELEASE}", "%{ARCH}"])
    + f"{_FIELD}[%{{REQUIRENAME}}{_PART}%{{REQUIREFLAGS}}{_ITEM_END}]{_FIELD}[%{{PROVIDENAME}}{_ITEM_END}]{_FIELD}[%{{RECOMMENDNAME}}{_ITEM_END}]{_PACKAGE_END}"
)
_NAMES = f"%{{DBINSTANCE}}{_FIELD}[%{{FILENAMES}}{_ITEM_END}]{_PACKAGE_END}"
_DETAILS = (
    f"%{{DBINSTANCE}}{_FIELD}[%{{FILENAMES}}{_PART}%{{FILEFLAGS}}{_PART}%{{FILESTATES}}{_PART}%{{FILEDIGESTS}}"
    f"{_ITEM_END}]{_PACKAGE_END}"
)
_WORD = re.compile(r"[()]|[^\s()]+(?:\([^\s()]*\)[^\s()]*)*")
"""A parenthesis, or a word; a word may contain its own parentheses, like `libc.so.6()(64bit)`."""
_SIGN = re.compile(r"[<>=]+")
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


class Header(Relations, frozen=True, kw_only=True):
    """What the database contains about an installed package."""

    instance: str


class File(msgspec.Struct, frozen=True):
    """A file of a package."""

    path: str
    flags: int
    state: str
    digest: str
    """Hex, its length identifies the algorithm; empty for a file without a checksum."""


class Database(packages.Database):
    family = "rpm"
    shell = SHELL
    excluded = EXCLUDED
    universal = "noarch"
    separator = "."

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = "" if root == Path("/") else str(root)
        directory = _database_directory(root)
        if directory is None:
            hint = f"expected {' or '.join(_DIRECTORIES)} with {_FILES[0]}"
            raise LockError("this machine has no rpm database", where=str(root), hint=hint)
        self._directory = directory
        self._headers = dict(self._read())
        if not self._headers:
            raise LockError("the rpm database has no packages", where=str(directory), hint="try rpm --rebuilddb")
        counts = Counter(package.architecture for package in self._headers if package.architecture != self.universal)
        machine = os.uname().machine
        native = machine if machine in counts else min(counts, key=lambda name: (-counts[name], name), default="")
        super().__init__(self._headers, native)
        self._by_instance = {header.instance: package for package, header in self._headers.items()}
        self._details: dict[Package, tuple[File, ...]] = {}
        self._pending_details: set[Package] = set()
        """Packages whose files are needed soon: one query for many packages is as fast as a query for one."""
        self._real_directories: dict[str, str] = {}

    def owners(self, paths: Iterable[str]) -> dict[str, tuple[Package, ...]]:
        requested = set(paths)
        names = {path.rpartition("/")[2] for path in requested}
        owners: dict[str, list[Package]] = {}
        for package, files in self._names.items():
            for path in files:
                directory, _, name = path.rpartition("/")
                if name in names and (real_path := f"{self._real_directory(directory)}/{name}") in requested:
                    owners.setdefault(real_path, []).append(package)
        return {path: tuple(dict.fromkeys(packages)) for path, packages in owners.items()}

    def files(self, package: Package) -> list[str]:
        """As in the base class, without documentation (except licenses) and ghosts (except links and configuration).

        Other ghosts are this machine's state (logs, caches, seeds). A ghost link selects an alternative, and a tool of the package
        writes ghost configuration (crypto-policies).
        """
        return [file.path for file in self._files(package) if self._is_installed(file)]

    def checksums(self, package: Package) -> dict[str, str]:
        return {
            file.path: file.digest
            for file in self._files(package)
            if file.digest and not file.flags & _GHOST and self._is_installed(file)
        }

    def with_dependencies(self, roots: Iterable[Package]) -> tuple[Package, ...]:
        packages = super().with_dependencies(roots)
        self._pending_details |= set(packages)
        return packages

    def database_files(self, packages: Iterable[Package]) -> dict[str, bytes]:  # noqa: ARG002
        """Empty; the reason is in this module's docstring."""
        return {}

    def _providing(self, name: str) -> list[Package]:
        return self._providers.get(name, []) or list(self._by_path.get(name, ()))

    @cached_property
    def _by_path(self) -> dict[str, tuple[Package, ...]]:
        """The owners of the paths that packages require."""
        groups = (group for header in self._headers.values() for group in (*header.requires, *header.recommends))
        paths = {name for group in groups for name in group if name.startswith("/")}
        real_paths = {path: f"{self._real_directory(path.rpartition('/')[0])}/{path.rpartition('/')[2]}" for path in paths}
        owners = self.owners(real_paths.values())
        return {path: owners.get(real_path, ()) for path, real_path in real_paths.items()}

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

    def _real_directory(self, directory: str) -> str:
        if directory not in self._real_directories:
            self._real_directories[directory] = os.path.realpath(self._root + directory)[
                len(os.path.realpath(self._root)) if self._root else 0 :
            ]
        return self._real_directories[directory].rstrip("/")

    @cached_property
    def _names(self) -> dict[Package, list[str]]:
        """The paths of each package's files."""
        rows = self._query(_NAMES, ["-a"], 2)
        # Other instances are signing keys, see `_read`.
        return {self._by_instance[instance]: _items(names) for instance, names in rows if instance in self._by_instance}

    def _files(self, package: Package) -> tuple[File, ...]:
        if package not in self._details:
            packages = sorted({package} | (self._pending_details - self._details.keys()))
            instances = [self._headers[item].instance for item in packages]
            for instance, files in self._query(_DETAILS, ["--querybynumber", *instances], 2):
                self._details[self._by_instance.get(instance, package)] = tuple(map(self._file, _items(files)))
        if package not in self._details:
            raise self._unreadable(f"rpm does not list the files of {package.name}")
        return self._details[package]

    def _file(self, text: str) -> File:
        path, flags, state, digest = self._parts(text, 4)
        if not (path.startswith("/") and flags.isdecimal()):
            raise self._unreadable(f"rpm describes a file as {text!r}")
        return File(path, int(flags), _NORMAL if state == _NONE else state, "" if digest == _NONE else digest)

    def _read(self) -> Iterator[tuple[Package, Header]]:
        for instance, name, epoch, version, release, architecture, requires, provides, recommends in self._query(
            _HEADERS, ["-a"], 9
        ):
            if name == "gpg-pubkey":
                continue  # a trusted signing key, which rpm stores like a package
            if not (instance.isdecimal() and name and version and release):
                raise self._unreadable(f"rpm describes a package as {name!r}")
            requirements = [self._parts(item, 2) for item in _items(requires)]
            if not all(flags.isdecimal() for _, flags in requirements):
                raise self._unreadable(f"rpm gives no flags for a requirement of {name}")
            package = Package(name, architecture, (f"{epoch}:" if epoch != _NONE else "") + f"{version}-{release}")
            names = [name for name, flags in requirements if not int(flags) & (_SCRIPTS | _RPMLIB)]
            header = Header(
                instance=instance,
                requires=tuple((part,) for name in dict.fromkeys(names) for part in capabilities(name)),
                provides=tuple(_items(provides)),
                recommends=tuple((part,) for name in _items(recommends) for part in capabilities(name)),
            )
            yield package, header

    def _query(self, form: str, arguments: list[str], parts: int) -> Iterator[list[str]]:
        """The output of an rpm query: a list of fields for each package."""
        argv = ["rpm", "--dbpath", str(self._directory), "--query", "--queryformat", form, *arguments]
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
        for package in text.split(_PACKAGE_END)[:-1]:
            fields = package.split(_FIELD)
            if len(fields) != parts:
                raise self._unreadable(f"unexpected output of rpm: {package[:80]!r}")
            yield fields

    def _parts(self, text: str, count: int) -> list[str]:
        parts = text.split(_PART)
        if len(parts) != count:
            raise self._unreadable(f"unexpected output of rpm: {text[:80]!r}")
        return parts

    def _unreadable(self, why: str) -> LockError:
        return LockError(
            f"the rpm database cannot be read: {why}", where=str(self._directory), hint="check it with rpm --verifydb"
        )


def capabilities(requirement: str) -> list[str]:
    """The names in a requirement, without versions. It is one name, or a boolean expression ("rich dependency").

    Of an expression, all names count except those in conditions (`if`, `unless`, `without`): rpm checked it, so what is
    installed of the others may be needed.
    """
    names: list[str] = []
    depth = condition = 0
    words = iter(_WORD.findall(requirement))
    for word in words:
        if word in "()":
            depth += 1 if word == "(" else -1
        elif word in ("if", "unless", "without"):
            condition = condition or depth  # it ends at the next operator of the same depth
        elif word in ("and", "or", "with", "else"):
            condition = 0 if depth == condition else condition
        elif _SIGN.fullmatch(word):
            next(words, "")  # the version
        elif not condition:
            names.append(word)
        condition = 0 if depth < condition else condition
    return names


def present(root: Path) -> bool:
    """Whether this machine has an rpm database."""
    return _database_directory(root) is not None


def _database_directory(root: Path) -> Path | None:
    return next((root / place for place in _DIRECTORIES if any((root / place / file).exists() for file in _FILES)), None)


def _items(text: str) -> list[str]:
    """The items of a list; rpm prints a placeholder for a list that does not exist."""
    return [item for item in text.split(_ITEM_END)[:-1] if item.partition(_PART)[0] != _NONE]
