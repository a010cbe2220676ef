"""Metrics in lists, plots and the site of a project."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from repro_env.cli import app
from repro_env.cli.runslist import parse_condition
from repro_env.runs.records import ids, metrics, records, verdicts
from repro_env.schema.errors import RecordError, ReproEnvError, UsageError
from repro_env.schema.run import Output
from tests.runs.records.examples import end, start


def recorded(runs: Path, number: int, losses: Sequence[float], *, name: str = "loss") -> Path:
    """Record a run with a metric in `metrics.jsonl`."""
    run_id = ids.uuid7(number, number.to_bytes(10, "big"))
    recording = records.begin(runs, f"20260701T10150{number}Z-train-{ids.short(run_id)}")
    recording.start(start(run_id))
    data = "".join(f"{json.dumps({name: loss})}\n" for loss in losses)
    (recording.directory / "files").mkdir(exist_ok=True)
    (recording.directory / "files" / "metrics.jsonl").write_text(data)
    outputs = (Output(path="metrics.jsonl", sha256=f"sha256:{hashlib.sha256(data.encode()).hexdigest()}", size=len(data)),)
    found = metrics.collect(recording.directory / "files", outputs).metrics
    recording.finish(msgspec.structs.replace(end(run_id), outputs=outputs, metrics=found))
    return recording.directory


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for number, losses in enumerate(([3.0, 0.5], [2.0, 0.1, 0.2], [5.0, float("nan")]), 1):
        recorded(tmp_path / "runs", number, losses)
    recorded(tmp_path / "runs", 4, [1.0], name="accuracy")
    return tmp_path / "runs"


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = app.run([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def listed(capsys: pytest.CaptureFixture[str], runs: Path, *words: str) -> list[str]:
    """The short IDs of the runs, which the answer in JSON has in the same order."""
    _, out, _ = call(capsys, "runs", "list", "--runs", runs, *words)
    found = [line.split()[0] for line in out.splitlines()[1:]]
    _, out, _ = call(capsys, "runs", "list", "--runs", runs, *words, "--json")
    assert [run["short"] for run in json.loads(out)["runs"]] == found
    return found


def test_a_list_has_a_column_for_each_metric(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "find", None)  # it reads all records to find one by its id
    _, out, _ = call(capsys, "runs", "list", "--runs", runs, "--metric", "loss", "--metric", "metrics.jsonl:accuracy")
    header, *rows = out.splitlines()
    assert header.split()[-2:] == ["loss", "metrics.jsonl:accuracy"]
    assert [row.split()[-1] for row in rows] == ["1", "nan", "0.2", "0.5"]
    code, _, err = call(capsys, "runs", "list", "--runs", runs, "--metric", "los", "--sort", "-loss")
    assert code == 0
    assert "no run has the metric los; did you mean loss?" in err
    assert err.count("no run has the metric") == 1


def test_a_list_is_sorted_by_a_metric_with_missing_numbers_last(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, runs, "--sort", "loss") == ["00000002", "00000001", "00000004", "00000003"]
    assert listed(capsys, runs, "--sort", "-loss") == ["00000001", "00000002", "00000004", "00000003"]


def test_conditions_select_runs_by_their_last_values(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, runs, "--where", "loss<0.3") == ["00000002"]
    assert listed(capsys, runs, "--where", "loss >= 0.2", "--where", "loss!=0.5") == ["00000002"]
    assert listed(capsys, runs, "--where", "loss!=0.5") == ["00000002"], "a value that is not a number meets no condition"
    assert listed(capsys, runs, "--where", "accuracy==1") == ["00000004"]
    code, out, err = call(capsys, "runs", "list", "--runs", runs, "--where", "loss>9")
    assert (code, out) == (0, "")
    assert "no runs that meet the conditions" in err


@pytest.mark.parametrize("text", ["", "loss", "loss<", "<1", "loss<x"])
def test_a_wrong_condition_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="NAME<VALUE"):
        parse_condition(text)


def test_a_plot_draws_the_values_of_runs(runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = call(capsys, "runs", "plot", "loss", "00000001", "00000002", "--runs", runs, "--html", tmp_path / "plot.html")
    assert code == 0
    assert [line.split() for line in out.splitlines()[-2:]] == [["*", "00000001"], ["o", "00000002"]]
    assert (tmp_path / "plot.html").read_text().count('class="curve ') == 2
    _, out, _ = call(capsys, "runs", "plot", "loss", "00000002", "--runs", runs, "--json")
    assert [run["values"] for run in json.loads(out)["runs"]] == [[2.0, 0.1, 0.2]]


def test_a_plot_needs_the_values_of_the_record(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RecordError, match="no metric of this name"):
        call(capsys, "runs", "plot", "speed", "00000001", "--runs", runs)
    (file,) = runs.glob("*-00000001/files/metrics.jsonl")
    file.write_text('{"loss": 3.0}\n{"loss": 0.6}\n')  # as many values as in the record
    with pytest.raises(RecordError, match="has changed since the run"):
        call(capsys, "runs", "plot", "loss", "00000001", "--runs", runs)


def test_a_curve_is_not_read_through_a_symlink_of_the_run(runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (files,) = runs.glob("*-00000001/files")
    files.rename(tmp_path / "elsewhere")
    files.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ReproEnvError):
        call(capsys, "runs", "plot", "loss", "00000001", "--runs", runs)


def test_a_report_is_a_site_with_each_run_its_verdicts_and_a_badge(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (run,) = runs.glob("*-00000002")
    for level, same in (("different", False), ("bitwise", True)):
        verdicts.write(run, {"level": level, "same": same, "failed": False, "ignored": 0}, [])
    (broken,) = runs.glob("*-00000003")
    (broken / "verified").mkdir()
    (broken / "verified" / "20260702T090000Z-5a6b7c8d.json").write_text("{")
    code, out, _ = call(capsys, "report", tmp_path / "site", "--runs", runs)
    assert (code, out) == (0, f"{tmp_path / 'site' / 'index.html'}\n")
    site = {str(path.relative_to(tmp_path / "site")): path.read_bytes() for path in (tmp_path / "site").rglob("*.*")}
    pages = [ids.uuid7(number, number.to_bytes(10, "big")) for number in (1, 2, 4)]
    assert site.keys() == {"index.html", "badge.json", *(f"runs/{page}.html" for page in pages)}
    assert json.loads(site["badge.json"]) == {
        "schemaVersion": 1,
        "label": "repro-env",
        "message": "bitwise",
        "color": "brightgreen",
    }
    index = site["index.html"].decode()
    assert '<i class="different"></i><i class="bitwise"></i></span> bitwise' in index
    assert all(f'<a href="runs/{page}.html">' in index for page in pages)
    assert "5a6b7c8d.json" in index, "what cannot be read is named"
    call(capsys, "report", tmp_path / "again", "--runs", runs)
    again = {str(path.relative_to(tmp_path / "again")): path.read_bytes() for path in (tmp_path / "again").rglob("*.*")}
    assert {name for name in site if site[name] != again[name]} == {"index.html"}, "it names its directory"


def test_a_project_without_verifications_has_a_grey_badge(runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = call(capsys, "report", tmp_path / "site", "--runs", runs, "--json")
    assert json.loads(out)["badge"]["message"] == "not verified"


def test_a_comparison_shows_what_differs_in_the_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    for number, last in ((1, 0.5), (2, 0.25)):
        recorded(runs, number, [3.0, last])
    code, out, _ = call(capsys, "runs", "compare", "00000001", "00000002", "--runs", runs)
    assert code == 1
    assert "  ~  metrics.jsonl  1.loss differs\n" in out
    assert "  - 1.loss: 0.5\n  + 1.loss: 0.25\n" in out
    _, out, _ = call(capsys, "runs", "compare", "00000001", "00000002", "--runs", runs, "--json")
    assert [file["path"] for file in json.loads(out)["files"]] == ["metrics.jsonl"]
