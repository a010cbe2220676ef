"""The package database of Debian and Ubuntu, read from its files (dpkg(1), deb-control(5), dpkg-divert(1)).

dpkg is not started: `info/*.list` has the files of each package.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from repro_env.environment.system import packages
from repro_env.environment.system.packages import Package, Relations
from repro_env.io.files import key_of
from repro_env.schema import codec
from repro_env.schema.errors import LockError
from repro_env.store.facts import FactCache
from repro_env.store.hashes import SETTLED

SHELL = (
    "base-files", "bash", "ca-certificates", "coreutils", "dash", "findutils", "grep", "gzip", "hostname", "libc-bin",
    "libc-gconv-modules-extra", "media-types", "mime-support", "ncurses-base", "netbase", "openssl", "sed", "tar", "tzdata",
    "tzdata-legacy", "util-linux",
)  # fmt: skip
EXCLUDED = re.compile(
    r"\A(?:dpkg|apt|adduser|passwd|login|ucf|mount|udev|init-system-helpers|sysvinit-utils|e2fsprogs|logsave|install-info"
    r"|debconf.*|cdebconf.*|perl|perl-base|perl-modules-.*|libperl.*|systemd|systemd-sysv|systemd-standalone-.*"
    r"|nvidia-.*|libnvidia-.*|libcuda1(?:-.*)?|cuda-drivers.*)\Z"
)
UNDECLARED = (("libapt-pkg", "dpkg"),)
"""libapt-pkg reads dpkg's tables of architectures."""
_KIND = "dpkg"
"""Kind of what is kept of a database, by the state of its files."""
T = TypeVar("T")
_NAME = re.compile(r"\s*([a-z0-9][a-z0-9+.-]*)")
_FIELD = re.compile(r"^([\w-]+):(.*(?:\n[ \t].*)*)", re.MULTILINE)
"""A line that begins with white space continues the line before."""
_INSTALLED = frozenset({"installed", "triggers-awaited", "triggers-pending"})


class Paragraph(Relations, frozen=True, kw_only=True):
    """What the status file contains about an installed package."""

    text: str


class Diversion(msgspec.Struct, frozen=True):
    """Packages other than `by` have their file `path` at `to`."""

    path: str
    to: str
    by: str


class Database(packages.Database):
    family = "deb"
    shell = SHELL
    excluded = EXCLUDED
    undeclared = UNDECLARED
    universal = "all"
    separator = ":"

    def __init__(self, root: Path = Path("/"), facts: FactCache | None = None) -> None:
        """`facts`: keeps what was read until a file of the database changes."""
        self._directory = root / "var/lib/dpkg"
        self._facts, self._state, self._lists = facts, *_state(self._directory)
        self._paragraphs = dict(
            self._keep("status", list[tuple[Package, Paragraph]], lambda: list(_paragraphs(self._directory / "status")))
        )
        # An image of ours has no dpkg.
        native = next((package.architecture for package in self._paragraphs if package.name in ("dpkg", "base-files")), "")
        super().__init__(self._paragraphs, native)
        self._diversions = _diversions(self._directory / "diversions")
        self._usr_merge_links = _usr_merge_links(root)
        self._files: dict[Package, list[str]] = {}

    def _keep(self, name: object, into: Any, make: Callable[[], T]) -> T:
        if self._facts is None or not self._state:
            return make()
        return self._facts.keep(_KIND, codec.digest((name, self._state)), into, make)

    def owners(self, paths: Iterable[str]) -> dict[str, tuple[Package, ...]]:
        wanted = sorted(set(paths))
        key = codec.digest_of(os.fsencode("\0".join(wanted)))
        return self._keep((key, self._usr_merge_links), dict[str, tuple[Package, ...]], lambda: self._find_owners(wanted))

    def _find_owners(self, paths: Iterable[str]) -> dict[str, tuple[Package, ...]]:
        paths_by_line: dict[bytes, list[str]] = {}
        for path in paths:
            names = self._spellings(path)
            names += [diversion.path for diversion in self._diversions if diversion.to in names]
            for name in names:
                paths_by_line.setdefault(name.encode(errors="surrogateescape"), []).append(path)
        owners_by_path: dict[str, list[Package]] = {}
        for package in self.packages:
            for line in paths_by_line.keys() & self._list(package).split(b"\n"):
                installed_path = self._apply_diversion(package, line.decode(errors="surrogateescape"))
                for path in paths_by_line[line]:
                    if installed_path in self._spellings(path):
                        owners_by_path.setdefault(path, []).append(package)
        return {path: tuple(sorted(owners)) for path, owners in owners_by_path.items()}

    def files(self, package: Package) -> list[str]:
        if package not in self._files:
            lines = self._list(package).decode(errors="surrogateescape").split("\n")
            paths = [self._apply_diversion(package, line) for line in lines if line.startswith("/") and line != "/."]
            self._files[package] = paths
        return self._files[package]

    def database_files(self, packages: Iterable[Package]) -> dict[str, bytes]:
        """A status file with the unchanged paragraphs of these packages, sorted, and the list of files of each.

        With these, an environment can be captured inside the image. Paths are those on this machine, so no diversions are needed.
        """
        packages = sorted(packages)
        texts = {"status": "".join(self._paragraphs[package].text + "\n\n" for package in packages)}
        texts |= {self._list_name(package): "".join(f"{path}\n" for path in ("/.", *self.files(package))) for package in packages}
        return {f"/var/lib/dpkg/{name}": text.encode(errors="surrogateescape") for name, text in texts.items()}

    def _spellings(self, path: str) -> list[str]:
        """A real path, and how packages spell it that were built before /bin, /lib and /sbin became links."""
        spellings = [path]
        for name, target in self._usr_merge_links:
            if path.startswith(target + "/"):
                spellings.append(name + path[len(target) :])
        return spellings

    def _apply_diversion(self, package: Package, path: str) -> str:
        for diversion in self._diversions:
            if diversion.path == path and diversion.by != package.name:
                return diversion.to
        return path

    def _list_name(self, package: Package) -> str:
        """`name:arch.list` for packages that can be installed for several architectures, else `name.list`."""
        exact = f"{package.name}:{package.architecture}.list"
        return f"info/{exact if exact in self._lists else f'{package.name}.list'}"

    def _list(self, package: Package) -> bytes:
        try:
            with open(self._directory / self._list_name(package), "rb", buffering=0) as file:  # noqa: PTH123 - a thousand small files
                return file.read()
        except FileNotFoundError:
            raise LockError(
                f"the dpkg database has no list of the files of {package.name}",
                where=str(self._directory / "info"),
                hint="reinstall that package",
            ) from None


