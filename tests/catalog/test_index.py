from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path

import msgspec
import pytest

from repro_env.catalog import ids, index, records
from repro_env.catalog.index import Index, Summary
from repro_env.catalog.records import Run
from repro_env.model.errors import RecordError
from repro_env.model.run import DataFact, Output, Parent, RecipeFile
from tests.catalog.test_records import DIGEST, end, recorded, start

HOUR = 3600


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose records were opened."""
    opened: list[str] = []
    read = records.read

    def noted(folder: Path) -> Run:
        opened.append(folder.name)
        return read(folder)

    monkeypatch.setattr("repro_env.catalog.index.records.read", noted)
    return opened


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records made now are old enough to be known by their keys."""
    now = time.time_ns
    monkeypatch.setattr("repro_env.catalog.index.time.time_ns", lambda: now() + HOUR * 10**9)


def direct(runs: Path) -> list[Summary]:
    return [index.summary(one) for one in records.listing(runs)[0]]


def test_a_listing_is_that_of_the_records(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for number in (1, 61, 2, 3):
        recorded(runs, number, over=number != 2)
    kept = Index(tmp_path / "runs.db")
    for _ in range(2):
        assert list(kept.listing(runs).runs) == direct(runs)
    assert [one.state for one in direct(runs)] == ["done", "done", "interrupted", "done"]


@pytest.mark.usefixtures("later")
def test_what_did_not_change_is_not_read_again(tmp_path: Path, reads: list[str]) -> None:
    for number in (1, 2):
        recorded(tmp_path, number)
    kept = Index(tmp_path / "runs.db")
    first = kept.listing(tmp_path)
    assert len(reads) == 2
    assert Index(tmp_path / "runs.db").listing(tmp_path) == first
    assert len(reads) == 2
    third = recorded(tmp_path, 3)
    assert [one.short for one in kept.listing(tmp_path).runs] == ["00000003", "00000002", "00000001"]
    assert reads[2:] == [third.name]
    assert kept.listing(tmp_path, anew=True).runs == kept.listing(tmp_path).runs
    assert len(reads) == 6


def test_a_young_record_is_read_again(tmp_path: Path, reads: list[str]) -> None:
    recorded(tmp_path, 1)
    kept = Index(tmp_path / "runs.db")
    kept.listing(tmp_path)
    kept.listing(tmp_path)
    assert len(reads) == 2, "its clock may not have moved since"


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("how", ["in place", "replaced", "same size and time"])
def test_a_changed_record_is_seen(tmp_path: Path, how: str) -> None:
    folder = recorded(tmp_path, 1)
    kept = Index(tmp_path / "runs.db")
    assert kept.listing(tmp_path).runs[0].vouched
    path = folder / "start.json"
    facts, text = path.stat(), path.read_bytes().replace(b"train.py", b"other.py")
    if how == "replaced":
        path.unlink()
    else:
        path.chmod(0o644)
    path.write_bytes(text)
    if how == "same size and time":
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert kept.listing(tmp_path).runs[0].command == ("other.py",)


@pytest.mark.usefixtures("later")
def test_the_end_of_a_run_is_seen(tmp_path: Path) -> None:
    run_id = ids.uuid7(1, bytes(10))
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000000")
    recording.start(start(run_id))
    kept = Index(tmp_path / "runs.db")
    assert kept.listing(tmp_path).runs[0].state == "running"
    recording.finish(msgspec.structs.replace(end(run_id), start=recording.started))
    one = kept.listing(tmp_path).runs[0]
    assert (one.state, one.ended, one.outputs, one.size, one.vouched) == ("done", "exit 0", 1, 1, True)


@pytest.mark.usefixtures("later")
def test_an_interrupted_run_is_told_from_a_running_one_each_time(tmp_path: Path) -> None:
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000000")
    recording.start(start(ids.uuid7(1, bytes(10))))
    kept = Index(tmp_path / "runs.db")
    assert kept.listing(tmp_path).runs[0].state == "running"
    recording.close()
    assert kept.listing(tmp_path).runs[0].state == "interrupted"


@pytest.mark.usefixtures("later")
def test_a_removed_run_is_gone_and_a_damaged_one_named(tmp_path: Path) -> None:
    one, two, three = (recorded(tmp_path, number) for number in (1, 2, 3))
    kept = Index(tmp_path / "runs.db")
    kept.listing(tmp_path)
    records.remove(one)
    (two / "end.json").chmod(0o644)
    (two / "end.json").write_bytes(b"{")
    for _ in range(2):
        found = kept.listing(tmp_path)
        assert [each.folder for each in found.runs] == [str(three)]
        assert [each.folder for each in found.unreadable] == [two]
    with sqlite3.connect(tmp_path / "runs.db") as db:
        assert db.execute("select count(*) from run where name = ?", (one.name,)).fetchone() == (0,)


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("harm", ["garbage", "torn", "version", "row", "outputs", "types", "tables", "folder", "empty"])
def test_a_damaged_index_is_made_anew(tmp_path: Path, harm: str) -> None:
    runs, database = tmp_path / "runs", tmp_path / "runs.db"
    for number in range(1, 13):
        recorded(runs, number)
    kept = Index(database)
    whole = kept.listing(runs, outputs=True)
    if harm == "garbage":
        database.write_bytes(b"no database" * 1000)
    elif harm == "torn":
        os.truncate(database, database.stat().st_size // 2)
    elif harm == "empty":
        os.truncate(database, 0)
    elif harm == "folder":
        database.unlink()
        database.mkdir()
    else:
        with sqlite3.connect(database) as db:
            for text in {
                "version": ["update run set summary = x'00'", "pragma user_version = 99"],
                "row": ["update run set summary = substr(summary, 2)"],
                "outputs": ["update run set outputs = substr(outputs, 2)"],
                "types": ["update run set outputs = 1, key = 'text'"],
                "tables": ["drop table run"],
            }[harm]:
                db.execute(text)
    assert kept.listing(runs, outputs=True) == whole
    assert kept.listing(runs, outputs=True) == whole


@pytest.mark.usefixtures("later")
def test_an_index_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    recorded(runs, 1)
    for database in (None, tmp_path / "none" / "runs.db", Path("/dev/full")):
        assert list(Index(database).listing(runs).runs) == direct(runs)


@pytest.mark.usefixtures("later")
def test_an_index_that_another_process_holds_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds it may hang: the records say the same, and the wait is once and short."""
    monkeypatch.setattr(index, "_PATIENCE", 0.01)
    runs, database = tmp_path / "runs", tmp_path / "runs.db"
    recorded(runs, 1)
    Index(database).listing(runs)
    recorded(runs, 2)
    with contextlib.closing(sqlite3.connect(database)) as holder:
        holder.execute("begin exclusive")
        kept = Index(database)
        assert list(kept.listing(runs).runs) == direct(runs)
        assert kept._database is None, "it is not waited for again"
        assert list(kept.listing(runs).runs) == direct(runs)
    Index(database).listing(runs)
    with contextlib.closing(sqlite3.connect(database)) as db:
        assert db.execute("select count(*) from run").fetchone() == (2,)


@pytest.mark.usefixtures("later")
def test_two_folders_in_one_index_do_not_mix(tmp_path: Path) -> None:
    kept = Index(tmp_path / "runs.db")
    for name, number in (("a", 1), ("b", 2)):
        recorded(tmp_path / name, number)
        kept.listing(tmp_path / name)
    assert [one.short for one in kept.listing(tmp_path / "a").runs] == ["00000001"]
    assert [one.short for one in kept.listing(tmp_path / "b").runs] == ["00000002"]


@pytest.mark.usefixtures("later")
def test_a_listing_through_a_symlink_names_its_own_folders(tmp_path: Path, reads: list[str]) -> None:
    folder = recorded(tmp_path / "runs", 1)
    (tmp_path / "link").symlink_to("runs")
    kept = Index(tmp_path / "runs.db")
    kept.listing(tmp_path / "runs")
    assert [one.folder for one in kept.listing(tmp_path / "link").runs] == [str(tmp_path / "link" / folder.name)]
    assert len(reads) == 1


@pytest.mark.usefixtures("later")
def test_a_folder_that_is_away_is_remembered(tmp_path: Path) -> None:
    recorded(tmp_path / "runs", 1)
    recorded(tmp_path / "runs", 2, over=False)
    kept = Index(tmp_path / "runs.db")
    whole = kept.listing(tmp_path / "runs", outputs=True)
    (tmp_path / "runs").rename(tmp_path / "away")
    assert kept.listing(tmp_path / "runs").runs == ()
    assert kept.remembered(tmp_path / "runs") == whole
    assert kept.remembered(tmp_path / "other").runs == ()
    (tmp_path / "runs").mkdir()
    kept.listing(tmp_path / "runs")
    assert kept.remembered(tmp_path / "runs").runs == (), "there, and empty"


@pytest.mark.usefixtures("later")
def test_what_went_in_and_came_out_is_kept(tmp_path: Path) -> None:
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
    kept = Index(tmp_path / "runs.db")
    for _ in range(2):
        found = kept.listing(tmp_path, outputs=True)
        (one,) = found.runs
        assert [(each.role, each.path, each.digest) for each in one.data] == [
            ("data", "/d", DIGEST),
            ("checkpoints", "/c", ""),
            ("recipe", "conf.yaml", DIGEST),
        ]
        assert one.parents == tuple(parents)
        assert not one.vouched, "the end speaks of another start.json"
        assert found.outputs == {str(recording.folder): (1).to_bytes(32, "big") + (2).to_bytes(32, "big")}
        assert kept.listing(tmp_path).outputs == {}


def test_a_file_is_no_folder_of_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert Index(None).listing(tmp_path / "none").runs == ()
    with pytest.raises(RecordError, match="as a directory"):
        Index(None).listing(tmp_path / "file")
