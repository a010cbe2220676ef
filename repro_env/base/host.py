"""The base layer: the least operating system that this environment needs, cut from the live machine (base rule 1).

In: whole packages. Those that own a library which the interpreter, its extension modules, the environment's libraries
or the start-up probe's mapped libraries load; those of a small shell (`SHELL`); those of `--with` programs, with what
they recommend; and all that these depend on. Beside packages: the symlinks that lead to any of it (`/bin`,
`/etc/alternatives`), libraries and programs that no package owns, at their paths, the machine's certificates, its time
zone, and the captured locale.

Out: documentation but for copyright files, translations but the captured locale's, package management (`LEFT_OUT`),
and GPU drivers, which belong to the kernel of the machine that a run is on.

Made by rule, never copied: passwd, group, nsswitch.conf, ld.so.cache, and the package database cut to the packages
that are there. Every other byte is the machine's own: checked against its package's checksums, and named when it
differs. Owners, times and set-uid bits do not survive the canonical form (`image.entry`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from repro_env.base import closure, dpkg, interpreter, ldcache
from repro_env.base.tree import Hashes, LiveTree, Tree, real, within
from repro_env.image.layout import SYSTEM_PATH
from repro_env.model import codec
from repro_env.model.environment import Interpretation, Startup, SystemPackage
from repro_env.model.errors import LockError, UsageError
from repro_env.store.facts import FactCache

SHELL = (
    "base-files", "bash", "ca-certificates", "coreutils", "dash", "findutils", "grep", "gzip", "hostname", "libc-bin",
    "media-types", "ncurses-base", "netbase", "openssl", "sed", "tar", "tzdata", "util-linux",
)  # fmt: skip
"""Packages that are in every base, where the machine has them."""
SHELL_PROGRAMS = ("sh", "awk")
"""Programs whose package is in every base; which one that is differs from machine to machine."""
LEFT_OUT = re.compile(
    r"\A(?:dpkg|apt|adduser|passwd|login|ucf|mount|udev|init-system-helpers|sysvinit-utils|e2fsprogs|logsave|install-info"
    r"|debconf.*|cdebconf.*|perl|perl-base|perl-modules-.*|libperl.*|systemd|systemd-sysv|systemd-standalone-.*"
    r"|nvidia-.*|libnvidia-.*|libcuda1(?:-.*)?|cuda-drivers.*)\Z"
)
"""Packages that nothing is followed into: package management, boot, perl, drivers. `--with` a program of theirs brings them."""
DRIVER = re.compile(r"\Alib(?:cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[^/]*|\w+_nvidia)\.so(?:\.|\Z)")
"""File names of the GPU driver's user-space half: it has to match the kernel module, so a run takes the machine's own."""
FOLDERS = (
    "dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "usr", "var", "var/lib", "var/tmp",
)  # fmt: skip
PASSWD = b"root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
GROUP = b"root:x:0:\nnogroup:x:65534:\n"
NSSWITCH = b"".join(
    b"%s: files\n" % name for name in (b"passwd", b"group", b"shadow", b"networks", b"protocols", b"services", b"ethers")
) + (b"hosts: files dns\n")
_UNWANTED = ("man", "info", "lintian", "bug", "doc-base", "gtk-doc", "help", "bash-completion")
"""Folders below /usr/share."""
_BUILT_IN = frozenset({"", "C", "POSIX", "C.UTF-8", "C.utf8"})
_LIBRARY = re.compile(r"\A(?:lib.*\.so|ld-.*\.so)(?:\..*)?\Z")
CHECKED = "package-files"
_READ = 1 << 20
_TOGETHER = 64
"""Files that a thread takes at once."""


def cut(
    facts: Interpretation,
    startup: Startup,
    *,
    libraries: Iterable[Path] = (),
    programs: Sequence[str] = (),
    locale: str = "",
    hashes: Hashes,
    known: FactCache | None = None,
) -> Tree:
    """The base for an environment.

    `libraries`: absolute paths of the environment's shared libraries and extension modules. `programs`: names or
    absolute paths to add (`--with`). `locale`: the one in force, as setlocale(3) names it; words after it are ignored.
    `known` remembers which files were held against the package database, by their sha256. Raises `LockError`: no package database of a supported family, or a locale that is not there; `UsageError`: a
    program that is not there.
    """
    system = database(Path("/"))
    added = [_program(system, name) for name in programs]
    own = [str(path) for path in libraries]
    locale = next(iter(locale.split()), "")
    needs = _needs(facts, startup, own, [path for one in added for path in one.chain[-1:]])
    tree = LiveTree()
    basics = [real(found) for name in SHELL_PROGRAMS if (found := shutil.which(name, path=SYSTEM_PATH))]
    owners = system.owners([*basics, *needs.libraries, *needs.mapped, *(path for one in added for path in one.chain)])
    packages = _packages(system, owners, [*basics, *needs.libraries, *needs.mapped], added)

    gone: list[str] = []
    checks: list[_Check] = []
    wanted = _translations(locale)
    for package in packages:
        gone += _collect(tree, system, package, wanted, checks)
    unowned = _unowned(tree, needs, added, owners, facts, startup)
    spelled = [path for path in needs.spelled if real(path) in owners or real(path) in unowned]
    for path in (*spelled, *(path for one in added for path in one.chain[:1]), "/bin/sh"):
        tree.follow(path)
    for link in ("/bin", "/lib", "/lib64", "/sbin", "/etc/os-release", "/etc/localtime", "/etc/timezone"):
        tree.follow(link)
    _alternatives(tree, system)
    _locale(tree, locale)
    notes = [*needs.notes, *_certificates(tree)]

    tree.make("/etc/passwd", PASSWD)
    tree.make("/etc/group", GROUP)
    tree.make("/etc/nsswitch.conf", NSSWITCH)
    tree.make("/var/lib/dpkg/status", system.status(packages))
    tree.make("/etc/ld.so.cache", ldcache.write(_cache(tree, needs, facts.interpreter.libpython)))
    entries, contents = tree.finish(hashes, FOLDERS)
    return Tree(
        entries=entries,
        contents=contents,
        packages=tuple(SystemPackage(name=system.shown(package), version=package.version) for package in packages),
        edited=_edited(checks, {entry.path: entry.sha256 for entry in entries}, known),
        unowned=tuple(sorted(unowned)),
        unknown=tuple(sorted({*needs.unknown, *gone})),
        notes=tuple(sorted(set(notes))),
    )


def database(root: Path) -> dpkg.Database:
    """The machine's package database. Raises `LockError` naming what the machine has instead of a supported one."""
    if dpkg.present(root):
        return dpkg.Database(root)
    others = {
        "var/lib/rpm": "rpm", "usr/lib/sysimage/rpm": "rpm", "lib/apk/db/installed": "apk", "var/lib/pacman": "pacman",
        "nix/store": "nix", "var/lib/dpkg/status.d": "a distroless image's",
    }  # fmt: skip
    family = next((name for place, name in others.items() if (root / place).exists()), "")
    what = f"a base can be cut from dpkg machines (Debian, Ubuntu) only so far; this one's package database is {family}"
    if not family:
        what = "this machine has no package database, so nothing says which files an operating system needs"
    raise LockError(what, where=str(root), hint="capture on a Debian or Ubuntu machine or in a container of one")


