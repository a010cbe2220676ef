"""Run commands in a tiny image, as root and as a plain user, with a store for each user."""

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
from typing import Any, NamedTuple

import msgspec
import pytest

from repro_env.oci import paths
from repro_env.schema.environment import Variable
from repro_env.schema.run import ImageTree, Launch, Mount, Outcome, User
from tests import roots
from tests.fakes import rootfs
from tests.parts import need
from tests.sandbox import engines as fakes
from tests.sandbox.driver import Answer, Plan

PLAIN = 65533
"""An unused uid."""
REPOSITORY = Path(__file__).resolve().parents[2]
SITE = Path(msgspec.__file__).parents[1]


class Result(msgspec.Struct):
    answer: Answer
    stdout: str
    stderr: str
    directory: Path

    @property
    def outcome(self) -> Outcome:
        assert self.answer.outcome is not None, f"{self.answer.message}\n{self.stderr}"
        return self.answer.outcome

    @property
    def files(self) -> dict[str, str]:
        """The outputs in the project: path -> the text of a file, or the target of a link."""
        return self._below("files")

    @property
    def outside(self) -> dict[str, str]:
        """The outputs outside the project."""
        return self._below("outside")

    def _below(self, name: str) -> dict[str, str]:
        found = {}
        root = self.directory / name
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if path.is_symlink():
                found[name] = f"-> {path.readlink()}"
            elif path.is_file():
                found[name] = path.read_text()
        return found


class Place:
    """A store with the tiny image and a directory for runs, both owned by the user `uid`."""

    def __init__(self, root: Path, uid: int, store: Path) -> None:
        self.root = root
        self.uid = uid
        self.store = store
        self.runs = root / "runs"
        self.layers = [rootfs.digest(1), rootfs.digest(2), rootfs.digest(3)]
        self.overlay = True
        self.engine = ""
        """The address of an engine, or the name of a program; empty for the embedded runner."""
        self.way = ""
        """The name of the runner and its user in tests/sandbox/test_runners.py."""
        self.image = ""
        """The ID of the image in the engine."""
        self.count = 0

    def launch(self, *argv: str, **changes: Any) -> Launch:
        gid = self.uid
        launch = Launch(
            run_id=f"test-{secrets.token_hex(6)}",
            image=self.image or rootfs.digest(10 + len(self.layers)),
            layers=tuple(self.layers),
            prefix=rootfs.PREFIX,
            trees=(ImageTree(target=rootfs.PREFIX, root=paths.ENVIRONMENT),),
            argv=argv,
            env=(Variable(name="PATH", value=f"{rootfs.PREFIX}/bin:/bin"), Variable(name="LC_ALL", value="C.UTF-8")),
            cwd="/srv/captured/project",
            workspace="/srv/captured/project",
            snapshot=rootfs.digest(1000),
            mounts=(),
            tools=str(self.root / "tools"),
            reports=str(self.root / "reports"),
            user=User(uid=self.uid, gid=gid, name="ann" if self.uid else "root", home="/home/ann"),
            hostname="inside",
            network=False,
        )
        return msgspec.structs.replace(launch, **changes)

    def command(
        self, launch: Launch, *, before: Sequence[str] = (), directory: Path | None = None
    ) -> tuple[list[str], Path, Path]:
        """The driver's command line, the run's directory, and the file for the answer. A given `directory` is not created."""
        self.count += 1
        if directory is None:
            directory = self.runs / f"run-{self.count}"
            directory.mkdir()
            self.own(directory)
        answer = self.root / f"answer-{self.count}"
        plan = self.root / f"plan-{self.count}"
        plan.write_bytes(
            msgspec.json.encode(Plan(str(self.store), str(directory), launch, self.overlay, str(answer), self.engine))
        )
        answer.touch()
        self.own(answer)
        return [*self.identity(), *before, python(self.uid), "-m", "tests.sandbox.driver", str(plan)], directory, answer

    def identity(self) -> list[str]:
        return identity(self.uid)

    def own(self, path: Path) -> None:
        if self.uid != os.getuid():
            subprocess.run(["chown", "-hR", f"{self.uid}:{self.uid}", str(path)], check=True)

    def run(
        self, *argv: str, mounts: Sequence[Mount] = (), before: Sequence[str] = (), stdin: str = "", **changes: Any
    ) -> Result:
        """Run a command in the tiny image. `before`: a program with arguments that starts the driver, as the same user."""
        launch = self.launch(*argv, mounts=tuple(mounts), **changes)
        command, directory, answer = self.command(launch, before=before)
        done = subprocess.run(
            command, cwd=REPOSITORY, input=stdin, capture_output=True, text=True, check=False, timeout=300, env=environ()
        )
        assert answer.stat().st_size, done.stderr
        return Result(msgspec.json.decode(answer.read_bytes(), type=Answer), done.stdout, done.stderr, directory)

    def sh(self, script: str, **changes: Any) -> Result:
        return self.run("sh", "-ec", script, **changes)

    def python(self, script: str, **changes: Any) -> Result:
        return self.run("python", "-c", script, **changes)


def identity(uid: int) -> list[str]:
    """The words before a command that run it as this user."""
    if uid == os.getuid():
        return []
    # `sh` looks the program up: setpriv would do so with the capabilities of root
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "sh", "-c", 'exec "$@"', "sh"]


