"""Start a tiny run with a runner, to know that it works before a user relies on it.

Its image is nearly empty: this machine's `/usr` and Python are mounted in it, so nothing has to be captured or downloaded.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from repro_env.io import package
from repro_env.oci import paths
from repro_env.sandbox.doctor import Finding
from repro_env.sandbox.image import Image
from repro_env.sandbox.runner import Runner
from repro_env.schema.environment import Variable
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.run import Launch, Limits, Mount, User
from repro_env.schema.rundirectory import REPORTS

_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/sbin", "/usr")
_CACHE = "etc/ld.so.cache"
_IMAGE, _SOURCE = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
_SECONDS = 30


def try_run(runner: type[Runner], finding: Finding, store: Path, runs: Path) -> Finding:
    """The finding for a runner after a tiny run with it; the same finding if that works, or if the runner is not ok before."""
    if finding.state == "ok" and (reason := reason_against(runner, store, runs)):
        text, fix = f"{finding.text}, but it starts no run: {reason}", "use another runner, or ask the administrators"
        return msgspec.structs.replace(finding, state="blocked", text=text, fix=fix)
    return finding


def reason_against(runner: type[Runner], store: Path, runs: Path) -> str:
    """Start Python in a run, with the image below `store` and the run below `runs`. Returns why this does not work; or ""."""
    try:
        with _directory(store) as image, _directory(runs) as run:
            trees = {_IMAGE: image / "image", _SOURCE: image / "source"}
            for path in (*trees.values(), run / REPORTS, run / "run"):
                path.mkdir()
            mounts = list(_fill(trees[_IMAGE]))
            with runner.tiny_image(trees[_IMAGE], _IMAGE) as image_id:
                launch = _launch(image_id, mounts, run / REPORTS)
                made = Image(trees.get, merged=image / "merged", interpreter=launch.argv[0])
                status = runner(made).run(launch, directory=run / "run").status
    except (ReproEnvError, OSError) as error:
        return error.what if isinstance(error, ReproEnvError) else str(error.strerror)
    return f"Python ended with exit code {status} in a tiny run" if status else ""


@contextlib.contextmanager
def _directory(parent: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=parent, ignore_cleanup_errors=True) as made:
        yield Path(made).resolve()


def _fill(tree: Path) -> Iterator[str]:
    """Make the links of this machine's root in the tree. Yields the directories to mount."""
    for path in _SYSTEM:
        if os.path.islink(path):  # noqa: PTH114
            Path(f"{tree}{path}").symlink_to(os.readlink(path))  # noqa: PTH115
        elif os.path.isdir(path):  # noqa: PTH112
            yield path
    prefix = os.path.realpath(sys.base_prefix)
    if not paths.is_below(prefix, *_SYSTEM):
        yield prefix
    if Path("/", _CACHE).is_file():
        (tree / "etc").mkdir()
        shutil.copyfile(f"/{_CACHE}", tree / _CACHE)


def _launch(image: str, mounts: list[str], reports: Path) -> Launch:
    python = os.path.realpath(sys.executable)
    return Launch(
        run_id=f"doctor-{secrets.token_hex(8)}",
        image=image,
        layers=(_IMAGE,),
        prefix=os.path.realpath(sys.base_prefix),
        trees=(),
        argv=(python, *paths.ISOLATED, "-c", ""),
        env=(Variable(name="PATH", value=paths.SYSTEM_PATH),),
        cwd="/srv/doctor",
        workspace="/srv/doctor",
        snapshot=_SOURCE,
        mounts=tuple(Mount(kind="data", source=os.path.realpath(path), target=path) for path in mounts),
        tools=str(package.ROOT),
        reports=str(reports),
        user=User(uid=os.geteuid(), gid=os.getegid(), name=paths.CONTAINER_USER, home=f"/home/{paths.CONTAINER_USER}"),
        limits=Limits(seconds=_SECONDS),
    )
