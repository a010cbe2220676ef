"""The directory of a spec's code follows from the location of the spec."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.runs.start import sourcedirectory
from repro_env.schema.errors import SourceError, UsageError
from repro_env.schema.spec import Spec
from repro_env.store.store import Store
from tests.fakes import specs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    return specs.make(tmp_path_factory.mktemp("spec") / "repro", {})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def with_relative_path(spec: Spec, relative: str) -> Spec:
    assert spec.observed.source is not None
    source = msgspec.structs.replace(spec.observed.source, relative=relative)
    return msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, source=source))


def code(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "train.py").touch()
    return directory


@pytest.mark.parametrize(
    ("relative", "spec_directory", "expected", "is_contained"),
    [
        ("..", "clone/repro", "clone", True),
        ("../src", "clone/repro", "clone/src", True),
        ("../..", "clone/experiments/repro", "clone", False),
        ("../../clone", "specs/repro", "clone", False),
        ("..", f"clone/runs/specs/sha256-{'0' * 64}", "clone", True),
    ],
)
def test_the_code_is_at_its_relative_path_from_the_spec(
    made: Spec, store: Store, tmp_path: Path, relative: str, spec_directory: str, expected: str, is_contained: bool
) -> None:
    """The code may be outside the spec's project only in the git working tree, or if this store captured the spec."""
    spec, directory = with_relative_path(made, relative), code(tmp_path / expected)
    (tmp_path / spec_directory).mkdir(parents=True)
    if not is_contained:
        with pytest.raises(SourceError, match="which is outside its project"):
            sourcedirectory.choose(spec, tmp_path / spec_directory, store=store)
        if spec_directory.startswith("clone"):
            (directory / ".git").mkdir()
        else:
            sourcedirectory.remember(spec, store)
    chosen = sourcedirectory.choose(spec, tmp_path / spec_directory, store=store)
    assert (chosen.path, chosen.root) == (directory, directory)
    assert chosen.inside(directory / "sub", "/captured") == Path("/captured/sub")
    assert chosen.inside(tmp_path, "/captured") == tmp_path
    frozen = sourcedirectory.choose(spec, tmp_path / spec_directory, store=store, frozen=True)
    assert (frozen.path, frozen.root) == (None, directory)


def test_the_captured_files_are_used_if_the_directory_has_none_of_them(made: Spec, store: Store, tmp_path: Path) -> None:
    (tmp_path / "downloads" / "repro").mkdir(parents=True)
    (tmp_path / "downloads" / "README.md").touch()
    chosen = sourcedirectory.choose(made, tmp_path / "downloads" / "repro", store=store)
    assert (chosen.path, chosen.root) == (None, Path("/home/ann/project"))
    assert "has none of the captured files" in chosen.why
    archive = code(store.root / "specs" / ("0" * 64) / "src").parent
    assert "has no source directory" in sourcedirectory.choose(made, archive, store=store).why


def test_an_option_names_the_code(made: Spec, store: Store, tmp_path: Path) -> None:
    code(tmp_path / "clone" / "repro")
    other = code(tmp_path / "other")
    assert sourcedirectory.choose(made, tmp_path / "clone" / "repro", store=store, given=other).path == other
    with pytest.raises(UsageError, match="mutually exclusive"):
        sourcedirectory.choose(made, tmp_path / "clone" / "repro", store=store, given=other, frozen=True)
    with pytest.raises(UsageError, match="not a directory"):
        sourcedirectory.choose(made, tmp_path / "clone" / "repro", store=store, given=other / "train.py")
