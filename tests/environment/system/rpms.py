"""A machine with an rpm database: packages are built with rpmbuild and installed below a directory."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from repro_env.environment.system import dpkg, rpm
from repro_env.environment.system.packages import Package
from repro_env.io import process
from tests.parts import need

_MACROS = (
    ("_build_id_links", "none"), ("debug_package", "%{nil}"), ("__os_install_post", "%{nil}"), ("_binary_payload", "w.ufdio"),
    ("_use_internal_dependency_generator", "1"),
)  # fmt: skip
ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "LC_ALL": "C"}


class Machine:
    """An rpm database in `directory` below `root`."""

    def __init__(self, root: Path, work: Path, directory: str = "usr/lib/sysimage/rpm") -> None:
        need(shutil.which("rpmbuild"), "rpmbuild: apt-get install rpm")
        self.root = root
        self._work = work
        self._db = root / directory
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
        """Build a package. `files`: absolute path -> text, or a file or link of this machine; a path alone means this machine's file.

        `marks`: path -> `%config`, `%ghost`, `%doc` …; `tags`: lines of the preamble; `automatic`: rpm determines the requirements.
        """
        sources = files if isinstance(files, Mapping) else {path: Path(path) for path in files}
        directory = self._work / f"{name}-{version}{arch}"
        tree = directory / "tree"
        for path, content in sources.items():
            place = tree / path[1:]
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copy2(content, place, follow_symlinks=False)
            else:
                place.write_text(content)
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
        (directory).mkdir(parents=True, exist_ok=True)
        (directory / "x.spec").write_text(spec)
        options = [word for key, value in (*_MACROS, ("_topdir", str(directory))) for word in ("--define", f"{key} {value}")]
        target = ["--target", arch] if arch and arch != "noarch" else []
        result = process.run(["rpmbuild", "-bb", *options, *target, str(directory / "x.spec")], env=ENV, timeout=300)
        assert result.code == 0, result.stderr.decode()
        (built,) = (directory / "RPMS").rglob("*.rpm")
        shutil.rmtree(tree, ignore_errors=True)
        return built

    def install(self, *built: Path, really: bool = False, options: Iterable[str] = ()) -> None:
        """Add packages to the database; `really`: install their files too, which requires uid 0."""
        how = ["--root", str(self.root), "--dbpath", "/" + str(self._db.relative_to(self.root))]
        if not really:
            how = ["--dbpath", str(self._db), "--justdb"]
        result = process.run(
            ["rpm", *how, "--install", "--nodeps", "--noscripts", "--ignorearch", "--nosignature", *options, *map(str, built)],
            env=ENV,
            timeout=300,
        )
        assert result.code == 0, result.stderr.decode()

    def add(self, name: str, files: Mapping[str, str | Path] | Iterable[str] = (), **options: object) -> None:
        """Build a package and add it to the database."""
        self.install(self.build(name, files, **options))  # type: ignore[arg-type]

    def database(self) -> rpm.Database:
        return rpm.Database(self.root)


def convert(machine: Machine, debian: dpkg.Database, package: Package, names: Mapping[str, str]) -> Path:
    """Build an rpm of a Debian package of this machine: its files and links at their real paths, without documentation.

    It requires and recommends the same packages, under the names in `names`, and the requirements that rpm determines.
    """
    files: dict[str, str | Path] = {}
    for path in debian.files(package):
        directory, _, last = path.rpartition("/")
        place = f"{Path(directory or '/').resolve()}/{last}".replace("//", "/")
        found = Path(place)
        documents = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/info/", "/usr/share/locale/")
        if (found.is_symlink() or found.is_file()) and not place.startswith(documents):
            files[place] = found
    needed = debian.with_dependencies([package])
    direct = [dependency.name for dependency in needed if dependency != package]
    tags = [f"Requires: {names.get(name, name)}" for name in direct]
    tags += [f"Recommends: {names.get(item.name, item.name)}" for item in debian.recommendations(package)]
    return machine.build(names.get(package.name, package.name), files, tags=tags, automatic=True)
