"""A conda channel of packages that are built here, and environments that rattler makes of them.

The Python in it is the one that runs the tests, with a launcher whose RPATH is a placeholder: it starts only where the
prefix was put in. `install` uses py-rattler in a process of its own; conda and mamba themselves are not needed.
"""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import os
import posixpath
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.parts import need

PLACEHOLDER = "/home/builder/placehold" + "_placehold" * 20
"""As conda-build makes them: longer than any prefix that will stand in their place."""
SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}.get(os.uname().machine, "linux-64")
VERSION = ".".join(map(str, sys.version_info[:3]))
SHORT = ".".join(map(str, sys.version_info[:2]))
_LEFT_OUT = {"test", "site-packages", "__pycache__", "idlelib", "tkinter", "turtledemo", "lib2to3"}


class Item(NamedTuple):
    """One path of a package."""

    data: bytes = b""
    executable: bool = False
    placeholder: str = ""
    """`text` or `binary`: how it is to be replaced."""
    target: str | None = None
    """Of a symlink."""
    directory: bool = False
    hard: str | None = None
    """A hard link, in the archive, to this other path."""
    no_link: bool = False


def text(data: str, *, executable: bool = False, placeholder: bool = True) -> Item:
    return Item(data.encode(), executable, "text" if placeholder else "")


def link(target: str) -> Item:
    return Item(target=target)


class Package(NamedTuple):
    name: str
    items: Mapping[str, Item]
    version: str = "1.0"
    build: str = "0"
    noarch: str = ""
    depends: Sequence[str] = ()
    entry_points: Sequence[str] = ()
    ending: str = ".conda"
    extra: Mapping[str, bytes] = {}
    """More files, listed nowhere (`info/recipe/...`)."""

    @property
    def filename(self) -> str:
        return f"{self.name}-{self.version}-{self.build}{self.ending}"

    @property
    def subdir(self) -> str:
        return "noarch" if self.noarch else SUBDIR


def write(package: Package, channel: Path) -> Path:
    """The package as a file of the channel."""
    directory = channel / package.subdir
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / package.filename
    info = _info(package)
    stem = f"{package.name}-{package.version}-{package.build}"
    if package.ending == ".tar.bz2":
        path.write_bytes(bz2.compress(_tar([*info.items(), *package.items.items()]), 1))
        return path
    import zstandard

    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("metadata.json"), json.dumps({"conda_pkg_format_version": 2}))
        for kind, items in (("pkg", package.items), ("info", info)):
            archive.writestr(zipfile.ZipInfo(f"{kind}-{stem}.tar.zst"), zstandard.compress(_tar(items.items()), 3))
    return path


def _info(package: Package) -> dict[str, Item]:
    index = {
        "name": package.name,
        "version": package.version,
        "build": package.build,
        "build_number": 0,
        "subdir": package.subdir,
        "depends": list(package.depends),
        "license": "MIT",
        "timestamp": 1700000000000,
        "arch": None if package.noarch else "x86_64",
        "platform": None if package.noarch else "linux",
    }
    if package.noarch:
        index["noarch"] = package.noarch
    files = {"info/index.json": Item(json.dumps(index).encode()), "info/about.json": Item(b"{}")}
    if package.noarch == "python":
        said = {"noarch": {"type": "python", "entry_points": list(package.entry_points)}, "package_metadata_version": 1}
        files["info/link.json"] = Item(json.dumps(said).encode())
    listed = package.items
    files["info/files"] = Item("".join(f"{path}\n" for path, item in listed.items() if not item.directory).encode())
    paths = [_row(path, item, package.items) for path, item in listed.items()]
    files["info/paths.json"] = Item(json.dumps({"paths": paths, "paths_version": 1}).encode())
    return {**files, **{name: Item(data) for name, data in package.extra.items()}}


def _row(path: str, item: Item, items: Mapping[str, Item]) -> dict[str, object]:
    if item.directory:
        return {"_path": path, "path_type": "directory"}
    row: dict[str, object] = {"_path": path, "path_type": "softlink" if item.target is not None else "hardlink"}
    data: bytes | None = items[item.hard].data if item.hard is not None else item.data
    if item.target is not None:
        other = items.get(posixpath.normpath(posixpath.join(posixpath.dirname(path), item.target)))
        data = other.data if other is not None else None
    if data is not None:  # of a symlink, conda-build tells of the file that it leads to
        row |= {"sha256": hashlib.sha256(data).hexdigest(), "size_in_bytes": len(data)}
    if item.placeholder:
        row |= {"prefix_placeholder": PLACEHOLDER, "file_mode": item.placeholder}
    if item.no_link:
        row["no_link"] = True
    return row


