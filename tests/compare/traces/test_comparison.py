"""Traces of two runs are read from their directories and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro_env.compare.outputs import results
from repro_env.compare.traces import comparison
from tests.compare.traces.lines import lines


def run(directory: Path, *names: str, change: dict[str, object] | None = None) -> Path:
    """Write a run's directory with a trace for each name."""
    (directory / "trace").mkdir(parents=True)
    for name in names:
        texts = [json.dumps(line | (change or {} if line.get("step") == 3 else {})) for line in lines()]
        (directory / "trace" / name).write_text("".join(f"{text}\n" for text in texts))
    return directory


def test_the_first_difference_of_each_process_is_found(tmp_path: Path) -> None:
    left = run(tmp_path / "a", "rank0.jsonl", "rank1.jsonl")
    found = comparison.compare_traces(left, run(tmp_path / "b", "rank0.jsonl", "rank1.jsonl"))
    assert found is not None
    assert found.equal
    found = comparison.compare_traces(left, run(tmp_path / "c", "rank0.jsonl", "rank1.jsonl", change={"loss": [1.0]}))
    assert found is not None
    assert [(change.process, change.what, change.step) for change in found.first] == [("rank0", "loss", 3), ("rank1", "loss", 3)]


def test_a_missing_trace_is_reported(tmp_path: Path) -> None:
    left = run(tmp_path / "a", "rank0.jsonl")
    for name in ("b", "c"):
        (tmp_path / name).mkdir()
    assert comparison.compare_traces(tmp_path / "b", tmp_path / "c") is None
    found = comparison.compare_traces(left, tmp_path / "b")
    assert found is not None
    assert not found.equal
    assert found.missing == ("rank0.jsonl: only the first run has this trace",)


def test_verify_reports_why_the_first_step_is_not_known(tmp_path: Path) -> None:
    left, other = run(tmp_path / "a", "rank0.jsonl", "rank1.jsonl"), tmp_path / "b"
    other.mkdir()
    assert results.first_step(other, other) == ""
    assert results.first_step(left, left) == ""
    assert results.first_step(left, other) == "not known: rank0.jsonl: only the first run has this trace and 1 more"
    assert "step 3" in results.first_step(left, run(tmp_path / "c", "rank0.jsonl", change={"loss": [1.0]}))


def test_a_truncated_trace_is_never_equal(tmp_path: Path) -> None:
    left, right = run(tmp_path / "a", "rank0.jsonl"), run(tmp_path / "b", "rank0.jsonl")
    path = right / "trace" / "rank0.jsonl"
    data = path.read_bytes()
    for end in range(0, len(data) - 1, 37):
        path.write_bytes(data[:end])
        found = comparison.compare_traces(left, right)
        assert found is not None
        assert not found.equal
        assert not found.first


def test_traces_beyond_the_limits_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = (run(tmp_path / name, "rank0.jsonl", "rank1.jsonl", "rank2.jsonl") for name in "ab")
    monkeypatch.setattr(comparison, "_FILES", 2)
    found = comparison.compare_traces(left, right)
    assert found is not None
    assert not found.equal
    assert found.missing == (
        "the first run has traces of 3 processes, of which only 2 were read",
        "the second run has traces of 3 processes, of which only 2 were read",
    )
    monkeypatch.setattr(comparison, "_FILES", 3)
    monkeypatch.setattr(comparison, "_MOST", 400)
    found = comparison.compare_traces(left, right)
    assert found is not None
    assert "rank0: the trace of the first run has no end, so its last steps may be missing" in found.missing
    monkeypatch.setattr(comparison, "_MOST", 1 << 20)
    monkeypatch.setattr(comparison, "_LINE", 100)
    found = comparison.compare_traces(left, right)
    assert found is not None
    assert not found.equal
