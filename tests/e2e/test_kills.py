"""SIGKILL at random moments, two commands at a time on one store: never a wrong image, never a stuck lock, and a retry completes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from repro_env.io.files import sha256_of
from repro_env.store.store import Store
from tests.e2e import parts
from tests.registries import registry

COMMANDS = ("capture", "rebuild", "output", "push", "gc")
LONGEST = 1.2
"""Seconds that a command is given at most before it is killed."""
STUCK = 300
"""Seconds after which a command that is let alone counts as stuck."""
BUSY = 14
"""What gc ends with when others are at work in the store for a minute: its own answer, on a machine that is slow."""


class Site:
    """A store, and what each command works on."""

    def __init__(self, project: parts.Project, directory: Path, host: str) -> None:
        self.project = project.elsewhere(directory / "store")
        self.directory = directory
        self.reference = f"{host}/kills/app:1"
        for name in ("given", "pushed"):
            shutil.copytree(project.directory / "repro", directory / name)
        project.capture("--output", directory / "wanted")
        self.wanted = parts.digests(directory / "wanted")
        self.image = json.loads((directory / "given" / "spec.json").read_text())["expected"]["image_id"]

    def words(self, command: str) -> list[str]:
        given = str(self.directory / "given")
        return {
            "capture": ["capture", "--python", str(self.project.python), "--output", str(self.directory / "repro")],
            "rebuild": ["rebuild", given],
            "output": ["rebuild", given, "--output", f"oci:{self.directory / 'out'}"],
            "push": ["push", self.reference, "--spec", str(self.directory / "pushed")],
            "gc": ["store", "gc", "--keep-days", "0"],
            "exec": ["exec", "--spec", given, "--runs", str(self.directory / "runs"), "hello.py"],
        }[command]

    def start(self, command: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{command}.log").open("ab") as log:
            return subprocess.Popen(
                [parts.COMMAND, *self.words(command)],
                cwd=self.project.directory,
                env=parts.environ(self.project.store),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def check_nothing_is_wrong(self) -> None:
        """What says of itself that it is whole is whole, at any moment."""
        if (self.directory / "repro" / "spec.json").exists():
            assert parts.digests(self.directory / "repro")["spec.json"] == self.wanted["spec.json"]
        if (self.directory / "out" / "index.json").exists():
            self.check_layout()
        for path in self._files("blobs"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        for path in self._files("images"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
            assert f"sha256:{path.name}" == self.image

    def _files(self, name: str) -> list[Path]:
        directory = self.project.store / name
        return [path for path in directory.iterdir() if not path.name.startswith(".")] if directory.exists() else []

    def check_layout(self) -> None:
        blobs = self.directory / "out" / "blobs" / "sha256"

        def read(descriptor: dict[str, Any]) -> bytes:
            data: bytes = (blobs / descriptor["digest"].removeprefix("sha256:")).read_bytes()
            assert "sha256:" + hashlib.sha256(data).hexdigest() == descriptor["digest"]
            return data

        (entry,) = json.loads((self.directory / "out" / "index.json").read_bytes())["manifests"]
        manifest = json.loads(read(entry))
        read(manifest["config"])
        assert manifest["config"]["digest"] == self.image
        for layer in manifest["layers"]:
            read(layer)

    def finish(self) -> None:
        """All commands at the same time, let alone: each completes, and what it makes is right."""
        with ThreadPoolExecutor(len(COMMANDS) + 1) as pool:
            running = {name: pool.submit(self._run, name) for name in (*COMMANDS, "exec")}
            done = {name: future.result() for name, future in running.items()}
        codes = {name: ended.code for name, ended in done.items()}
        codes.update({"gc": 0} if codes["gc"] == BUSY else {})
        assert codes == dict.fromkeys(done, 0), [entry.err for entry in done.values() if entry.code]
        assert parts.digests(self.directory / "repro") == self.wanted
        assert done["rebuild"].out.strip() == self.image
        self.check_layout()
        (entry,) = json.loads((self.directory / "out" / "index.json").read_bytes())["manifests"]
        assert done["push"].out.strip().endswith(entry["digest"]), "the same manifest in both"
        assert done["exec"].out.startswith("hello from")
        self.project.run(*self.words("rebuild"), timeout=STUCK)
        store = Store.open(self.project.store)
        layers = [path.name for path in (store.root / "layers").iterdir()]
        assert len(layers) > 5
        assert [name for name in layers if not store.layers.verify(name)] == []
        assert [path for path in (store.root / "blobs").iterdir() if sha256_of(path) != path.name] == []
        del store
        for run in (
            self.directory / "runs"
        ).iterdir():  # a record holds its source in the store; a directory that is gone may be away
            run.unlink() if run.is_symlink() else shutil.rmtree(run)
        self.project.run(*self.words("gc"), timeout=STUCK)
        left = {str(path.relative_to(self.directory)) for path in self._left()}
        assert not left, f"left behind: {left}"

    def _run(self, command: str) -> parts.Done:
        return self.project.run(*self.words(command), code=None, timeout=STUCK)

    def _left(self) -> Iterator[Path]:
        store = self.project.store
        for name in ("temp", "damaged"):
            yield from store.glob(f"{name}/*")
        for name in ("layers", "blobs", "images", "merged", "specs"):
            yield from store.glob(f"{name}/*")
        yield from (path for path in (store / "uses").iterdir() if path.name != "all")
        for directory in ("repro", "pushed", "given"):
            yield from (self.directory / directory / "blobs").glob(".temp-*")
        yield from (self.directory / "out").glob("blobs/.temp-*")
        yield from self.directory.glob("*/.*.tmp")


def killed_in_pairs(site: Site, kills: int, chance: random.Random, commands: Sequence[str] = COMMANDS) -> dict[str, int]:
    """Pairs of commands at the same time, each killed at a moment of its own, until so many were. Returns how many, by command."""
    done = dict.fromkeys(commands, 0)
    ways = [(command, other) for command in commands for other in commands]
    rounds = 0
    while sum(done.values()) < kills:
        rounds += 1
        assert rounds <= 3 * kills, f"most commands end before they are killed: {done}"
        pair = chance.choice(ways)
        due = sorted((chance.uniform(0.1, LONGEST), command) for command in pair)
        began = time.monotonic()
        children = [(when, command, site.start(command)) for when, command in due]
        for when, command, child in children:
            done[command] += killed(child, began + when)
        site.check_nothing_is_wrong()
    return done


def killed(child: subprocess.Popen[bytes], when: float) -> int:
    """Kill it and all that it started, unless it ends before; how many were killed: 0 or 1."""
    try:
        child.wait(max(0.0, when - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return 1
    return 0


@pytest.fixture
def site(small: parts.Project, tmp_path: Path) -> Iterator[Site]:
    with registry(tmp_path / "registry") as host:
        yield Site(small, tmp_path, host)


@pytest.mark.slow
def test_commands_that_are_killed_in_pairs_leave_complete_results(site: Site) -> None:
    killed_in_pairs(site, 20, random.Random(4))
    site.finish()


@pytest.mark.soak
def test_commands_that_are_killed_in_pairs_many_times_leave_complete_results(site: Site) -> None:
    from tests.soak import note

    chance = random.Random()
    seed = chance.randrange(2**32)
    commands = (*COMMANDS, "exec")
    total = dict.fromkeys(commands, 0)
    for number in range(10):
        for command, count in killed_in_pairs(site, 20, random.Random(f"{seed} {number}"), commands).items():
            total[command] += count
        site.finish()
    note("kills in pairs", {"seed": seed, **total})
    assert sum(total.values()) >= 200
