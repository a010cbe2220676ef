"""Every test has a store of its own: none reads or fills the user's."""

from __future__ import annotations

import ast
import functools
import importlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repro_env.cli.ui import messages
from tests import markers

SHARED = {
    "torch": "torch",
    "digits": "torch",
    "blobs": "hostile",
    "stores": "sandbox",
    "captured": "system",
    "hashes": "system",
    "real": "registry",
}
"""Fixtures that take long to make, once in each worker: one worker runs all files that use one, as a group of this name."""
LONG = ("fidelity/", "e2e/", "hostile/", "isolation/", "sandbox/", "secrets/", "checkpoint/", "guest/", "environment/system/")
"""Where tests start many processes: after the groups, and before all others, so that no worker is left alone with them at the end."""
TESTS = Path(__file__).parent


@functools.cache
def arguments(path: Path) -> dict[str, set[str]]:
    """The fixtures and tests of a module -> the names of the fixtures that they ask for."""
    return {
        node.name: {argument.arg for argument in node.args.args}
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and (node.name.startswith("test_") or any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list))
    }


@functools.cache
def group(path: Path) -> str:
    """The group of a file, or its path below `tests` where it shares nothing."""
    conftests = [directory / "conftest.py" for directory in reversed(path.parents) if directory.is_relative_to(TESTS)]
    shared: dict[str, set[str]] = {}
    for conftest in filter(Path.is_file, conftests):
        shared |= arguments(conftest)
    alone = path.as_posix().removeprefix(f"{TESTS.as_posix()}/")
    if not shared.keys() & SHARED.keys():
        return alone
    known = shared | arguments(path)
    names = set().union(*arguments(path).values())
    while more := set().union(*(known.get(name, set()) for name in names)) - names:
        names |= more
    return next((SHARED[name] for name in SHARED if name in names & shared.keys()), alone)


def pytest_configure() -> None:
    """Handle Ctrl-C: a shell starts background jobs with SIGINT ignored, which the commands of the tests would inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any(marker in config.option.markexpr for marker in markers.WORDS):
        for item in items:
            markers.set_markers(item)

    def rank(item: pytest.Item) -> int:
        name = group(item.path)
        if name in SHARED.values():
            return list(SHARED.values()).index(name)
        return len(SHARED) + next((number for number, start in enumerate(LONG) if name.startswith(start)), len(LONG))

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`, with each group as one file."""
    if config.getvalue("dist") != "loadfile":
        return None
    base: Any = importlib.import_module("xdist.scheduler").LoadFileScheduling

    class Together(base):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group(config.rootpath / super()._split_scope(nodeid))

        def _reschedule(self, node: Any) -> None:
            """Without the files that a worker had done before it crashed: handed out again (xdist 3.8), nobody asks for more."""
            for name in [name for name, tests in self.workqueue.items() if all(tests.values())]:
                del self.workqueue[name]
            super()._reschedule(node)

    return Together(config, log)


@pytest.fixture(autouse=True)
def variables_stay() -> Iterator[None]:
    """What a test leaves in the environment would decide about the next one: undone after all else is."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(autouse=True)
def normal_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that a test runs in this process must not decide how much the next one prints."""
    monkeypatch.setattr(messages.Screen, "level", "normal")


@pytest.fixture(autouse=True)
def own_store(
    variables_stay: None,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Path:
    """$REPRO_ENV_STORE, a directory that is not there yet."""
    store = tmp_path_factory.getbasetemp() / "stores" / str(abs(hash(request.node.nodeid)))
    monkeypatch.setenv("REPRO_ENV_STORE", str(store))
    return store


@pytest.fixture(scope="session")
def conda_channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A conda channel of packages built here (`tests.fakes.conda.standard`), in a directory."""
    from tests.fakes import conda

    return conda.channel(tmp_path_factory.mktemp("channel"))
