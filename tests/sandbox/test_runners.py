"""What every runner promises, with each runner and user: what a command sees, how it ends, what it leaves.

`DIFFERENT` has what a runner does in another way, with the reason. These cases are run too, and must differ.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.io import engine as engines
from repro_env.oci import paths
from repro_env.sandbox import gpus
from repro_env.sandbox.docker.container import LABEL
from repro_env.sandbox.programs.apptainer import ApptainerRunner
from repro_env.sandbox.programs.charliecloud import CharliecloudRunner
from repro_env.sandbox.programs.runner import ProgramRunner
from repro_env.schema.run import ImageTree, Launch, Limits, Mount, StandardStreams
from tests.fakes import gpus as fake_gpus
from tests.fakes import rootfs
from tests.sandbox import engines as fakes
from tests.sandbox.conftest import (
    ENGINES,
    PLAIN,
    REPOSITORY,
    WAYS,
    Place,
    environ,
    open_place,
    open_way,
)
from tests.sandbox.liveruns import COUNTING, LiveRun, start_runs
from tests.sandbox.memory import check_memory_limit
from tests.sandbox.terminals import TERMINAL, read_until

CHARLIECLOUD, APPTAINER = (tuple(way for way in WAYS if WAYS[way].runner == name) for name in ("charliecloud", "apptainer"))
PROGRAMS = (*CHARLIECLOUD, *APPTAINER)
USERS = tuple(way for way in WAYS if WAYS[way].uid)
DIFFERENT = {
    "the root is writable": {
        **dict.fromkeys((*ENGINES, *PROGRAMS), "it has no layer for changes, so they would be lost"),
        "embedded, user, links": "the tree of links is shared with other runs",
    },
    "addresses can be fixed": dict.fromkeys(ENGINES, "the engines' default rules for system calls refuse personality(2)"),
    "memory and CPU time are limited": dict.fromkeys(
        USERS, "a plain user can make no control group here (rootless Podman: of version 1)"
    ),
    "a path can have a comma": dict.fromkeys(ENGINES[1:], "Podman 4.3 reads a mount as text, in which a comma ends the path"),
    "a path can have a colon": dict.fromkeys(CHARLIECLOUD, "ch-run separates the paths of a mount with a colon"),
    "a device file can have another name": dict.fromkeys(
        APPTAINER, "apptainer has only the directory or the name of this machine"
    ),
}


def can(place: Place, promise: str) -> bool:
    """Whether a runner keeps this promise; if not, `DIFFERENT` has the reason."""
    return place.way not in DIFFERENT[promise]


@pytest.fixture(params=WAYS)
def any_runner(request: pytest.FixtureRequest, stores: Callable[[int], Path]) -> Iterator[Place]:
    with open_way(request, stores, request.param) as place:
        yield place


@pytest.fixture(params=[way for way in WAYS if way not in ("podman", "embedded, user, links")])
def each_runner(request: pytest.FixtureRequest, stores: Callable[[int], Path]) -> Iterator[Place]:
    """Without the ways that use the same code as another one for processes."""
    with open_way(request, stores, request.param) as place:
        yield place


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
    os.setsid(); signal.pause()   # a process that does not end with the command
print(json.dumps({
    "who": [os.getuid(), os.getgid(), me.pw_name, me.pw_dir, grp.getgrgid(os.getgid()).gr_name],
    "home": os.path.expanduser("~"), "cwd": os.getcwd(), "umask": os.umask(0),
    "env": {k: os.environ.get(k) for k in ("PATH", "LC_ALL", "SECRET_OF_THE_HOST", "HOSTNAME", "SOME")},
    "host": socket.gethostname(), "address": socket.gethostbyname(socket.gethostname()),
    "interfaces": sorted(name for _, name in socket.if_nameindex()), "loop": loop,
    "writable": [path for path in ("/home/ann", "/tmp", "/var/tmp", "/run", "/dev/shm", ".", "/ckpt", "/.repro-env/reports") if written(path)],
    "refused": [path for path in ("/data", "/data/deep", "/.repro-env/seeds", "/srv/captured/project/inner") if not written(path)],
    "modes": [oct(os.stat(path).st_mode) for path in ("/home/ann", "/tmp", "/var/tmp", "/dev/shm")],
    "shared": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "privileges": status["NoNewPrivs"].strip(),
    "prefix": [text("/srv/captured/venv/note"), os.path.realpath("/srv/captured/venv"), subprocess.run(["hello"], capture_output=True, text=True).stdout],
    "tmp": text("/tmp/of-the-image/file"), "gone": os.listdir("/opt/only-below"),
    "data": [text("/data/deep/file"), text("inner/file")], "stdin": sys.stdin.read(),
    "source": [text("train.py"), os.readlink("link"), subprocess.run(["./run.sh"]).returncode],
    "argv": sys.argv[1:], "seed": hash("seeded by PYTHONHASHSEED"), "python": sys.flags.isolated, "handles": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:3],
}))
print("to stderr", file=sys.stderr)
with open("out.txt", "w") as file: file.write("new\\n")
os.unlink("old.txt")
with open("/ckpt/last", "w") as file: file.write("weights\\n")
sys.exit(7)
"""