def _state(directory: Path) -> tuple[str, frozenset[str]]:
    """Return (a digest that changes with any file of the database, the names of its lists).

    The digest is empty if a file changed too shortly before.
    """
    latest = time.time_ns() - SETTLED
    with contextlib.suppress(FileNotFoundError):
        files = {item.name: key_of(item.stat()) for item in os.scandir(directory / "info") if item.name.endswith(".list")}
        keys = [key_of(path.stat()) if path.exists() else None for path in (directory / "status", directory / "diversions")]
        is_settled = all(key is None or max(key[3:]) < latest for key in (*keys, *files.values()))
        state = hashlib.sha256(msgspec.msgpack.encode((keys, sorted(files.items())))).hexdigest() if is_settled else ""
        return state, frozenset(files)
    return "", frozenset()


def _paragraphs(path: Path) -> Iterator[tuple[Package, Paragraph]]:
    """The installed packages in the status file."""
    for text in path.read_text("utf-8", "surrogateescape").split("\n\n"):
        fields = {name: value.strip() for name, value in _FIELD.findall(text)}
        if fields.get("Status", "").rpartition(" ")[2] not in _INSTALLED:
            continue
        if not all(fields.get(field) for field in ("Package", "Architecture", "Version")):
            raise LockError(
                "the dpkg database has a package without a name, architecture or version",
                where=str(path),
                hint="run dpkg --audit",
            )
        paragraph = Paragraph(
            requires=_groups(fields.get("Pre-Depends", "")) + _groups(fields.get("Depends", "")),
            recommends=_groups(fields.get("Recommends", "")),
            provides=tuple(name for group in _groups(fields.get("Provides", "")) for name in group),
            text=text.strip("\n"),
        )
        yield Package(fields["Package"], fields["Architecture"], fields["Version"]), paragraph


def _groups(text: str) -> tuple[tuple[str, ...], ...]:
    groups = (tuple(match[1] for name in group.split("|") if (match := _NAME.match(name))) for group in text.split(","))
    return tuple(group for group in groups if group)


def _diversions(path: Path) -> tuple[Diversion, ...]:
    """Three lines each: from, to, package (`:` for a local diversion, which applies to every package)."""
    lines = path.read_text("utf-8", "surrogateescape").splitlines() if path.exists() else []
    return tuple(Diversion(*record) for record in zip(lines[::3], lines[1::3], lines[2::3], strict=False))


def _usr_merge_links(root: Path) -> tuple[tuple[str, str], ...]:
    """Top-level symlinks to a directory below /usr, such as (`/lib`, `/usr/lib`)."""
    links = []
    for name in ("bin", "lib", "lib32", "lib64", "libx32", "sbin"):
        link = root / name
        if link.is_symlink():
            target = link.readlink().as_posix().strip("/")
            if target.startswith("usr/"):
                links.append((f"/{name}", f"/{target}"))
    return tuple(links)


def present(root: Path) -> bool:
    """Whether this machine has a dpkg database with packages (on other families, dpkg comes with an empty database)."""
    status = root / "var/lib/dpkg/status"
    return status.is_file() and status.stat().st_size > 0
