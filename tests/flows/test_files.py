"""The files beside a spec's blobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.flows import files
from repro_env.model import codec
from repro_env.model.spec import Spec
from repro_env.store.facts import FactCache
from tests.fakes import specs, wheels

NAMES = {"requirements.txt", "pylock.toml", "sbom.cdx.json", "spec.json"}


@pytest.fixture
def facts(tmp_path: Path) -> FactCache:
    (tmp_path / "facts").mkdir()
    return FactCache(tmp_path / "facts")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    (tmp_path / "repro").mkdir()
    return tmp_path / "repro"


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    return specs.make(tmp_path / "made", {"demo": wheels.make(tmp_path / "wheels", "demo")})


def test_what_is_there_is_not_rendered_or_written_again(
    spec: Spec, output: Path, facts: FactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(output, spec, facts)
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in output.iterdir()}
    assert before.keys() == NAMES
    assert before["spec.json"][1] == codec.pretty(spec)
    monkeypatch.setattr(files, "_renderers", lambda: pytest.fail("rendered again"))

    files.write(output, spec, facts)

    assert {path.name: (path.stat().st_ino, path.read_bytes()) for path in output.iterdir()} == before


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("change", ["edited", "gone"])
def test_what_was_edited_or_removed_is_written_again(spec: Spec, output: Path, facts: FactCache, name: str, change: str) -> None:
    files.write(output, spec, facts)
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    if change == "gone":
        (output / name).unlink()
    else:
        (output / name).write_bytes(before[name] + b"\n")

    files.write(output, spec, facts)

    assert {path.name: path.read_bytes() for path in output.iterdir()} == before


def test_an_explicit_list_of_conda_goes_with_its_packages(spec: Spec, output: Path, facts: FactCache) -> None:
    (output / "conda-explicit.txt").write_text("@EXPLICIT\n")

    files.write(output, spec, facts)

    assert {path.name for path in output.iterdir()} == NAMES
