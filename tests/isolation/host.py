"""The host's side of the isolation probe: plants objects, starts the run, and checks what arrived on the host.

`python -m tests.isolation.host [embedded|docker|control] [--user UID]` prints what was reached.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pty
import pwd
import secrets
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e import parts
from tests.sandbox.engines import DOCKER, EngineProxy

HERE = Path(__file__).parent
KINDS = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")
FACTS = {
    "machine-id": "/etc/machine-id",
    "boot-id": "/proc/sys/kernel/random/boot_id",
    "product-uuid": "/sys/class/dmi/id/product_uuid",
    "cmdline": "/proc/cmdline",
}
PLACES = {
    "tmp": "/tmp",
    "var_tmp": "/var/tmp",
    "home": "~",
    "etc": "/etc",
    "srv": "/srv",
    "opt": "/opt",
    "mnt": "/mnt",
    "dev_shm": "/dev/shm",
    "run": "/run",
    "var_lib": "/var/lib",
    "usr_local": "/usr/local",
    "boot": "/boot",
}


class Reached(NamedTuple):
    """All attempts of a run, and the evidence of those that reached something."""

    attempts: list[dict[str, Any]]
    reached: dict[str, str]
    errors: list[str]


class Ground(NamedTuple):
    """A captured project of a user, and the paths of the other planted objects."""

    directory: Path
    project: parts.Project
    uid: int
    home: str
    python: str
    command: Sequence[str]


class Listener:
    """Sockets of the host that answer with the secret, or on request with a descriptor of the host's root."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._sockets: list[socket.socket] = []

    def unix(self, address: str) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.bind(address)
        if address[0] != "\0":
            Path(address).chmod(0o666)
        server.listen(64)
        self._serve(server)

    def tcp(self) -> int:
        """Listen on all addresses, also of IPv6 if the machine has it. Returns the port."""
        server = socket.create_server(("", 0), family=socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET,
                                    dualstack_ipv6=socket.has_dualstack_ipv6())  # fmt: skip
        self._serve(server)
        return int(server.getsockname()[1])

    def udp(self) -> int:
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("127.0.0.1", 0))
        self._sockets.append(server)

        def answer() -> None:
            with contextlib.suppress(OSError):
                while (address := server.recvfrom(64)[1]) is not None:
                    server.sendto(self._secret, address)

        threading.Thread(target=answer, daemon=True).start()
        return int(server.getsockname()[1])

    def _serve(self, server: socket.socket) -> None:
        self._sockets.append(server)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client, contextlib.suppress(OSError):
                        client.settimeout(1)
                        if client.recv(64) == b"descriptor":
                            root = os.open("/", os.O_RDONLY)
                            socket.send_fds(client, [self._secret], [root])
                            os.close(root)
                        else:
                            client.sendall(self._secret)

        threading.Thread(target=accept, daemon=True).start()

    def close(self) -> None:
        for server in self._sockets:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()


