"""Every kind of environment, however it was made."""

from __future__ import annotations

from pathlib import Path

from tests.fidelity.case import case
from tests.fidelity.ground import Ground, run_path
from tests.parts import need
from tests.pythons import OLDEST, interpreters, oldest_and_newest


@case("virtualenv", soak=True)
def virtualenv(at: Ground) -> None:
    program = at.tool("virtualenv")
    at.make(str(program), "-q", "--no-download", "-p", at.base, str(at.prefix))
    at.pip("alpha", "beta")


def by_uv(at: Ground, mode: str) -> None:
    at.make(str(at.tool("uv")), "venv", "-q", "--python", at.base, str(at.prefix))
    at.uv("pip", "install", "-q", "--link-mode", mode, "--python", at.python, "alpha", "beta")


@case("uv: no pip, files hard-linked to its cache", soak=True)
def uv_hardlink(at: Ground) -> None:
    by_uv(at, "hardlink")


@case("uv: files copied", soak=True)
def uv_copy(at: Ground) -> None:
    by_uv(at, "copy")


@case("uv: files cloned where the file system can", soak=True)
def uv_clone(at: Ground) -> None:
    by_uv(at, "clone")


@case("uv: files are symlinks into its cache", soak=True)
def uv_symlink(at: Ground) -> None:
    by_uv(at, "symlink")


@case("uv: bytecode compiled at install", soak=True)
def uv_compiled(at: Ground) -> None:
    at.make(str(at.tool("uv")), "venv", "-q", "--python", at.base, str(at.prefix))
    at.uv("pip", "install", "-q", "--compile-bytecode", "--python", at.python, "alpha", "beta")


@case("venv --copies", soak=True)
def copies(at: Ground) -> None:
    at.venv("--copies")
    at.pip("alpha")


@case("venv with a prompt, on a path with spaces, Unicode and more than 128 characters", soak=True)
def long_path(at: Ground) -> None:
    at.use(at.project / "an env with spaces" / "und ein größerer Name" / ("x" * 100))
    at.venv("--prompt", "my 'env'")
    at.pip("alpha", "placed")


@case("a venv that was renamed: its scripts start nothing", soak=True)
def renamed(at: Ground) -> None:
    at.plain()
    at.prefix.rename(at.project / "renamed")
    at.use(at.project / "renamed")


@case("a venv that was moved, with a symlink at its old place", soak=True)
def moved(at: Ground) -> None:
    at.plain()
    at.prefix.rename(at.root / "moved")
    at.prefix.symlink_to(at.root / "moved")


@case("Python started through a symlink from outside", soak=True)
def through_a_link(at: Ground) -> None:
    at.python_of_its_own()
    at.python = Path(at.base)
    at.pip("alpha")
    at.write(at.root / "bin" / "keep")
    (at.root / "bin" / "python").symlink_to(at.python)
    at.named = at.root / "bin" / "python"


@case("a venv whose Python was upgraded below it", soak=True)
def upgraded(at: Ground) -> None:
    """pyvenv.cfg says one version, the interpreter is another patch of it."""
    at.plain()
    config = at.prefix / "pyvenv.cfg"
    config.write_text(config.read_text().replace("version = 3.", "version = 3.0"))


@case("PYTHONHOME set", soak=True)
def python_home(at: Ground) -> None:
    at.plain()
    at.variables["PYTHONHOME"] = at.run(at.base, "-c", "import sys; print(sys.prefix)").strip()


@case("pyenv's python itself, packages in it", soak=True)
def version_managed(at: Ground) -> None:
    at.python_of_its_own()
    at.python = Path(at.base)
    at.pip("alpha", "placed")


@case("Debian's python3 itself", soak=True)
def debian(at: Ground) -> None:
    at.python = debians()


def debians() -> Path:
    python = Path("/usr/bin/python3")
    need(python.exists() and Path("/usr/lib/python3/dist-packages").is_dir(), "Debian's python3 is missing")
    return python


@case("a venv over Debian's python3, with its packages (no RECORD)", soak=True)
def debian_system_site(at: Ground) -> None:
    at.base = str(debians())
    at.venv("--system-site-packages")
    at.pip("alpha")


@case("a venv over Debian's python3", soak=True)
def over_debian(at: Ground) -> None:
    at.base = str(debians())
    at.venv()
    at.pip("alpha")


@case("a module-style interpreter that finds libpython on LD_LIBRARY_PATH only", soak=True)
def module(at: Ground) -> None:
    at.python_of_its_own("sw/python")
    at.python = Path(at.base)
    library = at.root / "sw" / "python" / "lib"
    need(list(library.glob("libpython3.*.so*")), "this Python has no shared libpython")
    run_path(Path(at.base).resolve(), "$ORIGIN/../lib", "")
    at.variables["LD_LIBRARY_PATH"] = str(library)
    at.pip("alpha", env=at.variables)


@case("a container's own Python: a framework that no index has, its libraries below /opt", soak=True)
def container(at: Ground) -> None:
    at.python_of_its_own("usr-local")
    at.python = Path(at.base)
    opt = at.root / "opt" / "hpcx" / "lib"
    at.compiled(opt / "libtransport.so")
    (site,) = Path(at.base).parent.parent.glob("lib/python*/site-packages")
    at.pip(at.wheel("torchlike", "2.9.0a0+nv1", files={"torchlike/__init__.py": TORCHLIKE}))
    at.compiled(
        site / "torchlike" / "libtorchlike.so",
        "int answer(void); int twice(void) { return 2 * answer(); }\n",
        *("-shared", "-fPIC", f"-L{opt}", f"-Wl,-rpath,{opt}", "-Wl,--no-as-needed", "-ltransport"),
    )


TORCHLIKE = b"""\
import ctypes, pathlib
VALUE = ctypes.CDLL(str(pathlib.Path(__file__).with_name("libtorchlike.so"))).twice()
"""


@case("another minor version of Python", soak=True)
def another_python(at: Ground) -> None:
    others = oldest_and_newest(OLDEST)
    need(others, "no other Python here")
    at.base = str(interpreters()[others[0]])
    at.venv()
    at.pip("alpha")
