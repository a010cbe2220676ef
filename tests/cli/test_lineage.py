from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from repro_env.catalog.records import Run
from repro_env.cli import app
from repro_env.model.run import Parent
from tests.flows.test_lineage import checkpoint, hexed, made, parent


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Run]:
    """Two runs, the second from the first; the caller elsewhere."""
    first = made(tmp_path / "runs", 1, {"w.pt": "first"})
    second = made(tmp_path / "runs", 2, {"ck/w.pt": "second"}, parents=[parent(first)])
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    return first, second


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = app.run([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_page_of_a_file(project: tuple[Run, Run], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = project
    shutil.copy(second.files / "ck/w.pt", "best.pt")
    for command in (("lineage",), ("runs", "lineage")):
        code, out, err = call(capsys, *command, "best.pt", "--runs", second.folder.parent)
        assert code == 0
        for line in (
            "made by       run 00000002: ck/w.pt, in its record",
            f"sha256        {hexed('second')}",
            "  seed          0",
            f"  image         {second.start.image}",
            f"                {second.start.source.digest}",
            "  code          /home/ann/project (live)",
            "parents",
            "children  no known child",
        ):
            assert line in out.splitlines()
        assert f"  {first.short}  2026-07-01 10:15:30  train.py  exit 0  resumed" in out
        assert "next: repro-env runs show 00000002" in err


def test_a_file_that_nobody_knows_is_exit_one(project: tuple[Run, Run], capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.pt").write_text("other")
    code, out, err = call(capsys, "lineage", "other.pt", "--runs", project[0].folder.parent)
    assert code == 1
    assert "unknown: no run in 1 folder of runs has to do with it" in out
    assert "--runs DIR" in err
    code, out, _ = call(capsys, "lineage", "other.pt", "--json")
    assert code == 1
    found = json.loads(out)
    assert (found["known"], found["run"], found["made_by"], found["used_by"]) == (False, None, [], [])


def test_the_answer_for_programs(project: tuple[Run, Run], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = project
    code, out, _ = call(capsys, "lineage", second.files / "ck/w.pt", "--json")
    found = json.loads(out)
    assert (code, found["known"], found["digest"]) == (0, True, f"sha256:{hexed('second')}")
    assert [(one["id"], one["how"], one["paths"]) for one in found["made_by"]] == [(second.start.id, "output", ["ck/w.pt"])]
    run = found["run"]
    assert (run["id"], run["seed"], run["image"], run["intact"]) == (second.start.id, 0, second.start.image, True)
    assert (run["source"]["digest"], run["spec"]["digest"]) == (second.start.source.digest, second.start.spec)
    assert [(one["id"], one["depth"], one["how"], one["changed"]) for one in found["parents"]] == [
        (first.start.id, 1, ["resumed"], False)
    ]
    assert found["children"] == []
    code, out, _ = call(capsys, "lineage", first.start.id, "--json")
    assert [one["id"] for one in json.loads(out)["children"]] == [second.start.id]


def test_what_a_run_went_on_from_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    came = Parent(id="", record=None, how="resumed", path="/old/ck", sha256=f"sha256:{hexed('m')}", step=7)
    run = made(tmp_path / "runs", 1, {}, parents=[came])
    _, out, _ = call(capsys, "lineage", run.folder)
    assert f"  started from  resumed: made outside of a run, /old/ck, step 7, sha256:{hexed('m')}" in out
    assert "parents  no known parent" in out


def test_a_claim_is_shown_as_one(project: tuple[Run, Run], capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(Path("ck"), "01a1fd02-1a59-73ca-8e91-4a5f0000000a", {"w.pt": "claimed"})
    code, out, err = call(capsys, "lineage", "ck/w.pt", "--runs", project[0].folder.parent)
    assert code == 1
    assert "checkpoint    step 700, epoch 3, run 01a1fd02-1a59-73ca-8e91-4a5f0000000a" in out
    assert "whose record is not known here" in err


def test_what_a_file_says_cannot_move_the_cursor(project: tuple[Run, Run], capsys: pytest.CaptureFixture[str]) -> None:
    header = json.dumps({"__metadata__": {"note": "\x1b[2Jgone"}}).encode()
    Path("w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    _, out, _ = call(capsys, "lineage", "w.safetensors", "--runs", project[0].folder.parent)
    assert "\x1b" not in out
    assert "note: \\x1b[2Jgone" in out
