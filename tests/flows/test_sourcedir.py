"""Where the code of a spec is, by the place of both."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.flows import sourcedir
from repro_env.model.errors import SourceError, UsageError
from repro_env.model.spec import Spec
from repro_env.store.store import Store
from tests.fakes import specs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    return specs.make(tmp_path_factory.mktemp("spec") / "repro", {})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def placed(spec: Spec, relative: str) -> Spec:
    assert spec.observed.source is not None
    source = msgspec.structs.replace(spec.observed.source, relative=relative)
    return msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, source=source))


def code(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "train.py").touch()
    return directory


@pytest.mark.parametrize(
    ("relative", "folder", "expected", "is_contained"),
    [
        ("..", "clone/repro", "clone", True),
        ("../src", "clone/repro", "clone/src", True),
        ("../..", "clone/experiments/repro", "clone", False),
        ("../../clone", "specs/repro", "clone", False),
        ("..", f"clone/runs/specs/sha256-{'0' * 64}", "clone", True),
    ],
)
def test_the_code_is_at_its_place_from_the_spec(
    made: Spec, store: Store, tmp_path: Path, relative: str, folder: str, expected: str, is_contained: bool
) -> None:
    """Outside the directory that holds the spec's only in its git working tree, or where this store captured the spec."""
    spec, wanted = placed(made, relative), code(tmp_path / expected)
    (tmp_path / folder).mkdir(parents=True)
    if not is_contained:
        with pytest.raises(SourceError, match="outside the directory"):
            sourcedir.choose(spec, tmp_path / folder, store=store)
        if folder.startswith("clone"):
            (wanted / ".git").mkdir()
        else:
            sourcedir.remember(spec, store)
    chosen = sourcedir.choose(spec, tmp_path / folder, store=store)
    assert (chosen.path, chosen.root) == (wanted, wanted)
    assert chosen.inside(wanted / "sub", "/captured") == Path("/captured/sub")
    assert chosen.inside(tmp_path, "/captured") == tmp_path
    frozen = sourcedir.choose(spec, tmp_path / folder, store=store, frozen=True)
    assert (frozen.path, frozen.root) == (None, wanted)


def test_without_code_beside_the_spec_the_captured_files_are_used(made: Spec, store: Store, tmp_path: Path) -> None:
    (tmp_path / "downloads" / "repro").mkdir(parents=True)
    (tmp_path / "downloads" / "README.md").touch()
    chosen = sourcedir.choose(made, tmp_path / "downloads" / "repro", store=store)
    assert (chosen.path, chosen.root) == (None, Path("/home/ann/project"))
    assert "holds none of the captured files" in chosen.why
    bundle = code(store.root / "specs" / ("0" * 64) / "src").parent
    assert "no directory beside it" in sourcedir.choose(made, bundle, store=store).why


def test_an_option_decides(made: Spec, store: Store, tmp_path: Path) -> None:
    code(tmp_path / "clone" / "repro")
    other = code(tmp_path / "other")
    assert sourcedir.choose(made, tmp_path / "clone" / "repro", store=store, given=other).path == other
    with pytest.raises(UsageError, match="mutually exclusive"):
        sourcedir.choose(made, tmp_path / "clone" / "repro", store=store, given=other, frozen=True)
    with pytest.raises(UsageError, match="not a directory"):
        sourcedir.choose(made, tmp_path / "clone" / "repro", store=store, given=other / "train.py")
