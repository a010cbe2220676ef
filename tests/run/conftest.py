"""A place to run tiny images in: as root and as a plain user, each with a store of their own."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.image import layout
from repro_env.model.environment import Variable
from repro_env.model.run import Launch, Mount, Outcome, Shown, User
from repro_env.run.outside import Bound
from repro_env.run.strategy import Strategy
from tests.fakes import rootfs
from tests.parts import need
from tests.run.driver import Answer, Plan

PLAIN = 65533
"""A uid that is nobody's."""
REPOSITORY = Path(__file__).resolve().parents[2]
SITE = Path(msgspec.__file__).parents[1]


class Ran(msgspec.Struct):
    answer: Answer
    stdout: str
    stderr: str
    folder: Path

    @property
    def outcome(self) -> Outcome:
        assert self.answer.outcome is not None, f"{self.answer.message}\n{self.stderr}"
        return self.answer.outcome

    @property
    def files(self) -> dict[str, str]:
        """What the run left in its project: path -> text, of files; target, of links."""
        return self._below("files")

    @property
    def outside(self) -> dict[str, str]:
        return self._below("outside")

    def _below(self, name: str) -> dict[str, str]:
        found = {}
        root = self.folder / name
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if path.is_symlink():
                found[name] = f"-> {path.readlink()}"
            elif path.is_file():
                found[name] = path.read_text()
        return found


class Place:
    """A store with the tiny image in it and a folder for runs, owned by whoever runs."""

    def __init__(self, root: Path, uid: int, store: Path) -> None:
        self.root = root
        self.uid = uid
        self.store = store
        self.runs = root / "runs"
        self.layers = [rootfs.digest(1), rootfs.digest(2), rootfs.digest(3)]
        self.strategy: Strategy | None = None
        self.engine = ""
        """Address of the engine to run in; empty for the embedded runner."""
        self.bound = Bound()
        self.image = ""
        """The image's ID in the engine."""
        self.count = 0

    def launch(self, *argv: str, **changes: Any) -> Launch:
        gid = self.uid
        launch = Launch(
            run_id=f"test-{secrets.token_hex(6)}",
            spec=rootfs.digest(9),
            image=self.image or rootfs.digest(10 + len(self.layers)),
            layers=tuple(self.layers),
            prefix=rootfs.PREFIX,
            trees=(Shown(target=rootfs.PREFIX, root=layout.ENVIRONMENT),),
            argv=argv,
            env=(Variable(name="PATH", value=f"{rootfs.PREFIX}/bin:/bin"), Variable(name="LC_ALL", value="C.UTF-8")),
            cwd="/srv/captured/project",
            workspace="/srv/captured/project",
            snapshot=rootfs.digest(1000),
            mounts=(),
            tools=str(self.root / "tools"),
            notes=str(self.root / "notes"),
            user=User(uid=self.uid, gid=gid, name="ann" if self.uid else "root", home="/home/ann"),
            hostname="inside",
            network=False,
            seed=0,
        )
        return msgspec.structs.replace(launch, **changes)

    def command(self, launch: Launch, *, before: Sequence[str] = (), folder: Path | None = None) -> tuple[list[str], Path, Path]:
        """The driver's command line, the run's folder (`folder`: made by somebody else), the file that will hold the answer."""
        self.count += 1
        if folder is None:
            folder = self.runs / f"run-{self.count}"
            folder.mkdir()
            self.own(folder)
        answer = self.root / f"answer-{self.count}"
        plan = self.root / f"plan-{self.count}"
        plan.write_bytes(
            msgspec.json.encode(Plan(str(self.store), str(folder), launch, self.strategy, str(answer), self.engine, self.bound))
        )
        answer.touch()
        self.own(answer)
        return [*self.identity(), *before, python(self.uid), "-m", "tests.run.driver", str(plan)], folder, answer

    def identity(self) -> list[str]:
        return identity(self.uid)

    def own(self, path: Path) -> None:
        if self.uid != os.getuid():
            subprocess.run(["chown", "-hR", f"{self.uid}:{self.uid}", str(path)], check=True)

    def run(self, *argv: str, mounts: Sequence[Mount] = (), before: Sequence[str] = (), stdin: str = "", **changes: Any) -> Ran:
        """Run a command in the tiny image. `before`: a program and arguments that start the driver, as the same user."""
        launch = self.launch(*argv, mounts=tuple(mounts), **changes)
        command, folder, answer = self.command(launch, before=before)
        done = subprocess.run(
            command, cwd=REPOSITORY, input=stdin, capture_output=True, text=True, check=False, timeout=300, env=environ()
        )
        assert answer.stat().st_size, done.stderr
        return Ran(msgspec.json.decode(answer.read_bytes(), type=Answer), done.stdout, done.stderr, folder)

    def sh(self, script: str, **changes: Any) -> Ran:
        return self.run("sh", "-ec", script, **changes)

    def python(self, script: str, **changes: Any) -> Ran:
        return self.run("python", "-c", script, **changes)


