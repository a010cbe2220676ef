from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from repro_env.cli import app
from repro_env.runs.records.records import Run
from repro_env.schema.run import Parent
from tests.api.families import checkpoint, made, parent, sha256_hex


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Run]:
    """Two runs. The second run started from the first. The current directory is not in the project."""
    first = made(tmp_path / "runs", 1, {"w.pt": "first"})
    second = made(tmp_path / "runs", 2, {"ck/w.pt": "second"}, parents=[parent(first)])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return first, second


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = app.run([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_lineage_shows_the_run_that_made_a_file(project: tuple[Run, Run], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = project
    shutil.copy(second.files / "ck/w.pt", "best.pt")
    code, out, err = call(capsys, "lineage", "best.pt", "--runs", second.directory.parent)
    assert code == 0
    for line in (
        "made by       run 00000002: ck/w.pt, according to its record",
        f"sha256        {sha256_hex('second')}",
        "  seed          0",
        f"  image         {second.start.image}",
        f"  source        /home/ann/project (live, {second.start.source.digest})",
        "parents",
        "children  no known child",
    ):
        assert line in out.splitlines()
    assert f"  {first.short}  2026-07-01 10:15:30  train.py  exit 0  resumed" in out
    assert "next: repro-env runs show 00000002" in err


def test_lineage_of_an_unknown_file_exits_with_1(project: tuple[Run, Run], capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.pt").write_text("other")
    code, out, err = call(capsys, "lineage", "other.pt", "--runs", project[0].directory.parent)
    assert code == 1
    assert "unknown: no run in 1 directory of runs made or used this file" in out
    assert "--runs DIR" in err
    code, out, _ = call(capsys, "lineage", "other.pt", "--json")
    assert code == 1
    answer = json.loads(out)
    assert (answer["known"], answer["run"], answer["origins"], answer["uses"]) == (False, None, [], [])


def test_lineage_as_json_has_the_run_its_parents_and_children(
    project: tuple[Run, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = project
    code, out, _ = call(capsys, "lineage", second.files / "ck/w.pt", "--json")
    answer = json.loads(out)
    assert (code, answer["known"], answer["digest"]) == (0, True, f"sha256:{sha256_hex('second')}")
    origins = [(origin["run"]["id"], origin["how"], origin["paths"]) for origin in answer["origins"]]
    assert origins == [(second.start.id, "output", ["ck/w.pt"])]
    run = answer["run"]
    facts = run["start"]
    assert (run["id"], facts["seed"], facts["image"], run["intact"]) == (second.start.id, 0, second.start.image, True)
    assert (facts["source"]["digest"], facts["spec"]) == (second.start.source.digest, second.start.spec)
    assert [(parent["id"], parent["depth"], parent["how"], parent["changed"]) for parent in answer["family"]["parents"]] == [
        (first.start.id, 1, ["resumed"], False)
    ]
    assert answer["family"]["children"] == []
    code, out, _ = call(capsys, "lineage", first.start.id, "--json")
    assert [child["id"] for child in json.loads(out)["family"]["children"]] == [second.start.id]


def test_lineage_shows_the_checkpoint_that_a_run_resumed_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resumed = Parent(id="", record=None, how="resumed", path="/old/ck", sha256=f"sha256:{sha256_hex('m')}", step=7)
    run = made(tmp_path / "runs", 1, {}, parents=[resumed])
    _, out, _ = call(capsys, "lineage", run.directory)
    assert f"  parent        (no run) (resumed from its checkpoint, /old/ck, step 7, sha256:{sha256_hex('m')})" in out
    assert "parents  no known parent" in out


def test_lineage_shows_the_manifest_of_an_unknown_checkpoint(
    project: tuple[Run, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(Path("ck"), "01a1fd02-1a59-73ca-8e91-4a5f0000000a", {"w.pt": "claimed"})
    code, out, err = call(capsys, "lineage", "ck/w.pt", "--runs", project[0].directory.parent)
    assert code == 1
    assert "checkpoint    step 700, epoch 3, run 01a1fd02-1a59-73ca-8e91-4a5f0000000a" in out
    assert "but that run's record is not on this machine" in err
