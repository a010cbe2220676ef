"""The base layer: the least operating system that this environment needs, cut from the live machine (base rule 1).

In: whole packages. Those that own a library which the interpreter, its extension modules, the environment's libraries
or the start-up probe's mapped libraries load; those of a small shell (`Database.shell`); those of `--with` programs, with
what they recommend; those with something in a given folder (Debian's dist-packages); and all that these depend on. Beside
packages: the symlinks that lead to any of it (`/bin`, `/etc/alternatives`), the machine's certificates, its time zone, and
the captured locale.

Out: documentation but for copyright files, translations but the captured locale's, bytecode, package management
(`Database.is_left_out`), and GPU drivers, which belong to the kernel of the machine that a run is on.

Made by rule, never copied: passwd, group, nsswitch.conf, ld.so.cache, and dpkg's database cut to the packages that are
there. Every other byte is the machine's own: checked against its package's checksums, and named when it differs. Owners,
times and set-uid bits do not survive the canonical form (`image.entry`).

What no package owns (a vendor's libraries in `/opt`, module trees, a program of `--with`) is a tree of its own above the
base: the files that are loaded and what they load, at their paths, never the folder around them unless it is asked for.
That tree brings its own ld.so.cache, which hides the base's: so the base stays the pure cut of packages, equal for every
environment that needs the same ones, and a vendor's library changes no byte of it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.base import checks, dpkg, interpreter, ldcache, libpath, locales, packages, rpm
from repro_env.base import needs as loading
from repro_env.base import unowned as above
from repro_env.base.checks import Check
from repro_env.base.needs import Needs
from repro_env.base.packages import Database, Package
from repro_env.base.programs import Program, find
from repro_env.base.tree import Hashes, LiveTree, Tree, real, within
from repro_env.image.layout import SYSTEM_PATH
from repro_env.model import redact
from repro_env.model.environment import Carried, Interpretation, SharedLibrary, Startup, SystemPackage
from repro_env.model.errors import LockError
from repro_env.store.facts import FactCache

SHELL_PROGRAMS = ("sh", "awk")
"""Programs whose package is in every base; which one that is differs from machine to machine."""
OS_RELEASE = "/etc/os-release"
"""Its package is in every base too."""
FOLDERS = (
    "dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "usr", "var", "var/lib", "var/tmp",
)  # fmt: skip
PASSWD = b"root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
GROUP = b"root:x:0:\nnogroup:x:65534:\n"
NSSWITCH = b"".join(
    b"%s: files\n" % name for name in (b"passwd", b"group", b"shadow", b"networks", b"protocols", b"services", b"ethers")
) + (b"hosts: files dns\n")
EXTRACTED = ("/etc/pki/ca-trust/extracted", "/var/lib/ca-certificates")
"""Where update-ca-trust (Fedora, RHEL) and update-ca-certificates of SUSE write the trust store."""
BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/ca-bundle.pem")
ANCHORS = ("/usr/local/share/ca-certificates", "/etc/pki/ca-trust/source/anchors", "/etc/pki/trust/anchors")
"""Where a site puts certificates of its own."""
_UNWANTED = ("man", "info", "lintian", "bug", "doc-base", "gtk-doc", "help", "bash-completion")
"""Folders below /usr/share."""
_HOSTS_OWN = frozenset(
    f"/etc/{name}"
    for name in ("shadow", "gshadow", "passwd", "group", "subuid", "subgid", "hosts", "hostname", "machine-id", "fstab", "mtab",
                 "crypttab", "resolv.conf", "exports", "motd")
)  # fmt: skip
"""This one machine's users, names and disks: some packages own them (Fedora's setup), and no base holds them."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """The system behind an environment."""

    base: Tree
    unowned: Tree | None
    """What belongs to no package and is loaded or asked for, above the base; None where there is nothing of the kind."""
    carried: tuple[Carried, ...]
    """The same in words, sorted: each file, or the folder that was asked for, with its size."""
    libraries: tuple[SharedLibrary, ...]
    """Every shared library that is loaded from outside the environment and the interpreter, sorted by its real path."""


def cut(
    facts: Interpretation,
    startup: Startup,
    *,
    system: Database | None = None,
    libraries: Iterable[Path] = (),
    mapped: Iterable[Path] = (),
    programs: Sequence[str] = (),
    folders: Iterable[Path] = (),
    elsewhere: Sequence[str] = (),
    locale: str = "",
    environ: Mapping[str, str] | None = None,
    hashes: Hashes,
    known: FactCache | None = None,
) -> Cut:
    """The base for an environment, and what lies beside all packages.

    `system`: the machine's packages, where the caller has them open. `libraries`: absolute paths of the environment's
    shared libraries and extension modules. `mapped`: libraries that were seen loaded, beside those of `startup`. `programs`: names or absolute paths to add (`--with`). `folders`: packages
    that own something directly in one of these are in. `elsewhere`: folders beside the environment's and the interpreter's
    whose files travel in other layers. `locale`: the one in force, as setlocale(3) names it; words after
    it are ignored. `environ`: where Python is started, for LD_LIBRARY_PATH and LD_PRELOAD. `known` remembers which files
    were held against the package database, by their sha256. Raises `LockError`: no package database of a supported
    family, or a locale that is not there; `UsageError`: a program that is not there.
    """
    system = system or database(Path("/"))
    added = [one for name in programs for one in find(system, name)]
    whole = {one.folder: _walk(one.folder) for one in added if one.folder}
    locale = next(iter(locale.split()), "")
    executed = [*(one.file for one in added if one.file), *(path for tree in whole.values() for path in _binaries(tree))]
    held = [*loading.elsewhere(facts), *elsewhere, *map(real, elsewhere)]
    seen = [*startup.mapped, *map(str, mapped)]
    needed = loading.needs(facts, seen, [str(path) for path in libraries], executed, libpath.read(environ or {}), held)
    basics = [real(found) for name in SHELL_PROGRAMS if (found := shutil.which(name, path=SYSTEM_PATH))]
    basics += [real(OS_RELEASE), *_children(folders)]
    asked = [path for one in added for path in one.chain]
    owners = system.owners([*basics, *needed.libraries, *needed.mapped, *asked])
    chosen = _packages(system, owners, [*basics, *needed.libraries, *needed.mapped], added)

    gone: list[str] = []
    compared: list[Check] = []
    tree = LiveTree()
    translations = locales.translations(locale)
    for package in chosen:
        gone += _collect(tree, system, package, translations, compared)
    unowned = _unowned(needed, added, owners, startup)
    beside = LiveTree()
    for path in sorted(unowned):
        beside.follow(path)
    for inner in whole.values():
        beside.merge(inner)
    for path in (*needed.spelled, *(path for one in added for path in one.chain[:1])):
        if real(path) in owners and _is_systems(path):
            tree.follow(path)
        elif real(path) in owners or real(path) in beside:
            beside.follow(path)
    for link in ("/bin", "/bin/sh", "/lib", "/lib64", "/sbin", OS_RELEASE, "/etc/localtime", "/etc/timezone"):
        tree.follow(link)
    _alternatives(tree, system)
    locales.add(tree, locale)
    notes = [*needed.notes, *_certificates(tree)]

    python = facts.interpreter
    first = above.by_path(tree, beside, needed)
    lower = above.listed([tree], needed, python.libpython)
    upper = above.merged(first.lines, above.listed([tree, beside], needed, python.libpython))
    differing = loading.differing(needed, python.executable, upper) if needed.path.folders else ()
    tree.make("/etc/passwd", PASSWD)
    tree.make("/etc/group", GROUP)
    tree.make("/etc/nsswitch.conf", NSSWITCH)
    tree.make(above.CACHE, ldcache.write(lower))
    for path, data in system.kept(chosen).items():
        tree.make(path, data)
    entries, contents = tree.finish(hashes, FOLDERS)
    upper_tree = above.above(beside, entries, ldcache.write(lower), ldcache.write(upper), hashes)
    carried = above.carried(sorted(unowned), sorted(whole), upper_tree)
    if carried:
        size = sum(one.size for one in carried)
        notes.append(f"what belongs to no package of this system is carried: {size:,} bytes, each part named with its size")
    base = Tree(
        entries=entries,
        contents=contents,
        packages=tuple(SystemPackage(name=system.shown(package), version=package.version) for package in chosen),
        edited=checks.edited(compared, {entry.path: entry.sha256 for entry in entries}, known),
        unknown=tuple(sorted(map(redact.line, {*needed.unknown, *gone, *first.unknown, *differing}))),
        notes=tuple(sorted(map(redact.line, set(notes)))),
    )
    told = {f"/{entry.path}": entry.sha256 for one in (base, upper_tree) if one for entry in one.entries if entry.sha256}
    used = _used(system, needed, owners, told)
    return Cut(base=base, unowned=upper_tree, carried=carried, libraries=used)


def database(root: Path) -> Database:
    """The machine's package database. Raises `LockError` naming what the machine has instead of a supported one."""
    if dpkg.present(root):
        return dpkg.Database(root)
    if rpm.present(root):
        return rpm.Database(root)
    others = {
        "lib/apk/db/installed": "apk", "var/lib/pacman": "pacman", "nix/store": "nix",
        "var/lib/dpkg/status.d": "a distroless image's",
    }  # fmt: skip
    family = next((name for place, name in others.items() if (root / place).exists()), "")
    what = f"a base can be cut from dpkg and rpm machines only so far; this one's package database is {family}"
    if not family:
        what = "this machine has no package database, so nothing says which files an operating system needs"
    hint = "capture on a machine of Debian's, Ubuntu's, Fedora's or RHEL's family, or in a container of one"
    raise LockError(what, where=str(root), hint=hint)