def identity(uid: int) -> list[str]:
    """The start of a command line that runs the rest as this user."""
    if uid == os.getuid():
        return []
    # by a shell: setpriv itself still looks a program up with the capabilities of root
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "sh", "-c", 'exec "$@"', "sh"]


@functools.cache
def python(uid: int) -> str:
    """A Python that this user can start and that finds what the driver imports: that of the tests may lie in a closed home."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        command = [*identity(uid), candidate, "-c", "import tests.run.driver"]
        if subprocess.run(command, cwd=REPOSITORY, env=environ(), capture_output=True, check=False).returncode == 0:
            return candidate
    need(False, f"a Python that uid {uid} can start, of the version that the tests run on")
    raise AssertionError


def environ() -> dict[str, str]:
    """What the driver starts with; the host's secrets of these tests among it."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": f"{REPOSITORY}:{SITE}", "SECRET_OF_THE_HOST": "1", "TMPDIR": "/tmp"}


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny image's store, made once."""
    need(shutil.which("ldd"), "ldd (package libc-bin)")
    store = tmp_path_factory.mktemp("image")
    rootfs.make(store)
    rootfs.source(store)
    return store


@contextlib.contextmanager
def open_place(store: Path, uid: int, name: str = "place") -> Iterator[Place]:
    """A place around a store that is there; `name` is that of its folder."""
    root = Path(tempfile.mkdtemp(prefix="repro-env-test-"))
    root.chmod(0o755)
    try:
        place = Place(root / name, uid, store)
        place.root.mkdir()
        for folder in (place.runs, place.root / "tools/inside", place.root / "notes"):
            folder.mkdir(parents=True)
        shutil.copy(REPOSITORY / "repro_env/inside/init.py", place.root / "tools/inside")
        place.own(place.root)
        yield place
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", str(root)], check=False, capture_output=True)
        shutil.rmtree(root)


@pytest.fixture(scope="session")
def stores(image: Path) -> Iterator[Callable[[int], Path]]:
    """A store of each user's own, private to them."""
    root = Path(tempfile.mkdtemp(prefix="repro-env-test-"))
    root.chmod(0o755)
    made: dict[int, Path] = {}

    def of(uid: int) -> Path:
        if uid not in made:
            made[uid] = root / f"store-{uid}"
            subprocess.run(["cp", "-a", str(image), str(made[uid])], check=True)
            made[uid].chmod(0o700)
            if uid != os.getuid():
                subprocess.run(["chown", "-hR", f"{uid}:{uid}", str(made[uid])], check=True)
        return made[uid]

    yield of
    shutil.rmtree(root)


@pytest.fixture(params=["root", "user"])
def place(request: pytest.FixtureRequest, stores: Callable[[int], Path]) -> Iterator[Place]:
    """As root and as a plain user; as a plain user alone when the tests are."""
    if request.param == "root":
        need(os.getuid() == 0, "uid 0 to run as root")
        uid = 0
    elif os.getuid():
        uid = os.getuid()
    else:
        need(shutil.which("setpriv"), "setpriv (package util-linux)")
        uid = PLAIN
    with open_place(stores(uid), uid) as opened:
        yield opened