class _Program(msgspec.Struct, frozen=True):
    """What one `--with` asks for."""

    chain: tuple[str, ...]
    """Every path from the name to the file, folders resolved; empty when a package was named."""
    package: dpkg.Package | None


class _Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What is loaded from outside the environment and the interpreter."""

    loader: closure.Loader
    spelled: tuple[str, ...]
    """As the loader spells them."""
    libraries: frozenset[str]
    """Real paths, found by the loader's rules."""
    mapped: frozenset[str]
    """Real paths that were mapped at start-up, but which the rules do not lead to (LD_LIBRARY_PATH, dlopen by path)."""
    unknown: tuple[str, ...]
    notes: tuple[str, ...]


class _Check(msgspec.Struct, frozen=True):
    """A file to compare with its package's checksum."""

    path: str
    md5: str
    package: str


def _program(system: dpkg.Database, name: str) -> _Program:
    path = name if name.startswith("/") else shutil.which(name, path=SYSTEM_PATH)
    if path is None or not Path(path).is_file():
        package = None if path else system.named(name)
        if package is None:
            hint = "install it on this machine first, or give the full path of the program"
            raise UsageError("is neither a program nor a package of this machine", where=f"--with {name}", hint=hint)
        return _Program((), package)
    chain = []
    for _ in range(40):
        folder, _, last = path.rpartition("/")
        path = f"{real(folder)}/{last}"
        chain.append(path)
        if not Path(path).is_symlink():
            break
        path = os.path.normpath(Path(real(folder), Path(path).readlink()))
    return _Program(tuple(chain), None)


