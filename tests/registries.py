"""Real registries for tests: Debian's `docker-registry`, started for one test or module, on loopback."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.parts import need


@contextlib.contextmanager
def registry(directory: Path, *, more: Sequence[str] = (), name: str = "127.0.0.1") -> Iterator[str]:
    """A registry that keeps its blobs below `directory`; yields `host:port`.

    `more`: lines for the `http:` part of its configuration (`tls:`), or whole sections such as `auth:`.
    """
    program = shutil.which("docker-registry")
    need(program, "docker-registry: apt-get install docker-registry")
    assert program
    directory.mkdir(parents=True, exist_ok=True)
    inside = [line for line in more if line.startswith(" ")]
    sections = [line for line in more if not line.startswith(" ")]
    config = directory / "config.yml"
    lines = [
        "version: 0.1",
        "log: {level: info, accesslog: {disabled: true}}",
        "storage:",
        f"  filesystem: {{rootdirectory: {directory / 'data'}}}",
        "  delete: {enabled: true}",
        "http:",
        "  addr: 127.0.0.1:0",
        *inside,
        *sections,
    ]
    config.write_text("\n".join(lines) + "\n")
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)
        try:
            yield f"{name}:{_port(process, directory / 'log')}"
        finally:
            process.kill()
            process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """Its own choice, which it tells once it listens: one that we looked for could be another's by the time it is bound."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        if found := re.search(r'msg="listening on [^" ]*:(\d+)[", ]', log.read_text()):
            return int(found[1])
        assert not ended, log.read_text()
        time.sleep(0.02)
    raise AssertionError(f"the registry does not listen: {log.read_text()}")
