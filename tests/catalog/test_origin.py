from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro_env.catalog import manifest, origin
from repro_env.catalog.lineage import EMPTY, Use
from repro_env.catalog.origin import Origin
from repro_env.model.errors import UsageError
from tests.catalog.test_lineage import known, run
from tests.catalog.test_manifest import HEX, SAID, written


def claim(folder: Path, **said: Any) -> manifest.Found:
    found = manifest.read(written(folder, SAID | said))
    assert found is not None
    return found


def made(number: int, how: Any = "output", digest: str = "sha256:ab") -> Origin:
    return Origin(run(number), how, ("w",), digest)


def test_a_manifest_names_a_run_that_is_known_once_and_for_its_own_files(tmp_path: Path) -> None:
    found = [claim(tmp_path / "a", run="1"), claim(tmp_path / "b", run="1"), claim(tmp_path / "c", run="9")]
    ((one),) = origin.claimed(found, f"sha256:{HEX[:9]}", known(run(1), run(2)), ())
    assert (one.run.id, one.how, one.digest) == ("1", "manifest", f"sha256:{HEX}")
    assert one.paths == (str(tmp_path / "a" / "manifest.json"), str(tmp_path / "b" / "manifest.json"))
    assert origin.claimed(found, f"sha256:{HEX}", known(run(1)), [made(1)]) == [], "its record says so already"
    assert origin.claimed(found, f"sha256:{'b' * 64}", known(run(1)), ()) == []


def test_a_file_without_content_was_made_by_nobody(tmp_path: Path) -> None:
    empty = claim(tmp_path, run="1", files={"model.safetensors": {"sha256": EMPTY.removeprefix("sha256:"), "size": 0}})
    assert origin.file_in(empty, EMPTY) == ""


def test_the_surest_comes_first_and_then_the_oldest() -> None:
    found = [made(3), made(1, "left"), made(2, "manifest"), made(4, "checkpoints"), made(1)]
    assert [(one.run.id, one.how) for one in origin.ordered(found)] == [
        ("1", "output"),
        ("3", "output"),
        ("4", "checkpoints"),
        ("2", "manifest"),
        ("1", "left"),
    ]


def test_who_is_told_is_where_it_lies_then_whom_its_manifest_names_then_the_first(tmp_path: Path) -> None:
    one, two, place = made(1), made(2), made(3)
    assert origin.first([one, two], place, claim(tmp_path, run="2")) is place
    assert origin.first([one, two], None, claim(tmp_path, run="2")) is two
    assert origin.first([one, two], None, claim(tmp_path, run="7")) is one
    assert origin.first([], None, None) is None


def test_the_beginning_of_two_digests_is_refused() -> None:
    origin.check_one("ab", [made(1), made(2)], [Use(run(3), "data", "/d", "sha256:ab")])
    with pytest.raises(UsageError, match="begins 2 digests"):
        origin.check_one("ab", [made(1)], [Use(run(3), "data", "/d", "sha256:abc")])
