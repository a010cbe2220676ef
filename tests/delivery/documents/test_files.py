"""The files of a spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.delivery.documents import dockerfile, files
from repro_env.schema import codec
from repro_env.schema.spec import Spec
from repro_env.store.store import Store
from tests.fakes import specs, wheels

NAMES = {"requirements.txt", "pylock.toml", "sbom.cdx.json", "spec.json"}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    (tmp_path / "repro").mkdir()
    return tmp_path / "repro"


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    return specs.make(tmp_path / "made", {"demo": wheels.make(tmp_path / "wheels", "demo")})


def test_the_seed_changes_only_the_spec_file(tmp_path: Path) -> None:
    """The seed is a default of runs: neither the image nor the Dockerfile depends on it."""
    store, captures = Store.open(tmp_path / "store"), []
    for seed in (0, 7):
        directory = tmp_path / f"seed-{seed}"
        spec = specs.make(directory, {"demo": wheels.make(tmp_path / "wheels", "demo")}, carry=["demo"], seed=seed)
        files.write(directory, spec)
        assert dockerfile.write(directory, spec, store, wheels.facts_in(tmp_path / "wheels")) == ""
        paths = [path for path in directory.rglob("*") if path.is_file()]
        captures.append((spec, {str(path.relative_to(directory)): path.read_bytes() for path in paths}))
    (first, before), (second, after) = captures

    assert (first.digest, first.expected) == (second.digest, second.expected)
    assert before.keys() == after.keys() >= {"Dockerfile", "install.py", "image-files.txt.gz", "sbom.cdx.json"}
    assert [path for path in before if before[path] != after[path]] == ["spec.json"]


def test_unchanged_files_are_not_written_again(spec: Spec, output: Path) -> None:
    files.write(output, spec)
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in output.iterdir()}
    assert before.keys() == NAMES
    assert before["spec.json"][1] == codec.pretty(spec)
    files.write(output, spec)
    assert {path.name: (path.stat().st_ino, path.read_bytes()) for path in output.iterdir()} == before


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("change", ["edited", "removed"])
def test_edited_or_removed_files_are_written_again(spec: Spec, output: Path, name: str, change: str) -> None:
    files.write(output, spec)
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    if change == "removed":
        (output / name).unlink()
    else:
        (output / name).write_bytes(before[name] + b"\n")

    files.write(output, spec)

    assert {path.name: path.read_bytes() for path in output.iterdir()} == before


def test_the_explicit_list_of_conda_is_removed_if_there_are_no_packages(spec: Spec, output: Path) -> None:
    (output / "conda-explicit.txt").write_text("@EXPLICIT\n")

    files.write(output, spec)

    assert {path.name for path in output.iterdir()} == NAMES
