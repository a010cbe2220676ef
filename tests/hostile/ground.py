"""An environment made by hand, something hostile in it, and the capture of it: what it says, what it costs, what it touches."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.parts import COMMAND
from tests.parts import BASE_PYTHON, need

PYTHON = BASE_PYTHON
SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
MEMORY = 400 << 20
"""Bytes that a capture may take at its peak."""

_APART = """
import os, signal, sys
child = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(child, 0)
with open(sys.argv[1], "w") as file:
    file.write(f"{usage.ru_maxrss}")
code = os.waitstatus_to_exitcode(status)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
"""Starts a command and notes its peak. Linux counts for a process what the one that forked it had: here little, a test worker much."""


class Ended(NamedTuple):
    code: int
    output: str
    """stdout and stderr."""
    seconds: float
    memory: int
    """Peak, in bytes, of the command or of the largest process it started."""


@dataclass
class Ground:
    directory: Path
    store: Path
    env: dict[str, str] = field(default_factory=dict)
    unwatched: set[str] = field(default_factory=set)
    """Paths below the directory that hostile code may change: it runs as the user, as it would without us."""

    laid: tuple[Path, ...] = ()
    """Blobs that were there before the capture, by links to these: what they hold is known."""

    def __post_init__(self) -> None:
        for name in ("project", "home", "tmp", "canary"):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "canary" / "private.txt").write_text("canary-7c1e9a: not for anybody\n")
        (self.project / "train.py").write_text("print('trained')\n")
        self.venv.mkdir()
        (self.venv / "bin").mkdir()
        (self.venv / "bin" / "python").symlink_to(PYTHON)
        (self.venv / "pyvenv.cfg").write_text(
            f"home = {Path(PYTHON).parent}\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n"
        )
        self.site.mkdir(parents=True)
        self.install("plain")

    @property
    def project(self) -> Path:
        return self.directory / "project"

    @property
    def venv(self) -> Path:
        return self.project / ".venv"

    @property
    def site(self) -> Path:
        return self.venv / SITE

    @property
    def canary(self) -> Path:
        return self.directory / "canary"

    @property
    def spec(self) -> Path:
        return self.project / "repro" / "spec.json"

    def install(
        self,
        name: str,
        *,
        metadata: str | None = None,
        record: Sequence[str] = (),
        files: Mapping[str, bytes] | None = None,
        tags: str = "Tag: py3-none-any\n",
        directory: str = "",
    ) -> Path:
        """A distribution as pip leaves it, with rows of RECORD of one's own. Returns its `.dist-info`."""
        content = dict(files if files is not None else {f"{name}.py": f"NAME = {name!r}\n".encode()})
        info = directory or f"{name}-1.0.dist-info"
        content[f"{info}/METADATA"] = (metadata or f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n").encode()
        content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n{tags}".encode()
        rows = []
        for path, data in content.items():
            file = self.site / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            rows.append(f"{path},sha256={digest},{len(data)}")
        rows += [*record, f"{info}/RECORD,,"]
        (self.site / info / "RECORD").write_text("\n".join(rows) + "\n")
        return self.site / info

    def variables(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory / "home"),
            "TMPDIR": str(self.directory / "tmp"),
            "LANG": "C.UTF-8",
            "REPRO_ENV_STORE": str(self.store),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_RETRIES": "0",
            **self.env,
        }

    def run(self, *words: str | Path, prefix: Sequence[str] = (), timeout: float = 240) -> Ended:
        """A command of ours, its bounds measured. A command that does not end within `timeout` fails the test."""
        need(COMMAND.is_file(), f"{COMMAND} is missing: run the tests by `make test`, which installs the command")
        began = time.monotonic()
        log = self.directory.with_name(f"{self.directory.name}.said")
        peak = self.directory.with_name(f"{self.directory.name}.peak")
        with log.open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _APART, peak, *prefix, COMMAND, *map(str, words)],
                cwd=self.project,
                env=self.variables(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            late = threading.Timer(timeout, os.killpg, (child.pid, signal.SIGKILL))
            late.start()
            child.wait()
            late.cancel()
        text = log.read_text("utf-8", "replace")
        assert child.returncode != -9, f"it did not end within {timeout} s: {text}"
        return Ended(child.returncode, text, time.monotonic() - began, int(peak.read_text()) * 1024)

    def capture(self, *words: str, python: Path | None = None, prefix: Sequence[str] = (), timeout: float = 240) -> Ended:
        """Capture, and hold what every capture has to hold: bounds, no traceback, no file touched that is not ours."""
        before = self.state()
        ended = self.run("capture", "--python", python or self.venv, *words, prefix=prefix, timeout=timeout)
        assert "Traceback (most recent call last)" not in ended.output, ended.output
        assert ended.code not in (1, 70), ended.output
        assert ended.memory < MEMORY, f"{ended.memory >> 20} MiB"
        after = self.state()
        assert after == before, sorted(path for path in {*after, *before} if after.get(path) != before.get(path))
        assert not list((self.directory / "tmp").iterdir()), "scratch directories are left"
        if ended.code:
            assert not self.spec.exists(), "a failure leaves no spec"
            assert len([line for line in ended.output.splitlines() if "repro-env: error:" in line]) == 1, ended.output
        assert not any(character in ended.output for character in "\x1b\x07\x08\u202e"), (
            "the terminal was given control characters"
        )
        return ended

    def state(self) -> dict[bytes, str]:
        """Every path of the environment, of the project and outside, with what it is; but for what we may write."""
        entries: dict[bytes, str] = {}
        for top in ("project", "home", "canary"):
            for root, directories, files in os.walk(os.fsencode(self.directory / top)):
                if root == os.fsencode(self.project):
                    directories[:] = [name for name in directories if name != b"repro"]
                for name in (*directories, *files):
                    path = root + b"/" + name
                    if os.fsdecode(os.path.relpath(path, os.fsencode(self.directory))) in self.unwatched:
                        continue
                    facts = os.lstat(path)
                    kind = stat.S_IFMT(facts.st_mode)
                    size = 0 if kind == stat.S_IFDIR else facts.st_size
                    target = os.fsdecode(os.readlink(path)) if kind == stat.S_IFLNK else ""  # noqa: PTH115 - of bytes
                    entries[path] = f"{facts.st_mode:o} {size} {0 if kind == stat.S_IFDIR else facts.st_mtime_ns} {target}"
        return entries

    def messages(self, ended: Ended) -> str:
        """Return the output of a capture, and the spec that it wrote."""
        return ended.output + (self.spec.read_text() if ended.code == 0 else "")

    def facts(self) -> Any:
        return json.loads(self.spec.read_text())

    def carries(self, words: bytes) -> bool:
        """Whether some blob holds these bytes; what was laid there and is still that very file is not searched again."""
        import zstandard

        laid = {(facts.st_dev, facts.st_ino) for facts in map(os.stat, self.laid)}
        for path in (self.project / "repro" / "blobs").iterdir():
            if (path.stat().st_dev, path.stat().st_ino) in laid:
                continue
            data = path.read_bytes()
            if data[:4] == b"\x28\xb5\x2f\xfd":
                data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
            elif data[:2] == b"\x1f\x8b":
                import gzip

                data = gzip.decompress(data)
            if words in data:
                return True
        return False


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
