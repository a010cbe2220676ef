"""Where a case stands: directories of its own, a small index, and the real tools that make environments.

Everything lies below `root`, and all of it is gone when the environment is rebuilt, unless the case says otherwise:
the environment, local wheels, repositories, directories on `sys.path`, pip's cache. The index stays, since the other
machine has one too; `index_gone` takes it away.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fakes import wheels
from tests.parts import BASE_PYTHON, need

GIT = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Ann"), ("EMAIL", "ann@example.com"), ("DATE", "2024-01-02T03:04:05Z"))
}
HOST = "index.test"
"""The index, through its own proxy: a name that is not this machine, so that what it gives counts as linked."""


class Ground:
    def __init__(self, root: Path, proxy: str, base: str = "") -> None:
        self.root = root
        self.project = root / "project"
        """The code's directory, in which everything is started."""
        self.home = root / "home"
        self.prefix = self.project / ".venv"
        self.python = self.prefix / "bin" / "python"
        """What is captured, and how it is started on the host."""
        self.named: Path | None = None
        """What `--python` says, where that is something else."""
        self.base = base or BASE_PYTHON
        """The Python that environments are made with."""
        self.variables: dict[str, str] = {}
        """Set at capture and when the environment is looked at, as the user has them."""
        self.roots: list[Path] = []
        """Looked at too, besides the prefix and `sys.path`."""
        self.options: list[str] = []
        """For `repro-env capture`."""
        self.umask = -1
        self.kept: Path | None = None
        """Where `plain` keeps what it made, for other cases that stand at this very path."""
        self.index_gone = False
        self.instead: list[str] = []
        """Host names under which the index is found by the one who rebuilds; the captured one no longer answers then."""
        self.fresh: list[Callable[[], None]] = []
        """What made the environment, before anything was installed: another tool starts from there."""
        self._others: list[Path] = []
        self._proxy = proxy
        for directory in (self.project, self.home):
            directory.mkdir(parents=True)

    # -- surroundings ------------------------------------------------------------------------------------------------

    def environ(self, more: Mapping[str, str] | None = None, *, host: str = HOST) -> dict[str, str]:
        """The user's variables: an empty home, pip configured for the small index alone, the case's own."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM", "CI", "PYTHONFAULTHANDLER") if name in os.environ}
        return {
            **kept,
            **GIT,
            "HOME": str(self.home),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"http://{host}/simple",
            "PIP_TRUSTED_HOST": host,
            "PIP_PROXY": self._proxy,
            "PIP_RETRIES": "1",
            "PIP_CACHE_DIR": str(self.root / "caches" / "pip"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "UV_INDEX_URL": f"http://{host}/simple",
            "UV_INSECURE_HOST": host,
            "UV_CACHE_DIR": str(self.root / "caches" / "uv"),
            "HTTP_PROXY": self._proxy,
            "XDG_CACHE_HOME": str(self.root / "caches"),
            **(more or {}),
        }

    def run(self, *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        """A command of the user's, which has to succeed. Returns what it printed."""
        done = subprocess.run(
            [str(word) for word in words],
            cwd=cwd or self.project,
            env=self.environ(env),
            umask=self.umask,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert not done.returncode, (
            f"{' '.join(map(str, words))} -> {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        )
        return done.stdout

    def write(self, path: Path | str, text: str | bytes = "") -> Path:
        """A file below the root (or at an absolute path there), with its directories."""
        path = self.project / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def outside(self, directory: Path) -> Path:
        """A new directory somewhere else on this machine; removed at the end."""
        need(os.access(directory, os.W_OK), f"{directory} cannot be written")
        made = Path(tempfile.mkdtemp(prefix="repro-env-test-", dir=directory))
        self._others.append(made)
        return made

    def leave(self, gone: Path) -> None:
        """Everything has another name now, or is removed."""
        self.root.rename(gone)
        self.clear()

    def clear(self) -> None:
        """Remove what lies outside the root."""
        while self._others:
            shutil.rmtree(self._others.pop())

    @property
    def site(self) -> Path:
        """The environment's site-packages."""
        (result,) = [path for path in self.prefix.glob("lib/python*/site-packages") if not path.parent.parent.is_symlink()]
        return result

    # -- environments ------------------------------------------------------------------------------------------------

    def venv(self, *options: str, pip: bool = False) -> None:
        """`python -m venv`, without a pip of its own unless wanted."""
        self.make(self.base, "-m", "venv", *([] if pip else ["--without-pip"]), *options, str(self.prefix))

    def make(self, *words: str, now: bool = True) -> None:
        """A command that makes the environment, unless it is there already; `anew` makes it at the place that it has then."""
        there = str(self.prefix)

        def once() -> None:
            self.prefix.parent.mkdir(parents=True, exist_ok=True)
            self.run(*(str(self.prefix) if word == there else word for word in words))

        self.fresh.append(once)
        if now:
            once()

    def anew(self) -> None:
        """The environment again, empty, after everything was taken away."""
        for make in list(self.fresh):
            make()

    def pip(self, *words: str | Path, env: Mapping[str, str] | None = None) -> None:
        """`pip install WORDS` into the environment."""
        self.run(sys.executable, "-m", "pip", "--python", self.python, "install", "-qq", *words, env=env)

    def uv(self, *words: str | Path) -> None:
        self.run(self.tool("uv"), *words)

    def tool(self, name: str) -> Path:
        """A program next to the test's python, or on PATH."""
        neighbor = Path(sys.executable).with_name(name)
        program = str(neighbor) if neighbor.exists() else shutil.which(name)
        need(program, f"{name} is missing")
        return Path(str(program))

    def pip_into(self, python: str | Path, *words: str | Path) -> None:
        """`pip install WORDS` into another Python than the one that is captured."""
        self.run(sys.executable, "-m", "pip", "--python", python, "install", "-qq", *words)

    def use(self, prefix: Path) -> None:
        """Capture another venv than `.venv`."""
        self.prefix, self.python = prefix, prefix / "bin" / "python"

    def python_of_its_own(self, directory: str = "python") -> None:
        """A Python installation at a place of its own: a copy of the one that runs the tests, without its packages."""
        home = Path(self.run(self.base, "-c", "import sys; print(sys.base_prefix)").strip())
        need(
            home not in (Path("/usr"), Path("/usr/local")),
            "the Python that runs the tests is the system's: no copy of it can be made",
        )
        there = self.root / directory
        self.fresh.append(lambda: self._copied(home, there))
        self._copied(home, there)
        self.base = str(there / "bin" / "python")

    def _copied(self, home: Path, there: Path) -> None:
        shutil.copytree(
            home, there, symlinks=True, ignore=shutil.ignore_patterns("site-packages", "__pycache__", "test", "tests", "*.a")
        )
        for path in (there / "bin").iterdir():
            if not path.name.startswith("python"):
                path.unlink()
        (result,) = (path.name for path in there.glob("lib/python3*") if path.is_dir())
        (there / "lib" / result / "site-packages").mkdir()
        run_path((there / "bin" / "python3").resolve(), home / "lib", "$ORIGIN/../lib")

    def plain(self) -> None:
        """The environment that most cases change: a venv with two distributions of the index.

        Made once for all cases that stand at one path and have nothing else yet; copied back with modes and times.
        """
        kept = None
        if self.kept and self.umask == -1 and not self.variables and set(self.root.rglob("*")) == {self.project, self.home}:
            kept = self.kept / hashlib.sha256(f"{self.base}\0{self.root}\0{self.prefix}".encode()).hexdigest()
        if kept and kept.exists():
            shutil.copytree(kept, self.root, symlinks=True, dirs_exist_ok=True)
            self.make(self.base, "-m", "venv", "--without-pip", str(self.prefix), now=False)
            return
        self.venv()
        self.pip("alpha", "beta")
        if kept:
            shutil.copytree(self.root, kept, symlinks=True)

    # -- packages ----------------------------------------------------------------------------------------------------

    def wheel(
        self, name: str, version: str = "1.0", files: Mapping[str, bytes] | None = None, *, directory: str = "wheels", **more: Any
    ) -> Path:
        """A wheel of the case's own, in a directory that will be gone."""
        return wheels.make(self.root / directory, name, version, files, **more)

    def sources(
        self, name: str, directory: str = "", *, src: bool = False, backend: bool = True, value: str = "'source'"
    ) -> Path:
        """A project that setuptools builds: one package of the same name."""
        root = self.root / (directory or name)
        inner = root / "src" / name if src else root / name
        self.write(inner / "__init__.py", f"VALUE = {value}\n")
        self.write(inner / "data.txt", "data of the package\n")
        table = f'[project]\nname = "{name}"\nversion = "1.0"\n[project.scripts]\n{name}-run = "{name}.main:main"\n'
        self.write(inner / "main.py", f"import sys, {name}\ndef main():\n    print({name}.VALUE, sys.argv[1:])\n")
        places = '[tool.setuptools.packages.find]\nwhere = ["src"]\n' if src else f'[tool.setuptools]\npackages = ["{name}"]\n'
        data = f'[tool.setuptools.package-data]\n{name} = ["*.txt"]\n'
        build = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n' if backend else ""
        self.write(root / "pyproject.toml", table + places + data + build)
        return root

    def repository(self, root: Path, *, more: Sequence[str] = ()) -> str:
        """Make a directory a git repository with one commit; returns it."""
        need(shutil.which("git"), "git is missing")
        for words in (["init", "-q", "-b", "main"], ["add", "-A", *more], ["commit", "-q", "-m", "first"]):
            self.run("git", *words, cwd=root)
        return self.run("git", "rev-parse", "HEAD", cwd=root).strip()

    def compiled(self, path: Path, code: str = "int answer(void) { return 42; }\n", *options: str) -> Path:
        """A shared library (or, with `-o` options of one's own, whatever gcc makes of `code`)."""
        need(shutil.which("gcc"), "gcc is missing")
        source = self.write(self.root / "c" / f"{path.name}.c", code)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.run("gcc", *(options or ("-shared", "-fPIC")), "-o", path, source)
        return path

    def extension(self, path: Path, answer: int = 42) -> Path:
        """An extension module `path/<name>.so` with the function-free constant VALUE."""
        name = path.name.split(".")[0]
        include = self.run(self.base, "-c", "import sysconfig; print(sysconfig.get_path('include'))").strip()
        need(Path(include, "Python.h").exists(), f"Python's headers are missing: {include}")
        code = (
            "#include <Python.h>\n"
            f'static struct PyModuleDef def = {{PyModuleDef_HEAD_INIT, "{name}", 0, -1, 0}};\n'
            f"PyMODINIT_FUNC PyInit_{name}(void) {{ PyObject *m = PyModule_Create(&def); "
            f'PyModule_AddIntConstant(m, "VALUE", {answer}); return m; }}\n'
        )
        return self.compiled(path, code, "-shared", "-fPIC", f"-I{include}")


def run_path(binary: Path, old: Path | str, new: str) -> None:
    """Have an ELF program look for its libraries in another directory: written over the old RUNPATH, since no tool for it is everywhere."""
    data, before = binary.read_bytes(), str(old).encode() + b"\0"
    if data.count(before) == 1 and len(new) < len(before):
        binary.write_bytes(data.replace(before, new.encode().ljust(len(before), b"\0")))
