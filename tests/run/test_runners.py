"""The same cases over the runners: what a command sees, how it ends, what is left."""

from __future__ import annotations

import json
import os
import pty
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from repro_env.image import layout
from repro_env.io import engine as engines
from repro_env.model.run import Mount, Shown
from repro_env.run.container import LABEL
from tests.fakes import rootfs
from tests.parts import need
from tests.run import engines as fakes
from tests.run.conftest import PLAIN, REPOSITORY, Place, environ, open_place
from tests.run.test_embedded import _starves
from tests.run.test_supervisor import COUNTING, Live, lives

NAME = f"repro-env-test-runners-{secrets.token_hex(4)}:tiny"


@pytest.fixture(scope="session")
def docker(image: Path) -> Iterator[tuple[str, str]]:
    """(address, image ID) of the tiny image in Docker."""
    address = fakes.docker()
    trees = [image / "layers" / rootfs.digest(number).removeprefix("sha256:") for number in (1, 2, 3)]
    with fakes.loaded(address, trees, NAME) as made:
        yield address, made


@pytest.fixture(scope="session")
def podman(image: Path) -> Iterator[tuple[str, str]]:
    trees = [image / "layers" / rootfs.digest(number).removeprefix("sha256:") for number in (1, 2, 3)]
    with fakes.podman() as address, fakes.loaded(address, trees, NAME) as made:
        yield address, made


def opened(request: pytest.FixtureRequest, stores: Callable[[int], Path], runner: str) -> Iterator[Place]:
    need(os.getuid() == 0, "uid 0 to run in an engine")
    with open_place(stores(0), 0) as place:
        if runner != "embedded":
            place.engine, place.image = request.getfixturevalue(runner)
        yield place


@pytest.fixture(params=["embedded", "docker"])
def both(request: pytest.FixtureRequest, stores: Callable[[int], Path]) -> Iterator[Place]:
    yield from opened(request, stores, request.param)


@pytest.fixture(params=["embedded", "docker", "podman"])
def each(request: pytest.FixtureRequest, stores: Callable[[int], Path]) -> Iterator[Place]:
    yield from opened(request, stores, request.param)


@pytest.fixture
def contained(request: pytest.FixtureRequest, stores: Callable[[int], Path]) -> Iterator[Place]:
    yield from opened(request, stores, "docker")


LOOK = """
import grp, json, os, pwd, signal, socket, stat, subprocess, sys, tempfile
def written(path):
    try:
        with open(path + "/mine", "w") as file: file.write("x")
        os.unlink(path + "/mine")
        return True
    except OSError: return False
def text(path):
    with open(path) as file: return file.read()
me = pwd.getpwuid(os.getuid())
status = dict(line.split(":\\t", 1) for line in text("/proc/self/status").splitlines() if ":\\t" in line)
try:
    socket.create_connection(("127.0.0.1", 9), 1); loop = "open"
except ConnectionRefusedError: loop = "refused"
except OSError as error: loop = str(error)
if os.fork() == 0:
    os.setsid(); signal.pause()   # left behind
print(json.dumps({
    "who": [os.getuid(), os.getgid(), me.pw_name, me.pw_dir, grp.getgrgid(os.getgid()).gr_name],
    "home": os.path.expanduser("~"), "cwd": os.getcwd(), "umask": os.umask(0),
    "env": {k: os.environ.get(k) for k in ("PATH", "LC_ALL", "SECRET_OF_THE_HOST", "HOSTNAME", "SOME")},
    "host": socket.gethostname(), "address": socket.gethostbyname(socket.gethostname()),
    "interfaces": sorted(name for _, name in socket.if_nameindex()), "loop": loop,
    "writable": [path for path in ("/home/ann", "/tmp", "/var/tmp", "/run", "/dev/shm", ".", "/ckpt", "/run/repro-env/pycache", "/.repro-env/notes") if written(path)],
    "refused": [path for path in ("/data", "/data/deep", "/.repro-env/seeds", "/srv/captured/project/inner") if not written(path)],
    "modes": [oct(os.stat(path).st_mode) for path in ("/home/ann", "/tmp", "/var/tmp", "/dev/shm")],
    "shared": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "privileges": status["NoNewPrivs"].strip(),
    "prefix": [text("/srv/captured/venv/note"), os.path.realpath("/srv/captured/venv"), subprocess.run(["hello"], capture_output=True, text=True).stdout],
    "tmp": text("/tmp/of-the-image/file"), "gone": os.listdir("/opt/only-below"),
    "data": [text("/data/deep/file"), text("inner/file")], "stdin": sys.stdin.read(),
    "source": [text("train.py"), os.readlink("link"), subprocess.run(["./run.sh"]).returncode],
    "argv": sys.argv[1:], "python": sys.flags.isolated, "handles": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:3],
}))
print("to stderr", file=sys.stderr)
with open("out.txt", "w") as file: file.write("new\\n")
os.unlink("old.txt")
with open("/ckpt/last", "w") as file: file.write("weights\\n")
sys.exit(7)
"""


