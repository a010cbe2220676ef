"""conda environments, as rattler (pixi) makes them from a channel that is gone when they are rebuilt. No conda or mamba was run."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tests.fakes import conda, wheels
from tests.fidelity.case import case
from tests.fidelity.ground import Ground

EVERYTHING = ["answer", "greet", "twin-a", "twin-b", "scripted", "older", "cuda-cudart", "pip"]


@lru_cache(maxsize=1)
def channel() -> Path:
    """Built once: it takes seconds."""
    directory = Path(tempfile.mkdtemp(prefix="conda-channel-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return conda.channel(directory)


def environment(at: Ground, packages: Sequence[str], prefix: str = "conda") -> None:
    at.use(at.root / prefix)
    at.roots.append(at.prefix)

    def once() -> None:
        shutil.copytree(channel(), at.root / "channel")
        conda.install(at.prefix, (at.root / "channel").as_uri(), packages, cache=at.root / "caches" / "conda", scripts=True)

    at.fresh.append(once)
    once()


@case("conda: packages of every kind, one made by a link script, two that own one file", soak=True)
def every_kind(at: Ground) -> None:
    environment(at, EVERYTHING)


@case("conda: pip's packages beside conda's, one over a conda package", soak=True)
def with_pip(at: Ground) -> None:
    environment(at, ["greet", "pip"])
    at.pip("alpha", "beta", "placed")
    wheels.make(at.root / "own", "greet", "2.0", {"greet/__init__.py": b"VALUE = 'by pip'\n"})
    at.pip("--force-reinstall", "--no-deps", "--find-links", at.root / "own", "greet==2.0")


@case("conda: files edited, removed, added; a symlink turned elsewhere; modes changed", soak=True)
def edited(at: Ground) -> None:
    environment(at, ["answer", "twin-a"])
    (at.prefix / "share" / "answer.txt").unlink()  # it shares its inode with the cache
    (at.prefix / "share" / "answer.txt").write_text("by hand")
    (at.prefix / "share" / "private.txt").unlink()
    (at.prefix / "share" / "a.txt").chmod(0o755)
    (at.prefix / "lib" / "liblower.so").unlink()
    (at.prefix / "lib" / "liblower.so").symlink_to("libupper.so")
    at.write(at.site / "stray.py", "VALUE = 'stray'\n")
    (at.prefix / "share" / "empty").mkdir()


@case("conda: neither channel nor package cache at capture", soak=True)
def nothing_left(at: Ground) -> None:
    environment(at, ["answer", "greet", "older"])
    shutil.rmtree(at.root / "channel")
    shutil.rmtree(at.root / "caches" / "conda")


@case("conda: the older of two owners of a file wins", soak=True)
def older_owner(at: Ground) -> None:
    environment(at, ["answer", "twin-b"])
    conda.install(
        at.prefix,
        (at.root / "channel").as_uri(),
        ["answer", "twin-b", "twin-a"],
        cache=at.root / "caches" / "conda",
        scripts=True,
    )


@case("conda: on a path with spaces, longer than a first line may be", soak=True)
def long_path(at: Ground) -> None:
    environment(at, ["answer", "greet", "older"], f"my envs/{'x' * 60}")


@case("conda: a base environment with others and the package cache in it", soak=True)
def base(at: Ground) -> None:
    environment(at, ["answer", "pip"])
    at.roots[:] = [at.prefix / name for name in ("bin", "conda-meta", "lib", "share")]
    at.write(at.prefix / "pkgs" / "urls.txt")
    at.write(at.prefix / "pkgs" / "big-1.0-0" / "data", "x" * 1000)
    at.write(at.prefix / "envs" / "other" / "conda-meta" / "history")


@case("conda: in a home that is a symlink to another disk", soak=True)
def through_a_link(at: Ground) -> None:
    (at.root / "scratch").mkdir()
    (at.root / "linked").symlink_to("scratch")
    environment(at, ["answer", "greet"], "linked/ml")


@case("conda: records as conda and mamba leave them, tokens and all", soak=True)
def as_conda(at: Ground) -> None:
    """Constructed from the formats: rattler does not write all of it."""
    environment(at, ["answer", "greet"])
    cache = at.root / "caches" / "pkgs"
    cache.mkdir(parents=True)
    for path in (at.prefix / "conda-meta").glob("*.json"):
        answer = json.loads(path.read_text())
        shutil.copy(at.root / "channel" / answer["subdir"] / answer["fn"], cache)
        answer["package_tarball_full_path"] = str(cache / answer["fn"])
        answer["url"] = f"https://conda.example.com/t/tk-0123456789/main/{answer['subdir']}/{answer['fn']}"
        answer["channel"] = "https://conda.example.com/t/tk-0123456789/main"
        if answer["name"] == "greet":
            del answer["sha256"]
        path.write_text(json.dumps(answer))
    at.write(
        at.prefix / "conda-meta" / "history",
        "==> 2024-01-01 00:00:00 <==\n# cmd: /opt/conda/bin/conda create -n ml\n+main::python\n",
    )
    at.write(at.prefix / "conda-meta" / "state", '{"version": 1, "env_vars": {"MY_FLAG": "1"}}')
    at.write(at.prefix / "conda-meta" / "pinned", "python 3.*\n")
    shutil.rmtree(at.root / "channel")


@case("a venv over conda's python", soak=True)
def venv_over_conda(at: Ground) -> None:
    at.base = str(at.root / "conda" / "bin" / "python")
    shutil.copytree(channel(), at.root / "channel")
    conda.install(at.root / "conda", (at.root / "channel").as_uri(), ["answer", "pip"], cache=at.root / "caches" / "conda")
    at.make(at.base, "-m", "venv", "--without-pip", str(at.prefix))
    at.pip("alpha", "beta")
