"""The package database of Debian and Ubuntu, read from its own files (dpkg(1), deb-control(5), dpkg-divert(1)).

No dpkg process is started: `info/*.list` name what each package owns, `info/*.md5sums` and `Conffiles` what it held
when it was installed. Its methods are those of `packages.Database`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from repro_env.base import packages
from repro_env.base.packages import Alternative, Package
from repro_env.model.errors import LockError

SHELL = (
    "base-files", "bash", "ca-certificates", "coreutils", "dash", "findutils", "grep", "gzip", "hostname", "libc-bin",
    "libc-gconv-modules-extra", "media-types", "mime-support", "ncurses-base", "netbase", "openssl", "sed", "tar", "tzdata",
    "tzdata-legacy", "util-linux",
)  # fmt: skip
"""Packages that are in every base, where the machine has them."""
LEFT_OUT = re.compile(
    r"\A(?:dpkg|apt|adduser|passwd|login|ucf|mount|udev|init-system-helpers|sysvinit-utils|e2fsprogs|logsave|install-info"
    r"|debconf.*|cdebconf.*|perl|perl-base|perl-modules-.*|libperl.*|systemd|systemd-sysv|systemd-standalone-.*"
    r"|nvidia-.*|libnvidia-.*|libcuda1(?:-.*)?|cuda-drivers.*)\Z"
)
"""Packages that nothing is followed into: package management, boot, perl, drivers. `--with` a program of theirs brings them."""
USED = (("libapt-pkg", "dpkg"),)
"""(how a package's name begins, another that it uses without depending on it): libapt-pkg reads dpkg's tables of processors."""
_NAME = re.compile(r"\s*([a-z0-9][a-z0-9+.-]*)")
_HELD = frozenset({"installed", "triggers-awaited", "triggers-pending"})
_WANTED = ("Package", "Status", "Architecture", "Version", "Depends", "Pre-Depends", "Recommends", "Provides", "Conffiles")


class Paragraph(msgspec.Struct, frozen=True):
    """What the status file tells of one installed package."""

    depends: tuple[tuple[str, ...], ...]
    """`Pre-Depends` and `Depends`: every group holds names of which one suffices. Versions are dropped: dpkg checked them."""
    recommends: tuple[tuple[str, ...], ...]
    provides: tuple[str, ...]
    conffiles: tuple[tuple[str, str], ...]
    """(absolute path, md5 hex) as they were delivered."""
    text: str


class Diversion(msgspec.Struct, frozen=True):
    """Every package but `by` has its file `path` at `to` instead."""

    path: str
    to: str
    by: str


class Database:
    """The installed packages. Raises `LockError` for a database that contradicts its own format."""

    family = "deb"
    shell = SHELL

    def __init__(self, root: Path = Path("/")) -> None:
        self._folder = root / "var/lib/dpkg"
        self._paragraphs = dict(_status(self._folder / "status"))
        self.packages = {package.key: package for package in self._paragraphs}
        """By `name:architecture`."""
        self._by_name: dict[str, list[Package]] = {}
        self._providers: dict[str, list[Package]] = {}
        for key in sorted(self.packages):
            package = self.packages[key]
            self._by_name.setdefault(package.name, []).append(package)
            for name in self._paragraphs[package].provides:
                self._providers.setdefault(name, []).append(package)
        self._native = next((found.architecture for found in self._by_name.get("dpkg", ())), "")
        self._diversions = _diversions(self._folder / "diversions")
        self._merged = _merged(root)

    def is_left_out(self, name: str) -> bool:
        return LEFT_OUT.match(name) is not None

    def named(self, name: str, architecture: str = "") -> Package | None:
        """The installed package of this name: of the given architecture where several are, else the machine's own."""
        found = self._by_name.get(name, [])
        ranks = {architecture: 0, "all": 1, self._native: 2}
        return min(found, key=lambda package: (ranks.get(package.architecture, 3), package.architecture), default=None)

    def shown(self, package: Package) -> str:
        """Its name as dpkg shows it: with the architecture where that is a foreign one."""
        return package.name if package.architecture in (self._native, "all") else package.key

    def owners(self, paths: Iterable[str]) -> dict[str, tuple[Package, ...]]:
        """Which packages own each real, absolute path; a path that nobody owns is not in the answer."""
        wanted: dict[bytes, list[str]] = {}
        for path in set(paths):
            names = self._spellings(path)
            names += [one.path for one in self._diversions if one.to in names]
            for name in names:
                wanted.setdefault(name.encode(errors="surrogateescape"), []).append(path)
        found: dict[str, list[Package]] = {}
        for package in self.packages.values():
            for line in wanted.keys() & self._list(package).split(b"\n"):
                place = self._place(package, line.decode(errors="surrogateescape"))
                for path in wanted[line]:
                    if place in self._spellings(path):
                        found.setdefault(path, []).append(package)
        return {path: tuple(sorted(owners, key=lambda one: one.order)) for path, owners in found.items()}

    def files(self, package: Package) -> list[str]:
        """Absolute paths that the package owns, folders included, diversions applied, as it spells them."""
        lines = self._list(package).decode(errors="surrogateescape").split("\n")
        return [self._place(package, line) for line in lines if line.startswith("/") and line != "/."]

    def checksums(self, package: Package) -> dict[str, str]:
        """md5 (hex) of each file as the package delivered it, conffiles included; by the same spelling as `files`."""
        sums: dict[str, str] = {}
        try:
            text = Path(self._info(package, "md5sums")).read_text(errors="surrogateescape")
        except FileNotFoundError:
            text = ""  # a package may come without
        for line in text.splitlines():
            digest, _, path = line.partition("  ")
            sums[self._place(package, "/" + path.removeprefix("./"))] = digest
        for path, digest in self._paragraphs[package].conffiles:
            sums[self._place(package, path)] = digest
        return sums

    def close(self, roots: Iterable[Package], leave_out: Callable[[str], bool]) -> tuple[Package, ...]:
        """The roots and all they depend on, sorted; a name that is left out is not followed, unless it is a root."""
        found: dict[str, Package] = {}
        pending = list(roots)
        while pending:
            package = pending.pop()
            if package.key in found:
                continue
            found[package.key] = package
            pending += self._met(self._paragraphs[package].depends, package.architecture, leave_out)
            used = [self.named(name) for start, name in USED if package.name.startswith(start)]
            pending += [one for one in used if one is not None]
        return tuple(sorted(found.values(), key=lambda package: package.order))

    def recommended(self, package: Package, leave_out: Callable[[str], bool]) -> list[Package]:
        """The installed packages that this one recommends."""
        return self._met(self._paragraphs[package].recommends, package.architecture, leave_out)

    def alternatives(self) -> tuple[Alternative, ...]:
        """Every alternative and slave that is registered, sorted by file name."""
        return packages.alternatives(self._folder / "alternatives")

    def kept(self, packages: Iterable[Package]) -> dict[str, bytes]:
        """A status file that holds these packages' paragraphs, word for word, sorted."""
        ordered = sorted(packages, key=lambda package: package.order)
        text = "".join(self._paragraphs[package].text + "\n\n" for package in ordered)
        return {"/var/lib/dpkg/status": text.encode(errors="surrogateescape")}

    def _met(self, groups: Sequence[tuple[str, ...]], architecture: str, leave_out: Callable[[str], bool]) -> list[Package]:
        """For each group the first installed package that meets it: by its name, else by what it provides."""
        return [met for group in groups if (met := self._meet(group, architecture, leave_out)) is not None]

    def _meet(self, group: tuple[str, ...], architecture: str, leave_out: Callable[[str], bool]) -> Package | None:
        for name in group:
            named = self.named(name, architecture)
            for package in [named] if named else self._providers.get(name, []):
                if not leave_out(package.name):
                    return package
        return None

    def _spellings(self, path: str) -> list[str]:
        """A real path, and how packages spell it that were built before /bin, /lib and /sbin became links."""
        found = [path]
        for name, target in self._merged:
            if path.startswith(target + "/"):
                found.append(name + path[len(target) :])
        return found

    def _place(self, package: Package, path: str) -> str:
        for one in self._diversions:
            if one.path == path and one.by != package.name:
                return one.to
        return path

    def _list(self, package: Package) -> bytes:
        path = self._info(package, "list")
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a thousand small files
                return file.read()
        except FileNotFoundError:
            raise LockError(
                f"has no list of the files of {package.name}", where=str(self._folder / "info"), hint="reinstall that package"
            ) from None

    def _info(self, package: Package, kind: str) -> str:
        """`name:arch.kind` for packages that can be installed for several architectures, else `name.kind`."""
        exact = f"{package.key}.{kind}"
        return f"{self._folder}/info/{exact if exact in self._names else f'{package.name}.{kind}'}"

    @cached_property
    def _names(self) -> frozenset[str]:
        """Of the files in `info`."""
        try:
            return frozenset(os.listdir(self._folder / "info"))  # noqa: PTH208
        except FileNotFoundError:
            return frozenset()


def _status(path: Path) -> Iterable[tuple[Package, Paragraph]]:
    for paragraph in path.read_text(errors="surrogateescape").split("\n\n"):
        if not paragraph.strip():
            continue
        fields = _fields(paragraph)
        if fields.get("Status", "").split()[-1:] and fields["Status"].split()[-1] in _HELD:
            if not all(fields.get(field) for field in ("Package", "Architecture", "Version")):
                raise LockError("has a package without a name, architecture or version", where=str(path), hint="dpkg --audit")
            package = Package(fields["Package"], fields["Architecture"], fields["Version"])
            yield (
                package,
                Paragraph(
                    depends=_groups(fields.get("Pre-Depends", "")) + _groups(fields.get("Depends", "")),
                    recommends=_groups(fields.get("Recommends", "")),
                    provides=tuple(name for group in _groups(fields.get("Provides", "")) for name in group),
                    conffiles=_conffiles(fields.get("Conffiles", "")),
                    text=paragraph.strip("\n"),
                ),
            )


def _fields(paragraph: str) -> dict[str, str]:
    """The fields that are used; lines that begin with white space continue the one before."""
    found: dict[str, str] = {}
    name = ""
    for line in paragraph.strip("\n").split("\n"):
        if line[:1] in (" ", "\t"):
            if name:
                found[name] += "\n" + line.strip()
            continue
        field, _, value = line.partition(":")
        name = field if field in _WANTED else ""
        if name:
            found[name] = value.strip()
    return found


def _groups(text: str) -> tuple[tuple[str, ...], ...]:
    groups = []
    for group in text.replace("\n", " ").split(","):
        names = tuple(match[1] for one in group.split("|") if (match := _NAME.match(one)))
        if names:
            groups.append(names)
    return tuple(groups)


def _conffiles(text: str) -> tuple[tuple[str, str], ...]:
    """`<path> <md5>` a line; `obsolete` and `remove-on-upgrade` ones are no longer the package's, `newconffile` is no md5."""
    found = []
    for line in text.splitlines():
        words = line.rsplit(" ", 1)
        if len(words) == 2 and words[0].startswith("/") and re.fullmatch(r"[0-9a-f]{32}", words[1]):
            found.append((words[0], words[1]))
    return tuple(found)


def _diversions(path: Path) -> tuple[Diversion, ...]:
    """Three lines each: from, to, by whom (`:` for a local one, which no package is exempt from)."""
    try:
        lines = path.read_text(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return ()
    return tuple(Diversion(*three) for three in zip(lines[::3], lines[1::3], lines[2::3], strict=False))


def _merged(root: Path) -> tuple[tuple[str, str], ...]:
    """Top-level symlinks to a folder below /usr: (`/lib`, `/usr/lib`)."""
    found = []
    for name in ("bin", "lib", "lib32", "lib64", "libx32", "sbin"):
        link = root / name
        if link.is_symlink():
            target = link.readlink().as_posix().strip("/")
            if target.startswith("usr/"):
                found.append((f"/{name}", f"/{target}"))
    return tuple(found)


def present(root: Path) -> bool:
    """Whether this machine has a dpkg database with packages in it (an empty one comes with the dpkg of other families)."""
    status = root / "var/lib/dpkg/status"
    return status.is_file() and status.stat().st_size > 0