def look(place: Place) -> tuple[dict[str, Any], Any]:
    data, kept = place.root / "data", place.root / "kept"
    (data / "deep").mkdir(parents=True)
    (data / "deep/file").write_text("numbers\n")
    kept.mkdir()
    mounts = [
        Mount(kind="data", source=str(data), target="/data"),
        Mount(kind="data", source=str(data / "deep"), target="/srv/captured/project/inner"),
        Mount(kind="checkpoints", source=str(kept), target="/ckpt"),
    ]
    env = (*place.launch().env, *place.launch(env=()).env)
    ran = place.run(
        "python", "-c", LOOK, "two words", "--help", "ü", mounts=mounts, stdin="typed\n",
        env=tuple(sorted([*env, _variable("SOME", "a b'\"$x")], key=lambda one: one.name)),
    )  # fmt: skip
    assert ran.stdout, ran.stderr
    assert ran.stderr.endswith("to stderr\n")
    assert (kept / "last").read_text() == "weights\n"
    return json.loads(ran.stdout), ran


def _variable(name: str, value: str) -> Any:
    from repro_env.model.environment import Variable

    return Variable(name=name, value=value)


def test_a_command_sees_the_same_and_leaves_the_same(each: Place) -> None:
    seen, ran = look(each)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert abs(seen.pop("shared") - memory // 2) < 1 << 20, "as large as the kernel gives by itself"
    assert seen == {
        "who": [0, 0, "root", "/home/ann", "root"],
        "home": "/home/ann",
        "cwd": "/srv/captured/project",
        "umask": 0o022,
        "env": {"PATH": f"{rootfs.PREFIX}/bin:/bin", "LC_ALL": "C.UTF-8", "SECRET_OF_THE_HOST": None, "HOSTNAME": None,
                "SOME": "a b'\"$x"},
        "host": "inside",
        "address": "127.0.0.1",
        "interfaces": seen["interfaces"],
        "loop": "refused",
        "writable": ["/home/ann", "/tmp", "/var/tmp", "/run", "/dev/shm", ".", "/ckpt", "/run/repro-env/pycache",
                     "/.repro-env/notes"],
        "refused": ["/data", "/data/deep", "/.repro-env/seeds", "/srv/captured/project/inner"],
        "modes": ["0o40755", "0o41777", "0o41777", "0o41777"],
        "privileges": "1",
        "prefix": ["the environment\n", rootfs.PREFIX, f"hello from {rootfs.PREFIX}/bin/hello\n"],
        "tmp": "carried\n",
        "gone": [],
        "data": ["numbers\n", "numbers\n"],
        "stdin": "typed\n",
        "source": ["print('training')\n", "train.py", 7],
        "argv": ["two words", "--help", "ü"],
        "python": 0,
        "handles": [0, 1, 2],
    }  # fmt: skip
    assert "lo" in seen["interfaces"]
    assert not {name for name in seen["interfaces"] if name.startswith(("eth", "en", "docker"))}
    outcome = ran.outcome
    assert (outcome.exit_code, outcome.signal, outcome.out_of_memory) == (7, 0, False)
    assert outcome.isolation == ("docker" if each.engine else "embedded")
    assert (ran.files, ran.answer.removed) == ({"out.txt": "new\n"}, ("old.txt",))
    assert sorted(path.name for path in ran.folder.iterdir() if path.suffix != ".log") == ["files"]
    if each.engine:
        with engines.opened(each.engine) as engine:
            product = f"engine: {engine.facts.product} {engine.facts.version}"
            assert not engine.client.api.containers(all=True, filters={"label": f"{LABEL}={ran.folder}/.scratch"})
        assert outcome.means == (product, "root: the engine's", "workspace: copy", "bytecode: none yet")


def test_addresses_are_fixed_or_the_record_says_why_not(each: Place) -> None:
    code = "print(int(open('/proc/self/personality').read(), 16) >> 18 & 1, list({object() for _ in range(99)}))"
    ran = each.python(code, fixed_addresses=True)
    refused = [one for one in ran.outcome.means if one.startswith("addresses: random (")]
    assert (ran.outcome.exit_code, ran.stdout[:2]) == (0, "0 " if refused else "1 ")
    assert bool(refused) == bool(each.engine), "the engines' own seccomp rules refuse it"
    if not refused:
        assert each.python(code, fixed_addresses=True).stdout == ran.stdout, "the order of a set of objects"


def test_every_privilege_is_gone(contained: Place) -> None:
    ran = contained.sh("while read a b; do case $a in Cap*) echo $b;; esac; done < /proc/self/status")
    assert ran.stdout.split() == ["0000000000000000"] * 5


@pytest.mark.parametrize(("script", "code", "number"), [("kill -9 $$", 137, 9), ("exit 137", 137, 0)])
def test_a_signal_is_no_exit_code(both: Place, script: str, code: int, number: int) -> None:
    outcome = both.sh(script).outcome
    assert (outcome.exit_code, outcome.signal) == (code, number)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"argv": ("no-interpreter",)}, "RunError", [f"{rootfs.PREFIX}/bin/no-interpreter", "first line"]),
        ({"cwd": "/srv/captured/project/nowhere"}, "RunError", ["/srv/captured/project/nowhere"]),
        ({"argv": ("no-such-command",)}, "CommandMissingError", ["no-such-command", f"{rootfs.PREFIX}/bin:/bin"]),
    ],
)
def test_a_command_that_cannot_start_is_named_alike(
    contained: Place, changes: dict[str, Any], error: str, words: list[str]
) -> None:
    messages = set()
    for engine in (contained.engine, ""):
        contained.engine = engine
        ran = contained.run(*changes.get("argv", ("ls",)), **{k: v for k, v in changes.items() if k != "argv"})
        assert ran.answer.error == error
        assert all(word in ran.answer.message for word in words)
        messages.add(ran.answer.message)
        assert not (ran.folder / ".scratch").exists()
    assert len(messages) == 1