def copy_probe(code: Path) -> None:
    shutil.copy(HERE / "probe.py", code)
    shutil.copytree(HERE / "attempts", code / "attempts", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


@contextlib.contextmanager
def ground() -> Iterator[Ground]:
    """Capture a small project in a directory that all users can read."""
    with tempfile.TemporaryDirectory(prefix="repro-env-isolation-", dir="/var/tmp", ignore_cleanup_errors=True) as made:
        directory = Path(made)
        directory.chmod(0o755)
        code = directory / "project"
        environment = parts.venv(code / ".venv", own_pip=False)
        project = parts.project(code, environment, directory / "store")
        (code / "source.txt").write_text("source\n")
        copy_probe(code)
        project.capture()
        (directory / "neighbour-project").mkdir()
        (code / "runs").mkdir()
        yield Ground(directory, project, os.geteuid(), str(Path.home()), sys.executable, [str(parts.COMMAND)])


def for_user(place: Ground, uid: int) -> Ground | None:
    """The same project for another user; None if that user cannot start a Python."""
    python = _python_for(uid)
    if not python:
        return None
    home = place.directory / f"home-{uid}"
    home.mkdir(exist_ok=True)
    os.chown(home, uid, uid)
    store = place.directory / f"store-{uid}"
    store.mkdir(exist_ok=True)
    os.chown(store, uid, uid)
    return Ground(
        place.directory,
        place.project.elsewhere(store),
        uid,
        str(home),
        python,
        _command_for(place.directory / f"tool-{uid}", python),
    )


@contextlib.contextmanager
def docker(place: Ground) -> Iterator[dict[str, str]]:
    """Yields the variables with which the user's command finds the machine's Docker. Removes the project's image afterwards.

    A plain user gets a proxy socket, because Docker's own socket is only for root.
    """
    with parts.in_docker(place.project):
        if place.uid == 0:
            yield {"DOCKER_HOST": DOCKER}
            return
        with tempfile.TemporaryDirectory(prefix="repro-env-socket-", dir="/tmp") as made:
            Path(made).chmod(0o755)
            proxy = EngineProxy(Path(made))
            try:
                yield {"DOCKER_HOST": proxy.address}
            finally:
                proxy.cut()


def _command_for(directory: Path, python: str) -> list[str]:
    """Set up repro-env for a user who cannot reach the Python of these tests, with another Python and the same packages."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(directory)], check=True)
    (site,) = directory.glob("lib/python*/site-packages")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (site / "tests.pth").write_text("\n".join([*packages, str(parts.ROOT)]) + "\n")
    return [str(directory / "bin" / "python"), "-m", "repro_env"]


def planted_attack(
    place: Ground, mode: str, *categories: str, plain_files: bool = False, env: Mapping[str, str] | None = None
) -> Reached:
    """Plant objects, run the probe, and check what it reached. `mode`: "embedded", "docker", or "control" for no run at all.

    With `plain_files`, stdin and stderr are files. Otherwise all three streams are the caller's terminal.
    """
    nonce = secrets.token_hex(12)
    work = Path(tempfile.mkdtemp(prefix="attack-", dir=place.directory))
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "-h", f"{place.uid}:{place.uid}", str(place.project.directory)], check=True)
    data, checkpoints = work / "data", work / "checkpoints"
    data.mkdir()
    checkpoints.mkdir()
    (data / "data.txt").write_text("data of the caller\n")
    (data / "delete-me.txt").write_text("data\n")
    if os.geteuid() == 0:
        os.mknod(data / "device", stat.S_IFCHR | 0o666, os.makedev(1, 11))
    code = place.project.directory
    spots = {name: Path(path.replace("~", place.home)) for name, path in PLACES.items()}
    spots.update(
        above_project=code.parent, spec=code / "repro", runs=code / "runs", store=place.project.store, git=code / ".git"
    )  # by design not in the source
    canaries: dict[str, str] = {}
    created: list[Path] = []
    try:
        for name, spot in spots.items():
            with contextlib.suppress(OSError):
                if name in ("runs", "store", "git"):
                    spot.mkdir(exist_ok=True)
                    os.chown(spot, place.uid, place.uid)
                path = spot / ("secret-of-git" if name == "git" else f"repro-env-canary-{nonce[:6]}")
                path.write_text(f"canary-{nonce}-{name}\n")
                created.append(path)
                path.chmod(0o600)
                os.chown(path, place.uid, place.uid)
                canaries[name] = str(path)
        target = canaries["tmp"]
        (data / "link-to-canary").symlink_to(target)
        (data / "relative-link-to-canary").symlink_to(os.path.relpath(target, data))
        tmp_socket = f"/tmp/repro-env-socket-{nonce[:6]}"
        created.append(Path(tmp_socket))
        listener = Listener(nonce.encode())
        (code / "socket").unlink(missing_ok=True)
        for address in (data / "socket", checkpoints / "socket", code / "socket", tmp_socket, f"\0probe-{nonce[:8]}"):
            listener.unix(str(address))
        port, udp = listener.tcp(), listener.udp()
        for path in (work, *work.rglob("*")):
            os.chown(path, place.uid, place.uid, follow_symlinks=False)
        hints = {
            "nonce_reversed": nonce[::-1],
            "control": mode == "control",
            "canaries": canaries,
            "data": str(data),
            "checkpoints": str(checkpoints),
            "project": str(code),
            "environment": str(code / ".venv"),
            "beside_project": ["neighbour-project", "store", Path(canaries["above_project"]).name],
            "spec": str(code / "repro"),
            "runs": str(code / "runs"),
            "store": str(place.project.store),
            "tmp_socket": tmp_socket,
            "abstract": f"probe-{nonce[:8]}",
            "port": port,
            "udp": udp,
            "addresses": _addresses(),
            "interfaces": [name for _, name in socket.if_nameindex()],
            "key": f"probe-{nonce[:8]}",
            "ipc": int(nonce[:7], 16),
            "queue": f"/probe-{nonce[:8]}",
            "namespaces": {kind: Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in KINDS},
            "disk": _disk(code),
            "facts": {"hostname": socket.gethostname(), **_facts()},
            "users": [user.pw_name for user in pwd.getpwall() if user.pw_uid not in (0, place.uid, 65534)],
        }
        outcome = _launch(place, mode, work, nonce, hints, categories, plain_files, env or {})
        return _judge(place, work, nonce, hints, outcome, plain_files)
    finally:
        with contextlib.suppress(UnboundLocalError):
            listener.close()
        for path in created:
            path.unlink(missing_ok=True)
        for path in {Path(directory) for directory in map(os.path.dirname, canaries.values())}:
            for found in path.glob(f"probe-wrote-*-{nonce[:8]}"):
                found.unlink()


class Outcome(NamedTuple):
    attempts: list[dict[str, Any]]
    output: str
    typed: bytes
    size: tuple[int, int]
    veol: bytes
    flags: int
    key_left: bool
    signals: list[str]
    record: Path


def _launch(
    place: Ground,
    mode: str,
    work: Path,
    nonce: str,
    hints: dict[str, Any],
    categories: Sequence[str],
    plain_files: bool,
    env: Mapping[str, str],
) -> Outcome:
    code = place.project.directory
    (work / "secret").write_text(f"{nonce}-open\n")
    (work / "input").write_text(f"{nonce}-input\n")
    (work / "error").write_text(f"{nonce}-error\n")
    runs = code / "runs"
    command = [*place.command, "exec", "--runner", mode, "--data", str(data_of(work)), "--checkpoints", str(work / "checkpoints")]
    command += ["--note", f"argument-{nonce}", "probe.py", *categories]
    if mode == "control":
        command = [place.python, str(code / "probe.py"), *categories]
        copy_probe(code)
    cwd = work / "control" if mode == "control" else code
    cwd.mkdir(exist_ok=True)
    setup = {
        "hints": hints,
        "nonce": nonce,
        "hints_file": str(code / "probe_hints.json"),
        "end_file": str(work / "end.json"),
        "victim_log": str(work / "victim.log"),
        "secret_file": str(work / "secret"),
        "stdin": str(work / "input") if plain_files else "",
        "stdout": "",
        "stderr": str(work / "error") if plain_files else "",
        "command": command,
        "cwd": str(cwd),
        "env": {
            "HOME": place.home,
            "REPRO_ENV_STORE": str(place.project.store),
            "SECRET_TOKEN": f"{nonce}-environment",
            "AWS_SECRET_ACCESS_KEY": f"{nonce}-environment",
            **env,
        },
    }
    (work / "setup.json").write_text(json.dumps(setup))
    for path in (cwd, *work.iterdir()):
        os.chown(path, place.uid, place.uid, follow_symlinks=False)
    near, far = pty.openpty()
    os.fchown(far, place.uid, -1)
    output = bytearray()

    def drain() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(near, 1 << 16):
                output.extend(data)

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    as_user: dict[str, Any] = {"user": place.uid, "group": place.uid, "extra_groups": []} if place.uid != os.geteuid() else {}
    kept = {name: value for name, value in parts.environ(place.project.store).items() if not name.startswith("PYTEST")}
    started = subprocess.Popen(
        [place.python, "-c", (HERE / "launcher.py").read_text(), str(work / "setup.json")],
        stdin=far,
        stdout=far,
        stderr=far,
        start_new_session=True,
        env=kept,
        cwd="/",
        **as_user,
    )
    try:
        started.wait(120)
    finally:
        started.kill()
        started.wait()
    flags = fcntl.fcntl(far, fcntl.F_GETFL)
    fcntl.fcntl(far, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    typed = b""
    with contextlib.suppress(OSError):
        while more := os.read(far, 4096):
            typed += more
    size = struct.unpack("4H", fcntl.ioctl(far, termios.TIOCGWINSZ, bytes(8)))[:2]
    veol = termios.tcgetattr(far)[6][termios.VEOL]
    os.close(far)
    reader.join(2)
    os.close(near)
    text = output.decode(errors="replace") + ((work / "error").read_text(errors="replace") if plain_files else "")
    assert (work / "end.json").is_file(), text
    end = json.loads((work / "end.json").read_text())
    assert end["code"] == 0, f"{command} -> {end['code']}\n{text}"
    outputs = cwd if mode == "control" else max(runs.glob("*-probe-*"), key=lambda path: path.stat().st_mtime_ns) / "files"
    results = outputs / "probe_results.json"
    assert results.is_file(), text
    return Outcome(
        json.loads(results.read_text()),
        text,
        typed,
        size,
        veol,
        flags,
        end["key_left"],
        (work / "victim.log").read_text().split(),
        results.parent,
    )


def data_of(work: Path) -> Path:
    return work / "data"


def _judge(place: Ground, work: Path, nonce: str, hints: Mapping[str, Any], outcome: Outcome, plain_files: bool) -> Reached:
    """Check whether each successful call had an effect on the host. If that is unknown, it counts as reached."""
    code, short = place.project.directory, nonce[:8]
    data, checkpoints, outputs = work / "data", work / "checkpoints", outcome.record
    data_changed = (
        sorted(path.name for path in data.iterdir() if path.name != "device")
        != ["data.txt", "delete-me.txt", "link-to-canary", "relative-link-to-canary", "socket"]
        or (data / "data.txt").read_text() != "data of the caller\n"
        or (data / "data.txt").stat().st_mtime == 1
        or (data / "data.txt").stat().st_uid != place.uid
        or bool((data / "data.txt").stat().st_mode & 0o002)
        or bool(os.listxattr(data / "data.txt"))
    )
    effects: dict[str, bool] = {
        "signal_the_planted_process_by_its_number": "SIGUSR1" in outcome.signals,
        "signal_the_process_group": "SIGURG" in outcome.signals,
        "signal_every_process": "SIGCONT" in outcome.signals,
        "signal_the_group_of_the_caller_by_its_number": "SIGUSR2" in outcome.signals,
        "signal_the_owner_of_a_descriptor": "SIGIO" in outcome.signals,
        "type_into_the_callers_terminal": b"typed-by-probe" in outcome.typed,
        "type_into_the_callers_terminal_with_high_request_bits": b"high-bits" in outcome.typed,
        "change_modes_of_the_callers_terminal": outcome.veol == b"\x05",
        "change_size_of_the_callers_terminal": outcome.size == (77, 177),
        "change_flags_of_the_callers_descriptor": bool(outcome.flags & os.O_NONBLOCK),
        "leave_a_key_in_the_user_keyring": outcome.key_left,
        "overwrite_what_stdin_reads": (work / "input").read_bytes().startswith(b"probe"),
        "overwrite_what_stderr_held_before": (work / "error").read_bytes().startswith(b"probe"),
        "change_a_file_of_the_source": (code / "source.txt").read_text() != "source\n",
        "change_code_of_repro_env": bool(list((parts.ROOT / "repro_env").rglob("probe-wrote-*"))),
    }
    for attempt in outcome.attempts:
        if attempt["name"].startswith("make_"):
            effects[attempt["name"]] = False  # a node that cannot be opened
    for name in ("become_foreground_of_the_callers_terminal", "take_the_callers_terminal_as_controlling", "redirect_the_console"):
        effects[name] = any(attempt["name"] == name and "caller's" in attempt["evidence"] for attempt in outcome.attempts)
    for tag, name in (("root", "root"), ("fd1", "descriptors")):
        effects[f"write_by_{name}_of_the_first_process"] = _wrote(hints, tag, short)
    effects["write_by_inherited_descriptors"] = _wrote(hints, "own", short)
    changed = _changed_in(place.project.store, short) or _changed_in(code / ".venv", short)
    for name in ("change_the_environment_in_the_store", "change_the_interpreter_in_the_store", "change_the_running_program"):
        effects[name] = changed
    for attempt in outcome.attempts:
        if attempt["name"].startswith("data_"):
            effects[attempt["name"]] = data_changed
    for where, directory in (("checkpoints", checkpoints), ("outputs", outputs)):
        effects[f"leave_a_setuid_program_in_{where}"] = bool(_mode(directory / "probe-setuid") & 0o6000)
        effects[f"leave_a_file_capability_in_{where}"] = _capability(directory / "probe-capability")
        effects[f"leave_a_file_of_another_user_in_{where}"] = _owner(directory / "probe-foreign") not in (-1, place.uid)
        effects[f"leave_a_file_of_root_in_{where}"] = _owner(directory / "probe-root-owned") not in (-1, place.uid)
        effects[f"leave_a_symlink_to_a_host_file_in_{where}"] = (directory / "probe-symlink").exists()
        effects[f"leave_a_block_device_in_{where}"] = any(stat.S_ISBLK(_mode(path)) for path in directory.glob("probe-device-*"))
        effects[f"leave_a_named_pipe_in_{where}"] = stat.S_ISFIFO(_mode(directory / "probe-pipe"))
    reached = {
        attempt["name"]: attempt["evidence"]
        for attempt in outcome.attempts
        if attempt["status"] == "reached" or (attempt["status"] == "sent" and effects.get(attempt["name"], True))
    }
    errors = [f"{attempt['name']}: {attempt['evidence']}" for attempt in outcome.attempts if attempt["status"] == "error"]
    return Reached(outcome.attempts, reached, errors)


def _wrote(hints: Mapping[str, Any], tag: str, short: str) -> bool:
    return any((Path(path).parent / f"probe-wrote-{tag}-{short}").exists() for path in hints["canaries"].values())


def _changed_in(directory: Path, short: str) -> bool:
    """Whether a file in the directory that changed in the last minutes has the probe's mark."""
    now = time.time()
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            there = path.lstat()
            if (
                stat.S_ISREG(there.st_mode)
                and now - there.st_mtime < 300
                and f"probe-wrote-{short}".encode() in path.read_bytes()
            ):
                return True
    return False


def _mode(path: Path) -> int:
    return path.lstat().st_mode if os.path.lexists(path) else 0


def _owner(path: Path) -> int:
    return path.lstat().st_uid if os.path.lexists(path) else -1


def _capability(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return bool(os.getxattr(path, "security.capability"))
    return False


def _addresses() -> list[str]:
    """The address with which this machine reaches other machines. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client, contextlib.suppress(OSError):
        client.connect(("192.0.2.1", 9))
        return [client.getsockname()[0]]
    return []


def _disk(directory: Path) -> list[int]:
    device = directory.stat().st_dev
    return [os.major(device), os.minor(device)]


def _facts() -> dict[str, str]:
    found = {}
    for name, path in FACTS.items():
        with contextlib.suppress(OSError):
            found[name] = Path(path).read_text().strip()
    return found


def _python_for(uid: int) -> str:
    """An interpreter of this version that the user can start; "" if there is none."""
    for python in (getattr(sys, "_base_executable", sys.executable), "/usr/local/bin/python3", "/usr/bin/python3"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                [python, "-c", "import sys, venv; print(sys.version_info[:2])"],
                user=uid, group=uid, extra_groups=[], capture_output=True, text=True, check=True, cwd="/",
            )  # fmt: skip
            if done.stdout.strip() == str(tuple(sys.version_info[:2])):
                return str(python)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", nargs="?", default="embedded", choices=["embedded", "docker", "control"])
    parser.add_argument("categories", nargs="*")
    parser.add_argument("--user", type=int, default=-1)
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--all", action="store_true", help="print every attempt")
    words = parser.parse_args()
    with ground() as place:
        if words.user >= 0:
            user_place = for_user(place, words.user)
            assert user_place, "this user cannot start a Python"
            place = user_place
        with contextlib.ExitStack() as stack:
            env = stack.enter_context(docker(place)) if words.mode == "docker" else {}
            found = planted_attack(place, words.mode, *words.categories, plain_files=words.files, env=env)
    for attempt in found.attempts:
        if words.all or attempt["name"] in found.reached:
            line = f"{attempt['category']:13} {attempt['status']:8} {attempt['seconds']:6} {attempt['name']}"
            print(f"{line}: {attempt['evidence'][:160]}")
    print(len(found.attempts), "attempts,", len(found.reached), "reached;", found.errors or "no errors")


if __name__ == "__main__":
    main()
