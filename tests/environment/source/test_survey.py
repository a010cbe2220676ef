"""A survey counts what a directory has, and leaves out environments, caches and version control."""

from __future__ import annotations

from pathlib import Path

from repro_env.environment.source.survey import survey
from tests.environment.source.test_selection import put


def test_a_survey_counts_code_and_data_outside_of_environments_and_caches(tmp_path: Path) -> None:
    put(
        tmp_path,
        "tables/a.csv",
        "deep/pkg/module.py",
        ".venv/pyvenv.cfg",
        ".venv/lib/b.so",
        "node_modules/c.js",
        ".git/d",
        text="xy",
    )
    put(tmp_path, "pkg/__pycache__/e.pyc", text="xy")
    complete = survey(str(tmp_path), measure=True)
    assert (complete.files, complete.data, complete.size) == (2, 4, 12)
    assert (complete.has_code, complete.has_library, complete.has_extension, complete.is_incomplete) == (False,) * 4
    assert survey(str(tmp_path), measure=False).size == 4, "directories without code are not measured"


def test_a_survey_recognizes_code_and_libraries(tmp_path: Path) -> None:
    put(tmp_path, "pkg/__init__.py", "lib/libx.so.1")
    plain = survey(str(tmp_path), measure=False)
    assert (plain.has_code, plain.has_library, plain.has_extension) == (True, True, False)
    put(tmp_path, "lib/x.abi3.so")
    assert survey(str(tmp_path), measure=False).has_extension
    assert survey(str(tmp_path / "missing"), measure=True).is_incomplete
