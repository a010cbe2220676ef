"""What pytest loads: the option `--same-numbers` and the fixture `same_numbers`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import pytest

from repro_env.pytestplugin.record import Record, path_of

_PASSED = pytest.StashKey[bool]()
LEVELS = ("bitwise", "numeric")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("repro-env").addoption(
        "--same-numbers",
        choices=("compare", "record"),
        default="compare",
        help="Compare the values of the fixture same_numbers with their records, or write the records (default: compare).",
    )


def pytest_configure(config: pytest.Config) -> None:
    variable = next((name for name in ("CI", "BUILD_NUMBER") if os.environ.get(name)), None)
    if variable and _is_recording(config):
        raise pytest.UsageError(
            f"--same-numbers=record is refused in CI (the variable {variable} is set): record on your machine, and commit the files"
        )


def pytest_report_header(config: pytest.Config) -> list[str]:
    return ["same numbers: writing records, comparing nothing"] if _is_recording(config) else []


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "call":
        item.stash[_PASSED] = call.excinfo is None


def _is_recording(config: pytest.Config) -> bool:
    return bool(config.getoption("same_numbers") == "record")


@pytest.fixture
def same_numbers(request: pytest.FixtureRequest) -> Iterator[SameNumbers]:
    """Compare values with the record of this test: `same_numbers(value, level="bitwise")`.

    `level="numeric"` needs a tolerance: `relative=1e-6`, `absolute=1e-9`, or both.
    """
    fixture = SameNumbers(request)
    yield fixture
    if request.node.stash.get(_PASSED, False):
        fixture.finish()


class SameNumbers:
    """The calls of a test. `pytest --same-numbers=record` writes their values when the test has passed."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        node = request.node
        self._is_recording = _is_recording(request.config)
        self._record = Record(path_of(node.path, node.nodeid.partition("::")[2]))
        self._command = f"pytest --same-numbers=record {shlex.quote(node.nodeid)}"

    def __call__(self, value: object, *, level: str = "bitwise", relative: float = -1, absolute: float = -1) -> None:
        """Fail the test if a number in the value differs from the recorded one.

        The value consists of floats, integers, text, lists, dicts, NumPy arrays and torch tensors. Level `bitwise`: all bits
        are equal. Level `numeric`: for each float and each array of floats, the relative difference (of L2 norms) is at most
        `relative`, or no difference is larger than `absolute`; other values are equal.
        """
        __tracebackhide__ = True
        if level not in LEVELS:
            raise ValueError(f"invalid level {level!r} (choose from {', '.join(LEVELS)})")
        if (level == "numeric") != (max(relative, absolute) >= 0):
            raise ValueError('level="numeric" needs a tolerance: relative=1e-6, for example; level="bitwise" has none')
        problem = self._record.add(value, relative, absolute, compare=not self._is_recording)
        if problem:
            pytest.fail(f"{problem}\nIf the numbers of now are right, record them: {self._command}")

    def finish(self) -> None:
        """Write the record, or fail if the record has more values than the test compared."""
        problem = self._record.finish(write=self._is_recording)
        if problem:
            pytest.fail(f"{problem}\nIf the numbers of now are right, record them: {self._command}", pytrace=False)
