"""The files of a spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.delivery.documents import files, templates
from repro_env.schema import codec
from repro_env.schema.spec import Spec
from repro_env.store.store import Store
from tests.fakes import specs, wheels

NAMES = {"Dockerfile", "image-files.txt.gz", "install.py", "requirements.txt", "pylock.toml", "sbom.cdx.json", "spec.json"}


class Project:
    """A directory for the files of a spec, its store and the wheel."""

    def __init__(self, path: Path) -> None:
        self.output = path / "repro"
        self.spec: Spec = specs.make(self.output, {"demo": wheels.make(path / "wheels", "demo")})
        (self.output / "spec.json").unlink()
        self._store, self._form_of = Store.open(path / "store"), wheels.forms_in(path / "wheels", self.spec)

    def write(self) -> dict[str, tuple[int, bytes]]:
        """Write the files. Returns the inode and the content of each."""
        assert files.write(self.output, self.spec, self._store, self._form_of) == ""
        return {path.name: (path.stat().st_ino, path.read_bytes()) for path in self.output.iterdir() if path.is_file()}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_the_seed_changes_only_the_spec_file(tmp_path: Path) -> None:
    """The seed is a default of runs: neither the image nor the Dockerfile depends on it."""
    store, captures = Store.open(tmp_path / "store"), []
    for seed in (0, 7):
        directory = tmp_path / f"seed-{seed}"
        spec = specs.make(directory, {"demo": wheels.make(tmp_path / "wheels", "demo")}, carry=["demo"], seed=seed)
        assert files.write(directory, spec, store, wheels.forms_in(tmp_path / "wheels", spec)) == ""
        paths = [path for path in directory.rglob("*") if path.is_file()]
        captures.append((spec, {str(path.relative_to(directory)): path.read_bytes() for path in paths}))
    (first, before), (second, after) = captures

    assert (first.digest, first.expected) == (second.digest, second.expected)
    assert before.keys() == after.keys() >= {"Dockerfile", "install.py", "image-files.txt.gz", "sbom.cdx.json"}
    assert [path for path in before if before[path] != after[path]] == ["spec.json"]


def test_unchanged_files_are_neither_made_nor_written_again(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    before = project.write()
    assert before.keys() == NAMES
    assert before["spec.json"][1] == codec.pretty(project.spec)
    monkeypatch.setattr(templates, "render", None)
    assert project.write() == before


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("change", ["edited", "removed"])
def test_edited_or_removed_files_are_written_again(project: Project, name: str, change: str) -> None:
    before = {name: data for name, (_, data) in project.write().items()}
    if change == "removed":
        (project.output / name).unlink()
    else:
        (project.output / name).write_bytes(before[name] + b"\n")

    assert {name: data for name, (_, data) in project.write().items()} == before


def test_the_explicit_list_of_conda_is_removed_if_there_are_no_packages(project: Project) -> None:
    for _ in range(2):
        (project.output / "conda-explicit.txt").write_text("@EXPLICIT\n")

        assert project.write().keys() == NAMES
