from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from repro_env.runs.records import annotation, records, summary
from repro_env.store.facts import FactCache
from tests.runs.records.examples import recorded


@pytest.fixture
def facts(tmp_path: Path) -> FactCache:
    (tmp_path / "facts").mkdir()
    return FactCache(tmp_path / "facts")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories whose records are read. The clock is ten seconds ahead, so that files are older than `SETTLED`."""
    directories: list[Path] = []
    read, now = records.try_read, time.time_ns

    def counted(directory: Path) -> records.Run | records.Unreadable:
        directories.append(directory)
        return read(directory)

    monkeypatch.setattr(records, "try_read", counted)
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10**10)
    return directories


def test_a_record_that_did_not_change_is_read_once(tmp_path: Path, facts: FactCache, reads: list[Path]) -> None:
    runs = tmp_path / "runs"
    directories = [recorded(runs, number) for number in range(3)]
    first = summary.lines(runs, facts)
    assert sorted(reads) == directories
    assert summary.lines(runs, facts) == first
    assert len(reads) == 3
    added = recorded(runs, 3)
    lines, unreadable = summary.lines(runs, facts)
    assert reads[3:] == [added]
    assert [line.id[-8:] for line in lines] == [line.id[-8:] for line in sorted(lines, key=lambda line: line.id, reverse=True)]
    assert len(lines) == 4
    assert not unreadable


def test_the_line_of_a_run_is_that_of_its_record(tmp_path: Path, facts: FactCache, reads: list[Path]) -> None:
    directory = recorded(tmp_path / "runs", 7)
    run = records.read(directory)
    assert run.end is not None
    for _ in range(2):
        ((line,), _) = summary.lines(tmp_path / "runs", facts)
        assert (line.id, line.state, line.ending, line.started) == (run.id, "done", run.ending, run.start.started)
        assert (line.command, line.seconds, line.outputs) == (run.start.command, run.end.seconds, len(run.end.outputs))
    assert len(reads) == 1


def test_sizes_that_add_up_to_more_than_64_bits_are_kept(tmp_path: Path, facts: FactCache, reads: list[Path]) -> None:
    directory = recorded(tmp_path / "runs", 7)
    end = json.loads((directory / "end.json").read_bytes())
    end["outputs"] = [{**end["outputs"][0], "path": f"part-{number}", "size": (1 << 63) - 1} for number in range(3)]
    (directory / "end.json").chmod(0o600)
    (directory / "end.json").write_text(json.dumps(end))
    first = summary.lines(tmp_path / "runs", facts)
    assert [line.size for line in first[0]] == [3 * ((1 << 63) - 1)]
    assert summary.lines(tmp_path / "runs", facts) == first
    assert len(reads) == 1


@pytest.mark.parametrize("name", ["start.json", "end.json"])
def test_a_changed_record_is_read_again(tmp_path: Path, facts: FactCache, reads: list[Path], name: str) -> None:
    runs = tmp_path / "runs"
    directory = recorded(runs, 7)
    summary.lines(runs, facts)
    path = directory / name
    times = path.stat()
    path.chmod(0o600)
    path.write_bytes(b"x" * times.st_size)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    lines, unreadable = summary.lines(runs, facts)
    assert not lines
    assert [run.directory for run in unreadable] == [directory]
    assert len(reads) == 2


def test_a_replaced_directory_is_read_again(tmp_path: Path, facts: FactCache, reads: list[Path]) -> None:
    runs = tmp_path / "runs"
    directory = recorded(runs, 7)
    summary.lines(runs, facts)
    (directory / "files").rename(directory / "moved")
    (directory / "files").symlink_to(tmp_path)
    assert [run.directory for run in summary.lines(runs, facts)[1]] == [directory]
    assert len(reads) == 2


def test_tags_are_never_kept(tmp_path: Path, facts: FactCache, reads: list[Path]) -> None:
    runs = tmp_path / "runs"
    directory = recorded(runs, 7)
    summary.lines(runs, facts)
    for kind, expected in (("tag", ("good",)), ("untag", ())):
        annotation.add(directory, kind=kind, text="good")  # type: ignore[arg-type]
        for _ in range(2):
            assert summary.lines(runs, facts)[0][0].tags == expected
    assert len(reads) == 2  # the directory got an entry, once


def test_a_run_that_has_not_ended_is_read_each_time(tmp_path: Path, facts: FactCache, reads: list[Path]) -> None:
    directory = recorded(tmp_path / "runs", 7)
    (directory / "end.json").unlink()
    for _ in range(2):
        assert summary.lines(tmp_path / "runs", facts)[0][0].state == "interrupted"
    assert len(reads) == 2


def test_a_record_that_was_just_written_is_not_kept(tmp_path: Path, facts: FactCache) -> None:
    recorded(tmp_path / "runs", 7)
    lines = summary.lines(tmp_path / "runs", facts)
    assert not list((tmp_path / "facts").rglob("*/*"))
    assert summary.lines(tmp_path / "runs", None) == lines


def test_a_damaged_fact_is_read_as_missing(tmp_path: Path, facts: FactCache, reads: list[Path]) -> None:
    runs = tmp_path / "runs"
    recorded(runs, 7)
    lines = summary.lines(runs, facts)
    facts.put("run-summaries", os.fsencode(os.path.realpath(runs)).hex(), b"\x81\xa1a\x01")
    assert summary.lines(runs, facts) == lines
    assert len(reads) == 2


def test_a_directory_whose_name_is_not_utf8_is_listed(tmp_path: Path, facts: FactCache, reads: list[Path]) -> None:
    runs = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    recorded(runs, 7)
    lines = summary.lines(runs, facts)
    assert len(lines[0]) == 1
    assert summary.lines(runs, facts) == lines
    assert len(reads) == 1
