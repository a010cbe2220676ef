"""Each surprising behavior of an environment is reported in a line."""

from __future__ import annotations

import py_compile
import sys
from pathlib import Path

import pytest

from repro_env.environment.python.caveats import of_site
from repro_env.environment.python.sites import Bytecode
from repro_env.io.files import walk
from repro_env.store.facts import FactCache
from tests.fakes.wheels import layout

SITE = "lib/python3.11/site-packages"
TAG = sys.implementation.cache_tag or ""


def lines_of(prefix: Path) -> tuple[str, ...]:
    """The lines, which do not change when they are asked for again."""
    facts = FactCache(prefix.parent)
    lines = [of_site(layout(prefix), tuple(walk(prefix, skip=Bytecode(prefix))), TAG, facts) for _ in range(2)]
    assert lines[0] == lines[1]
    return lines[0]


def source(prefix: Path, name: str) -> Path:
    path = prefix / SITE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("VALUE = 1\n")
    return path


@pytest.mark.parametrize(("how", "lines"), [("UNCHECKED_HASH", 1), ("CHECKED_HASH", 0), ("TIMESTAMP", 0)])
def test_unchecked_bytecode_is_reported(tmp_path: Path, how: str, lines: int) -> None:
    for name in ("a.py", "b/c.py"):
        py_compile.compile(str(source(tmp_path, name)), invalidation_mode=py_compile.PycInvalidationMode[how])
    found = lines_of(tmp_path)
    assert len(found) == lines
    assert all(f"bytecode of {SITE}/a.py, {SITE}/b/c.py here" in line for line in found)


def test_further_files_are_only_counted(tmp_path: Path) -> None:
    for number in range(9):
        path = source(tmp_path, f"m{number}.py")
        py_compile.compile(str(path), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    (line,) = lines_of(tmp_path)
    assert "m2.py and 6 more here " in line
    assert "m3.py" not in line


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import sys; sys.path.insert(1, '/x')", 1),
        ("import sys; sys.path.insert( -1, '/x')", 1),
        ("import sys; sys.path.insert(0, '/x')", 0),
        ("import sys; sys.path.append('/x')", 0),
        ("/a/directory", 0),
    ],
)
def test_pth_lines_that_insert_at_a_position_are_reported(tmp_path: Path, text: str, lines: int) -> None:
    source(tmp_path, "hook.pth").write_text(text)
    source(tmp_path, "deeper/not-read.pth").write_text(text)
    found = lines_of(tmp_path)
    assert len(found) == lines
    assert all(line.startswith(f"{SITE}/hook.pth ") for line in found)


def test_unreadable_bytecode_is_ignored(tmp_path: Path) -> None:
    (tmp_path / SITE / "__pycache__" / f"a.{TAG}.pyc").mkdir(parents=True)
    source(tmp_path, "a.py")
    assert lines_of(tmp_path) == ()


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("_thing_editable_loader.py", "import os\nclass MesonpyMetaFinder:\n    pass\n", 1),
        ("_editable_skbc_thing.py", "install({'a': 'b'}, {}, {}, ['a'], '/p/build', True, True, [], [], '')\n", 1),
        ("_editable_skbc_thing.py", "install({'a': 'b'}, {}, {}, ['a'], None, False, True, [], [], '')\n", 0),
        ("__editable___thing_1_0_finder.py", "MAPPING = {'thing': '/p/thing'}\n", 0),
        ("thing.py", "class MesonpyMetaFinder:\n    pass\n", 0),
    ],
)
def test_an_editable_install_that_rebuilds_at_import_is_reported(tmp_path: Path, name: str, text: str, lines: int) -> None:
    source(tmp_path, name).write_text(text)
    found = lines_of(tmp_path)
    assert len(found) == lines
    assert all(f"{SITE}/{name} rebuilds the project" in line for line in found)
