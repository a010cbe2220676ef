from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from repro_env.base import host, interpreter
from repro_env.base.tree import Tree
from repro_env.capture import python
from repro_env.io import process
from repro_env.io.hashes import FileHashes
from repro_env.model.environment import Interpretation, Startup
from tests.base import roots
from tests.parts import need


class Cut(msgspec.Struct, frozen=True):
    """A virtual environment, and the trees that it stands on."""

    facts: Interpretation
    startup: Startup
    whole: host.Cut
    base: Tree
    interpreter: Tree


@pytest.fixture(scope="session")
def hashes(tmp_path_factory: pytest.TempPathFactory) -> FileHashes:
    return FileHashes(tmp_path_factory.mktemp("hashes") / "db")


@pytest.fixture(scope="session", params=["this python", "/usr/bin/python3"])
def cut(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, hashes: FileHashes) -> Cut:
    """Of a fresh environment made by the Python that runs the tests, and by the system's."""
    need(Path("/var/lib/dpkg/status").exists(), "a dpkg machine (Debian, Ubuntu)")
    command = str(request.param) if request.param[0] == "/" else str(Path(sys.executable).resolve())
    need(Path(command).exists(), f"{command}: apt-get install python3-venv")
    prefix = tmp_path_factory.mktemp("venv") / "env"
    done = process.run([command, "-m", "venv", "--without-pip", str(prefix)])
    assert done.code == 0, done.stderr
    environ = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    facts = python.interpret(str(prefix / "bin/python"), environ)
    startup = python.start_up(facts, environ)
    assert startup.problem == ""
    whole = host.cut(facts, startup, locale=startup.locale, hashes=hashes)
    assert whole.unowned is None
    return Cut(
        facts,
        startup,
        whole,
        whole.base,
        interpreter.interpreter_tree(facts, hashes=hashes),
    )


@pytest.fixture(scope="session")
def root(cut: Cut, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Both trees and the environment itself in a folder, to chroot into."""
    need(os.getuid() == 0, "uid 0, to chroot")
    folder = tmp_path_factory.mktemp("root")
    roots.write(folder, [cut.base, cut.interpreter])
    prefix = Path(cut.facts.layout.prefix)
    inside = folder / str(prefix)[1:]
    (inside / "bin").mkdir(parents=True)
    (inside / cut.facts.layout.purelib).mkdir(parents=True)
    (inside / "pyvenv.cfg").write_bytes((prefix / "pyvenv.cfg").read_bytes())
    for link in (prefix / "bin").glob("python*"):
        (inside / "bin" / link.name).symlink_to(link.readlink())
    yield folder
    shutil.rmtree(folder)  # a hundred megabytes each