def _tar(items: Iterable[tuple[str, Item]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, item in items:
            member = tarfile.TarInfo(path)
            member.mtime = 1700000000
            member.mode = 0o755 if item.executable or item.directory else 0o644
            if item.directory:
                member.type = tarfile.DIRTYPE
            elif item.target is not None:
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, item.target, 0o777
            elif item.hard is not None:
                member.type, member.linkname = tarfile.LNKTYPE, item.hard
            else:
                member.size = len(item.data)
            archive.addfile(member, io.BytesIO(item.data) if member.isreg() else None)
    return out.getvalue()


def python() -> Package:
    """The running Python as a package: a launcher, libpython, the standard library."""
    base = Path(sys.base_prefix)
    library = sysconfig.get_config_var("INSTSONAME") or ""
    shared = base / "lib" / library
    need(sysconfig.get_config_var("Py_ENABLE_SHARED") and shared.is_file(), "the Python of the tests has no shared libpython")
    stdlib = Path(sysconfig.get_path("stdlib"))
    items = {
        f"bin/python{SHORT}": _launcher(shared),
        "bin/python": link(f"python{SHORT}"),
        "bin/python3": link(f"python{SHORT}"),
        f"lib/{library}": Item(shared.read_bytes(), True),
    }
    for path in sorted(stdlib.rglob("*")):
        inside = path.relative_to(stdlib)
        if path.is_dir() or _LEFT_OUT & set(inside.parts) or inside.parts[0].startswith("config-"):
            continue
        data = path.read_bytes()
        placeholder = inside.name.startswith("_sysconfigdata")
        if placeholder:
            data = data.replace(str(base).encode(), PLACEHOLDER.encode())
        items[f"lib/python{SHORT}/{inside}"] = Item(data, os.access(path, os.X_OK), "text" if placeholder else "")
    return Package("python", items, version=VERSION, build="h0_cpython")


def compiled(source: str, *arguments: str) -> bytes:
    """What gcc makes of some C."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    need(compiler, "no C compiler: apt-get install gcc")
    assert compiler is not None
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "source.c").write_text(source)
        subprocess.run([compiler, "source.c", "-o", "out", *arguments], cwd=directory, check=True)
        return (Path(directory) / "out").read_bytes()


def _launcher(shared: Path) -> Item:
    source = "extern int Py_BytesMain(int, char **); int main(int n, char **words) { return Py_BytesMain(n, words); }"
    made = compiled(source, str(shared), f"-Wl,-rpath,{PLACEHOLDER}/lib")
    assert PLACEHOLDER.encode() in made
    return Item(made, True, "binary")


def pip() -> Package:
    """pip as conda packages it: `noarch: python`, installed by conda."""
    import pip as module

    site = Path(module.__file__).parents[1]
    (info,) = site.glob("pip-*.dist-info")
    version = info.name.removesuffix(".dist-info").removeprefix("pip-")
    items = {}
    for directory in (site / "pip", info):
        for path in sorted(directory.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.name not in ("RECORD", "INSTALLER", "REQUESTED"):
                items[f"site-packages/{path.relative_to(site)}"] = Item(path.read_bytes())
    items[f"site-packages/{info.name}/INSTALLER"] = Item(b"conda")
    items[f"site-packages/{info.name}/RECORD"] = Item(b"".join(f"../../../{path},,\n".encode() for path in sorted(items)))
    return Package(
        "pip",
        items,
        version=version,
        build="pyh0_0",
        noarch="python",
        depends=["python"],
        entry_points=["pip = pip._internal.cli.main:main", "pip3 = pip._internal.cli.main:main"],
    )


def standard() -> list[Package]:
    """Packages of every kind that one environment can hold."""
    lower = compiled("int lower(void) { return 20; }", "-shared", "-fPIC", "-Wl,-soname,liblower.so.1")
    upper = compiled(
        f'const char *where(void) {{ return "{PLACEHOLDER}/share/answer.txt"; }}\n'
        "__attribute__((weak)) int lower(void); int answer(void) { return lower() + 22; }",
        "-shared",
        "-fPIC",
        "-Wl,-rpath,$ORIGIN/../lib",
    )
    site = f"lib/python{SHORT}/site-packages"
    answer = f"""
import ctypes, pathlib, sys
ctypes.CDLL(sys.prefix + "/lib/liblower.so.1", ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(sys.prefix + "/lib/libupper.so")
library.where.restype = ctypes.c_char_p
NAMED = "{PLACEHOLDER}"
def text(): return pathlib.Path(library.where().decode()).read_text() + str(library.answer())
"""
    return [
        python(),
        pip(),
        Package(
            "answer",
            {
                "lib/liblower.so.1": Item(lower, True),
                "lib/liblower.so": link("liblower.so.1"),
                "lib/libupper.so": Item(upper, True, "binary"),
                "share/answer.txt": text("answer: ", placeholder=False),
                "share/same.txt": Item(hard="share/answer.txt"),
                "share/Müller 漢字.txt": text("name", placeholder=False),
                "share/private.txt": Item(b"p", no_link=True),
                "bin/answer": text(f"#!{PLACEHOLDER}/bin/python\nimport answer; print(answer.text())\n", executable=True),
                "bin/where.sh": text(f"#!/bin/sh\nPREFIX={PLACEHOLDER}\necho $PREFIX\n", executable=True),
                f"{site}/answer.py": text(answer),
                f"{site}/__pycache__/answer.cpython-{SHORT.replace('.', '')}.pyc": Item(b"never read"),
            },
            depends=["python"],
            ending=".tar.bz2",
        ),
        Package(
            "greet",
            {
                "site-packages/greet/__init__.py": text("def main(): print('greetings')\n", placeholder=False),
                "site-packages/greet-2.0.dist-info/METADATA": text(
                    "Metadata-Version: 2.1\nName: greet\nVersion: 2.0\n", placeholder=False
                ),
                "site-packages/greet-2.0.dist-info/INSTALLER": text("conda", placeholder=False),
                "site-packages/greet-2.0.dist-info/RECORD": text(
                    "greet/__init__.py,,\n"
                    "greet-2.0.dist-info/METADATA,,\n"
                    "greet-2.0.dist-info/INSTALLER,,\n"
                    "greet-2.0.dist-info/RECORD,,\n",
                    placeholder=False,
                ),
                "python-scripts/greet-twice": text(
                    "#!/usr/bin/env python\nimport greet; greet.main(); greet.main()\n", executable=True
                ),
            },
            version="2.0",
            build="pyhd8ed1ab_0",
            noarch="python",
            depends=["python"],
            entry_points=["greet = greet:main"],
        ),
        Package("twin-a", {"share/twin.txt": text("a", placeholder=False), "share/a.txt": text("a", placeholder=False)}),
        Package("twin-b", {"share/twin.txt": text("b", placeholder=False), "share/b.txt": text("b", placeholder=False)}),
        Package(
            "scripted",
            {
                "bin/.scripted-post-link.sh": text('#!/bin/sh\necho linked > "$PREFIX/share/made-by-link"\n', executable=True),
                "share/scripted.txt": text("s", placeholder=False),
            },
        ),
        Package(
            "older",
            {
                "bin/older": text(f"#!{PLACEHOLDER}/bin/python\nprint('older')\n", executable=True),
                "lib/older": link("../bin/older"),
            },
            ending=".tar.bz2",
            depends=["python"],
        ),
        Package(
            "cuda-cudart",
            {
                "lib/libcudart.so.12.4.127": Item(lower, True),
                "lib/libcudart.so.12": link("libcudart.so.12.4.127"),
                "etc/conda/activate.d/cuda.sh": text('export CUDA_HOME="$CONDA_PREFIX"\n', placeholder=False),
            },
            version="12.4.127",
            depends=["__cuda >=12"],
        ),
    ]


def channel(directory: Path) -> Path:
    """A channel of `standard` packages."""
    for package in standard():
        write(package, directory)
    index(directory)
    return directory


def index(channel: Path) -> None:
    """Write repodata.json of each directory."""
    for name in (SUBDIR, "noarch"):
        (channel / name).mkdir(parents=True, exist_ok=True)
    _rattler("index", {"channel": str(channel)})


def install(prefix: Path, channel: str, specs: Sequence[str], *, cache: Path, scripts: bool = False, proxy: str = "") -> None:
    """Solve and make or change an environment, as pixi and others do by rattler."""
    asked = {"prefix": str(prefix), "channel": channel, "specs": list(specs), "cache": str(cache), "scripts": scripts}
    _rattler("install", asked, proxy)


def _rattler(what: str, asked: Mapping[str, object], proxy: str = "") -> None:
    environ = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    if proxy:
        environ |= {"HTTP_PROXY": proxy, "http_proxy": proxy}
    subprocess.run(
        [sys.executable, "-m", "tests.fakes.conda", what, json.dumps(asked)],
        check=True,
        env=environ,
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def _virtual(name: str, version: str) -> Any:
    import rattler

    return rattler.GenericVirtualPackage(rattler.PackageName(name), rattler.Version(version), rattler.BuildString("0"))


async def _main(what: str, asked: Mapping[str, str]) -> None:
    import rattler

    if what == "index":
        await rattler.index.index_fs(Path(asked["channel"]), write_zst=False, write_shards=False)
        return
    gateway = rattler.Gateway(cache_dir=Path(asked["cache"]) / "repodata")
    records = await rattler.solve(
        sources=[asked["channel"]],
        specs=list(asked["specs"]),
        gateway=gateway,
        platforms=[SUBDIR, "noarch"],  # type: ignore[list-item] # one of the literals
        virtual_packages=[_virtual("__glibc", "2.36"), _virtual("__cuda", "12.4")],
    )
    await rattler.install(
        records,
        target_prefix=asked["prefix"],
        cache_dir=Path(asked["cache"]) / "pkgs",
        execute_link_scripts=bool(asked["scripts"]),
        show_progress=False,
    )


if __name__ == "__main__":
    import asyncio

    asyncio.run(_main(sys.argv[1], json.loads(sys.argv[2])))
    os._exit(0)  # threads of py-rattler 0.28 outlive the event loop and can make a normal end crash
