from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from repro_env.runs.records import ids, index, records
from repro_env.runs.records.index import Index, Summary
from repro_env.runs.records.records import Run
from repro_env.schema.errors import RecordError
from repro_env.schema.run import DataFact, Output, Parent, RecipeFile
from tests.runs.records.test_records import DIGEST, end, recorded, start

HOUR = 3600


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that were read."""
    opened: list[str] = []
    read = records.read

    def record_read(directory: Path) -> Run:
        opened.append(directory.name)
        return read(directory)

    monkeypatch.setattr("repro_env.runs.records.index.records.read", record_read)
    return opened


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock forward, so that new records are old enough to be indexed by their keys."""
    now = time.time_ns
    monkeypatch.setattr("repro_env.runs.records.index.time.time_ns", lambda: now() + HOUR * 10**9)


def summaries(runs: Path) -> list[Summary]:
    """Summarise the records without an index."""
    return [index.summarize(run) for run in records.listing(runs)[0]]


def test_a_listing_has_the_summaries_of_the_records(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for number in (1, 61, 2, 3):
        recorded(runs, number, over=number != 2)
    cached = Index(tmp_path / "index")
    for _ in range(2):
        assert list(cached.listing(runs).runs) == summaries(runs)
    assert [run.state for run in summaries(runs)] == ["done", "done", "interrupted", "done"]


@pytest.mark.usefixtures("later")
def test_an_unchanged_record_is_not_read_again(tmp_path: Path, reads: list[str]) -> None:
    for number in (1, 2):
        recorded(tmp_path, number)
    cached = Index(tmp_path / "index")
    first = cached.listing(tmp_path)
    assert len(reads) == 2
    assert Index(tmp_path / "index").listing(tmp_path) == first
    assert len(reads) == 2
    third = recorded(tmp_path, 3)
    assert [run.short for run in cached.listing(tmp_path).runs] == ["00000003", "00000002", "00000001"]
    assert reads[2:] == [third.name]
    assert cached.listing(tmp_path, refresh=True).runs == cached.listing(tmp_path).runs
    assert len(reads) == 6


@pytest.mark.usefixtures("later")
def test_a_run_that_ends_during_the_listing_is_not_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, run_id = tmp_path / "runs", ids.uuid7(1, bytes(10))
    recording = records.begin(runs, "20260701T101530Z-train-00000001")
    recording.start(start(run_id))
    cached = Index(tmp_path / "index")
    assert [run.state for run in cached.listing(runs).runs] == ["running"]
    is_running = records.is_running

    def end_then_check(directory: Path) -> bool:
        monkeypatch.setattr(records, "is_running", is_running)
        recording.finish(end(run_id))
        return is_running(directory)

    monkeypatch.setattr(records, "is_running", end_then_check)
    assert [run.state for run in cached.listing(runs).runs] == ["done"]


def test_a_young_record_is_read_again(tmp_path: Path, reads: list[str]) -> None:
    recorded(tmp_path, 1)
    cached = Index(tmp_path / "index")
    cached.listing(tmp_path)
    cached.listing(tmp_path)
    assert len(reads) == 2, "the clock of the file system may be coarse"


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("how", ["in place", "replaced", "same size and time"])
def test_a_changed_record_is_read_again(tmp_path: Path, how: str) -> None:
    directory = recorded(tmp_path, 1)
    cached = Index(tmp_path / "index")
    assert cached.listing(tmp_path).runs[0].intact
    path = directory / "start.json"
    status, text = path.stat(), path.read_bytes().replace(b"train.py", b"other.py")
    if how == "replaced":
        path.unlink()
    else:
        path.chmod(0o644)
    path.write_bytes(text)
    if how == "same size and time":
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert cached.listing(tmp_path).runs[0].command == ("other.py",)


@pytest.mark.usefixtures("later")
def test_the_end_of_a_run_is_detected(tmp_path: Path) -> None:
    run_id = ids.uuid7(1, bytes(10))
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000000")
    recording.start(start(run_id))
    cached = Index(tmp_path / "index")
    assert cached.listing(tmp_path).runs[0].state == "running"
    recording.finish(msgspec.structs.replace(end(run_id), start=recording.start_digest))
    run = cached.listing(tmp_path).runs[0]
    assert (run.state, run.ending, run.outputs, run.size, run.intact) == ("done", "exit 0", 1, 1, True)


@pytest.mark.usefixtures("later")
def test_the_state_of_an_unfinished_run_is_checked_each_time(tmp_path: Path) -> None:
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000000")
    recording.start(start(ids.uuid7(1, bytes(10))))
    cached = Index(tmp_path / "index")
    assert cached.listing(tmp_path).runs[0].state == "running"
    recording.close()
    assert cached.listing(tmp_path).runs[0].state == "interrupted"


@pytest.mark.usefixtures("later")
def test_a_removed_run_is_not_listed_and_a_damaged_run_is_unreadable(tmp_path: Path) -> None:
    removed, damaged, good = (recorded(tmp_path, number) for number in (1, 2, 3))
    cached = Index(tmp_path / "index")
    cached.listing(tmp_path)
    records.remove(removed)
    (damaged / "end.json").chmod(0o644)
    (damaged / "end.json").write_bytes(b"{")
    for _ in range(2):
        listing = cached.listing(tmp_path)
        assert [run.directory for run in listing.runs] == [str(good)]
        assert [run.directory for run in listing.unreadable] == [damaged]
    (file,) = (tmp_path / "index").iterdir()
    assert removed.name.encode() not in file.read_bytes()


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("harm", ["garbage", "torn", "version", "outputs", "directory", "empty"])
def test_a_damaged_index_is_rebuilt(tmp_path: Path, harm: str, reads: list[str]) -> None:
    runs = tmp_path / "runs"
    for number in range(1, 13):
        recorded(runs, number)
    cached = Index(tmp_path / "index")
    complete = cached.listing(runs, outputs=True)
    (file,) = (tmp_path / "index").iterdir()
    if harm == "directory":
        file.unlink()
        file.mkdir()
    else:
        stored = msgspec.msgpack.decode(file.read_bytes())
        if harm == "version":
            stored["version"] = "0"
        elif harm == "outputs":
            for row in stored["rows"].values():
                row[2] = row[2][1:]
        data = {"garbage": b"no index" * 1000, "torn": file.read_bytes()[:-9], "empty": b""}.get(harm)
        file.write_bytes(msgspec.msgpack.encode(stored) if data is None else data)
    assert cached.listing(runs, outputs=True) == complete
    assert len(reads) == 24
    assert cached.listing(runs, outputs=True) == complete
    assert (len(reads) == 24) == (harm != "directory")


@pytest.mark.usefixtures("later")
def test_a_listing_does_not_need_a_writable_index(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    recorded(runs, 1)
    for root in (None, tmp_path / "none" / "index", Path("/dev/full")):
        assert list(Index(root).listing(runs).runs) == summaries(runs)


@pytest.mark.usefixtures("later")
def test_an_index_keeps_two_directories_of_runs_apart(tmp_path: Path) -> None:
    cached = Index(tmp_path / "index")
    for name, number in (("a", 1), ("b", 2)):
        recorded(tmp_path / name, number)
        cached.listing(tmp_path / name)
    assert [run.short for run in cached.listing(tmp_path / "a").runs] == ["00000001"]
    assert [run.short for run in cached.listing(tmp_path / "b").runs] == ["00000002"]


@pytest.mark.usefixtures("later")
def test_a_listing_through_a_symlink_has_paths_with_the_symlink(tmp_path: Path, reads: list[str]) -> None:
    directory = recorded(tmp_path / "runs", 1)
    (tmp_path / "link").symlink_to("runs")
    cached = Index(tmp_path / "index")
    cached.listing(tmp_path / "runs")
    assert [run.directory for run in cached.listing(tmp_path / "link").runs] == [str(tmp_path / "link" / directory.name)]
    assert len(reads) == 1


@pytest.mark.usefixtures("later")
def test_the_last_listing_of_a_missing_directory_is_available(tmp_path: Path) -> None:
    recorded(tmp_path / "runs", 1)
    recorded(tmp_path / "runs", 2, over=False)
    cached = Index(tmp_path / "index")
    complete = cached.listing(tmp_path / "runs", outputs=True)
    (tmp_path / "runs").rename(tmp_path / "moved")
    assert cached.listing(tmp_path / "runs").runs == ()
    assert cached.last_listing(tmp_path / "runs") == complete
    assert cached.last_listing(tmp_path / "other").runs == ()
    (tmp_path / "runs").mkdir()
    cached.listing(tmp_path / "runs")
    assert cached.last_listing(tmp_path / "runs").runs == (), "the directory exists and is empty"


@pytest.mark.usefixtures("later")
def test_inputs_and_outputs_are_indexed(tmp_path: Path) -> None:
    run_id = ids.uuid7(1, bytes(10))
    parents = [Parent(id=str(number), record=None, how=how) for number, how in ((1, "named"), (2, "resumed"))]  # type: ignore[arg-type]
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000000")
    recording.start(
        msgspec.structs.replace(
            start(run_id),
            data=(
                DataFact(source="/d", target="/data", kind="data", digest=DIGEST),
                DataFact(source="/c", target="/c", kind="checkpoints", digest=None),
            ),
            recipe=(RecipeFile(path="conf.yaml", sha256=DIGEST),),
            parents=(parents[0],),
        )
    )
    outputs = tuple(Output(path=str(number), sha256=f"sha256:{number:064x}", size=1) for number in (1, 2))
    recording.finish(msgspec.structs.replace(end(run_id), outputs=outputs, resumed=(parents[1],), start=DIGEST))
    cached = Index(tmp_path / "index")
    for _ in range(2):
        listing = cached.listing(tmp_path, outputs=True)
        (run,) = listing.runs
        assert [(datum.role, datum.path, datum.digest) for datum in run.data] == [
            ("data", "/d", DIGEST),
            ("checkpoints", "/c", ""),
            ("recipe", "conf.yaml", DIGEST),
        ]
        assert run.parents == tuple(parents)
        assert not run.intact, "end.json has the digest of another start.json"
        assert listing.outputs == {str(recording.directory): (1).to_bytes(32, "big") + (2).to_bytes(32, "big")}
        assert cached.listing(tmp_path).outputs == {}


def test_a_file_is_refused_as_a_directory_of_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert Index(None).listing(tmp_path / "none").runs == ()
    with pytest.raises(RecordError, match="as a directory"):
        Index(None).listing(tmp_path / "file")
