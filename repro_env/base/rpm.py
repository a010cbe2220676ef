"""The package database of Fedora, RHEL and their kin, asked through rpm(8) with query formats of our own.

Its files are sqlite, ndb or Berkeley DB, as the machine has it; rpm alone reads all three. Answers are separated by control
characters that no name holds, and an answer that does not fit its form is an error. Its methods are those of
`packages.Database`.

A base holds no cut rpm database: it could be made by no rule of ours. What the base was cut from, the spec says.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from repro_env.base import packages, rich
from repro_env.base.packages import Alternative, Package
from repro_env.image.layout import SYSTEM_PATH
from repro_env.io import process
from repro_env.model.errors import LockError

SHELL = (
    "basesystem", "bash", "ca-certificates", "ca-certificates-mozilla", "coreutils", "coreutils-single", "filesystem", "findutils",
    "gawk", "glibc", "glibc-common", "glibc-gconv-extra", "glibc-minimal-langpack", "grep", "gzip", "hostname", "mailcap",
    "ncurses-base", "netcfg", "openssl", "sed", "setup", "tar", "terminfo-base", "timezone", "tzdata", "util-linux",
    "util-linux-core",
)  # fmt: skip
"""Packages that are in every base, where the machine has them. Fedora's and RHEL's names, and SUSE's."""
LEFT_OUT = re.compile(
    r"\A(?:rpm|rpm-.*|dnf.*|yum.*|microdnf|libdnf.*|libzypp|zypper.*|systemd|systemd-udev|systemd-pam|systemd-networkd"
    r"|systemd-resolved|systemd-standalone-.*|udev|dracut.*|grub2?.*|grubby|kernel.*|shadow-utils|shadow|e2fsprogs|info"
    r"|perl|perl-.*|xorg-x11-drv-nvidia.*|nvidia-.*|libnvidia-.*|kmod-nvidia.*|akmod-nvidia.*|cuda-drivers.*)\Z"
)
"""Packages that nothing is followed into: package management, boot, perl, drivers. `--with` a program of theirs brings them."""
_PLACES = ("usr/lib/sysimage/rpm", "var/lib/rpm")
_FILES = ("rpmdb.sqlite", "Packages.db", "Packages")
_ONE, _LIST, _ITEM, _PART = "\x1c", "\x1e", "\x1f", "\x1d"
"""After a package, between its lists, after an item of a list, between an item's parts."""
_HEADERS = (
    _LIST.join(["%{DBINSTANCE}", "%{NAME}", "%{EPOCH}", "%{VERSION}", "%{RELEASE}", "%{ARCH}"])
    + f"{_LIST}[%{{REQUIRENAME}}{_PART}%{{REQUIREFLAGS}}{_ITEM}]{_LIST}[%{{PROVIDENAME}}{_ITEM}]{_LIST}[%{{RECOMMENDNAME}}{_ITEM}]{_ONE}"
)
_NAMES = f"%{{DBINSTANCE}}{_LIST}[%{{FILENAMES}}{_ITEM}]{_ONE}"
_DETAILS = (
    f"%{{DBINSTANCE}}{_LIST}[%{{FILENAMES}}{_PART}%{{FILEFLAGS}}{_PART}%{{FILESTATES}}{_PART}%{{FILEDIGESTS}}{_PART}"
    f"%{{FILEMODES}}{_ITEM}]{_ONE}"
)
_NONE = "(none)"
_SCRIPTS = sum(1 << bit for bit in (5, 7, 9, 10, 11, 12, 13, 20, 21))
"""RPMSENSE_SCRIPT_* and *TRANS: needed while the package is installed or removed, and not by its files."""
_RPMLIB = 1 << 24
_CONFIG, _DOC, _MISSINGOK, _GHOST, _LICENSE = 1 << 0, 1 << 1, 1 << 3, 1 << 6, 1 << 7
"""RPMFILE_*."""
_NORMAL = "0"
"""RPMFILE_STATE_NORMAL; others are left out by choice (`--nodocs`), or are another package's."""
_LONGEST = 1 << 30
_PATIENCE = 300.0


class Header(msgspec.Struct, frozen=True):
    """What the database tells of one installed package."""

    instance: str
    requires: tuple[str, ...]
    """Without those that only scripts of its installation have."""
    provides: tuple[str, ...]
    recommends: tuple[str, ...]


class File(msgspec.Struct, frozen=True):
    """One file of a package."""

    path: str
    flags: int
    state: str
    digest: str
    """Hex, of the hash that its length tells; empty for what has none."""
    mode: int


