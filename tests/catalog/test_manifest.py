from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from repro_env.catalog import manifest
from repro_env.model.errors import RecordError, SpecError, SpecVersionError

HEX = "a" * 64
SAID: dict[str, Any] = {
    "schema": "repro-env/checkpoint/1",
    "serial": 7,
    "step": 700,
    "epoch": 3,
    "batch": None,
    "created": "2026-07-01T10:15:30Z",
    "run": "01a1fd02-1a59-73ca-8e91-4a5f0000000a",
    "parent": {"run": "", "path": "/c/000006-step-600", "sha256": HEX, "step": 600},
    "code": {"digest": f"sha256:{HEX}", "script": {"path": "train.py", "sha256": HEX}},
    "data": {"train": f"sha256:{HEX}"},
    "splits": {"train": {"count": 1, "sha256": HEX}},
    "recipe": {"lr": [1]},
    "image": None,
    "spec": None,
    "seeds": {"master": 0, "torch": 1},
    "world": {"size": 1, "backend": ""},
    "parts": {"model": "model.safetensors"},
    "files": {"model.safetensors": {"sha256": HEX, "size": 3}},
    "versions": {"python": "3.11"},
}


def written(folder: Path, said: object = SAID, name: str = "manifest.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(said if isinstance(said, str) else json.dumps(said))
    return folder / name


def safetensors(path: Path, header: object, length: int | None = None) -> Path:
    data = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    path.write_bytes((len(data) if length is None else length).to_bytes(8, "little") + data)
    return path


def test_a_manifest_is_read(tmp_path: Path) -> None:
    found = manifest.read(written(tmp_path))
    assert found is not None
    said = found.manifest
    assert (said.run, said.step, said.epoch, said.batch) == (SAID["run"], 700, 3, None)
    assert said.files["model.safetensors"].sha256 == HEX
    assert said.parent is not None
    assert said.parent.step == 600
    assert said.code.script is not None
    assert said.seeds.master == 0


def test_it_speaks_of_the_files_it_names(tmp_path: Path) -> None:
    written(tmp_path)
    assert manifest.beside(tmp_path / "model.safetensors") is not None
    assert manifest.beside(tmp_path / "other.pt") is None
    assert manifest.beside(tmp_path / "none" / "model.safetensors") is None


@pytest.mark.parametrize("said", ["", "[]", "{", '{"name": "a web app"}', "\0" * 100, '{"schema": "other/1"}'])
def test_somebody_elses_manifest_is_none(tmp_path: Path, said: str) -> None:
    assert manifest.read(written(tmp_path, said)) is None


@pytest.mark.parametrize(
    "said",
    [
        json.dumps(SAID)[:-20],
        json.dumps({**SAID, "files": {"a": HEX}}),
        json.dumps({**SAID, "step": "700"}),
        '{"schema": "repro-env/checkpoint/x"}',
        '{"a":' * 5000 + '"repro-env/checkpoint/1"' + "}" * 5000,
    ],
)
def test_a_damaged_one_is_an_error(tmp_path: Path, said: str) -> None:
    with pytest.raises(SpecError):
        manifest.read(written(tmp_path, said))


def test_a_newer_one_says_so(tmp_path: Path) -> None:
    with pytest.raises(SpecVersionError):
        manifest.read(written(tmp_path, {**SAID, "schema": "repro-env/checkpoint/2"}))


def test_pipes_folders_and_what_may_not_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    assert manifest.read(tmp_path / "manifest.json") is None
    (tmp_path / "a" / "manifest.json").mkdir(parents=True)
    assert manifest.read(tmp_path / "a" / "manifest.json") is None
    (tmp_path / "b").symlink_to("b")
    with pytest.raises(RecordError, match="cannot be read"):
        manifest.read(tmp_path / "b")


def test_manifests_below_a_folder(tmp_path: Path) -> None:
    paths = [written(tmp_path / name) for name in ("b/2", "a", "b/1")]
    (tmp_path / "c").symlink_to("a")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "manifest.json").symlink_to("../a/manifest.json")
    found, whole = manifest.below(tmp_path)
    assert found == (paths[1], paths[2], paths[0])
    assert whole
    assert manifest.below(tmp_path / "none") == ((), True)


def test_a_search_that_ends_early_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path.joinpath(*"abcdefghij")
    written(deep)
    assert manifest.below(tmp_path) == ((), False)
    monkeypatch.setattr(manifest, "_FOLDERS", 2)
    for name in "xyz":
        (tmp_path / "many" / name).mkdir(parents=True)
    assert manifest.below(tmp_path / "many") == ((), False)


def test_what_a_safetensors_file_says(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "w", {"__metadata__": {"repro_env.step": "700", "format": "pt"}, "w": {"dtype": "F32"}})
    assert manifest.metadata(path) == {"format": "pt", "repro_env.step": "700"}
    assert manifest.metadata(safetensors(tmp_path / "w", {"w": {}})) == {}


@pytest.mark.parametrize(
    ("header", "length"),
    [("{}", 2**60), ("{}", 100), ("", None), ("not json", None), ('{"__metadata__": {"a": 1}}', None), ("[" * 100_000, None)],
)
def test_a_hostile_file_says_nothing(tmp_path: Path, header: str, length: int | None) -> None:
    assert manifest.metadata(safetensors(tmp_path / "w", header, length)) == {}


def test_what_a_file_says_is_bounded(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "w", {"__metadata__": {f"{number:05}": "x" * 5000 for number in range(300)}})
    said = manifest.metadata(path)
    assert (len(said), {len(text) for text in said.values()}) == (100, {2000})
    assert manifest.metadata(tmp_path / "none") == {}
    assert manifest.metadata(tmp_path) == {}
