"""Every test has a store of its own: none reads or fills the user's."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repro_env.cli.ui import messages
from tests import markers

TOGETHER = {
    "torch": ("e2e/test_training.py", "e2e/test_same_numbers.py", "e2e/test_verify.py"),
    "captured": (
        "e2e/test_inside.py",
        "e2e/test_output.py",
        "e2e/test_capture.py",
        "e2e/test_dockerfile.py",
        "e2e/test_bad_input.py",
        "e2e/test_kills.py",
        "e2e/test_rebuild.py",
        "e2e/test_push.py",
        "e2e/test_pack.py",
        "e2e/test_store.py",
        "e2e/test_exec_docker.py",
    ),
    "system": ("environment/system/",),
    "sandbox": ("sandbox/", "runs/execution/test_bytecode.py"),
    "hostile": ("hostile/test_environments.py", "hostile/test_git.py"),
}
"""Files that one worker runs, by a name: what they share, as `small`, `torch` and `cut`, would else be made by each."""
LONG = (
    *TOGETHER["torch"],
    *TOGETHER["captured"],
    "fidelity/test_cases.py",
    "hostile/test_environments.py",
    "e2e/",
    "hostile/",
    "sandbox/",
    "secrets/",
    "checkpoint/",
    "guest/",
    "environment/system/",
)
"""Files that take longest, first: with several workers, none is left alone with them at the end."""


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
        path = item.path.as_posix()
        return next((number for number, name in enumerate(LONG) if f"/tests/{name}" in path), len(LONG))

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`, with each of `TOGETHER` as one file."""
    if config.getvalue("dist") != "loadfile":
        return None
    base: Any = importlib.import_module("xdist.scheduler").LoadFileScheduling

    class Together(base):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return next((name for name, files in TOGETHER.items() if file.removeprefix("tests/").startswith(files)), file)

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
