"""One index and one warmed machine for all cases."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.index import Index
from tests.fidelity import packages, play
from tests.parts import need


@pytest.fixture(scope="session")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("fidelity-index")
    packages.publish(directory)
    with Index(directory, yanked=False) as index:
        yield index.proxy


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory, proxy: str) -> play.Machine:
    need(shutil.which("git"), "git is missing")
    return play.warmed(tmp_path_factory.mktemp("fidelity-warm"), proxy)


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A case's directory, the same for each: removed at once, since there are many."""
    from repro_env.io.files import remove_tree

    directory = tmp_path_factory.getbasetemp() / "fidelity-case"
    remove_tree(directory)
    yield directory
    remove_tree(directory)