def test_trees_below_the_workspace_and_odd_names(both: Place) -> None:
    """An environment in the source folder, which would hide it; a source in HOME; names with all that options are split at."""
    workspace = "/home/ann/pro ject, a:b"
    trees = (Shown(target=f"{workspace}/.venv", root=layout.ENVIRONMENT), Shown(target="/opt/env", root="/opt/env"))
    ran = both.sh(
        'cat .venv/note ../../../srv/captured/venv/note; ls -A; pwd -P; echo x > new; echo y > "$HOME/mine"; echo z > /tmp/z',
        workspace=workspace, cwd=workspace, trees=trees,
    )  # fmt: skip
    assert ran.stdout.splitlines() == [
        "the environment", "the environment", ".venv", "link", "old.txt", "package", "run.sh", "train.py", workspace,
    ]  # fmt: skip
    assert ran.files == {"new": "x\n"}


def test_orphans_are_reaped(contained: Place) -> None:
    ran = contained.python("""
import os, time
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05); os._exit(0)
        os._exit(0)
    os.wait()
deadline = time.monotonic() + 60
while time.monotonic() < deadline and len([n for n in os.listdir("/proc") if n.isdigit()]) > 2: time.sleep(0.01)
print(len([n for n in os.listdir("/proc") if n.isdigit()]))
""")
    assert ran.stdout == "2\n"


