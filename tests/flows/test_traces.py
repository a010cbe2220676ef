"""Traces of runs, read from their folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro_env.flows import results, traces
from tests.verify.test_trace import lines


def run(folder: Path, *names: str, change: dict[str, object] | None = None) -> Path:
    """A run's folder with a trace for each name."""
    (folder / "trace").mkdir(parents=True)
    for name in names:
        told = [json.dumps(line | (change or {} if line.get("step") == 3 else {})) for line in lines()]
        (folder / "trace" / name).write_text("".join(f"{line}\n" for line in told))
    return folder


def test_two_runs(tmp_path: Path) -> None:
    left = run(tmp_path / "a", "rank0.jsonl", "rank1.jsonl")
    found = traces.compared(left, run(tmp_path / "b", "rank0.jsonl", "rank1.jsonl"))
    assert found is not None
    assert found.equal
    found = traces.compared(left, run(tmp_path / "c", "rank0.jsonl", "rank1.jsonl", change={"loss": [1.0]}))
    assert found is not None
    assert [(one.process, one.what, one.step) for one in found.first] == [("rank0", "loss", 3), ("rank1", "loss", 3)]


def test_without_a_trace(tmp_path: Path) -> None:
    left = run(tmp_path / "a", "rank0.jsonl")
    for name in ("b", "c"):
        (tmp_path / name).mkdir()
    assert traces.compared(tmp_path / "b", tmp_path / "c") is None
    found = traces.compared(left, tmp_path / "b")
    assert found is not None
    assert not found.equal
    assert found.missing == ("rank0.jsonl: only the first run has a trace of it",)


def test_verify_tells_why_traces_do_not_tell(tmp_path: Path) -> None:
    left, other = run(tmp_path / "a", "rank0.jsonl", "rank1.jsonl"), tmp_path / "b"
    other.mkdir()
    assert results.first_step(other, other) == ""
    assert results.first_step(left, left) == ""
    assert results.first_step(left, other) == "not known: rank0.jsonl: only the first run has a trace of it and 1 more"
    assert "step 3" in results.first_step(left, run(tmp_path / "c", "rank0.jsonl", change={"loss": [1.0]}))


def test_a_trace_that_was_torn_off_is_never_equal(tmp_path: Path) -> None:
    left, right = run(tmp_path / "a", "rank0.jsonl"), run(tmp_path / "b", "rank0.jsonl")
    path = right / "trace" / "rank0.jsonl"
    whole = path.read_bytes()
    for end in range(0, len(whole) - 1, 37):
        path.write_bytes(whole[:end])
        found = traces.compared(left, right)
        assert found is not None
        assert not found.equal
        assert not found.first


def test_what_is_beyond_the_limits_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = (run(tmp_path / name, "rank0.jsonl", "rank1.jsonl", "rank2.jsonl") for name in "ab")
    monkeypatch.setattr(traces, "_FILES", 2)
    found = traces.compared(left, right)
    assert found is not None
    assert not found.equal
    assert found.missing == (
        "the first run has traces of 3 processes: 1 of them were not read",
        "the second run has traces of 3 processes: 1 of them were not read",
    )
    monkeypatch.setattr(traces, "_FILES", 3)
    monkeypatch.setattr(traces, "_MOST", 400)
    found = traces.compared(left, right)
    assert found is not None
    assert "rank0: the first run's trace has no end, its last steps may be missing" in found.missing
    monkeypatch.setattr(traces, "_MOST", 1 << 20)
    monkeypatch.setattr(traces, "_LINE", 100)
    found = traces.compared(left, right)
    assert found is not None
    assert not found.equal