def inspect(place: Place) -> tuple[dict[str, Any], Any]:
    data, checkpoints = place.root / "data", place.root / "checkpoints"
    (data / "deep").mkdir(parents=True)
    (data / "deep/file").write_text("numbers\n")
    checkpoints.mkdir()
    place.own(checkpoints)
    mounts = [
        Mount(kind="data", source=str(data), target="/data"),
        Mount(kind="data", source=str(data / "deep"), target="/srv/captured/project/inner"),
        Mount(kind="checkpoints", source=str(checkpoints), target="/ckpt"),
    ]
    env = (*place.launch().env, *place.launch(env=()).env)
    result = place.run(
        "python", "-c", LOOK, "two words", "--help", "ü", mounts=mounts, stdin="typed\n",
        env=tuple(sorted([*env, _variable("SOME", "a b'\"$x"), _variable("PYTHONHASHSEED", "7")], key=lambda variable: variable.name)),
    )  # fmt: skip
    assert result.stdout, result.stderr
    assert result.stderr.endswith("to stderr\n")
    assert (checkpoints / "last").read_text() == "weights\n"
    return json.loads(result.stdout), result


def _variable(name: str, value: str) -> Any:
    from repro_env.schema.environment import Variable

    return Variable(name=name, value=value)


def test_all_runners_give_a_command_the_same_environment_and_outputs(any_runner: Place) -> None:
    place = any_runner
    seen, result = inspect(place)
    name = "ann" if place.uid else "root"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert abs(seen.pop("shared") - memory // 2) < 1 << 20, "the kernel's default size"
    assert seen == {
        "who": [place.uid, place.uid, name, "/home/ann", name],
        "home": "/home/ann",
        "cwd": "/srv/captured/project",
        "umask": 0o022,
        "env": {"PATH": f"{rootfs.PREFIX}/bin:/bin", "LC_ALL": "C.UTF-8", "SECRET_OF_THE_HOST": None, "HOSTNAME": None,
                "SOME": "a b'\"$x"},
        "host": "inside",
        "address": "127.0.0.1",
        "interfaces": seen["interfaces"],
        "loop": "refused",
        "writable": ["/home/ann", "/tmp", "/var/tmp", "/run", "/dev/shm", ".", "/ckpt", "/.repro-env/reports"],
        "refused": ["/data", "/data/deep", "/.repro-env/seeds", "/srv/captured/project/inner"],
        "modes": ["0o40755", "0o41777", "0o41777", "0o41777"],
        "privileges": "1",
        "prefix": ["the environment\n", rootfs.PREFIX, f"hello from {rootfs.PREFIX}/bin/hello\n"],
        "tmp": "bundled\n",
        "gone": [],
        "data": ["numbers\n", "numbers\n"],
        "stdin": "typed\n",
        "source": ["print('training')\n", "train.py", 7],
        "argv": ["two words", "--help", "ü"],
        "seed": seeded_hash(),
        "python": 0,
        "handles": [0, 1, 2],
    }  # fmt: skip
    assert "lo" in seen["interfaces"]
    assert not {name for name in seen["interfaces"] if name.startswith(("eth", "en", "docker"))}
    outcome = result.outcome
    assert (outcome.exit_code, outcome.signal, outcome.out_of_memory) == (7, 0, False)
    runner = WAYS[place.way].runner
    assert outcome.isolation == {"podman": "docker", "rootless": "docker"}.get(runner, runner)
    assert (result.files, result.answer.removed) == ({"out.txt": "new\n"}, ("old.txt",))
    assert sorted(path.name for path in result.directory.iterdir() if path.suffix != ".log") == ["files"]
    assert outcome.methods[0] == first_means(place)


def seeded_hash() -> int:
    command = [sys.executable, "-c", "print(hash('seeded by PYTHONHASHSEED'))"]
    return int(subprocess.run(command, env={"PYTHONHASHSEED": "7"}, capture_output=True, check=True).stdout)


def first_means(place: Place) -> str:
    """What the record says first about how a command was run."""
    if place.way in ENGINES:
        with engines.connect(place.engine) as engine:
            left = engine.client.api.containers(all=True, filters={"label": LABEL})  # of other tests too: they share Docker
            assert not [item for item in left if item["ImageID"] == place.image]
            return f"engine: {engine.facts.product} {engine.facts.version}"
    if place.way in PROGRAMS:
        runner: type[ProgramRunner] = CharliecloudRunner if place.way in CHARLIECLOUD else ApptainerRunner
        return f"{runner.program} {runner.locate()[1]}"
    return f"root: {'overlay' if place.overlay else 'links'}"


def test_files_outside_the_project_are_kept_or_refused(any_runner: Place) -> None:
    result = any_runner.sh("echo x > /home/ann/mine; echo y > /tmp/gone; echo z > /opt/new || echo refused")
    kept = {"home/ann/mine": "x\n", **({"opt/new": "z\n"} if can(any_runner, "the root is writable") else {})}
    assert (result.outside, result.files) == (kept, {})
    assert ("refused" in result.stdout) == (not can(any_runner, "the root is writable"))
    assert ("Read-only file system" in result.stderr) == ("refused" in result.stdout)


def test_a_program_ends_by_signals_as_in_a_shell(each_runner: Place) -> None:
    """Python ignores SIGPIPE, but programs that it starts must not."""
    result = each_runner.sh("{ while :; do echo y; done; } | cat /dev/null; echo $?; kill -SEGV $$")
    assert result.stdout == "0\n"
    assert (result.outcome.exit_code, result.outcome.signal, result.outcome.out_of_memory) == (139, signal.SIGSEGV, False)


def test_addresses_are_fixed_or_the_record_has_the_reason(any_runner: Place) -> None:
    code = "print(int(open('/proc/self/personality').read(), 16) >> 18 & 1, list({object() for _ in range(99)}))"
    result = any_runner.python(code, fixed_addresses=True)
    refused = [means for means in result.outcome.methods if means.startswith("addresses: random (")]
    assert (result.outcome.exit_code, result.stdout[:2]) == (0, "0 " if refused else "1 ")
    assert bool(refused) == (not can(any_runner, "addresses can be fixed"))
    if not refused:
        assert any_runner.python(code, fixed_addresses=True).stdout == result.stdout, "the order of a set of objects"


PATH = f"{rootfs.PREFIX}/bin:/bin"


def test_a_command_that_cannot_start_is_the_same_error(each_runner: Place) -> None:
    script = f"{rootfs.PREFIX}/bin/no-interpreter: the interpreter in the first line of this script"
    check_refusal(each_runner, "no-interpreter", error="RunError", message=script)


@pytest.mark.parametrize(
    ("command", "changes", "error", "message"),
    [
        ("plain", {}, "RunError", f"{rootfs.PREFIX}/bin/plain: this file cannot be executed: Permission denied"),
        ("ls", {"cwd": "/srv/nowhere"}, "RunError", "/srv/nowhere: the working directory cannot be entered"),
        ("none", {}, "CommandMissingError", f"none: this command is not on the PATH of the run ({PATH})"),
    ],
    ids=["mode", "directory", "missing"],
)
@pytest.mark.parametrize("runner", ["embedded", "docker"])
def test_the_error_for_a_command_that_cannot_start_names_it(
    docker_place: Place, runner: str, command: str, changes: dict[str, Any], error: str, message: str
) -> None:
    if runner == "embedded":
        docker_place.engine = ""
    check_refusal(docker_place, command, error=error, message=message, **changes)


def check_refusal(place: Place, command: str, *, error: str, message: str, **changes: Any) -> None:
    result = place.run(command, **changes)
    assert (result.answer.error, result.answer.message[: len(message)]) == (error, message)
    assert sorted(path.name for path in result.directory.iterdir() if path.suffix == ".log") == ["stderr.log", "stdout.log"]


def test_trees_are_mounted_below_a_workspace_with_an_unusual_name(any_runner: Place) -> None:
    """The environment is in the source directory, the source is in HOME, and the name has characters that separate options."""
    workspace = "/home/ann/pro ject, a:b"
    for promise, character, message in (
        ("a path can have a colon", ":", "cannot mount a path with a colon"),
        ("a path can have a comma", ",", "invalid mount option"),
    ):
        if not can(any_runner, promise):
            assert message in any_runner.sh(":", workspace=workspace, cwd=workspace).answer.message
            workspace = workspace.replace(character, "")
    trees = (ImageTree(target=f"{workspace}/.venv", root=paths.ENVIRONMENT), ImageTree(target="/opt/env", root="/opt/env"))
    result = any_runner.sh(
        'cat .venv/note ../../../srv/captured/venv/note; ls -A; pwd -P; echo x > new; echo y > "$HOME/mine"; echo z > /tmp/z',
        workspace=workspace, cwd=workspace, trees=trees,
    )  # fmt: skip
    assert result.stdout.splitlines() == [
        "the environment", "the environment", ".venv", "link", "old.txt", "package", "run.sh", "train.py", workspace,
    ]  # fmt: skip
    assert result.files == {"new": "x\n"}


def test_orphans_are_reaped_and_other_processes_end_with_the_command(each_runner: Place) -> None:
    result = each_runner.python("""
import os, time
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05); os._exit(0)  # its parent has ended by then, so init reaps it
        os._exit(0)
    os.wait()
deadline = time.monotonic() + 60
mine = {"1", str(os.getpid())}
while time.monotonic() < deadline and {n for n in os.listdir("/proc") if n.isdigit()} - mine: time.sleep(0.01)
print({n for n in os.listdir("/proc") if n.isdigit()} - mine)
if os.fork() == 0:
    os.setsid(); time.sleep(600)
""")
    assert (result.stdout, result.outcome.exit_code) == ("set()\n", 0)


@pytest.fixture
def live(each_runner: Place) -> Iterator[Callable[..., LiveRun]]:
    with start_runs(each_runner) as start:
        yield start


def test_signals_reach_the_command_once(live: Callable[..., LiveRun]) -> None:
    run = live(COUNTING, start_new_session=True)
    run.wait_for("ready")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        run.driver.send_signal(number)
        run.wait_for(f"got {number.name}")
    for number in (signal.SIGINT, signal.SIGUSR2):  # as `timeout` and the terminal send them
        os.killpg(run.driver.pid, number)
        run.wait_for(f"got {number.name}")
    run.wait_for("all SIGTERM SIGHUP SIGUSR1 SIGINT SIGUSR2")
    assert run.answer.outcome is not None
    assert run.answer.outcome.exit_code == 5
    assert run.answer.outcome.interrupted == signal.SIGTERM


def test_ctrl_c_in_a_terminal_reaches_the_command_once(each_runner: Place) -> None:
    script = COUNTING.replace(
        'print("ready")', 'print("ready", [os.isatty(n) for n in (0, 1, 2)], os.get_terminal_size(0).columns)'
    )
    main, side = pty.openpty()
    set_terminal_size(side, 40, 123)
    command, _, answer = each_runner.command(each_runner.launch("python", "-uc", script))
    driver = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, *command], cwd=REPOSITORY, env=environ(), stdin=side, stdout=side, stderr=side
    )
    os.close(side)
    try:
        output = read_until(main, b"ready [True, True, True] 123")
        os.write(main, b"\x03")
        output += read_until(main, b"got SIGINT")
        driver.send_signal(signal.SIGUSR2)
        output += read_until(main, b"all SIGINT SIGUSR2\r\n")
        assert output.count(b"got SIGINT") == 1
        assert driver.wait(100) == 0
        assert b'"exit_code":2' in answer.read_bytes()
    finally:
        driver.kill()
        driver.wait()
        os.close(main)