@pytest.fixture
def live(both: Place) -> Iterator[Callable[..., Live]]:
    with lives(both) as start:
        yield start


def test_signals_reach_the_command_once(live: Callable[..., Live]) -> None:
    run = live(COUNTING, start_new_session=True)
    run.said("ready")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        run.driver.send_signal(number)
        run.said(f"got {number.name}")
    for number in (signal.SIGINT, signal.SIGUSR2):
        os.killpg(run.driver.pid, number)
        run.said(f"got {number.name}")
    run.said("all SIGTERM SIGHUP SIGUSR1 SIGINT SIGUSR2")
    assert run.answer.outcome is not None
    assert run.answer.outcome.exit_code == 5


TERMINAL = "import ctypes, fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"


def test_a_terminal_and_its_ctrl_c(both: Place) -> None:
    script = COUNTING.replace(
        'print("ready")', 'print("ready", [os.isatty(n) for n in (0, 1, 2)], os.get_terminal_size(0).columns)'
    )
    main, other = pty.openpty()
    fcntl_size(other, 40, 123)
    command, _, answer = both.command(both.launch("python", "-uc", script))
    driver = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, *command], cwd=REPOSITORY, env=environ(), stdin=other, stdout=other, stderr=other
    )
    os.close(other)
    try:
        heard = hear(main, b"ready [True, True, True] 123")
        os.write(main, b"\x03")
        heard += hear(main, b"got SIGINT")
        driver.send_signal(signal.SIGUSR2)
        heard += hear(main, b"all SIGINT SIGUSR2\r\n")
        assert heard.count(b"got SIGINT") == 1
        assert driver.wait(100) == 0
        assert b'"exit_code":2' in answer.read_bytes()
    finally:
        driver.kill()
        driver.wait()
        os.close(main)


def fcntl_size(handle: int, rows: int, columns: int) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def hear(main: int, words: bytes) -> bytes:
    heard = b""
    while words not in heard:
        heard += os.read(main, 4096)
    return heard


def test_a_killed_supervisor_leaves_nothing(live: Callable[..., Live], both: Place) -> None:
    run = live("import os, time; os.fork() or (os.setsid(), time.sleep(600)); print('ready'); time.sleep(600)")
    run.said("ready")
    run.driver.kill()
    run.driver.wait()
    if not both.engine:
        return  # tests/run/test_supervisor.py says what of it
    deadline = time.monotonic() + 100
    with engines.opened(both.engine) as engine:
        while engine.client.api.containers(all=True, filters={"label": f"{LABEL}={run.folder}/.scratch"}):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    while (run.folder / ".scratch").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_closed_reader_ends_the_command(contained: Place) -> None:
    """As `repro-env exec ... | head -1`."""
    command, _, answer = contained.command(contained.launch("sh", "-c", "while :; do echo y; done"))
    driver = subprocess.Popen(command, cwd=REPOSITORY, env=environ(), stdout=subprocess.PIPE)
    assert driver.stdout
    driver.stdout.readline()
    driver.stdout.close()
    driver.wait(100)
    assert b'"signal":13' in answer.read_bytes()


def test_memory_that_the_caller_may_not_have_is_not_had_inside(contained: Place) -> None:
    _starves(contained)


