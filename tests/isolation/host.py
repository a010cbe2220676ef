"""The host's side of the isolation probe: what is planted, the run, and what arrived outside of it.

By hand: `python -m tests.isolation.host [embedded|docker|control] [--user UID]` prints what was reached.
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
from tests.run.engines import DOCKER, Between

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
    """What a run reached: attempt -> evidence, of those that were made."""

    attempts: list[dict[str, Any]]
    reached: dict[str, str]
    errors: list[str]


class Ground(NamedTuple):
    """A captured project of a user, and the paths of the other planted objects."""

    folder: Path
    project: parts.Project
    uid: int
    home: str
    python: str
    command: Sequence[str]


class Listener:
    """Sockets of the host that answer with the secret; asked for a descriptor, they pass the host's root."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._sockets: list[socket.socket] = []

    def unix(self, address: str) -> None:
        near = socket.socket(socket.AF_UNIX)
        near.bind(address)
        if address[0] != "\0":
            Path(address).chmod(0o666)
        near.listen(64)
        self._serve(near)

    def tcp(self) -> int:
        """Of all addresses, IPv6 where there is one. Returns the port."""
        near = socket.create_server(("", 0), family=socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET,
                                    dualstack_ipv6=socket.has_dualstack_ipv6())  # fmt: skip
        self._serve(near)
        return int(near.getsockname()[1])

    def udp(self) -> int:
        near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        near.bind(("127.0.0.1", 0))
        self._sockets.append(near)

        def answer() -> None:
            with contextlib.suppress(OSError):
                while (address := near.recvfrom(64)[1]) is not None:
                    near.sendto(self._secret, address)

        threading.Thread(target=answer, daemon=True).start()
        return int(near.getsockname()[1])

    def _serve(self, near: socket.socket) -> None:
        self._sockets.append(near)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    far, _ = near.accept()
                    with far, contextlib.suppress(OSError):
                        far.settimeout(1)
                        if far.recv(64) == b"descriptor":
                            root = os.open("/", os.O_RDONLY)
                            socket.send_fds(far, [self._secret], [root])
                            os.close(root)
                        else:
                            far.sendall(self._secret)

        threading.Thread(target=accept, daemon=True).start()

    def close(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextlib.contextmanager
def ground() -> Iterator[Ground]:
    """A small project, captured, in a directory that every user can read."""
    with tempfile.TemporaryDirectory(prefix="repro-env-isolation-", dir="/var/tmp", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        folder.chmod(0o755)
        code = folder / "project"
        environment = parts.venv(code / ".venv", own_pip=False)
        project = parts.project(code, environment, folder / "store")
        (code / "source.txt").write_text("source\n")
        shutil.copy(HERE / "probe.py", code)
        project.capture()
        (folder / "neighbour-project").mkdir()
        (code / "runs").mkdir()
        yield Ground(folder, project, os.geteuid(), str(Path.home()), sys.executable, [str(parts.COMMAND)])


def for_user(place: Ground, uid: int) -> Ground | None:
    """The same project as a different user; None if that user can start no Python."""
    python = _python_for(uid)
    if not python:
        return None
    home = place.folder / f"home-{uid}"
    home.mkdir(exist_ok=True)
    os.chown(home, uid, uid)
    store = place.folder / f"store-{uid}"
    store.mkdir(exist_ok=True)
    os.chown(store, uid, uid)
    return Ground(
        place.folder, place.project.elsewhere(store), uid, str(home), python, _command_for(place.folder / f"tool-{uid}", python)
    )


@contextlib.contextmanager
def docker(place: Ground) -> Iterator[dict[str, str]]:
    """Variables by which the user's command finds the machine's Docker; the project's image is removed from it afterwards.

    Another user than root is given a socket of his own in front of it.
    """
    with parts.in_docker(place.project):
        if place.uid == 0:
            yield {"DOCKER_HOST": DOCKER}
            return
        with tempfile.TemporaryDirectory(prefix="repro-env-socket-", dir="/tmp") as made:
            Path(made).chmod(0o755)
            between = Between(Path(made))
            try:
                yield {"DOCKER_HOST": between.address}
            finally:
                between.cut()


def _command_for(folder: Path, python: str) -> list[str]:
    """repro-env for a user who cannot reach the interpreter of these tests: another one of the same version, the same packages."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (site / "tests.pth").write_text("\n".join([*packages, str(parts.ROOT)]) + "\n")
    return [str(folder / "bin" / "python"), "-m", "repro_env"]


def planted_attack(
    place: Ground, mode: str, *categories: str, plain_files: bool = False, env: Mapping[str, str] | None = None
) -> Reached:
    """Plant, run the probe as `mode` ("embedded", "docker", or "control": without a run), and look at what was reached.

    With `plain_files`, stdin and stderr are files; else all three are the caller's terminal.
    """
    nonce = secrets.token_hex(12)
    work = Path(tempfile.mkdtemp(prefix="attack-", dir=place.folder))
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "-h", f"{place.uid}:{place.uid}", str(place.project.folder)], check=True)
    data, checkpoints = work / "data", work / "checkpoints"
    data.mkdir()
    checkpoints.mkdir()
    (data / "data.txt").write_text("data of the caller\n")
    (data / "delete-me.txt").write_text("data\n")
    if os.geteuid() == 0:
        os.mknod(data / "device", stat.S_IFCHR | 0o666, os.makedev(1, 11))
    code = place.project.folder
    spots = {name: Path(path.replace("~", place.home)) for name, path in PLACES.items()}
    spots.update(
        above_project=code.parent, spec=code / "repro", runs=code / "runs", store=place.project.store, git=code / ".git"
    )  # by design outside of the source
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
        for path in {Path(folder) for folder in map(os.path.dirname, canaries.values())}:
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
    code = place.project.folder
    (work / "secret").write_text(f"{nonce}-open\n")
    (work / "input").write_text(f"{nonce}-input\n")
    (work / "error").write_text(f"{nonce}-error\n")
    runs = code / "runs"
    command = [*place.command, "exec", "--runner", mode, "--data", str(data_of(work)), "--checkpoints", str(work / "checkpoints")]
    command += ["--note", f"argument-{nonce}", "probe.py", *categories]
    if mode == "control":
        command = [place.python, str(code / "probe.py"), *categories]
        shutil.copy(HERE / "probe.py", code)
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
    """Whether each successful call had an effect on the host; an unknown effect counts as reached."""
    code, short = place.project.folder, nonce[:8]
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
    seen: dict[str, bool] = {
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
    for one in outcome.attempts:
        if one["name"].startswith("make_"):
            seen[one["name"]] = False  # a node that does not open
    for name in ("become_foreground_of_the_callers_terminal", "take_the_callers_terminal_as_controlling", "redirect_the_console"):
        seen[name] = any(one["name"] == name and "caller's" in one["evidence"] for one in outcome.attempts)
    for tag, name in (("root", "root"), ("fd1", "descriptors")):
        seen[f"write_by_{name}_of_the_first_process"] = _wrote(hints, tag, short)
    seen["write_by_inherited_descriptors"] = _wrote(hints, "own", short)
    changed = _changed_in(place.project.store, short) or _changed_in(code / ".venv", short)
    for name in ("change_the_environment_in_the_store", "change_the_interpreter_in_the_store", "change_the_running_program"):
        seen[name] = changed
    for one in outcome.attempts:
        if one["name"].startswith("data_"):
            seen[one["name"]] = data_changed
    for where, folder in (("checkpoints", checkpoints), ("outputs", outputs)):
        seen[f"leave_a_setuid_program_in_{where}"] = bool(_mode(folder / "probe-setuid") & 0o6000)
        seen[f"leave_a_file_capability_in_{where}"] = _capability(folder / "probe-capability")
        seen[f"leave_a_file_of_another_user_in_{where}"] = _owner(folder / "probe-foreign") not in (-1, place.uid)
        seen[f"leave_a_file_of_root_in_{where}"] = _owner(folder / "probe-root-owned") not in (-1, place.uid)
        seen[f"leave_a_symlink_to_a_host_file_in_{where}"] = (folder / "probe-symlink").exists()
        seen[f"leave_a_block_device_in_{where}"] = any(stat.S_ISBLK(_mode(path)) for path in folder.glob("probe-device-*"))
        seen[f"leave_a_named_pipe_in_{where}"] = stat.S_ISFIFO(_mode(folder / "probe-pipe"))
    reached = {
        one["name"]: one["evidence"]
        for one in outcome.attempts
        if one["status"] == "reached" or (one["status"] == "sent" and seen.get(one["name"], True))
    }
    errors = [f"{one['name']}: {one['evidence']}" for one in outcome.attempts if one["status"] == "error"]
    return Reached(outcome.attempts, reached, errors)


def _wrote(hints: Mapping[str, Any], tag: str, short: str) -> bool:
    return any((Path(path).parent / f"probe-wrote-{tag}-{short}").exists() for path in hints["canaries"].values())


def _changed_in(folder: Path, short: str) -> bool:
    """Whether a file in it holds the probe's mark: of those changed in the last minutes."""
    now = time.time()
    for path in folder.rglob("*"):
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
    """The address by which this machine would reach others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near, contextlib.suppress(OSError):
        near.connect(("192.0.2.1", 9))
        return [near.getsockname()[0]]
    return []


def _disk(folder: Path) -> list[int]:
    device = folder.stat().st_dev
    return [os.major(device), os.minor(device)]


def _facts() -> dict[str, str]:
    found = {}
    for name, path in FACTS.items():
        with contextlib.suppress(OSError):
            found[name] = Path(path).read_text().strip()
    return found


def _python_for(uid: int) -> str:
    """An interpreter of this version that the user can start; "" if none is found."""
    for python in (getattr(sys, "_base_executable", sys.executable), "/usr/local/bin/python3", "/usr/bin/python3"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(
                [python, "-c", "import sys, venv; print(sys.version_info[:2])"],
                user=uid, group=uid, extra_groups=[], capture_output=True, text=True, check=True, cwd="/",
            )  # fmt: skip
            if said.stdout.strip() == str(tuple(sys.version_info[:2])):
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
            mine = for_user(place, words.user)
            assert mine, "no Python that the user can start"
            place = mine
        with contextlib.ExitStack() as stack:
            env = stack.enter_context(docker(place)) if words.mode == "docker" else {}
            found = planted_attack(place, words.mode, *words.categories, plain_files=words.files, env=env)
    for one in found.attempts:
        if words.all or one["name"] in found.reached:
            print(f"{one['category']:13} {one['status']:8} {one['seconds']:6} {one['name']}: {one['evidence'][:160]}")
    print(len(found.attempts), "attempts,", len(found.reached), "reached;", found.errors or "no errors")


if __name__ == "__main__":
    main()
