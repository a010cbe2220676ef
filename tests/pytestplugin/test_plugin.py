"""The plug-in in a pytest of its own, as the tests of a project use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import os, pytest
VALUE = float(os.environ.get("VALUE", "0.5"))

def test_loss(same_numbers):
    same_numbers({"losses": [1.0, VALUE]})

class TestMore:
    @pytest.mark.parametrize("rate", [0.1, 0.2])
    def test_rate(self, same_numbers, rate):
        same_numbers(rate * VALUE, level="numeric", relative=rate)

def test_fails_itself(same_numbers):
    same_numbers(VALUE)
    assert VALUE == 0.5

def test_skips_itself(same_numbers):
    pytest.skip("not here")
"""
WRONG = """
def test_nothing(same_numbers):
    pass

def test_level(same_numbers):
    same_numbers(1.0, level="exact")

def test_tolerance_is_missing(same_numbers):
    same_numbers(1.0, level="numeric")

def test_tolerance_of_bits(same_numbers):
    same_numbers(1.0, relative=0.1)

def test_type(same_numbers):
    same_numbers(object())
"""


def run(directory: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Run pytest without other plug-ins. Return its exit code and its output."""
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER") and "PYTEST" not in name}
    others = [f"-pno:{name}" for name in ("xdist", "hypothesispytest", "pytest_cov", "timeout", "cacheprovider", "anyio")]
    command = [sys.executable, "-m", "pytest", "-q", *others, *arguments]
    done = subprocess.run(command, cwd=directory, env=env | variables, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "test_it.py").write_text(SUITE)
    return tmp_path


def test_a_value_is_compared_with_its_record(suite: Path) -> None:
    code, text = run(suite)
    assert (code, "this test has no record" in text) == (1, True)
    assert "If the new numbers are right, record them: pytest --same-numbers=record test_it.py::test_loss" in text
    assert not (suite / "same_numbers").exists()

    code, text = run(suite, "--same-numbers=record", "-v")
    assert (code, "same numbers: writing records, comparing nothing" in text) == (0, True), text
    records = sorted(path.name for path in (suite / "same_numbers" / "test_it").iterdir())
    assert records == ["TestMore.test_rate[0.1].json", "TestMore.test_rate[0.2].json", "test_fails_itself.json", "test_loss.json"]
    assert run(suite)[0] == 0

    code, text = run(suite, VALUE="0.5625")
    assert (code, "3 failed, 1 passed, 1 skipped" in text) == (1, True), text
    assert "value['losses'][1] differs: recorded 0.5, now 0.5625; relative 0.12" in text
    assert "value differs: recorded 0.05, now 0.05625" in text
    assert "record them: pytest --same-numbers=record 'test_it.py::TestMore::test_rate[0.1]'" in text


def test_a_test_that_fails_is_not_recorded(suite: Path) -> None:
    code, text = run(suite, "--same-numbers=record", VALUE="2")
    assert (code, "1 failed, 3 passed, 1 skipped" in text) == (1, True), text
    assert not (suite / "same_numbers" / "test_it" / "test_fails_itself.json").exists()


def test_nothing_is_recorded_in_ci(suite: Path) -> None:
    code, text = run(suite, "--same-numbers=record", CI="true")
    assert (code, "refused in CI (the variable CI is set)" in text) == (4, True), text
    assert not (suite / "same_numbers").exists()


def test_wrong_use_fails_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(WRONG)
    code, text = run(tmp_path, "--same-numbers=record")
    assert code == 1
    assert text.count("but compared no value") == 1
    assert "invalid level 'exact' (choose from bitwise, numeric)" in text
    assert text.count('E       ValueError: level="numeric" needs a tolerance') == 2
    assert "value is of type object: pass numbers" in text
    assert not (tmp_path / "same_numbers").exists()