def _needs(facts: Interpretation, startup: Startup, own: Sequence[str], programs: Sequence[str]) -> _Needs:
    python = facts.interpreter
    loader = closure.host()
    elsewhere = _elsewhere(facts)
    parts = interpreter.binaries(python)
    themselves = {real(part) for part in parts}
    loaded: dict[str, str] = {}
    for path in (*startup.mapped, *own):
        found = loader.facts(path)
        for name in (path.rpartition("/")[2], found.soname if found else ""):
            if name:
                loaded[name] = "" if within(path, elsewhere) or within(real(path), elsewhere) else path
    starts = [*parts, *startup.mapped, *own, *programs]
    closed = closure.close(starts, loader, program=python.executable, loaded=loaded)

    notes, unknown, spelled = [], [*closed.damaged], []
    libraries, mapped = set(), set()
    for path in (*closed.libraries, *closed.interpreters, *startup.mapped):
        at = real(path)
        if at in themselves or within(path, elsewhere) or within(at, elsewhere):
            continue
        if DRIVER.match(path.rpartition("/")[2]) or DRIVER.match(at.rpartition("/")[2]):
            notes.append(f"{path} belongs to the GPU driver and is not captured: a run takes its own machine's")
        elif not Path(at).is_file():
            unknown.append(f"{path} is loaded and is not on this machine")
        else:
            spelled.append(path)
            libraries.add(at)
            if path in startup.mapped:
                mapped.add(at)
    ruled = {real(path) for path in (*closed.libraries, *closed.interpreters)}
    for one in closed.missing:
        text = f"{one.name}, needed by {one.by}, is not on this machine"
        (notes if DRIVER.match(one.name) else unknown).append(text)
    return _Needs(
        loader=loader,
        spelled=tuple(sorted(spelled)),
        libraries=frozenset(libraries & ruled),
        mapped=frozenset(mapped - ruled),
        unknown=tuple(unknown),
        notes=tuple(notes),
    )


def _elsewhere(facts: Interpretation) -> list[str]:
    """Folders whose files travel in other layers."""
    layout, python = facts.layout, facts.interpreter
    found = [python.stdlib, python.platstdlib]
    if facts.is_venv or layout.prefix not in interpreter.SHARED:
        found.append(layout.prefix)
    else:
        found += [f"{layout.prefix}/{site}" for site in (layout.purelib, layout.platlib)]
    if own := interpreter.own_prefix(facts):
        found.append(own)
    return [*found, *map(real, found)]


def _packages(
    system: dpkg.Database,
    owners: dict[str, tuple[dpkg.Package, ...]],
    needed: Iterable[str],
    added: Sequence[_Program],
) -> tuple[dpkg.Package, ...]:
    roots = [package for path in needed for package in owners.get(path, ())]
    roots += [found for name in SHELL if (found := system.named(name)) is not None]
    for one in added:
        asked = [one.package] if one.package else [package for path in one.chain for package in owners.get(path, ())]
        roots += asked
        for package in asked:
            roots += system.meet(package.recommends, package.architecture, _is_left_out)
    return system.close(roots, _is_left_out)


def _is_left_out(name: str) -> bool:
    return LEFT_OUT.match(name) is not None


def _collect(
    tree: LiveTree, system: dpkg.Database, package: dpkg.Package, wanted: frozenset[str], checks: list[_Check]
) -> list[str]:
    """A package's files into the tree, and what to compare them with. Returns a line for each that is not to be had."""
    gone = []
    for path in system.files(package):
        if not _belongs(path, wanted):
            continue
        found = tree.add(path)
        if found is None:
            gone.append(f"{path} ({package.name}) is not there or cannot be reached")
        elif found.kind == "file" and not os.access(f"/{found.path}", os.R_OK):
            tree.drop(f"/{found.path}")
            gone.append(f"{path} ({package.name}) cannot be read by this user")
    for path, md5 in system.checksums(package).items():
        place = tree.parent(path) if _belongs(path, wanted) else None
        found = tree.found(place) if place is not None else None
        if found is not None and found.kind == "link" and tree.follow(f"/{found.path}") is not None:
            checks.append(_Check(f"/{found.path}", "", package.name))  # somebody put a link in the place of a file
        elif found is not None and found.kind == "file":
            checks.append(_Check(f"/{found.path}", md5, package.name))
    return gone


