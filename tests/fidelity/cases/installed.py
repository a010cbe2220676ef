"""Where what is installed came from, and how."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from tests.fakes import wheels
from tests.fidelity.case import case
from tests.fidelity.ground import Ground


@case("a local wheel that was deleted since", soak=True)
def deleted_wheel(at: Ground) -> None:
    at.plain()
    wheel = at.wheel(
        "local", files={"local.py": b"VALUE = 'from a wheel'\n"}, entry_points="[console_scripts]\nlocal = local:main\n"
    )
    at.pip(wheel)
    wheel.unlink()


@case("a local wheel that was replaced since", soak=True)
def replaced_wheel(at: Ground) -> None:
    at.plain()
    at.pip(at.wheel("local", files={"local.py": b"VALUE = 'old'\n"}))
    at.wheel("local", files={"local.py": b"VALUE = 'new'\n"})


@case("a local directory that was changed since", soak=True)
def changed_directory(at: Ground) -> None:
    at.plain()
    root = at.sources("thing")
    at.pip(root)
    at.write(root / "thing" / "__init__.py", "VALUE = 'changed since'\n")


@case("a local version (+cpu) from find-links", soak=True)
def find_links(at: Ground) -> None:
    at.plain()
    at.wheel("accelerated", "2.0+cpu", files={"accelerated.py": b"VALUE = 'cpu'\n"}, directory="links")
    at.variables["PIP_FIND_LINKS"] = str(at.root / "links")
    at.pip("accelerated==2.0+cpu", env=at.variables)


@case("a local version (+cpu) from a file: index", soak=True)
def file_index(at: Ground) -> None:
    at.plain()
    wheel = at.wheel("accelerated", "2.0+cpu", files={"accelerated.py": b"VALUE = 'cpu'\n"}, directory="mirror/accelerated")
    at.write(wheel.parent / "index.html", f'<a href="{wheel.name}">{wheel.name}</a>')
    at.variables["PIP_EXTRA_INDEX_URL"] = (at.root / "mirror").as_uri()
    at.pip("accelerated==2.0+cpu", env=at.variables)


@case("built from an sdist of the index, with settings of one's own", soak=True)
def from_sdist(at: Ground) -> None:
    at.plain()
    root = at.sources("builded")
    at.write(root / "setup.py", BUILD_SETTING)
    archive = at.root / "sdist" / "builded-1.0.tar.gz"
    archive.parent.mkdir()
    at.write(root / "PKG-INFO", "Metadata-Version: 2.1\nName: builded\nVersion: 1.0\n")
    with tarfile.open(archive, "w:gz") as file:
        file.add(root, "builded-1.0")
    at.pip(archive, env={"MY_CFLAGS": "-O3 -march=mine"})


BUILD_SETTING = """\
import os, setuptools
open("builded/flags.py", "w").write("VALUE = %r" % os.environ.get("MY_CFLAGS", "none"))
open("builded/__init__.py", "w").write("from builded.flags import VALUE")
setuptools.setup()
"""


@case("a VCS install at a commit, the repository gone", soak=True)
def vcs(at: Ground) -> None:
    at.plain()
    root = at.sources("versioned")
    at.repository(root)
    at.pip(f"versioned @ git+{root.as_uri()}")
    at.write(root / "versioned" / "__init__.py", "VALUE = 'later'\n")
    at.repository(root)


@case("a VCS install of a commit that was garbage-collected since", soak=True)
def vcs_collected(at: Ground) -> None:
    at.plain()
    root = at.sources("versioned")
    commit = at.repository(root)
    at.pip(f"versioned @ git+{root.as_uri()}@{commit}")
    shutil.rmtree(root / ".git")


@case("conflicting pins, installed with --no-deps", soak=True)
def conflicting(at: Ground) -> None:
    at.venv()
    at.pip("--no-deps", "wants-new", "wants-old", "gamma==1.0")


@case("setuptools pinned", soak=True)
def pinned_setuptools(at: Ground) -> None:
    at.plain()
    at.pip("setuptools==80.9.0", "wheel")


@case("pip in the environment, of the version that venv brings", soak=True)
def with_pip(at: Ground) -> None:
    at.venv(pip=True)
    at.pip("alpha")


@case("a prerelease", soak=True)
def prerelease(at: Ground) -> None:
    at.plain()
    at.pip("--pre", "gamma")


@case("a wheel with a build tag", soak=True)
def build_tag(at: Ground) -> None:
    at.plain()
    at.wheel("built", files={"built.py": b"VALUE = 1\n"}, build="1", directory="links")
    at.pip(at.wheel("built", files={"built.py": b"VALUE = 2\n"}, build="2", directory="links"))


@case("a namespace package (PEP 420) shared by two distributions", soak=True)
def namespace(at: Ground) -> None:
    at.plain()
    at.pip("names-first", "names-second")


@case("a namespace package in the style of pkgutil, its __init__.py in both", soak=True)
def namespace_pkgutil(at: Ground) -> None:
    at.plain()
    init = b"__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"
    for name in ("one", "two"):
        at.pip(at.wheel(f"old-{name}", files={"oldns/__init__.py": init, f"oldns/{name}.py": b"VALUE = 1\n"}))


@case("a namespace package in the style of pkg_resources, through a -nspkg.pth", soak=True)
def namespace_pkg_resources(at: Ground) -> None:
    at.plain()
    for name in ("one", "two"):
        line = (
            "import sys, types, os; p = os.path.join(sys._getframe(1).f_locals['sitedir'], 'veryold'); "
            "m = sys.modules.setdefault('veryold', types.ModuleType('veryold')); "
            "mp = m.__dict__.setdefault('__path__', []); (p not in mp) and mp.append(p)\n"
        )
        at.pip(
            at.wheel(f"veryold-{name}", files={f"veryold_{name}-nspkg.pth": line.encode(), f"veryold/{name}.py": b"VALUE = 1\n"})
        )


@case(".data/ files, headers and scripts", soak=True)
def placed(at: Ground) -> None:
    at.venv()
    at.pip("placed")


@case("two distributions that own one path, the first installed last", soak=True)
def overlap_first(at: Ground) -> None:
    at.venv()
    at.pip("over-second")
    at.pip("over-first")


@case("two distributions that own one path, the second installed last", soak=True)
def overlap_second(at: Ground) -> None:
    at.venv()
    at.pip("over-first")
    at.pip("over-second")


@case("one of two distributions that own one path uninstalled", soak=True)
def overlap_removed(at: Ground) -> None:
    at.venv()
    at.pip("over-first", "over-second")
    at.run(at.python.parent / "python", "-c", REMOVE)


REMOVE = """\
import importlib.metadata as m, pathlib, shutil
one = m.distribution("over-second")
for file in one.files:
    pathlib.Path(file.locate()).unlink(missing_ok=True)