def test_a_plain_user_in_the_engines_group(
    docker: tuple[str, str], stores: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with open_place(stores(PLAIN), PLAIN) as place:
        proxy = fakes.Between(place.root)
        place.engine, place.image = proxy.address, docker[1]
        ran = place.sh("id -u; id -g; echo new > new; mkdir -p deep/er; rm old.txt; echo x > /home/ann/x; echo y > /tmp/y")
        proxy.cut()
        assert ran.stdout.split() == [str(PLAIN), str(PLAIN)]
        assert ran.files == {"new": "new\n"}
        assert ran.outside == {"home/ann/x": "x\n"}
        assert (ran.folder / "files/new").stat().st_uid == PLAIN
        assert sorted(path.name for path in ran.folder.iterdir() if path.suffix != ".log") == ["files", "outside"]


def test_an_engine_that_goes_away_under_the_command(contained: Place, docker: tuple[str, str]) -> None:
    """Its end is not known, and the processes that it left are ended; the next run clears the container away."""
    proxy = fakes.Between(contained.root)
    contained.engine = proxy.address
    command, folder, answer = contained.command(contained.launch("python", "-uc", "print('ready'); import time; time.sleep(600)"))
    run = Live(contained, command, folder, answer)
    run.said("ready")
    with engines.opened(docker[0]) as engine:
        (left,) = engine.client.api.containers(filters={"label": f"{LABEL}={folder}/.scratch"})
        pid = engine.client.api.inspect_container(left["Id"])["State"]["Pid"]
    proxy.cut()
    found = run.answer
    assert run.driver.stdout
    run.driver.stdout.close()
    assert found.error == "", found  # ended by our own TERM, which init could still tell
    assert found.outcome is not None
    assert (found.outcome.signal, found.outcome.means[-1]) == (signal.SIGTERM, "engine: went away at the end")
    assert not Path(f"/proc/{pid}").exists()
    contained.engine = docker[0]
    contained.sh(":")
    with engines.opened(docker[0]) as engine:
        assert not engine.client.api.containers(all=True, filters={"label": f"{LABEL}={folder}/.scratch"})


def test_gpus_without_a_runtime_for_them(contained: Place) -> None:
    ran = contained.sh(":", gpus="all")
    assert ran.answer.error == "EngineError"
    assert "device driver" in ran.answer.message
    assert "nvidia-container-toolkit" in ran.answer.hint


def test_an_image_that_is_not_there(contained: Place) -> None:
    contained.image = rootfs.digest(404)
    ran = contained.sh(":")
    assert ran.answer.error == "EngineError"
    assert rootfs.digest(404).removeprefix("sha256:")[:12] in ran.answer.message
    assert not (ran.folder / ".scratch").exists()


@pytest.mark.soak
def test_an_engine_that_is_killed(stores: Callable[[int], Path], image: Path) -> None:
    """A real one, by SIGKILL, under a command that does not heed SIGTERM."""
    trees = [image / "layers" / rootfs.digest(number).removeprefix("sha256:") for number in (1, 2, 3)]
    with open_place(stores(0), 0) as place, fakes.dockerd() as (address, process), fakes.loaded(address, trees, NAME) as made:
        place.engine, place.image = address, made
        script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(600)"
        command, folder, answer = place.command(place.launch("python", "-uc", script))
        run = Live(place, command, folder, answer)
        run.said("ready")
        with engines.opened(address) as engine:
            (left,) = engine.client.api.containers()
            pid = engine.client.api.inspect_container(left["Id"])["State"]["Pid"]
        process.kill()
        found = run.answer
        assert run.driver.stdout
        run.driver.stdout.close()
        assert (found.error, "went away while the command ran" in found.message) == ("EngineError", True)
        assert not Path(f"/proc/{pid}").exists()
        assert not (folder / ".scratch").exists()


def test_plan_shows_files_of_the_image_in_home_and_the_repository_in_the_source(each: Place) -> None:
    made = each.root / "made"
    (made / "objects").mkdir(parents=True)
    (made / "HEAD").write_text("ref: x\n")
    shown = Shown(root="/opt/env/note", target="/home/ann/.keras/keras.json")
    mounts = [Mount(kind="git", source=str(made), target="/srv/captured/project/.git")]
    script = "cat /home/ann/.keras/keras.json .git/HEAD; echo new > /home/ann/.keras/mine; ! echo x > .git/HEAD; echo y > out"
    ran = each.sh(script, mounts=mounts, trees=(*each.launch("sh").trees, shown))
    assert ran.stdout == "the environment\nref: x\n"
    assert ran.files == {"out": "y\n"}