CONNECTED = """
import os, shutil, stat, sys
print([os.isatty(n) for n in (0, 1, 2)], os.path.sameopenfile(1, 2), shutil.get_terminal_size().columns, repr(sys.stdin.read()))
"""


@pytest.mark.parametrize(
    ("streams", "printed", "log"),
    [
        (("terminal", "terminal", "terminal"), "[True, True, True] True 123 ''", "console.log"),
        (("terminal", "pipe", "terminal"), "[True, False, True] False 80 ''", "stdout.log"),
        (("file", "file", "file", "joined"), "[False, False, False] True 80 ''", "console.log"),
    ],
)
def test_recorded_streams_are_connected_again_from_anywhere(
    each_runner: Place, streams: tuple[str, ...], printed: str, log: str
) -> None:
    """The caller has pipes. Where something was typed at the recorded terminal, the input has ended, so nothing waits for it."""
    recorded = msgspec.convert(
        {**dict(zip(("stdin", "stdout", "stderr"), streams[:3], strict=True)), "joined": len(streams) == 4, "columns": 123},
        type=StandardStreams,
    )
    recorded = msgspec.structs.replace(recorded, rows=40, typed=True)
    result = each_runner.python(CONNECTED, streams=recorded, stdin="of the caller")
    assert (result.directory / log).read_text() == f"{printed}\n", result
    assert result.stdout.replace("\r\n", "\n") == f"{printed}\n"


