"""Container engines for tests: the machine's Docker, a separate Podman, and a proxy that can be cut."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from repro_env.delivery.targets import engine as output
from repro_env.delivery.targets.engine import Layer
from repro_env.io import engine as engines
from repro_env.io.files import FileContents, walk
from repro_env.oci import tar
from repro_env.oci.entry import Entry, members
from repro_env.oci.manifest import blob_of
from repro_env.schema import codec
from repro_env.schema.errors import EngineError
from repro_env.schema.image import LABEL, PLAIN
from tests.parts import need

DOCKER = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def docker() -> str:
    """The address of the Docker that the tests use: $DOCKER_HOST, else the machine's."""
    need(os.getuid() == 0 and answers(DOCKER), "a Docker engine that answers, and uid 0 (.ci/run starts one)")
    return DOCKER


def answers(address: str = "") -> bool:
    """Whether an engine answers, with the default timeout, because a busy engine is slow."""
    try:
        engines.connect(address).close()
    except EngineError:
        return False
    return True


def layer(tree: Path) -> Layer:
    """A tree of the tiny image as a layer for engines."""
    entries = [
        Entry(found.path, "gone")
        if found.kind == "other"
        else Entry(found.path, found.kind, found.executable, found.size, "", found.target)
        for found in walk(tree)
    ]
    entries.sort(key=lambda entry: entry.key)

    def chunks() -> Iterable[bytes]:
        return tar.write(members(entries, FileContents(tree)))

    data = b"".join(chunks())
    return plain_layer(data)


def plain_layer(data: bytes) -> Layer:
    blob = blob_of(data, PLAIN)
    return Layer(blob.digest, blob, lambda: [data])


def config(layers: Sequence[Layer], **more: object) -> bytes:
    return codec.canonical(
        {
            "architecture": "amd64",
            "config": {"WorkingDir": "/", "Env": ["PATH=/bin"], "Labels": {LABEL: "sha256:" + "0" * 64}},
            "created": "1980-01-01T00:00:00Z",
            "os": "linux",
            "rootfs": {"diff_ids": [layer.diff_id for layer in layers], "type": "layers"},
            **more,
        }
    )


@contextlib.contextmanager
def loaded(address: str, trees: Sequence[Path], name: str) -> Iterator[str]:
    """Load an image of these trees into the engine. Yields its ID."""
    layers = [layer(tree) for tree in trees]
    data = config(layers)
    image = "sha256:" + hashlib.sha256(data).hexdigest()
    with engines.connect(address) as engine:
        output.load(engine, data, layers, name)
    try:
        yield image
    finally:
        with contextlib.suppress(Exception), engines.connect(address) as engine:
            engine.client.api.remove_image(name, force=True)


_ROOTLESS = """\
mount --make-rprivate /
mount --make-rshared / # as systemd does, and Podman wants
for name in passwd group subuid subgid; do
    [ -e /etc/$name ] || : >/etc/$name
    { cat /etc/$name && echo "$1"; } >$0/$name
    shift
    mount --bind $0/$name /etc/$name
done
user=$1
shift
exec setpriv --reuid "$user" --regid "$user" --clear-groups -- "$@"
"""
"""Gives a user without a name and subordinate IDs both, for the processes that this starts."""


@contextlib.contextmanager
def podman(uid: int = 0) -> Iterator[str]:
    """Start a Podman service with a separate store, as this user. Yields its address."""
    program = shutil.which("podman")
    need(program and shutil.which("runc") and os.getuid() == 0, "podman and runc, and uid 0 (apt-get install podman runc)")
    need(not uid or (shutil.which("newuidmap") and shutil.which("slirp4netns")), "apt-get install uidmap slirp4netns")
    root = Path(tempfile.mkdtemp(prefix="repro-env-test-"))
    (root / "containers.conf").write_text(
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
    )
    (root / "storage.conf").write_text(f'[storage]\ndriver = "overlay"\nrunroot = "{root}/run"\ngraphroot = "{root}/graph"\n')
    env = {"CONTAINERS_CONF": str(root / "containers.conf"), "CONTAINERS_STORAGE_CONF": str(root / "storage.conf")}
    address = root / "podman.sock"
    command = [str(program), "system", "service", "--time", "0", f"unix://{address}"]
    if uid:
        (root / "user").mkdir(mode=0o700)
        subprocess.run(["chown", "-R", f"{uid}:{uid}", root], check=True)
        env |= {"HOME": str(root / "user"), "XDG_RUNTIME_DIR": str(root / "user")}
        lines = [f"ann:x:{uid}:{uid}::{root}/user:/bin/sh", f"ann:x:{uid}:", *[f"{uid}:200000:65536"] * 2]
        command = ["unshare", "--mount", "sh", "-ec", _ROOTLESS, str(root), *lines, str(uid), *command]
    try:
        with _service(command, address, root / "log", env):
            yield f"unix://{address}"
    finally:
        subprocess.run(["umount", "-l", str(root / "graph" / "overlay")], check=False, capture_output=True)
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def _service(command: Sequence[str], address: Path, log: Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        # conmon leaves a file `oom` in the working directory when a container runs out of memory.
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **env}, cwd=address.parent)
    try:
        deadline = time.monotonic() + 200
        while not answers(f"unix://{address}"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class EngineProxy:
    """A socket for all users that forwards to an engine's socket and can be cut."""

    def __init__(self, directory: Path, target: str = DOCKER) -> None:
        self.path = directory / "engine.sock"
        self._target = target.removeprefix("unix://")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.path))
        self.path.chmod(0o666)
        self._server.listen(16)
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"unix://{self.path}"

    def cut(self) -> None:
        """Act as if the engine had died: close all connections and accept no new ones."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # it may be accepting another connection
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connection in (self._server, *self._open):
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self._target)
                self._open += [client, engine]
                for source, target in ((client, engine), (engine, client)):
                    self._threads.append(threading.Thread(target=_forward, args=(source, target), daemon=True))
                    self._threads[-1].start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
