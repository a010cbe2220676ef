"""What pytest loads: the option `--same-numbers` and the fixture `same_numbers`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import pytest

from repro_env.pytestplugin.record import SameNumbers, path_of

_PASSED = pytest.StashKey[bool]()


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
        why = f"--same-numbers=record is refused in CI (the variable {variable} is set)"
        raise pytest.UsageError(f"{why}: record on your machine, and commit the files")


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
    node = request.node
    path = path_of(node.path, node.nodeid.partition("::")[2])
    hint = f"If the new numbers are right, record them: pytest --same-numbers=record {shlex.quote(node.nodeid)}"
    fixture = SameNumbers(path, hint=hint, is_recording=_is_recording(request.config))
    yield fixture
    if node.stash.get(_PASSED, False):
        try:
            fixture.finish()
        except AssertionError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
