"""What Python finds outside the environment's prefix."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.fakes import wheels
from tests.fidelity.case import case
from tests.fidelity.ground import Ground


@case("a .pth file with a path outside", soak=True)
def pth(at: Ground) -> None:
    at.plain()
    at.write(at.root / "shared" / "library.py", "VALUE = 'from a directory outside'\n")
    at.write(at.root / "shared" / "tables" / "rates.csv", "1,2\n")
    at.write(at.site / "shared.pth", f"# a comment\n{at.root / 'shared'}\n{at.root / 'not-there'}\n")


@case("a .pth file that puts a directory at a position by code", named="at a fixed position of sys.path", soak=True)
def pth_code(at: Ground) -> None:
    at.plain()
    at.write(at.root / "hooked" / "hooked.py", "VALUE = 'by code'\n")
    at.write(at.site / "zz-hook.pth", f"import sys; sys.path.insert(1, {str(at.root / 'hooked')!r})\n")


@case("PYTHONPATH with two directories", soak=True)
def python_path(at: Ground) -> None:
    at.plain()
    at.write(at.root / "one" / "common.py", "VALUE = 'one'\n")
    at.write(at.root / "two" / "common.py", "VALUE = 'two'\n")
    at.write(at.root / "two" / "alpha.py", "VALUE = 'hides the installed one'\n")
    at.variables["PYTHONPATH"] = f"{at.root / 'two'}:{at.root / 'one'}"


@case("PYTHONPATH with a relative entry", named="PYTHONPATH has a relative or empty entry", soak=True)
def relative_path(at: Ground) -> None:
    at.plain()
    at.write("lib/helper.py", "VALUE = 1\n")
    at.variables["PYTHONPATH"] = "lib"


@case("PYTHONPATH with a directory of the project", soak=True)
def own_directory_on_path(at: Ground) -> None:
    at.plain()
    at.write("lib/helper.py", "VALUE = 'helper'\n")
    at.variables["PYTHONPATH"] = str(at.project / "lib")


@case(
    "PYTHONPATH with a directory that is not there, and an empty entry",
    named="PYTHONPATH has a relative or empty entry",
    soak=True,
)
def missing_path(at: Ground) -> None:
    at.plain()
    at.variables["PYTHONPATH"] = f"{at.root / 'nowhere'}::{at.root / 'there'}"
    at.write(at.root / "there" / "thing.py", "VALUE = 1\n")


@case("--system-site-packages")
def system_site(at: Ground) -> None:
    """Over a Python of the case's own, which has packages of its own."""
    own_python(at)
    at.venv("--system-site-packages")
    at.pip("alpha")


@case("--system-site-packages: the venv's package hides the base's", soak=True)
def system_site_hidden(at: Ground) -> None:
    own_python(at)
    at.venv("--system-site-packages")
    at.pip("gamma==1.0", "--ignore-installed")


def own_python(at: Ground) -> None:
    """A Python installation in the case's directory, with packages."""
    at.python_of_its_own()
    at.pip_into(at.base, "gamma==2.0", "placed")


@case("packages in the user site", soak=True)
def user_site(at: Ground) -> None:
    """Plain venvs do not see it; those over system packages do."""
    at.python_of_its_own()
    at.venv("--system-site-packages")
    at.pip("alpha")
    at.pip_into(at.base, "--user", "gamma==1.0", "plugged")


@case("usercustomize.py", soak=True)
def usercustomize(at: Ground) -> None:
    at.python_of_its_own()
    at.venv("--system-site-packages")
    at.pip("alpha")
    at.pip_into(at.base, "--user", "gamma==1.0")
    (site,) = at.home.glob(".local/lib/python*/site-packages")
    at.write(site / "usercustomize.py", "import sys\nsys.CUSTOM = 'user'\n")


@case("PYTHONNOUSERSITE set: the user site is there and not used", soak=True)
def no_user_site(at: Ground) -> None:
    user_site(at)
    at.variables["PYTHONNOUSERSITE"] = "1"


@case("a zipped egg through easy-install.pth", soak=True)
def zipped_egg(at: Ground) -> None:
    at.plain()
    egg = at.site / "eggy-1.0-py3.11.egg"
    with zipfile.ZipFile(egg, "w") as file:
        file.writestr("eggy.py", "VALUE = 'from an egg'\n")
        file.writestr("EGG-INFO/PKG-INFO", "Metadata-Version: 1.0\nName: eggy\nVersion: 1.0\n")
    at.write(at.site / "easy-install.pth", f"./{egg.name}\n")


@case("an unpacked egg, and .egg-info as directory and as file", soak=True)
def unpacked_egg(at: Ground) -> None:
    at.plain()
    at.write(at.site / "open-1.0-py3.11.egg" / "opened.py", "VALUE = 'opened'\n")
    at.write(at.site / "open-1.0-py3.11.egg" / "EGG-INFO" / "PKG-INFO", "Metadata-Version: 1.0\nName: open\nVersion: 1.0\n")
    at.write(at.site / "easy-install.pth", "./open-1.0-py3.11.egg\n")
    at.write(at.site / "older.py", "VALUE = 'older'\n")
    at.write(at.site / "older-0.1.egg-info", "Metadata-Version: 1.0\nName: older\nVersion: 0.1\n")
    at.write(at.site / "directory-0.1.egg-info" / "PKG-INFO", "Metadata-Version: 1.0\nName: directory\nVersion: 0.1\n")


