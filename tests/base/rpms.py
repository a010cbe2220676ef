"""A machine whose package database is rpm's: packages built with rpmbuild and installed below a folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from repro_env.base import dpkg, rpm
from repro_env.base.packages import Package
from repro_env.io import process
from tests.parts import need

_MACROS = (
    ("_build_id_links", "none"), ("debug_package", "%{nil}"), ("__os_install_post", "%{nil}"), ("_binary_payload", "w.ufdio"),
    ("_use_internal_dependency_generator", "1"),
)  # fmt: skip
ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "LC_ALL": "C"}


class Machine:
    """An rpm database below `root`, in `place`."""

    def __init__(self, root: Path, work: Path, place: str = "usr/lib/sysimage/rpm") -> None:
        need(shutil.which("rpmbuild"), "rpmbuild: apt-get install rpm")
        self.root = root
        self._work = work
        self._db = root / place
        work.mkdir(parents=True, exist_ok=True)
        self._db.mkdir(parents=True)

    def build(
        self,
        name: str,
        files: Mapping[str, str | Path] | Iterable[str],
        *,
        marks: Mapping[str, str] | None = None,
        tags: Iterable[str] = (),
        version: str = "1.0-1",
        arch: str = "",
        automatic: bool = False,
    ) -> Path:
        """A package. `files`: absolute path -> text, or a file or link of this machine; an absolute path alone is this machine's own.

        `marks`: path -> `%config`, `%ghost`, `%doc` …; `tags`: lines of the preamble; `automatic`: rpm finds what the files need.
        """
        sources = files if isinstance(files, Mapping) else {path: Path(path) for path in files}
        folder = self._work / f"{name}-{version}{arch}"
        tree = folder / "tree"
        for path, what in sources.items():
            place = tree / path[1:]
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(what, Path):
                shutil.copy2(what, place, follow_symlinks=False)
            else:
                place.write_text(what)
        number, _, release = version.rpartition("-")
        epoch, _, number = number.rpartition(":")
        listed = [f'{(marks or {}).get(path, "")} "{path}"' for path in sources]
        listed += [f'{mark} "{path}"' for path, mark in (marks or {}).items() if path not in sources]
        spec = "\n".join(
            [
                f"Name: {name}", f"Version: {number}", f"Release: {release}", *([f"Epoch: {epoch}"] if epoch else []),
                "Summary: x", "License: x", *(["BuildArch: noarch"] if arch == "noarch" else []),
                *([] if automatic else ["AutoReqProv: no"]), *tags, "%description", "x", "%install", "mkdir -p %{buildroot}",
                f"cp -a {tree}/. %{{buildroot}}/" if sources else ":",
                *(f"mkdir -p %{{buildroot}}{path.rpartition('/')[0]}" for path in marks or {}),
                "%files", *listed, "",
            ]
        )  # fmt: skip
        (folder).mkdir(parents=True, exist_ok=True)
        (folder / "x.spec").write_text(spec)
        options = [word for key, value in (*_MACROS, ("_topdir", str(folder))) for word in ("--define", f"{key} {value}")]
        target = ["--target", arch] if arch and arch != "noarch" else []
        done = process.run(["rpmbuild", "-bb", *options, *target, str(folder / "x.spec")], env=ENV, timeout=300)
        assert done.code == 0, done.stderr.decode()
        (built,) = (folder / "RPMS").rglob("*.rpm")
        shutil.rmtree(tree, ignore_errors=True)
        return built

    def install(self, *built: Path, really: bool = False, options: Iterable[str] = ()) -> None:
        """Into the database; `really`: with their files, which takes uid 0."""
        how = ["--root", str(self.root), "--dbpath", "/" + str(self._db.relative_to(self.root))]
        if not really:
            how = ["--dbpath", str(self._db), "--justdb"]
        done = process.run(
            ["rpm", *how, "--install", "--nodeps", "--noscripts", "--ignorearch", "--nosignature", *options, *map(str, built)],
            env=ENV,
            timeout=300,
        )
        assert done.code == 0, done.stderr.decode()

    def add(self, name: str, files: Mapping[str, str | Path] | Iterable[str] = (), **options: object) -> None:
        """Build and install into the database alone."""
        self.install(self.build(name, files, **options))  # type: ignore[arg-type]

    def database(self) -> rpm.Database:
        return rpm.Database(self.root)


def convert(machine: Machine, debian: dpkg.Database, package: Package, names: Mapping[str, str]) -> Path:
    """A package of this machine's own as an rpm: its files and links at their real places, without documentation.

    It requires and recommends what it does here, by `names` where they have other ones, and what rpm itself finds.
    """
    files: dict[str, str | Path] = {}
    for path in debian.files(package):
        folder, _, last = path.rpartition("/")
        place = f"{Path(folder or '/').resolve()}/{last}".replace("//", "/")
        found = Path(place)
        documents = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/info/", "/usr/share/locale/")
        if (found.is_symlink() or found.is_file()) and not place.startswith(documents):
            files[place] = found
    needed = debian.close([package], lambda name: name != package.name and debian.is_left_out(name))
    direct = [one.name for one in needed if one != package]
    tags = [f"Requires: {names.get(name, name)}" for name in direct]
    tags += [f"Recommends: {names.get(one.name, one.name)}" for one in debian.recommended(package, debian.is_left_out)]
    return machine.build(names.get(package.name, package.name), files, tags=tags, automatic=True)
