"""Real registries for tests: Debian's `docker-registry`, started for one test or module, on loopback."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.parts import need


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


@contextlib.contextmanager
def registry(folder: Path, *, more: Sequence[str] = (), name: str = "127.0.0.1") -> Iterator[str]:
    """A registry that keeps its blobs below `folder`; yields `host:port`.

    `more`: lines for the `http:` part of its configuration (`tls:`), or whole sections such as `auth:`.
    """
    program = shutil.which("docker-registry")
    need(program, "docker-registry: apt-get install docker-registry")
    assert program
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    inside = [line for line in more if line.startswith(" ")]
    sections = [line for line in more if not line.startswith(" ")]
    config = folder / "config.yml"
    lines = [
        "version: 0.1",
        "log: {level: error, accesslog: {disabled: true}}",
        "storage:",
        f"  filesystem: {{rootdirectory: {folder / 'data'}}}",
        "  delete: {enabled: true}",
        "http:",
        f"  addr: 127.0.0.1:{port}",
        *inside,
        *sections,
    ]
    config.write_text("\n".join(lines) + "\n")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)
        try:
            _wait(process, port, folder / "log")
            yield f"{name}:{port}"
        finally:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError(f"the registry does not listen: {log.read_text()}")