def _packages(
    system: Database, owners: Mapping[str, tuple[Package, ...]], needed: Iterable[str], added: Sequence[Program]
) -> tuple[Package, ...]:
    roots = [package for path in needed for package in owners.get(path, ())]
    roots += [found for name in system.shell if (found := system.named(name)) is not None]
    for one in added:
        asked = [one.package] if one.package else [package for path in one.chain for package in owners.get(path, ())]
        roots += asked
        for package in asked:
            roots += system.recommended(package, system.is_left_out)
    return system.close(roots, system.is_left_out)


def _children(folders: Iterable[Path]) -> list[str]:
    """What lies directly in the folders, real paths; nothing in one that is not there."""
    return [f"{place}/{name}" for place in (real(str(folder)) for folder in folders) for name in _names(place)]


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []


def _walk(folder: str) -> LiveTree:
    tree = LiveTree()
    try:
        tree.below(folder, lambda path, is_dir: False)  # noqa: ARG005
    except PermissionError as error:
        hint = "make it readable, or name the programs that are needed"
        raise LockError("cannot be read by this user", where=str(error.filename or folder), hint=hint) from None
    return tree


def _binaries(tree: LiveTree) -> list[str]:
    """Programs and libraries of a tree, by their look; the loader's rules tell which are ELF files."""
    found = []
    for path in tree.paths():
        one = tree.found(path)
        if one is not None and one.kind == "file" and (one.executable or ".so" in path.rpartition("/")[2]):
            found.append(path)
    return found