class Database:
    """The installed packages. Raises `LockError` for a database that cannot be read."""

    family = "rpm"
    shell = SHELL

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = "" if root == Path("/") else str(root)
        folder = _place(root)
        if folder is None:
            raise LockError("has no rpm database", where=str(root), hint=f"expected {' or '.join(_PLACES)} with {_FILES[0]}")
        self._folder = folder
        self._headers = dict(sorted(self._read(), key=lambda one: one[0].order))
        if not self._headers:
            raise LockError("is an rpm database that holds no packages", where=str(folder), hint="rpm --rebuilddb")
        self._by_instance = {header.instance: package for package, header in self._headers.items()}
        self._providers: dict[str, list[Package]] = {}
        for package, header in self._headers.items():
            for name in dict.fromkeys((package.name, *header.provides)):
                self._providers.setdefault(name, []).append(package)
        counts = Counter(package.architecture for package in self._headers if package.architecture != "noarch")
        machine = os.uname().machine
        self._native = machine if machine in counts else min(counts, key=lambda name: (-counts[name], name), default="")
        self._details: dict[Package, tuple[File, ...]] = {}
        self._wanted: set[Package] = set()
        """Packages whose files will be asked for: one question to rpm is as dear as many."""
        self._names: dict[Package, list[str]] = {}
        self._folders: dict[str, str] = {}
        self._by_path: dict[str, tuple[Package, ...]] | None = None

    @property
    def packages(self) -> tuple[Package, ...]:
        """All of them, sorted."""
        return tuple(self._headers)

    def is_left_out(self, name: str) -> bool:
        return LEFT_OUT.match(name) is not None

    def named(self, name: str) -> Package | None:
        """The installed package of this name: the machine's own architecture first, the last version of several."""
        found = [package for package in self._providers.get(name, []) if package.name == name]
        return min(reversed(found), key=lambda package: self._rank(package, ""), default=None)

    def shown(self, package: Package) -> str:
        return package.name if package.architecture in (self._native, "noarch") else f"{package.name}.{package.architecture}"

    def owners(self, paths: Iterable[str]) -> dict[str, tuple[Package, ...]]:
        """Which packages own each real, absolute path; packages spell folders as they were before they became links."""
        wanted = set(paths)
        names = {path.rpartition("/")[2] for path in wanted}
        found: dict[str, list[Package]] = {}
        for package, listed in self._listed().items():
            for path in listed:
                folder, _, name = path.rpartition("/")
                if name in names and (real := f"{self._real(folder)}/{name}") in wanted:
                    found.setdefault(real, []).append(package)
        return {path: tuple(dict.fromkeys(packages)) for path, packages in found.items()}

    def files(self, package: Package) -> list[str]:
        """What the package has on this machine: no documentation but licences, and no ghost but links and configuration.

        Other ghosts are the machine's own state (logs, caches, seeds); a ghost link is how an alternative is chosen, and
        ghost configuration what a tool of the package made (crypto-policies).
        """
        return [file.path for file in self._files(package) if self._is_there(file)]

    def checksums(self, package: Package) -> dict[str, str]:
        return {
            file.path: file.digest
            for file in self._files(package)
            if file.digest and not file.flags & _GHOST and self._is_there(file)
        }

    def close(self, roots: Iterable[Package], leave_out: Callable[[str], bool]) -> tuple[Package, ...]:
        found: set[Package] = set()
        pending = list(roots)
        while pending:
            package = pending.pop()
            if package not in found:
                found.add(package)
                pending += self._met(self._headers[package].requires, package, leave_out)
        self._wanted |= found
        return tuple(sorted(found, key=lambda package: package.order))

    def recommended(self, package: Package, leave_out: Callable[[str], bool]) -> list[Package]:
        return self._met(self._headers[package].recommends, package, leave_out)

    def alternatives(self) -> tuple[Alternative, ...]:
        return packages.alternatives(Path(self._root or "/", "var/lib/alternatives"))

    def kept(self, packages: Iterable[Package]) -> dict[str, bytes]:  # noqa: ARG002
        """Nothing: see the head of this file."""
        return {}

    def _met(self, requirements: Iterable[str], package: Package, leave_out: Callable[[str], bool]) -> list[Package]:
        """One installed package for each requirement that is met by one; of several the asker's own architecture's."""

        def providers(name: str) -> list[Package]:
            found = [one for one in self._providing(name) if not leave_out(one.name)]
            return sorted(
                found, key=lambda one: (one != package, one.name != name, self._rank(one, package.architecture), one.order)
            )

        resolver = rich.Resolver(providers)
        return [one for text in requirements for one in resolver.meet(rich.parse(text)) or ()]

    def _providing(self, name: str) -> list[Package]:
        found = self._providers.get(name, [])
        if found or not name.startswith("/"):
            return found
        if self._by_path is None:
            asked = [text for header in self._headers.values() for one in (header.requires, header.recommends) for text in one]
            paths = {path for text in asked for path in re.findall(r"(?:\A|(?<=[\s(]))/[^\s()]+", text)}
            places = {path: f"{self._real(path.rpartition('/')[0])}/{path.rpartition('/')[2]}" for path in paths}
            owners = self.owners(places.values())
            self._by_path = {path: owners.get(place, ()) for path, place in places.items()}
        return list(self._by_path.get(name, ()))

    def _rank(self, package: Package, architecture: str) -> int:
        return {architecture: 0, "noarch": 1, self._native: 2}.get(package.architecture, 3)

    def _is_there(self, file: File) -> bool:
        if file.state != _NORMAL or (file.flags & _DOC and not file.flags & _LICENSE):
            return False
        if file.flags & (_GHOST | _MISSINGOK):
            try:
                mode = os.lstat(self._root + file.path).st_mode
            except OSError:
                return False
            return stat.S_ISLNK(mode) or not file.flags & _GHOST or bool(file.flags & _CONFIG)
        return True

    def _real(self, folder: str) -> str:
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(self._root + folder)[
                len(os.path.realpath(self._root)) if self._root else 0 :
            ]
        return self._folders[folder].rstrip("/")

    def _listed(self) -> dict[Package, list[str]]:
        if not self._names:
            for instance, names in self._ask(_NAMES, ["-a"], 2):
                if instance in self._by_instance:  # else a key, see `_read`
                    self._names[self._by_instance[instance]] = _items(names)
        return self._names

    def _files(self, package: Package) -> tuple[File, ...]:
        if package not in self._details:
            asked = sorted({package} | (self._wanted - self._details.keys()), key=lambda one: one.order)
            instances = [self._headers[one].instance for one in asked]
            for instance, files in self._ask(_DETAILS, ["--querybynumber", *instances], 2):
                self._details[self._by_instance.get(instance, package)] = tuple(map(self._file, _items(files)))
        if package not in self._details:
            raise self._unreadable(f"it does not tell the files of {package.name}")
        return self._details[package]

    def _file(self, text: str) -> File:
        path, flags, state, digest, mode = self._parts(text, 5)
        if not (path.startswith("/") and flags.isdecimal() and mode.isdecimal()):
            raise self._unreadable(f"it tells {text!r} of a file")
        return File(path, int(flags), _NORMAL if state == _NONE else state, "" if digest == _NONE else digest, int(mode))

    def _read(self) -> Iterator[tuple[Package, Header]]:
        for instance, name, epoch, version, release, architecture, requires, provides, recommends in self._ask(
            _HEADERS, ["-a"], 9
        ):
            if name == "gpg-pubkey":
                continue  # a key that rpm trusts, kept as if it were a package
            if not (instance.isdecimal() and name and version and release):
                raise self._unreadable(f"it tells {name!r} of a package")
            needed = [self._parts(one, 2) for one in _items(requires)]
            if not all(flags.isdecimal() for _, flags in needed):
                raise self._unreadable(f"it tells no flags of what {name} requires")
            package = Package(name, architecture, (f"{epoch}:" if epoch != _NONE else "") + f"{version}-{release}")
            header = Header(
                instance=instance,
                requires=tuple(dict.fromkeys(one for one, flags in needed if not int(flags) & (_SCRIPTS | _RPMLIB))),
                provides=tuple(_items(provides)),
                recommends=tuple(_items(recommends)),
            )
            yield package, header

    def _ask(self, form: str, which: list[str], parts: int) -> Iterator[list[str]]:
        """rpm's answer, a list of parts for each package that is one."""
        argv = ["rpm", "--dbpath", str(self._folder), "--query", "--queryformat", form, *which]
        try:
            done = process.run(argv, env={"PATH": SYSTEM_PATH, "LC_ALL": "C", "HOME": "/"}, timeout=_PATIENCE, limit=_LONGEST)
        except FileNotFoundError:
            raise LockError(
                "this machine's packages are rpm's, and the program rpm is not here to read them",
                where=str(self._folder),
                hint="install it (dnf install rpm), or capture in an image that has it",
            ) from None
        if done.code != 0 or len(done.stdout) >= _LONGEST:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise self._unreadable(f"rpm says {said[0]!r}" if said else f"rpm ended with {done.code}")
        text = done.stdout.decode(errors="surrogateescape")
        if not text.endswith(_ONE) and text:
            raise self._unreadable("rpm's answer is cut short")
        for one in text.split(_ONE)[:-1]:
            found = one.split(_LIST)
            if len(found) != parts:
                raise self._unreadable(f"rpm answers {one[:80]!r}")
            yield found

    def _parts(self, text: str, count: int) -> list[str]:
        found = text.split(_PART)
        if len(found) != count:
            raise self._unreadable(f"rpm answers {text[:80]!r}")
        return found

    def _unreadable(self, why: str) -> LockError:
        return LockError(f"cannot be read: {why}", where=str(self._folder), hint="rpm --verifydb tells whether it is damaged")


def present(root: Path) -> bool:
    """Whether this machine has an rpm database."""
    return _place(root) is not None


def _place(root: Path) -> Path | None:
    return next((root / place for place in _PLACES if any((root / place / file).exists() for file in _FILES)), None)


def _items(text: str) -> list[str]:
    """The items of a list; rpm writes a word for a list that is not there."""
    return [one for one in text.split(_ITEM)[:-1] if one.partition(_PART)[0] != _NONE]
