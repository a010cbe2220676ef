"""The record of a test: its path, and what is written and compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from repro_env.pytestplugin import record
from repro_env.pytestplugin.record import SameNumbers, path_of


def write(path: Path, *values: object) -> None:
    new = SameNumbers(path, hint="", is_recording=True)
    for value in values:
        new(value)
    new.finish()


def compare(path: Path, *values: object) -> list[str]:
    """Return the messages of the calls and of the end; empty where nothing differs."""
    again = SameNumbers(path, hint="the hint", is_recording=False)
    calls: list[Callable[[], None]] = [partial(again, value) for value in values]
    return [_message(call) for call in (*calls, again.finish)]


def _message(call: Callable[[], None]) -> str:
    try:
        call()
    except AssertionError as error:
        return str(error)
    return ""


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
    assert compare(tmp_path / "x.json")[-1].endswith("\nthe hint")


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
    assert problem.splitlines()[1:3] == ["2 more differences", "spec was sha256:aa, now sha256:bb"]


@pytest.mark.parametrize("text", ["", "<<<<<<< HEAD\n", "[]", "{}", '{"schema": "repro-env/same-numbers/1"}'])
def test_a_damaged_record_is_a_failure(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    assert compare(tmp_path / "x.json", 1.0)[0].startswith("the record cannot be read")


def test_a_record_of_another_format_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"schema": "repro-env/same-numbers/9"}')
    assert "unknown format 'repro-env/same-numbers/9'" in compare(tmp_path / "x.json", 1.0)[0]