shutil.rmtree(one._path, ignore_errors=True)
"""


@case("entry points of plugins", soak=True)
def plugins(at: Ground) -> None:
    at.plain()
    at.pip("plugged")


@case("a distribution without RECORD, as the system's packager leaves it", soak=True)
def no_record(at: Ground) -> None:
    at.plain()
    at.pip("gamma==1.0")
    (at.site / "gamma-1.0.dist-info" / "RECORD").unlink()


@case("a RECORD that lists what is not there and leaves out what is", soak=True)
def wrong_record(at: Ground) -> None:
    at.plain()
    path = at.site / "alpha-1.0.dist-info" / "RECORD"
    rows = [row for row in path.read_text().splitlines(keepends=True) if not row.startswith("alpha.py")]
    path.write_text("".join(rows) + "nothing.py,sha256=AAAA,3\n")


@case("an index that is gone", named="gamma", soak=True)
def index_gone(at: Ground) -> None:
    """What was linked can be had nowhere: no image, and the distribution is named."""
    at.venv()
    at.pip("gamma==2.0")
    at.index_gone = True


@case("a mirror instead of the index", soak=True)
def mirror(at: Ground) -> None:
    at.plain()
    at.pip("gamma==2.0")
    at.instead = ["mirror.test"]


@case("a release that the index no longer has, its wheel on disk", soak=True)
def removed_release(at: Ground) -> None:
    at.plain()
    at.pip(at.wheel("withdrawn", "0.9", files={"withdrawn.py": b"VALUE = 'withdrawn'\n"}))


@case("pip install --target, on PYTHONPATH", soak=True)
def target(at: Ground) -> None:
    at.plain()
    at.pip("--target", at.root / "target", "gamma==1.0", "plugged")
    at.variables["PYTHONPATH"] = str(at.root / "target")


@case("pip install --prefix, on PYTHONPATH", soak=True)
def another_prefix(at: Ground) -> None:
    at.plain()
    at.pip("--prefix", at.root / "prefix", "gamma==1.0", "placed")
    (site,) = (at.root / "prefix").glob("lib/python*/site-packages")
    at.variables["PYTHONPATH"] = str(site)


@case("a wheel on sys.path, imported as it is", soak=True)
def wheel_on_path(at: Ground) -> None:
    at.plain()
    wheel = at.wheel("zipped", files={"zipped.py": b"VALUE = 'from a zip'\n"})
    at.variables["PYTHONPATH"] = str(wheel)
    at.write(at.site / "uses_zipped.py", "import zipped\nVALUE = zipped.VALUE, zipped.__file__\n")


def published(at: Ground, name: str) -> Path:
    """A wheel like one of the index, with other bytes."""
    return wheels.make(at.root / "other", name, files={f"{name}.py": b"VALUE = 'another of the same name'\n"})


@case("a local wheel with name and version of one on the index", soak=True)
def same_name(at: Ground) -> None:
    at.venv()
    at.pip(published(at, "alpha"))
