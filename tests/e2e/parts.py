"""The installed `repro-env` command and real projects to use it on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from repro_env.io.files import locked
from repro_env.store.specs.blobs import file_key
from repro_env.store.store import Store
from tests import commands
from tests.parts import BASE_PYTHON, need

COMMAND = commands.COMMAND
Done = commands.Done
ROOT = Path(__file__).parents[2]
WRITES_OUTSIDE = """
import os, sys
for path in ("../out/w.pt", "~/results/x", "/scratch/me/y", "made.txt", "~/.cache/hub/x", "/tmp/left"):
    path = os.path.expanduser(path)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as file:
        file.write("x" * 1000)
print("epoch 1\\x07")
print(os.environ.get("SERVICE_TOKEN", "quite-a-secret-value-1"))
print("to stderr", file=sys.stderr)
"""
"""Results where public training scripts write theirs, caches and temporary files, and something to print."""
HIDDEN = ("VIRTUAL_ENV", "CONDA_PREFIX", "UV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED")


def environ(store: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's variables without those that name an environment, with a store of the test's own."""
    kept = {name: value for name, value in os.environ.items() if name not in HIDDEN and not name.startswith("REPRO_ENV")}
    return {**kept, "REPRO_ENV_STORE": str(store), **(more or {})}


class Project(NamedTuple):
    """A directory with code in it, the environment it is run with, and the store in use."""

    directory: Path
    python: Path
    store: Path

    def run(
        self,
        *words: str | Path,
        code: int | None = 0,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        umask: int = -1,
        stdin: str = "",
        timeout: float = 500,
    ) -> Done:
        """`repro-env WORDS` in the project's directory. Fails unless it ends with `code`; None lets any pass."""
        need(COMMAND.is_file(), f"{COMMAND} is missing: run the tests by `make test`, which installs the command")
        done = commands.run(
            words,
            cwd=cwd or self.directory,
            env=environ(self.store, env),
            umask=umask,
            stdin=stdin,
            timeout=timeout,
        )
        assert code is None or done.code == code, f"repro-env {' '.join(map(str, words))} -> {done.code}\n{done.out}\n{done.err}"
        return done

    def capture(self, *words: str | Path, is_first: bool = False, **options: Any) -> dict[str, Any]:
        """`repro-env capture --json`, and what it printed. `is_first`: on a machine that has never captured with this Python."""
        if not is_first:
            warm(self.directory, self.store)
        answer = self.run("capture", "--python", self.python, "--json", *words, **options).out
        result = json.loads(answer)
        assert isinstance(result, dict)
        return result

    def rebuild(self, *words: str | Path, **options: Any) -> str:
        """`repro-env rebuild`, and the image ID it printed."""
        return self.run("rebuild", *words, **options).out.strip()

    def python_says(self, code: str, **options: Any) -> str:
        """What `python -c CODE` prints in the image."""
        return self.run("exec", "python", "-c", code, **options).out

    def elsewhere(self, store: Path) -> Project:
        """The same project with another store."""
        return self._replace(store=store)


def venv(
    directory: Path,
    *packages: str | Path,
    python: str | None = None,
    umask: int = -1,
    pip: Sequence[str] = (),
    own_pip: bool = True,
) -> Path:
    """A virtual environment with packages, installed by pip as users do. Returns its python.

    Without `own_pip`, the pip of the tests installs them, and the environment has none: that saves its five seconds.
    """
    base: str = python or BASE_PYTHON
    if not own_pip:
        subprocess.run([base, "-m", "venv", "--without-pip", str(directory)], check=True, umask=umask)
        if packages:
            words = ["-m", "pip", "--python", str(directory), "install", "-qq", "--disable-pip-version-check", *pip]
            subprocess.run([sys.executable, *words, *map(str, packages)], check=True, umask=umask)
        return directory / "bin" / "python"
    subprocess.run([base, "-m", "venv", str(directory)], check=True, umask=umask)
    inside = directory / "bin" / "python"
    pip_alone = [str(inside), "-m", "pip", "uninstall", "-qq", "-y", "setuptools"]  # venv puts it in before Python 3.12
    subprocess.run(pip_alone, check=True, umask=umask, capture_output=True)
    if packages:
        words = ["-m", "pip", "install", "-qq", "--disable-pip-version-check", *pip, *map(str, packages)]
        subprocess.run([inside, *words], check=True, umask=umask)
    return inside


