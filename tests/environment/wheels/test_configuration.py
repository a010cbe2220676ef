from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from repro_env.environment.wheels import configuration
from repro_env.io.indexhttp import Configuration, Session
from repro_env.schema.sources import PackageSources
from repro_env.store.store import Store


class Counting(Session):
    """Counts how often pip is asked."""

    asked = 0

    @property
    def configuration(self) -> Configuration:
        type(self).asked += 1
        return super().configuration


class Place:
    """A prefix and a home directory with configuration files of pip."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch, monotonic: Callable[[], int]) -> None:
        self.prefix, self.home, self.wheels = directory / "venv", directory / "home", directory / "wheels"
        for path in (self.prefix, self.home / ".config/pip", self.wheels):
            path.mkdir(parents=True)
        for name in os.environ:
            if name.startswith(("PIP_", "XDG_")):
                patch.delenv(name)
        patch.setenv("HOME", str(self.home))
        patch.setattr(time, "time_ns", monotonic)
        self.patch = patch
        self.store = Store.open(directory / "store")
        self.file = self.home / ".config/pip/pip.conf"
        self.write(self.file, "https://one.example.org/simple")

    @staticmethod
    def write(path: Path, index: str) -> None:
        path.write_text(f"[global]\nindex-url = {index}\n")

    def shown(self, sources: PackageSources | None = None) -> tuple[tuple[str, ...], int]:
        """What is returned, and how often pip was asked for it. It is always what pip says."""
        Counting.asked = 0
        with Counting(prefix=str(self.prefix), sources=sources or PackageSources()) as session:
            shown = configuration.shown(session, str(self.prefix), self.store.facts)
            asked = Counting.asked
            assert shown == session.configuration.shown
        return shown, asked


@pytest.fixture
def later() -> Callable[[], int]:
    """A clock that runs ahead, so that files count as settled."""
    return lambda: int((time.time() + 100) * 1e9)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: Callable[[], int]) -> Place:
    return Place(tmp_path, monkeypatch, later)


def test_pip_is_asked_once(place: Place) -> None:
    assert place.shown() == (("https://one.example.org/simple",), 1)
    assert place.shown() == (("https://one.example.org/simple",), 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda place: place.write(place.prefix / "pip.conf", "https://two.example.org/simple"),
        lambda place: place.write(place.file, "https://two.example.org/simple"),
        lambda place: place.file.unlink(),
        lambda place: place.patch.setenv("PIP_INDEX_URL", "https://two.example.org/simple"),
        lambda place: place.patch.setenv("PIP_NO_INDEX", "1"),
        lambda place: place.patch.setenv("PIP_FIND_LINKS", str(place.wheels)),
        lambda place: place.patch.setenv("PIP_CONFIG_FILE", os.devnull),
    ],
    ids=["pip.conf of the prefix", "file", "no file", "variable", "no index", "find-links", "no user file"],
)
def test_what_changes_the_configuration_is_noticed(place: Place, change: Callable[[Place], object]) -> None:
    before, _ = place.shown()
    change(place)
    after, asked = place.shown()
    assert asked == 1
    assert after != before


def test_a_directory_of_wheels_that_is_removed_is_noticed(place: Place) -> None:
    place.patch.setenv("PIP_INDEX_URL", str(place.wheels))
    assert place.shown()[0] == (place.wheels.as_uri(),)
    assert place.shown()[1] == 0
    place.wheels.rmdir()
    assert place.shown() == ((str(place.wheels),), 1)


def test_the_working_directory_counts_only_for_relative_paths(place: Place) -> None:
    place.patch.chdir(place.home)
    place.shown()
    place.patch.chdir(place.wheels)
    assert place.shown()[1] == 0
    for directory, asked in ((place.home, 1), (place.wheels, 1), (place.wheels, 0)):
        (directory / "own").mkdir(exist_ok=True)
        place.patch.setenv("PIP_INDEX_URL", "own")
        place.patch.chdir(directory)
        assert place.shown() == (((directory / "own").as_uri(),), asked)


def test_additional_sources_are_noticed(place: Place) -> None:
    place.shown()
    assert place.shown(PackageSources(indexes=("https://three.example.org/simple",)))[1] == 1


@pytest.mark.parametrize("is_in_file", [True, False])
def test_a_configuration_with_a_secret_is_not_kept(place: Place, is_in_file: bool) -> None:
    url = "https://ann:hunter2secret@two.example.org/simple"
    if is_in_file:
        place.write(place.prefix / "pip.conf", url)
    else:
        place.patch.setenv("PIP_INDEX_URL", url)
    assert "hunter2secret" not in str(place.shown())
    assert place.shown()[1] == 1
    assert not (place.store.root / "facts" / "pip-configuration").exists()


def test_a_file_that_was_just_written_is_not_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: int(time.time() * 1e9))
    assert [place.shown()[1] for _ in range(2)] == [1, 1]
