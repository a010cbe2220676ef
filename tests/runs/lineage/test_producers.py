from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro_env.runs.lineage import producers
from repro_env.runs.lineage.families import EMPTY, Use
from repro_env.runs.records import checkpointmanifest
from repro_env.schema.errors import UsageError
from tests.runs.lineage.families import known, run
from tests.runs.records.manifests import HEX, MANIFEST, write_manifest


def manifest_file(directory: Path, **changes: Any) -> checkpointmanifest.File:
    file = checkpointmanifest.read(write_manifest(directory, MANIFEST | changes))
    assert file is not None
    return file


def make_origin(number: int, how: Any = "output", digest: str = "sha256:ab") -> Use:
    return Use(run(number), how, ("w",), digest)


def test_an_output_that_is_also_a_checkpoint_is_an_output() -> None:
    output, data = Use(run(1), "output", ("a.pt", "b.pt"), "sha256:ab"), Use(run(2), "data", ("/d",), "sha256:ab")
    checkpoints = [
        Use(run(1), "checkpoints", ("/c/a.pt",), "sha256:ab"),
        Use(run(2), "checkpoints", ("/c/b.pt",), "sha256:ab"),
        Use(run(2), "checkpoints", ("/c/c.pt",), "sha256:abc"),
    ]
    assert producers.from_uses([data, *checkpoints, output]) == [output, *checkpoints[1:]]


def test_manifests_name_each_known_run_once(tmp_path: Path) -> None:
    files = [manifest_file(tmp_path / name, run=run_id) for name, run_id in (("a", "1"), ("b", "1"), ("c", "9"))]
    (found,) = producers.from_manifests(files, f"sha256:{HEX[:9]}", known(run(1), run(2)), ())
    assert (found.run.id, found.how, found.digest) == ("1", "manifest", f"sha256:{HEX}")
    assert found.paths == (str(tmp_path / "a" / "manifest.json"), str(tmp_path / "b" / "manifest.json"))
    assert producers.from_manifests(files, f"sha256:{HEX}", known(run(1)), [make_origin(1)]) == [], "its record names the run"
    assert producers.from_manifests(files, f"sha256:{'b' * 64}", known(run(1)), ()) == []


def test_an_empty_file_has_no_origin(tmp_path: Path) -> None:
    empty = manifest_file(tmp_path, run="1", files={"model.safetensors": {"sha256": EMPTY.removeprefix("sha256:"), "size": 0}})
    assert producers.find_digest(empty, EMPTY) == ""


def test_origins_are_sorted_by_evidence_and_then_by_age() -> None:
    origins = [
        make_origin(3),
        make_origin(1, "manifest"),
        make_origin(2, "manifest"),
        make_origin(4, "checkpoints"),
        make_origin(1),
    ]
    assert [(found.run.id, found.how) for found in producers.sort(origins)] == [
        ("1", "output"),
        ("3", "output"),
        ("4", "checkpoints"),
        ("1", "manifest"),
        ("2", "manifest"),
    ]


def test_the_chosen_run_contains_the_file_or_is_in_its_manifest_or_is_the_first(tmp_path: Path) -> None:
    first, second, container = make_origin(1), make_origin(2), make_origin(3)
    assert producers.choose([first, second], container, manifest_file(tmp_path, run="2")) is container
    assert producers.choose([first, second], None, manifest_file(tmp_path, run="2")) is second
    assert producers.choose([first, second], None, manifest_file(tmp_path, run="7")) is first
    assert producers.choose([], None, None) is None


def test_an_ambiguous_digest_is_refused() -> None:
    producers.check_unambiguous("ab", [make_origin(1), make_origin(2)], [Use(run(3), "data", ("/d",), "sha256:ab")])
    with pytest.raises(UsageError, match="2 digests in the records start with"):
        producers.check_unambiguous("ab", [make_origin(1)], [Use(run(3), "data", ("/d",), "sha256:abc")])
