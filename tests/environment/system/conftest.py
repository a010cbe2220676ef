from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.environment.python import interpreter as python
from repro_env.environment.python.interpreter import StartupReport
from repro_env.environment.system import base
from repro_env.environment.system import interpretertree as interpreter
from repro_env.environment.system.libraries import Needs
from repro_env.environment.system.packages import Database
from repro_env.environment.system.tree import Tree
from repro_env.io import process
from repro_env.schema.environment import Interpretation
from repro_env.store.facts import FactCache
from repro_env.store.hashes import FileHashes
from tests.environment.system import roots
from tests.parts import need


class Captured(msgspec.Struct, frozen=True):
    """A virtual environment, and the trees that it needs."""

    facts: Interpretation
    startup: StartupReport
    system_files: base.SystemFiles
    base: Tree
    interpreter: Tree


@pytest.fixture(scope="session")
def hashes(tmp_path_factory: pytest.TempPathFactory) -> FileHashes:
    return FileHashes(FactCache(tmp_path_factory.mktemp("hashes")))


@pytest.fixture(scope="session", params=["this python", "/usr/bin/python3"])
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, hashes: FileHashes) -> Captured:
    """The trees of new environments, made by the Python that runs the tests and by the system's Python."""
    need(Path("/var/lib/dpkg/status").exists(), "a dpkg machine (Debian, Ubuntu)")
    command = str(request.param) if request.param[0] == "/" else str(Path(sys.executable).resolve())
    need(Path(command).exists(), f"{command}: apt-get install python3-venv")
    prefix = tmp_path_factory.mktemp("venv") / "env"
    result = process.run([command, "-m", "venv", "--without-pip", str(prefix)])
    assert result.code == 0, result.stderr
    environ = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    facts = python.interpret(str(prefix / "bin/python"), environ)
    startup = python.start_up(facts, environ)
    assert startup.problem == ""
    system_files = base.system_files(Needs(facts=facts, startup=startup, environ={}), base.database(Path("/")), hashes)
    assert system_files.unpackaged is None
    return Captured(
        facts,
        startup,
        system_files,
        system_files.base,
        interpreter.interpreter_tree(facts, {}, hashes),
    )


def make(captured: Captured, hashes: FileHashes, system: Database | None = None, **needs: Any) -> base.SystemFiles:
    """The system files of the environment with other `needs`, and with the packages of this machine or of `system`."""
    values: dict[str, Any] = {"facts": captured.facts, "startup": captured.startup, "environ": {}} | needs
    return base.system_files(Needs(**values), system or base.database(Path("/")), hashes)


@pytest.fixture(scope="session")
def root(captured: Captured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with both trees and the environment, to chroot into."""
    need(os.getuid() == 0, "uid 0, to chroot")
    directory = tmp_path_factory.mktemp("root")
    roots.write(directory, [captured.base, captured.interpreter])
    prefix = Path(captured.facts.layout.prefix)
    inside = directory / str(prefix)[1:]
    (inside / "bin").mkdir(parents=True)
    (inside / captured.facts.layout.purelib).mkdir(parents=True)
    (inside / "pyvenv.cfg").write_bytes((prefix / "pyvenv.cfg").read_bytes())
    for link in (prefix / "bin").glob("python*"):
        (inside / "bin" / link.name).symlink_to(link.readlink())
    yield directory
    shutil.rmtree(directory)  # about 100 MB each
