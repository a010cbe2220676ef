"""The record of a test: its path, and what is written and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro_env.pytestplugin import record
from repro_env.pytestplugin.record import Record, path_of


def write(path: Path, *values: object) -> None:
    new = Record(path)
    for value in values:
        assert new.add(value, -1, -1, compare=False) == ""
    assert new.finish(write=True) == ""


def compare(path: Path, *values: object) -> list[str]:
    again = Record(path)
    return [*(again.add(value, -1, -1, compare=True) for value in values), again.finish(write=False)]


def test_the_path_has_the_names_of_the_module_and_the_test() -> None:
    module = Path("/p/tests/test_loss.py")
    assert path_of(module, "test_a") == Path("/p/tests/same_numbers/test_loss/test_a.json")
    assert path_of(module, "TestX::test_a[adam-0.1]").name == "TestX.test_a[adam-0.1].json"


def test_tests_whose_names_are_no_file_names_have_different_paths() -> None:
    names = ["test[a/b]", "test[a_b]", "test[a b]", "test[..]", f"test[{'x' * 300}]", f"test[{'x' * 301}]", "test[\ud800]"]
    paths = {path_of(Path("/p/t.py"), name) for name in names}
    assert len(paths) == len(names)
    assert all(path.parent == Path("/p/same_numbers/t") and len(path.name) < 200 for path in paths)


def test_values_are_compared_in_the_order_of_the_calls(tmp_path: Path) -> None:
    write(tmp_path / "x.json", 1.0, [2.0])
    assert compare(tmp_path / "x.json", 1.0, [2.0]) == ["", "", ""]
    assert compare(tmp_path / "x.json", 1.0, [3.0])[1].startswith("value[0] differs: recorded 2.0, now 3.0")
    assert "and 1 more are in the record" in compare(tmp_path / "x.json", 1.0)[-1]
    assert "the record has 2 values, and this is value 3" in compare(tmp_path / "x.json", 1.0, [2.0], 3)[2]
    assert "compared no value" in compare(tmp_path / "x.json")[-1]


def test_an_unchanged_record_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write(path, 1.0)
    before = path.read_bytes()
    monkeypatch.setattr(record, "facts", lambda: {"python": "9.9"})
    write(path, 1.0)
    assert path.read_bytes() == before
    write(path, 2.0)
    assert json.loads(path.read_text())["recorded_with"] == {"python": "9.9"}
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_a_difference_names_the_versions_that_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_ENV_SPEC", "sha256:aa")
    write(tmp_path / "x.json", 1.0, 2.0)
    monkeypatch.setenv("REPRO_ENV_SPEC", "sha256:bb")
    problem = compare(tmp_path / "x.json", [1.0, 1])[0]
    assert problem.splitlines()[-1] == "spec was sha256:aa, now sha256:bb"
    assert "2 more differences from " in problem


@pytest.mark.parametrize("text", ["", "<<<<<<< HEAD\n", "[]", "{}", '{"schema": "repro-env/same-numbers/1"}'])
def test_a_damaged_record_is_a_failure(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    assert compare(tmp_path / "x.json", 1.0)[0].startswith("the record cannot be read")


def test_a_record_of_another_format_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"schema": "repro-env/same-numbers/9"}')
    assert "unknown format 'repro-env/same-numbers/9'" in compare(tmp_path / "x.json", 1.0)[0]


def test_a_very_large_record_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_LARGEST", 1000)
    large = Record(tmp_path / "x.json")
    large.add(list(range(1000)), -1, -1, compare=False)
    assert "at most 1,000" in large.finish(write=True)
    assert list(tmp_path.iterdir()) == []