@case("a wheel and a zip archive on a .pth", soak=True)
def zip_on_pth(at: Ground) -> None:
    at.plain()
    wheel = wheels.make(at.root / "archives", "packed", files={"packed.py": b"VALUE = 'packed'\n"})
    at.write(at.site / "archives.pth", f"{wheel}\n")


@case("a library beside the environment, found through RPATH", soak=True)
def rpath(at: Ground) -> None:
    at.plain()
    library = at.compiled(at.root / "native" / "libanswer.so")
    at.compiled(
        at.site / "rpathed" / "libuses.so",
        "int answer(void); int twice(void) { return 2 * answer(); }\n",
        *("-shared", "-fPIC", f"-L{library.parent}", f"-Wl,-rpath,{library.parent}", "-Wl,--no-as-needed", "-lanswer"),
    )
    at.write(
        at.site / "rpathed" / "__init__.py",
        "import ctypes, pathlib\nVALUE = ctypes.CDLL(str(pathlib.Path(__file__).with_name('libuses.so'))).twice()\n",
    )


@case("a library found through $LD_LIBRARY_PATH", soak=True)
def ld_library_path(at: Ground) -> None:
    at.plain()
    library = at.compiled(at.root / "native" / "libanswer.so")
    at.compiled(
        at.site / "linked" / "libuses.so",
        "int answer(void); int twice(void) { return 2 * answer(); }\n",
        *("-shared", "-fPIC", f"-L{library.parent}", "-Wl,--no-as-needed", "-lanswer"),
    )
    at.write(
        at.site / "linked" / "__init__.py",
        "import ctypes, pathlib\nVALUE = ctypes.CDLL(str(pathlib.Path(__file__).with_name('libuses.so'))).twice()\n",
    )
    at.variables["LD_LIBRARY_PATH"] = str(library.parent)


@case("a library opened by its path, which only the code knows", soak=True)
def by_path(at: Ground) -> None:
    at.plain()
    library = at.compiled(at.root / "native" / "libanswer.so")
    at.write(at.site / "opens.py", f"import ctypes\nVALUE = ctypes.CDLL({str(library)!r}).answer()\n")


@case("a venv over a venv's python", soak=True)
def chain(at: Ground) -> None:
    at.use(at.root / "first")
    at.plain()
    first = at.python
    at.use(at.project / ".venv")
    at.run(first, "-m", "venv", "--without-pip", at.prefix)
    at.pip("gamma==1.0")


@case("a venv inside the environment's own directory", soak=True)
def nested_venv(at: Ground) -> None:
    at.plain()
    at.run(at.base, "-m", "venv", "--without-pip", at.prefix / "nested")


@case("another venv beside the code", named="other-env: a virtual environment", soak=True)
def beside_the_code(at: Ground) -> None:
    """It is not the environment: left out of the source, and named."""
    at.plain()
    at.run(at.base, "-m", "venv", "--without-pip", at.project / "other-env")


@case(
    "the source inside the environment's directory, where the capture would be too", named="is inside the environment", soak=True
)
def source_inside(at: Ground) -> None:
    at.plain()
    at.project = at.prefix / "src" / "app"
    at.write("train.py", "print(1)\n")


@case("a directory on sys.path in the home of the user", soak=True)
def in_home(at: Ground) -> None:
    at.plain()
    at.write(at.home / "lib" / "mine.py", "VALUE = 'mine'\n")
    at.write(at.site / "home.pth", f"{at.home / 'lib'}\n")


@case("a directory on sys.path below /dev/shm", named="/dev", soak=True)
def below_dev_shm(at: Ground) -> None:
    """/dev is the run's own: nothing that the image holds there can be seen."""
    directory = at.outside(Path("/dev/shm"))
    at.plain()
    at.write(directory / "shared.py", "VALUE = 'in memory'\n")
    at.write(at.site / "shared.pth", f"{directory}\n")


@case("a wheel, another one and a directory beside them on PYTHONPATH", soak=True)
def beside_a_wheel(at: Ground) -> None:
    at.plain()
    wheel = wheels.make(at.root / "libs", "zipone", files={"zipone.py": b"VALUE = 1\n"})
    two = wheels.make(at.root / "libs", "ziptwo", files={"ziptwo.py": b"VALUE = 2\n"})
    at.write(at.root / "libs" / "zz" / "directory.py", "VALUE = 'directory'\n")
    at.variables["PYTHONPATH"] = f"{wheel}:{two}:{at.root / 'libs' / 'zz'}"
    at.write(at.site / "uses.py", "import zipone, ziptwo, directory\nVALUE = zipone.VALUE, ziptwo.VALUE, directory.VALUE\n")
