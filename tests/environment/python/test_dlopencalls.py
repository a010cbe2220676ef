"""Find the libraries that code opens, by constant names and by names known only at run time."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from repro_env.environment.python import dlopencalls
from repro_env.io.files import walk


def read(code: str) -> list[tuple[int, bool, tuple[str, ...], bool]]:
    calls = dlopencalls.of_text(textwrap.dedent(code).encode(), "/env", "pkg/mod.py")
    return [(call.line, call.search, call.names, call.is_computed) for call in calls]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ('ctypes.CDLL("libgmp.so.10")', ["libgmp.so.10"]),
        ('cdll["libgmp.so.10"]', ["libgmp.so.10"]),
        ('ctypes.cdll.LoadLibrary("/opt/x/libx.so")', ["/opt/x/libx.so"]),
        ('ffi.dlopen("libz.so.1")', ["libz.so.1"]),
        ('tf.load_op_library(library_filename="/opt/op.so")', ["/opt/op.so"]),
        ('torch.ops.load_library("/opt/op.so")', ["/opt/op.so"]),
        ('np.ctypeslib.load_library("libx.so", "/opt")', ["/opt/libx.so"]),
        ('NAME = "liba.so"\nCDLL(NAME)', ["liba.so"]),
        ('for name in ("liba.so.2", "liba.so"):\n    CDLL(name)', ["liba.so", "liba.so.2"]),
        ('HERE = os.path.dirname(os.path.abspath(__file__))\nCDLL(os.path.join(HERE, "..", "x.so"))', ["/env/x.so"]),
        ('CDLL(str(Path(__file__).resolve().parent / "x.so"))', ["/env/pkg/x.so"]),
        ('CDLL(f"{Path(__file__).parents[1]}/x.so")', ["/env/x.so"]),
        ('def load(name):\n    return CDLL(name)\nload("liba.so")', ["liba.so"]),
        ('class A:\n    def load(self, name):\n        return CDLL(name)\nA().load("liba.so")', ["liba.so"]),
    ],
)
def test_finds_a_constant_name(code: str, names: list[str]) -> None:
    calls = read(code)
    assert [name for _, _, found, _ in calls for name in found] == names
    assert not any(computed for *_, computed in calls)


@pytest.mark.parametrize(
    "code",
    [
        'CDLL(os.environ["ROOT"] + "/libx.so")',
        "CDLL(config.path)",
        "path = path + path\nCDLL(path)",
        "a = b + b\nb = a + a\nCDLL(a)",
        'CDLL("%s.so" % name)',
    ],
)
def test_reports_a_name_known_only_at_run_time_as_computed(code: str) -> None:
    ((_, _, names, computed),) = read(code)
    assert (names, computed) == ((), True)


def test_only_find_library_of_ctypes_counts() -> None:
    assert read('from ctypes.util import find_library\nfind_library("gmp")') == [(2, True, ("gmp",), False)]
    assert read('import ctypes.util\nctypes.util.find_library("gmp")') == [(2, True, ("gmp",), False)]
    assert read('compiler.find_library("gmp")') == []


@pytest.mark.parametrize("code", ["CDLL(", "ctypes.CDLL(None)", "x = (" * 300 + "CDLL(1)", "CDLL()", "CDLL(*names)", "\0CDLL("])
def test_code_that_opens_nothing_or_cannot_be_parsed_has_no_calls(code: str) -> None:
    assert read(code) == []


def test_files_that_open_nothing_are_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("import os\n")
    (tmp_path / "b.py").write_text('CDLL("libb.so")\n')
    (tmp_path / "c.txt").write_text('CDLL("libc.so")\n')
    parsed: list[str] = []
    real = dlopencalls.of_text

    def of_text(text: bytes, root: str, path: str) -> list[dlopencalls.Call]:
        parsed.append(path)
        return real(text, root, path)

    monkeypatch.setattr(dlopencalls, "of_text", of_text)
    (call,) = dlopencalls.calls(tmp_path, list(walk(tmp_path)))
    assert (call.path, call.names, parsed) == ("b.py", ("libb.so",), ["b.py"])