def set_terminal_size(handle: int, rows: int, columns: int) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def containers(address: str, run: LiveRun | Launch) -> list[Any]:
    with engines.connect(address) as engine:
        found: list[Any] = engine.client.api.containers(all=True, filters={"label": f"{LABEL}={run.run_id}"})
        return found


def wait_until_removed(address: str, run: LiveRun | Launch) -> None:
    deadline = time.monotonic() + 100
    while containers(address, run):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("runner", ["docker", "podman"])
def test_a_killed_supervisor_leaves_no_container(
    request: pytest.FixtureRequest, stores: Callable[[int], Path], runner: str
) -> None:
    """The embedded runner is tested in tests/sandbox/embedded/test_supervisor.py."""
    with open_way(request, stores, runner) as place, start_runs(place) as start:
        run = start("import os, time; os.fork() or (os.setsid(), time.sleep(600)); print('ready'); time.sleep(600)")
        run.wait_for("ready")
        assert containers(place.engine, run)
        run.driver.kill()
        run.driver.wait()
        wait_until_removed(place.engine, run)


@pytest.mark.parametrize("name", ENGINES)
def test_a_container_that_ends_before_the_command_says_why(
    name: str, request: pytest.FixtureRequest, stores: Callable[[int], Path]
) -> None:
    with open_way(request, stores, name) as place:
        (place.root / "tools/guest/init.py").unlink()
        launch = place.launch("true")
        answer = place.run("true", run_id=launch.run_id).answer
        assert answer.error == "EngineError"
        assert "the container ended before the command started: " in answer.message
        assert "can't open file" in answer.message
        assert "(exit code 2)" in answer.message
        wait_until_removed(place.engine, launch)