@functools.cache
def python(uid: int) -> str:
    """A Python that this user can start and that can import the driver. The Python of the tests may be in a private home."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        command = [*identity(uid), candidate, "-c", "import tests.sandbox.driver"]
        if subprocess.run(command, cwd=REPOSITORY, env=environ(), capture_output=True, check=False).returncode == 0:
            return candidate
    need(False, f"a Python that uid {uid} can start, of the version that the tests run on")
    raise AssertionError


def environ() -> dict[str, str]:
    """The variables of the driver, including a secret of the host."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": f"{REPOSITORY}:{SITE}", "SECRET_OF_THE_HOST": "1", "TMPDIR": "/tmp"}


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the tiny image, made once."""
    need(shutil.which("ldd"), "ldd (package libc-bin)")
    store = tmp_path_factory.mktemp("image")
    rootfs.make(store)
    rootfs.source(store)
    return store


@contextlib.contextmanager
def open_place(store: Path, uid: int, name: str = "place") -> Iterator[Place]:
    """Make a place for an existing store. `name` is the name of its directory."""
    root = Path(tempfile.mkdtemp(prefix="repro-env-test-"))
    root.chmod(0o755)
    try:
        place = Place(root / name, uid, store)
        place.root.mkdir()
        for directory in (place.runs, place.root / "tools/guest", place.root / "reports"):
            directory.mkdir(parents=True)
        shutil.copy(REPOSITORY / "repro_env/guest/init.py", place.root / "tools/guest")
        place.own(place.root)
        yield place
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", str(root)], check=False, capture_output=True)
        shutil.rmtree(root)


@pytest.fixture(scope="session")
def stores(image: Path) -> Iterator[Callable[[int], Path]]:
    """Returns a private store for a uid."""
    root = Path(tempfile.mkdtemp(prefix="repro-env-test-"))
    root.chmod(0o755)
    stores: dict[int, Path] = {}

    def get(uid: int) -> Path:
        if uid not in stores:
            stores[uid] = root / f"store-{uid}"
            subprocess.run(["cp", "-a", str(image), str(stores[uid])], check=True)
            stores[uid].chmod(0o700)
            if uid != os.getuid():
                subprocess.run(["chown", "-hR", f"{uid}:{uid}", str(stores[uid])], check=True)
        return stores[uid]

    yield get
    shutil.rmtree(root)


@pytest.fixture(params=["root", "user"])
def place(request: pytest.FixtureRequest, stores: Callable[[int], Path]) -> Iterator[Place]:
    """A place for root and one for a plain user; only the latter if the tests run as a plain user."""
    if request.param == "root":
        need(os.getuid() == 0, "uid 0 to run as root")
        uid = 0
    elif os.getuid():
        uid = os.getuid()
    else:
        need(shutil.which("setpriv"), "setpriv (package util-linux)")
        uid = PLAIN
    with open_place(stores(uid), uid) as place:
        yield place


NAME = f"repro-env-test-runners-{secrets.token_hex(4)}:tiny"


@pytest.fixture(scope="session")
def docker(image: Path) -> Iterator[tuple[str, str]]:
    """The tiny image in Docker: (address, image ID)."""
    address = fakes.docker()
    trees = [image / "layers" / rootfs.digest(number).removeprefix("sha256:") for number in (1, 2, 3)]
    with fakes.loaded(address, trees, NAME) as image_id:
        yield address, image_id


@pytest.fixture(scope="session")
def podman(image: Path) -> Iterator[tuple[str, str]]:
    trees = [image / "layers" / rootfs.digest(number).removeprefix("sha256:") for number in (1, 2, 3)]
    with fakes.podman() as address, fakes.loaded(address, trees, NAME) as image_id:
        yield address, image_id


@pytest.fixture(scope="session")
def rootless(image: Path) -> Iterator[tuple[str, str]]:
    """The tiny image in a rootless Podman of the plain user."""
    trees = [image / "layers" / rootfs.digest(number).removeprefix("sha256:") for number in (1, 2, 3)]
    with fakes.podman(PLAIN) as address, fakes.loaded(address, trees, NAME) as image_id:
        yield address, image_id


class Way(NamedTuple):
    """A way to run a command."""

    runner: str
    uid: int = 0
    overlay: bool = True


WAYS = {
    "embedded": Way("embedded"),
    "embedded, user": Way("embedded", PLAIN),
    "embedded, user, links": Way("embedded", PLAIN, overlay=False),
    "docker": Way("docker"),
    "podman": Way("podman"),
    "podman, user": Way("rootless", PLAIN),
    "charliecloud": Way("charliecloud"),
    "charliecloud, user": Way("charliecloud", PLAIN),
}
if shutil.which("apptainer"):  # only the newest Debian has it: `tests.roots` runs these there
    # It refuses a user without a name.
    WAYS |= {"apptainer": Way("apptainer"), "apptainer, user": Way("apptainer", roots.USER)}
ENGINES = ("docker", "podman", "podman, user")


@contextlib.contextmanager
def open_way(request: pytest.FixtureRequest, stores: Callable[[int], Path], name: str) -> Iterator[Place]:
    way = WAYS[name]
    need(os.getuid() == 0 or (way.uid and way.runner != "rootless"), "uid 0, to run as root and in engines")
    need(way.runner != "charliecloud" or shutil.which("ch-run"), "ch-run (package charliecloud)")
    uid = way.uid if os.getuid() == 0 else os.getuid()
    with open_place(stores(uid), uid) as place:
        place.way, place.overlay = name, way.overlay
        if name in ENGINES:
            place.engine, place.image = request.getfixturevalue(way.runner)
        elif way.runner != "embedded":
            place.engine = way.runner
        yield place


@pytest.fixture
def docker_place(request: pytest.FixtureRequest, stores: Callable[[int], Path]) -> Iterator[Place]:
    with open_way(request, stores, "docker") as place:
        yield place