def _collect(tree: LiveTree, system: Database, package: Package, wanted: frozenset[str], compared: list[Check]) -> list[str]:
    """A package's files into the tree, and what to compare them with. Returns a line for each that is not to be had."""
    gone = []
    for path in system.files(package):
        if not _belongs(path, wanted):
            continue
        found = tree.add(path)
        if found is None:
            gone.append(f"{path} ({package.name}) is not there or cannot be reached")
        elif found.kind == "file" and not _is_public(f"/{found.path}"):
            tree.drop(f"/{found.path}")
            gone.append(f"{path} ({package.name}) cannot be read by everybody, and is left out")
    for path, digest in system.checksums(package).items():
        place = tree.parent(path) if _belongs(path, wanted) else None
        found = tree.found(place) if place is not None else None
        if found is not None and found.kind == "link" and tree.follow(f"/{found.path}") is not None:
            compared.append(Check(f"/{found.path}", "", package.name))  # somebody put a link in the place of a file
        elif found is not None and found.kind == "file":
            compared.append(Check(f"/{found.path}", digest, package.name))
    return gone


def _is_public(path: str) -> bool:
    """Whether everybody may read it: else it may be a secret, and root's capture would hold other files than a user's."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH) and os.access(path, os.R_OK)  # noqa: PTH116
    except OSError:
        return False


def _belongs(path: str, wanted: frozenset[str]) -> bool:
    """Whether a packaged path is part of a base: nothing of this machine alone, no bytecode, no documentation, no foreign translations."""
    if "/__pycache__" in path or path.removesuffix("-") in _HOSTS_OWN:
        return False
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


def _unowned(
    needed: Needs,
    added: Sequence[Program],
    owners: Mapping[str, tuple[Package, ...]],
    startup: Startup,
) -> set[str]:
    """What no package owns. A library on `sys.path` is somebody's module: source or overlay, not the system's."""
    modules = [real(path) for path in startup.sys_path if path.startswith("/") and path not in interpreter.SHARED]
    found = {path for path in needed.libraries | needed.mapped if path not in owners and not within(path, modules)}
    for one in added:
        found |= {path for path in one.chain if path not in owners and not within(path, needed.held)}
    return found


def _is_systems(path: str) -> bool:
    """Whether a link at this path is the system's own, as `/etc/alternatives` are, whoever made it."""
    return within(path, ("/bin", "/etc", "/lib", "/lib32", "/lib64", "/sbin", "/usr", "/var")) and not within(
        path, ("/usr/local",)
    )