def having(*modules: str) -> Path | None:
    """The first of $REPRO_ENV_TEST_PYTHONS (separated by colons) that has the modules."""
    for python in filter(None, os.environ.get("REPRO_ENV_TEST_PYTHONS", "").split(":")):
        code = f"from importlib.util import find_spec as find; exit(not all(map(find, {modules!r})))"  # to import them takes 20 s
        if not subprocess.run([python, "-c", code], capture_output=True, check=False).returncode:
            return Path(python)
    return None


def lock(name: str) -> Path:
    """A lock file for the Python that runs the tests."""
    return ROOT / "lockfiles" / ("py310" if sys.version_info < (3, 11) else "") / f"{name}.txt"


def project(directory: Path, python: Path, store: Path, *examples: str) -> Project:
    """A project directory with the files of the named examples."""
    directory.mkdir(parents=True, exist_ok=True)
    for example in examples:
        shutil.copy(ROOT / "examples" / example / "train.py", directory / "train.py")
    return Project(directory, python, store)


def large_blobs(project: Path) -> list[Path]:
    """The base and the interpreter as a capture carries them: for `copy_blobs`."""
    paths = [path for path in (project / "repro" / "blobs").iterdir() if path.stat().st_size > 1 << 20]
    assert paths
    return paths


def copy_blobs(blobs: Sequence[Path], project: Path, store: Path) -> None:
    """Put them where an earlier capture with this store would have left them: what is the same each time is compressed once (4 s)."""
    directory = project / "repro" / "blobs"
    directory.mkdir(parents=True)
    for path in blobs:
        shutil.copyfile(path, directory / path.name)
        Store.open(store).facts.put("bundled", file_key(directory / path.name), b"whole")


template: Path | None = None
"""A directory for what all environments with the Python of the tests share. It is made by the first test that captures."""


def warm(directory: Path, store: Path) -> None:
    """Give a new project and a new store what an earlier capture and run of another project would have left.

    That is the base and the interpreter, compressed and unpacked, and the bytecode of the standard library: 8 s of processor time.
    """
    if template is None:
        return
    with locked(template.with_suffix(".lock")):
        if not template.is_dir():
            made = template.with_suffix(".new")
            first = project(made, venv(made / ".venv", own_pip=False), made / "store")
            first.capture(is_first=True)
            first.rebuild()
            first.python_says("pass")
            for name in ("images", "runs", "specs", "uses"):
                shutil.rmtree(first.store / name)
            made.rename(template)
    if not store.exists():
        subprocess.run(["cp", "-a", str(template / "store"), str(store)], check=True)
    if not (directory / "repro").exists():
        copy_blobs(large_blobs(template), directory, store)


def digests(directory: Path) -> dict[str, str]:
    """Path -> sha256 of each file; `-> target` for a symlink."""
    entries = {}
    for path in sorted(directory.rglob("*")):
        if path.is_symlink():
            entries[str(path.relative_to(directory))] = f"-> {path.readlink()}"
        elif path.is_file():
            entries[str(path.relative_to(directory))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return entries


def one_sentence(done: Done) -> str:
    """Our own complaint on stderr: no traceback, and a line that says what is wrong. Returns all of stderr."""
    assert "Traceback" not in done.err, done.err
    assert done.err.strip(), "nothing was said"
    return done.err


@contextlib.contextmanager
def in_docker(project: Project) -> Iterator[str]:
    """The project's image ID; what `exec --runner docker` puts into the engine is removed again."""
    from repro_env.delivery.targets import engine as output
    from repro_env.io import engine as engines
    from repro_env.schema.errors import EngineError
    from tests.sandbox.engines import docker

    image: str = json.loads((project.directory / "repro/spec.json").read_text())["expected"]["image_id"]
    address = docker()
    try:
        yield image
    finally:
        with engines.connect(address) as engine, contextlib.suppress(EngineError), engine.talk("remove the image"):
            engine.client.api.remove_image(output.default_name(image), force=True)
