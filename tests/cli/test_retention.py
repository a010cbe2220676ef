from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from repro_env.cli import app
from repro_env.runs.records import annotation, records
from repro_env.schema import codec
from repro_env.schema.errors import UsageError
from repro_env.schema.run import Output
from tests.runs.records.examples import DIGEST, end, recorded


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_ENV_STORE", str(tmp_path / "store"))


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = app.run(["runs", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_audit_lists_missing_parts_and_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(1, 6):
        recorded(tmp_path / "runs", number)
    code, out, err = call(capsys, "audit", "--runs", str(tmp_path / "runs"))
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("gone        output  a: 1 bytes, sha256:000000000000… (run 0000000")
    assert sum(line.startswith("gone        image") for line in lines) == 1
    assert "and 2 more)" in next(line for line in lines if "image" in line)
    assert lines[-1] == "5 runs (5 records, 5 outputs, 1 spec, 1 image, 1 source tree): 8 gone, 5 unknown"
    assert f"next: repro-env runs show {out.partition('(run ')[2][:8]} --runs {tmp_path}/runs\n" in err


def test_audit_prints_20_lines_of_a_kind_and_all_findings_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = recorded(tmp_path / "runs", 1, over=False)
    run = records.read(directory)
    outputs = tuple(Output(path=f"{number:03d}", sha256=DIGEST, size=1) for number in range(90))
    (directory / "end.json").write_bytes(codec.pretty(msgspec.structs.replace(end(run.start.id), outputs=outputs)))
    code, out, _ = call(capsys, "audit", "00000001", "--runs", str(tmp_path / "runs"), "--json")
    answer = json.loads(out)
    assert (code, answer["runs"], answer["checked"]["output"], answer["bad"]) == (1, 1, 90, 93)
    assert answer["findings"][0] | {"why": ""} == {
        "part": "output",
        "state": "gone",
        "what": "000",
        "why": "",
        "runs": [run.start.id],
    }
    _, out, _ = call(capsys, "audit", "--runs", str(tmp_path / "runs"))
    assert sum("gone        output" in line for line in out.splitlines()) == 21
    assert "gone        output  and 70 more (run 00000001)" in out


def test_audit_of_no_runs_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "audit", "--runs", str(tmp_path / "none"))
    assert (code, out) == (1, "0 runs: nothing was checked\n")
    assert f"no runs in {tmp_path}/none, so nothing was checked" in err


def test_gc_prints_each_run_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    directories = [recorded(runs, number, over=number != 2) for number in (1, 2, 3)]
    annotation.add(directories[0], kind="tag", text="paper")
    code, out, err = call(capsys, "gc", "--keep", "last=1", "--dry-run", "--runs", str(runs))
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["keep", "keep"]
    assert lines[0].endswith("last=1")
    assert lines[1].endswith("tag paper")
    assert lines[2].startswith("would remove")
    assert "interrupted, matches no rule" in lines[2]
    assert lines[3].startswith("would remove: 1 of 3 runs")
    assert f"next: repro-env runs gc --keep last=1 --runs {runs}\n" in err
    assert len(records.directories(runs)) == 3
    code, out, _ = call(capsys, "gc", "--keep", "last=1", "--keep", "tagged", "--runs", str(runs), "--json")
    answer = json.loads(out)
    assert [removed["run"]["short"] for removed in answer["gone"]] == ["00000002"]
    assert [(kept["run"]["short"], kept["why"]) for kept in answer["keep"]] == [
        ("00000003", ["last=1"]),
        ("00000001", ["tag paper"]),
    ]
    assert answer["freed"] == answer["gone"][0]["size"] > 0
    assert len(records.directories(runs)) == 2


def test_gc_without_a_rule_removes_nothing(tmp_path: Path) -> None:
    recorded(tmp_path / "runs", 1)
    with pytest.raises(UsageError, match="needs a rule"):
        app.run(["runs", "gc", "--runs", str(tmp_path / "runs")])
    assert len(records.directories(tmp_path / "runs")) == 1


def test_gc_exits_with_1_if_a_run_could_not_be_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    first = recorded(runs, 1)
    recorded(runs, 2)
    (runs / f".gone-{first.name}").touch()
    code, out, _ = call(capsys, "gc", "--keep", "last=1", "--runs", str(runs))
    assert code == 1
    assert "failed" in out