def _alternatives(tree: LiveTree, system: Database) -> None:
    """The links of every alternative whose choice is in the tree."""
    for one in system.alternatives():
        if real(f"/etc/alternatives/{one.name}") in tree and real(one.link) in tree:
            tree.follow(one.link)


def _certificates(tree: LiveTree) -> Iterator[str]:
    """The trust store as it is, made by the machine's own tool. Yields a note for each certificate of the site's own."""
    for name in _names("/etc/ssl/certs"):
        path = f"/etc/ssl/certs/{name}"
        if Path(path).is_file() and os.access(path, os.R_OK):
            tree.follow(path)
    for folder in EXTRACTED:
        if os.access(folder, os.R_OK | os.X_OK):
            tree.below(folder, lambda path, is_dir: False)  # noqa: ARG005
    trusted = b"".join(Path(path).read_bytes() for path in BUNDLES if real(path) in tree)
    for place in ANCHORS:
        for own in sorted(Path(place).rglob("*")):
            if (
                own.suffix in (".crt", ".pem")
                and own.is_file()
                and os.access(own, os.R_OK)
                and own.read_bytes().strip() in trusted
            ):
                yield f"{own} is a certificate of this site's own and travels with the base"


def _used(
    system: Database, needed: Needs, owners: Mapping[str, tuple[Package, ...]], told: Mapping[str, str]
) -> tuple[SharedLibrary, ...]:
    """Every library that is held, with its owner, and the driver's."""
    found = [SharedLibrary(path=path, owner="driver", sha256=None) for path in needed.drivers]
    for path in (needed.libraries | needed.mapped) & told.keys():
        owner = packages.word(system, owners[path][0]) if path in owners else ""
        if path.isprintable():
            found.append(SharedLibrary(path=path, owner=owner, sha256=f"sha256:{told[path]}"))
    return tuple(sorted(found, key=lambda one: one.path))