def test_a_closed_reader_ends_the_command(docker_place: Place) -> None:
    """As `repro-env exec ... | head -1`."""
    command, _, answer = docker_place.command(docker_place.launch("sh", "-c", "while :; do echo y; done"))
    driver = subprocess.Popen(command, cwd=REPOSITORY, env=environ(), stdout=subprocess.PIPE)
    assert driver.stdout
    driver.stdout.readline()
    driver.stdout.close()
    driver.wait(100)
    assert b'"signal":13' in answer.read_bytes()


def test_the_memory_limit_of_the_caller_applies_to_the_container(docker_place: Place) -> None:
    check_memory_limit(docker_place)


def test_a_plain_user_can_run_in_docker(
    docker: tuple[str, str], stores: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with open_place(stores(PLAIN), PLAIN) as place:
        proxy = fakes.EngineProxy(place.root)
        place.engine, place.image = proxy.address, docker[1]
        result = place.sh("id -u; id -g; echo new > new; mkdir -p deep/er; rm old.txt; echo x > /home/ann/x; echo y > /tmp/y")
        proxy.cut()
        assert result.stdout.split() == [str(PLAIN), str(PLAIN)]
        assert result.files == {"new": "new\n"}
        assert result.outside == {"home/ann/x": "x\n"}
        assert (result.directory / "files/new").stat().st_uid == PLAIN
        assert sorted(path.name for path in result.directory.iterdir() if path.suffix != ".log") == ["files", "outside"]


def test_a_command_outlives_the_connection_to_the_engine(docker_place: Place, docker: tuple[str, str]) -> None:
    """Streams, signals and the exit code do not pass through the engine, which also removes the container by itself."""
    proxy = fakes.EngineProxy(docker_place.root)
    docker_place.engine = proxy.address
    with start_runs(docker_place) as start:
        run = start("import signal, time; signal.signal(15, lambda *_: exit(7)); print('ready'); time.sleep(600)")
        run.wait_for("ready")
        proxy.cut()
        run.driver.send_signal(signal.SIGTERM)
        assert run.answer.outcome is not None, run.answer
        assert run.answer.outcome.exit_code == 7
        wait_until_removed(docker[0], run)


def test_a_missing_image_is_an_error(docker_place: Place) -> None:
    docker_place.image = rootfs.digest(404)
    result = docker_place.sh(":")
    assert result.answer.error == "EngineError"
    assert rootfs.digest(404).removeprefix("sha256:")[:12] in result.answer.message


def test_files_of_the_image_in_home_and_the_repository_are_mounted(any_runner: Place) -> None:
    made = any_runner.root / "made"
    (made / "objects").mkdir(parents=True)
    (made / "HEAD").write_text("ref: x\n")
    shown = ImageTree(root="/opt/env/note", target="/home/ann/.keras/keras.json")
    mounts = [Mount(kind="git", source=str(made), target="/srv/captured/project/.git")]
    script = "cat /home/ann/.keras/keras.json .git/HEAD; echo new > /home/ann/.keras/mine; ! echo x > .git/HEAD; echo y > out"
    result = any_runner.sh(script, mounts=mounts, trees=(*any_runner.launch("sh").trees, shown))
    assert result.stdout == "the environment\nref: x\n"
    assert result.files == {"out": "y\n"}


GPUS = """
import ctypes, json, os, stat
ctypes.CDLL("libcuda.so.1")
def opened(path, flags):
    try: os.close(os.open(path, flags))
    except OSError as error: return error.strerror
    return "opened"
print(json.dumps({
    "nodes": sorted(name for name in os.listdir("/dev") if name.startswith("nvidia")),
    "device": [opened("/dev/nvidia1", os.O_RDWR), os.stat("/dev/nvidia1").st_rdev == os.makedev(1, 3)],
    "mapped": sorted({line.split()[-1] for line in open("/proc/self/maps") if "libcuda" in line}),
    "library": opened("/.repro-env/driver/libcuda.so.1", os.O_WRONLY),
    "program": os.popen("/usr/local/bin/nvidia-smi").read(),
}))
"""


def _check_gpus(place: Place) -> None:
    root = place.root / "machine"
    fake_gpus.with_cdi(fake_gpus.nvidia(root, mig=True))
    place.own(root)
    result = place.python(GPUS, gpus=gpus.choose("1,MIG-33333333-aaaa-bbbb-cccc-0123456789ab", gpus.look({}, root)))
    if not can(place, "a device file can have another name"):
        assert "apptainer cannot give a device file another name" in result.answer.message
        return
    assert result.outcome.exit_code == 0, result.stderr
    seen = json.loads(result.stdout)
    assert seen.pop("library") in ("Read-only file system", "Permission denied")
    assert seen == {
        "nodes": ["nvidia-caps", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidiactl"],
        "device": ["opened", True],
        "mapped": ["/.repro-env/driver/libcuda.so.1"],
        "program": "two GPUs\n",
    }
    assert "gpus: CDI spec" in result.outcome.methods
    assert (result.files, result.outside) == ({}, {}), "what was mounted is not an output"


def test_a_run_sees_the_requested_gpus_and_the_driver_of_this_machine(any_runner: Place) -> None:
    _check_gpus(any_runner)


def test_root_may_use_device_files_that_are_for_a_group(place: Place) -> None:
    """As AMD's are for the group `render`. In a run, root is another user on this machine."""
    root = fake_gpus.amd(place.root / "machine")
    machine = gpus.look({}, root)
    for name in ("kfd", "dri/renderD129"):
        os.chown(root / "dev" / name, 0, 4321)
        (root / "dev" / name).chmod(0o660)
    opens = "import os; os.open('/dev/kfd', os.O_RDWR); os.open('/dev/dri/renderD129', os.O_RDWR)"
    result = place.python(opens, gpus=gpus.choose("all", machine))
    assert result.outcome.exit_code == (0 if place.uid == 0 else 1), result.stderr


def test_a_resumed_run_starts_with_the_outputs_of_the_other_run(any_runner: Place) -> None:
    place = any_runner
    first = place.sh(
        "echo 1 > state; echo changed > old.txt; rm -r package; echo file > package; ln -s / top; mkdir -p a/b; echo deep > a/b/c; "
        "mkdir /home/ann/out; echo home > /home/ann/out/file"
    )
    outputs = {"a/b/c": "deep\n", "old.txt": "changed\n", "package": "file\n", "state": "1\n", "top": "-> /"}
    assert (first.files, first.outside["home/ann/out/file"]) == (outputs, "home\n")
    second = place.sh("cat state package old.txt a/b/c /home/ann/out/file; echo 2 >> state", resumed=str(first.directory))
    assert second.stdout == "1\nfile\nchanged\ndeep\nhome\n"
    assert (second.files, second.outside["home/ann/out/file"]) == ({**outputs, "state": "1\n2\n"}, "home\n")
    assert first.files == outputs


def test_memory_is_limited_for_all_processes_of_a_run(any_runner: Place) -> None:
    """Each process alone is below the limit."""
    grow = (
        "import os, time\nfor _ in range(4):\n    child = os.fork()\n    if child == 0: break\n"
        "x = [bytearray(b'1') * (1 << 20) for _ in range(150)]\nif child: raise SystemExit(os.waitpid(-1, 0)[1] and 3)\ntime.sleep(100)"
    )
    limits = Limits(memory=400 << 20)
    if not can(any_runner, "memory and CPU time are limited"):
        result = any_runner.python("bytearray(500 << 20)", limits=limits)
        notes = [line for line in result.outcome.methods if line.startswith("memory: not limited")]
        assert (result.outcome.exit_code, len(notes)) == (0, 1)
        return
    result = any_runner.python(grow, limits=limits)
    assert result.outcome.exit_code in (3, 137)
    assert result.outcome.out_of_memory
    assert not [line for line in result.outcome.methods if "memory" in line]


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import time; time.sleep(1000)", 143),
        ("import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); time.sleep(1000)", 5),
        ("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)", 137),
    ],
    ids=["terminated", "handled", "killed"],
)
def test_a_time_limit_is_a_signal_and_then_the_end(docker_place: Place, script: str, code: int) -> None:
    docker_place.engine = ""
    result = docker_place.python(script, limits=Limits(seconds=3, grace=1))
    assert (result.outcome.exit_code, result.outcome.timed_out, result.outcome.status) == (code, True, 124)