def _belongs(path: str, wanted: frozenset[str]) -> bool:
    """Whether a packaged path is part of a base: no documentation, no foreign translations."""
    if not path.startswith("/usr/share/"):
        return True
    first, _, rest = path[len("/usr/share/") :].partition("/")
    if first == "doc":
        package, _, name = rest.partition("/")
        return name == "copyright" or (bool(package) and not name and Path(path).is_symlink())
    if first == "locale":
        language = rest.partition("/")[0]
        return language in wanted or language == "locale.alias"
    return first not in _UNWANTED


def _translations(locale: str) -> frozenset[str]:
    """Folders of /usr/share/locale that gettext looks into for a locale."""
    if locale in _BUILT_IN:
        return frozenset()
    plain = locale.partition("@")[0].partition(".")[0]
    return frozenset({locale, locale.partition(".")[0], plain, plain.partition("_")[0]})


def _unowned(
    tree: LiveTree,
    needs: _Needs,
    added: Sequence[_Program],
    owners: dict[str, tuple[dpkg.Package, ...]],
    facts: Interpretation,
    startup: Startup,
) -> set[str]:
    """Take what no package owns. A mapped file on `sys.path` is somebody's module: source or overlay, not base."""
    found = set(needs.libraries - owners.keys())
    modules = [path for path in startup.sys_path if path.startswith("/") and path not in interpreter.SHARED]
    found |= {path for path in needs.mapped - owners.keys() if not within(path, map(real, modules))}
    elsewhere = _elsewhere(facts)
    for one in added:
        found |= {path for path in one.chain if path not in owners and not within(path, elsewhere)}
    for path in found:
        tree.follow(path)
    return {path for path in found if not Path(path).is_symlink()}


def _alternatives(tree: LiveTree, system: dpkg.Database) -> None:
    """The links of every alternative whose choice is in the tree."""
    for one in system.alternatives():
        if real(f"/etc/alternatives/{one.name}") in tree and real(one.link) in tree:
            tree.follow(one.link)


def _locale(tree: LiveTree, locale: str) -> None:
    """The compiled locale: its own folder, else the archive that holds it (locale(7))."""
    if locale in _BUILT_IN:
        return
    names = _spellings(locale)
    for name in names:
        if Path("/usr/lib/locale", name).is_dir():
            tree.below(f"/usr/lib/locale/{name}", lambda path, is_dir: False)  # noqa: ARG005
            return
    archive = Path("/usr/lib/locale/locale-archive")
    if archive.is_file() and _mentions(archive, [name.encode() + b"\0" for name in names]):
        tree.follow(str(archive))
        return
    raise LockError(
        f"the locale {locale!r} is in force and not to be found in /usr/lib/locale",
        where=locale,
        hint=f"generate it (locale-gen {locale}), or capture with LANG=C.UTF-8",
    )


def _spellings(locale: str) -> list[str]:
    """A locale's name as given and as glibc normalises it: `de_DE.UTF-8@euro` -> `de_DE.utf8@euro`."""
    head, at, modifier = locale.partition("@")
    language, dot, charset = head.partition(".")
    plain = re.sub(r"[^a-z0-9]", "", charset.lower())
    if plain.isdecimal():
        plain = f"iso{plain}"
    return list(dict.fromkeys([locale, f"{language}{dot}{plain}{at}{modifier}"]))


def _mentions(file: Path, words: Sequence[bytes]) -> bool:
    longest = max(map(len, words))
    with file.open("rb") as stream:
        tail = b""
        while chunk := stream.read(_READ):
            window = tail + chunk
            if any(word in window for word in words):
                return True
            tail = window[-longest:]
    return False


def _certificates(tree: LiveTree) -> Iterator[str]:
    """The trust store as it is: the bundle and the links beside it. Yields a note for each certificate of the site's own."""
    folder = "/etc/ssl/certs"
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return
    for name in names:
        path = f"{folder}/{name}"
        if Path(path).is_file() and os.access(path, os.R_OK):
            tree.follow(path)
    bundle = Path(folder, "ca-certificates.crt")
    trusted = bundle.read_bytes() if str(bundle) in tree else b""
    for own in sorted(Path("/usr/local/share/ca-certificates").rglob("*.crt")):
        if own.is_file() and os.access(own, os.R_OK) and own.read_bytes().strip() in trusted:
            yield f"{own} is a certificate of this site's own and travels with the base"


