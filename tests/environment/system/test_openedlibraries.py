"""Find the libraries that code opens, by constant names and by names known only at run time."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from repro_env.environment.system import openedlibraries
from repro_env.environment.system.tree import real
from repro_env.io.files import walk
from repro_env.store.store import Store
from tests.environment.system import elves


def read(code: str) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    found = openedlibraries.read(textwrap.dedent(code).encode(), "pkg/mod.py")
    return ((), (), 0) if found is None else (found.names, found.searched, found.computed)


@pytest.fixture(autouse=True, params=[True, False], ids=["hyperscan", "re"])
def _engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openedlibraries, "_FEW", 0 if request.param else 1 << 30)


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ('ctypes.CDLL("libgmp.so.10")', ["libgmp.so.10"]),
        ('cdll["libgmp.so.10"]', ["libgmp.so.10"]),
        ('ctypes.cdll.LoadLibrary("/opt/x/libx.so")', ["/opt/x/libx.so"]),
        ('ffi.dlopen("libz.so.1")', ["libz.so.1"]),
        ('tf.load_op_library(library_filename="/opt/op.so")', ["/opt/op.so"]),
        ('torch.ops.load_library("/opt/op.so")', ["/opt/op.so"]),
        ('np.ctypeslib.load_library("libx", "/opt")', ["libx"]),
        ('((ctypes.CDLL) ) \\\n ("libgmp.so.10")', ["libgmp.so.10"]),
        ('(ctypes.CDLL  # the library\n)("libgmp.so.10")', ["libgmp.so.10"]),
        ('cdll ["libgmp.so.10"]', ["libgmp.so.10"]),
    ],
)
def test_finds_a_constant_name(code: str, names: list[str]) -> None:
    assert read(code) == (tuple(names), (), 0)


@pytest.mark.parametrize(
    ("code", "names", "line"),
    [
        ('for name in ("liba.so.2", "liba.so"):\n    CDLL(name)', ("liba.so", "liba.so.2"), 2),
        ('def load(name):\n    return CDLL(name)\nload("liba.so")', ("liba.so",), 2),
        ('CDLL(str(Path(__file__).parent / "x.so"))', ("x.so",), 1),
        ('CDLL(os.environ["ROOT"] + "/libx.so")', ("/libx.so",), 1),
        ("CDLL(config.path)", (), 1),
        ('CDLL("%s.so" % name)', (), 1),
        ('CDLL(f"lib{name}.so")', (), 1),
    ],
)
def test_names_in_a_file_count_where_a_name_is_computed(code: str, names: tuple[str, ...], line: int) -> None:
    assert read(code)[::2] == (names, line)


def test_names_for_find_library_are_searched() -> None:
    assert read('from ctypes.util import find_library\nCDLL(find_library("gmp"))') == ((), ("gmp",), 2)


@pytest.mark.parametrize(
    "code", ["CDLL(", "ctypes.CDLL(None)", "x = (" * 300 + "CDLL(1)", "CDLL()", "CDLL(*names)", "\0CDLL(", 'NAME = "liba.so"']
)
def test_code_that_opens_nothing_or_cannot_be_parsed_names_nothing(code: str) -> None:
    assert read(code) == ((), (), 0)


def test_a_computed_name_is_reported_unless_the_library_is_found(tmp_path: Path) -> None:
    code = "import ctypes, os\nctypes.CDLL(os.path.join(HERE, {!r}))\n"
    elves.place(tmp_path / "env/pkg/libown.so", elves.elf())
    outside = elves.place(tmp_path / "opt/libopt.so", elves.elf())
    for name, library in (("own", "libown.so"), ("found", outside), ("gone", "libgone.so"), ("packaged", "libgone.so")):
        (tmp_path / f"env/{name}.py").write_text(code.format(library))
    store = Store.open(tmp_path / "store")
    files = tuple(walk(tmp_path / "env"))
    directories = [(tmp_path / "env", files, lambda path: path == "packaged.py")]
    program = real("/proc/self/exe")
    for _ in range(2):  # from the files, and from the cache
        opened = openedlibraries.of_environment(program, directories, {}, store)
        assert opened.libraries == (outside,)
        (line,) = opened.unknown
        assert line.startswith(f"{tmp_path}/env/gone.py:2: ")
