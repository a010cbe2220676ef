from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from repro_env.runs.records import checkpointmanifest
from repro_env.schema.errors import RecordError, SpecError, SpecVersionError
from tests.runs.records.manifests import HEX, MANIFEST, write_manifest


def test_a_manifest_is_read(tmp_path: Path) -> None:
    file = checkpointmanifest.read(write_manifest(tmp_path))
    assert file is not None
    content = file.manifest
    assert (content.run, content.step, content.epoch) == (MANIFEST["run"], 700, 3)
    assert content.files["model.safetensors"].sha256 == HEX
    assert content.parent is not None
    assert content.parent.step == 600
    assert content.code.digest == f"sha256:{HEX}"
    assert content.seeds.master == 0


def test_a_manifest_is_found_for_the_files_in_it(tmp_path: Path) -> None:
    write_manifest(tmp_path)
    assert checkpointmanifest.find_for(tmp_path / "model.safetensors") is not None
    assert checkpointmanifest.find_for(tmp_path / "other.pt") is None
    assert checkpointmanifest.find_for(tmp_path / "none" / "model.safetensors") is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"name": "a web app"}', "\0" * 100, '{"schema": "other/1"}'])
def test_a_manifest_of_another_program_is_ignored(tmp_path: Path, text: str) -> None:
    assert checkpointmanifest.read(write_manifest(tmp_path, text)) is None


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(MANIFEST)[:-20],
        json.dumps({**MANIFEST, "files": {"a": HEX}}),
        json.dumps({**MANIFEST, "step": "700"}),
        '{"schema": "repro-env/checkpoint/x"}',
        '{"a":' * 5000 + '"repro-env/checkpoint/1"' + "}" * 5000,
    ],
)
def test_a_damaged_manifest_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(SpecError):
        checkpointmanifest.read(write_manifest(tmp_path, text))


def test_a_manifest_of_a_newer_version_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecVersionError):
        checkpointmanifest.read(write_manifest(tmp_path, {**MANIFEST, "schema": "repro-env/checkpoint/2"}))


def test_pipes_and_directories_are_ignored_but_unreadable_files_are_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    assert checkpointmanifest.read(tmp_path / "manifest.json") is None
    (tmp_path / "a" / "manifest.json").mkdir(parents=True)
    assert checkpointmanifest.read(tmp_path / "a" / "manifest.json") is None
    (tmp_path / "b").symlink_to("b")
    with pytest.raises(RecordError, match="cannot be read"):
        checkpointmanifest.read(tmp_path / "b")


def test_a_search_finds_manifests_and_does_not_follow_symlinks(tmp_path: Path) -> None:
    paths = [write_manifest(tmp_path / name) for name in ("b/2", "a", "b/1")]
    (tmp_path / "c").symlink_to("a")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "manifest.json").symlink_to("../a/manifest.json")
    found, complete = checkpointmanifest.search(tmp_path)
    assert found == (paths[1], paths[2], paths[0])
    assert complete
    assert checkpointmanifest.search(tmp_path / "none") == ((), True)


def test_a_search_that_reaches_a_limit_is_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path.joinpath(*"abcdefghij")
    write_manifest(deep)
    assert checkpointmanifest.search(tmp_path) == ((), False)
    monkeypatch.setattr(checkpointmanifest, "_DIRECTORIES", 2)
    for name in "xyz":
        (tmp_path / "many" / name).mkdir(parents=True)
    assert checkpointmanifest.search(tmp_path / "many") == ((), False)