def _cache(tree: LiveTree, needs: _Needs, libpython: str | None) -> Iterator[ldcache.Library]:
    """What ldconfig would list of this tree (ldconfig(8)): its folders in their order, then what was loaded from others."""
    folders: dict[str, list[str]] = {}
    for path in tree.paths():
        folder, _, name = path.rpartition("/")
        if _LIBRARY.match(name):
            folders.setdefault(folder, []).append(name)
    if libpython:  # it travels with the interpreter, and may be found by nothing but this cache
        folder, _, name = real(libpython).rpartition("/")
        folders.setdefault(folder, []).append(name)
    seen: set[str] = set()
    for spelled in _search():
        place = real(spelled)
        if place in seen:
            continue
        seen.add(place)
        inner = f"{place}/glibc-hwcaps/"
        for folder in sorted(name for name in folders if name == place or name.startswith(inner)):
            below = folder[len(place) :]
            yield from _lines(tree, needs.loader, folder, spelled + below, folders[folder], below.rpartition("/")[2])
    for path in sorted(needs.mapped):
        if path in tree and path.rpartition("/")[0] not in seen:
            folder, _, name = path.rpartition("/")
            yield from _lines(tree, needs.loader, folder, folder, [name], "")


def _lines(
    tree: LiveTree, loader: closure.Loader, folder: str, spelled: str, names: Iterable[str], hwcaps: str
) -> Iterator[ldcache.Library]:
    for name in names:
        facts = loader.facts(f"{folder}/{name}")
        flags = ldcache.FLAGS.get((facts.bits, facts.machine)) if facts else None
        if facts is None or flags is None:
            continue
        listed = facts.soname or name
        if f"{folder}/{name}" in tree.links and name.endswith(".so") and listed.startswith(name):
            listed = name  # a link for the linker, which ldconfig lists too
        file = listed if f"{folder}/{listed}" in tree else name
        yield ldcache.Library(listed, flags, f"{spelled}/{file}", hwcaps)


def _search() -> Iterator[str]:
    """Folders of ld.so.conf in their order, then the loader's built-in ones."""
    yield from _configured(Path("/etc/ld.so.conf"), 0)
    yield from ("/lib", "/usr/lib")


def _configured(file: Path, depth: int) -> Iterator[str]:
    try:
        text = file.read_text(errors="surrogateescape")
    except OSError:
        return
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["include"] and depth < 8:
            for pattern in words[1:]:
                start = Path("/") if pattern.startswith("/") else file.parent
                for found in sorted(start.glob(pattern.lstrip("/"))):
                    yield from _configured(found, depth + 1)
        elif words and words[0].startswith("/"):
            yield words[0].rstrip("/")


def _edited(checks: Sequence[_Check], hashes: Mapping[str, str], known: FactCache | None) -> tuple[str, ...]:
    """Files that are not as their package installed them. The same bytes against the same database need no second look."""
    told = [[check.path, check.package, check.md5, hashes.get(check.path[1:], "")] for check in checks]
    if known is None or not all(sha256 or not md5 for _, _, md5, sha256 in told):
        return _compared(checks)
    key = codec.digest(told)
    found = known.recall(CHECKED, key, tuple[str, ...])
    if found is None:
        found = _compared(checks)
        known.put(CHECKED, key, codec.canonical(found))
    return found


def _compared(checks: Sequence[_Check]) -> tuple[str, ...]:
    parts = [checks[start : start + _TOGETHER] for start in range(0, len(checks), _TOGETHER)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return tuple(sorted({line for lines in pool.map(_differing, parts) for line in lines}))


def _differing(checks: Sequence[_Check]) -> list[str]:
    return [f"{check.path} ({check.package})" for check in checks if _md5(check.path) != check.md5]


def _md5(path: str) -> str:
    """Hex; empty for a file that is gone by now, which the hashing of the tree will say."""
    hasher = hashlib.md5(usedforsecurity=False)
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            while chunk := file.read(_READ):
                hasher.update(chunk)
    except OSError:
        return ""
    return hasher.hexdigest()