def test_a_command_is_ended_by_its_time_limit(each_runner: Place) -> None:
    result = each_runner.sh("sleep 1000", limits=Limits(seconds=1))
    assert (result.outcome.exit_code, result.outcome.timed_out, result.outcome.status) == (143, True, 124)


def test_a_command_that_ends_before_its_time_limit_did_not_reach_it(docker_place: Place) -> None:
    docker_place.engine = ""
    result = docker_place.python("raise SystemExit(3)", limits=Limits(seconds=1000))
    assert (result.outcome.exit_code, result.outcome.timed_out, result.outcome.status) == (3, False, 3)


def test_the_time_of_cpus_is_limited(any_runner: Place) -> None:
    """By the kernel's own count of the periods in which it stopped the run, so that a busy machine does not matter."""
    script = """
import time
end = time.process_time() + 0.5
while time.process_time() < end: pass
import os
tops = [top for top in ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu") if os.path.isdir(top)]
groups = [f"{top}/{name}" for top in tops for name in os.listdir(top) if name.startswith("repro-env-" + os.environ["NAME"])]
texts = [open(path + "/cpu.stat").read() for path in (*tops, *groups) if os.path.exists(path + "/cpu.stat")]
print(max([int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith("nr_throttled")] or [-1]))
"""
    if not can(any_runner, "memory and CPU time are limited"):
        count = "import os; print(len(os.sched_getaffinity(0)))"
        result = any_runner.python(count, limits=Limits(cpus=1))
        cpus, note = (os.cpu_count(), "not limited") if any_runner.way in ENGINES else (1, "limited to 1")
        notes = [line for line in result.outcome.methods if line.startswith(f"cpus: {note}")]
        assert (result.stdout, len(notes)) == (f"{cpus}\n", 1)
        return
    launch = any_runner.launch()
    env = (*launch.env, _variable("NAME", launch.run_id))
    result = any_runner.python(script, limits=Limits(cpus=0.2), run_id=launch.run_id, env=env)
    assert result.outcome.exit_code == 0, result.stderr
    assert int(result.stdout) > 2, result.stdout
