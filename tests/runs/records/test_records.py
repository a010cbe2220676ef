from __future__ import annotations

import fcntl
import os
import stat
import threading
from pathlib import Path

import msgspec
import pytest

from repro_env.runs.records import annotation, ids, records
from repro_env.schema import codec
from repro_env.schema.errors import RecordError, SpecError, SpecVersionError
from repro_env.schema.run import Parent
from tests.runs.records.examples import DIGEST, end, recorded, start


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "runs", 7)
    assert directory.name == "20260701T101507Z-train-00000007"
    run = records.read(directory)
    assert run.start == start(run.start.id)
    assert run.end == end(run.start.id)
    assert (run.state, run.short) == ("done", "00000007")


def test_records_are_written_once_and_read_only(tmp_path: Path) -> None:
    directory = recorded(tmp_path, 7)
    for name in ("start.json", "end.json"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o444
    assert sorted(path.name for path in directory.iterdir()) == ["end.json", "files", "lock", "start.json"]


def test_a_running_run_differs_from_an_interrupted_one(tmp_path: Path) -> None:
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000001")
    recording.start(start(ids.uuid7(1, bytes(10))))
    assert records.read(recording.directory).state == "running"
    with pytest.raises(RecordError, match="still running"):
        records.remove(recording.directory)
    recording.close()
    assert records.read(recording.directory).state == "interrupted"


def test_a_run_that_ends_while_it_is_read_is_not_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = ids.uuid7(1, bytes(10))
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000001")
    recording.start(start(run_id))
    is_running = records.is_running

    def end_then_check(directory: Path) -> bool:
        recording.finish(end(run_id))
        return is_running(directory)

    monkeypatch.setattr(records, "is_running", end_then_check)
    assert records.read(recording.directory).state == "done"


def test_a_run_can_begin_while_another_process_checks_whether_it_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def lock_after_a_reader(lock: int, operation: int) -> None:
        reader = os.open(f"/proc/self/fd/{lock}", os.O_RDONLY)
        flock(reader, fcntl.LOCK_SH)
        threading.Timer(0.1, os.close, (reader,)).start()
        flock(lock, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", lock_after_a_reader)
        recording = records.begin(tmp_path, "20260701T101530Z-train-00000001")
    assert records.is_running(recording.directory)
    recording.close()


def test_a_run_is_running_while_a_child_process_lives(tmp_path: Path) -> None:
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000001")
    recording.start(start(ids.uuid7(1, bytes(10))))
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    recording.close()
    assert records.is_running(recording.directory)
    os.close(write_end)
    os.close(read_end)
    os.waitpid(child, 0)
    assert not records.is_running(recording.directory)


def test_latest_points_to_the_newest_run_after_a_removal(tmp_path: Path) -> None:
    first, second = recorded(tmp_path, 1), recorded(tmp_path, 2)
    assert (tmp_path / "latest").readlink() == Path(second.name)
    assert records.find(tmp_path, "latest") == second
    records.remove(second)
    assert records.find(tmp_path, "latest") == first
    assert (tmp_path / "latest").resolve() == first.resolve()
    records.remove(first)
    assert not (tmp_path / "latest").is_symlink()
    with pytest.raises(RecordError, match="does not contain a run"):
        records.find(tmp_path, "latest")


def test_a_file_named_latest_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("mine")
    directory = recorded(tmp_path, 1)
    assert (tmp_path / "latest").read_text() == "mine"
    assert records.find(tmp_path, "latest") == directory


def test_a_discarded_run_leaves_nothing_behind(tmp_path: Path) -> None:
    first = recorded(tmp_path, 1)
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000002")
    recording.start(start(ids.uuid7(2, bytes(10))))
    recording.discard()
    assert sorted(path.name for path in tmp_path.iterdir()) == [first.name, "latest"]
    assert records.find(tmp_path, "latest") == first


@pytest.mark.parametrize("word", ["0000000a", "20260701T101510Z-train-0000000a", "20260701T101510Z", "{id}"])
def test_a_run_is_found_by_any_of_its_names(tmp_path: Path, word: str) -> None:
    directory = recorded(tmp_path, 10)
    recorded(tmp_path, 2**35)
    assert records.find(tmp_path, word.replace("{id}", ids.uuid7(10, (10).to_bytes(10, "big")))) == directory


def test_an_ambiguous_or_unknown_name_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path, 1)
    recorded(tmp_path, 2)
    with pytest.raises(RecordError, match="matches 2 runs: 00000002, 00000001"):
        records.find(tmp_path, "0000")
    for word in ("ffff", "", ".", "../x"):
        with pytest.raises(RecordError, match=r"does not exist|matches"):
            records.find(tmp_path, word)


def test_a_complete_short_id_has_precedence_over_the_start_of_a_name(tmp_path: Path) -> None:
    wanted = recorded(tmp_path, 0x20260701)
    recorded(tmp_path, 3)
    assert records.find(tmp_path, "20260701") == wanted


def test_damaged_records_are_listed_separately(tmp_path: Path) -> None:
    good, torn, newer, empty = (recorded(tmp_path, number) for number in (1, 2, 3, 4))
    for directory, text in ((torn, b'{"schema": "repro-env/run-st'), (newer, b'{"schema": "repro-env/run-start/2"}')):
        (directory / "start.json").chmod(0o644)
        (directory / "start.json").write_bytes(text)
    (empty / "start.json").unlink()
    (tmp_path / "notes").mkdir()
    readable, unreadable = records.listing(tmp_path)
    assert [run.directory for run in readable] == [good]
    assert [(run.directory, type(run.why)) for run in unreadable] == [
        (empty, RecordError),
        (newer, SpecVersionError),
        (torn, SpecError),
    ]
    assert records.find(tmp_path, "00000002") == torn
    assert ["runs rm" in run.why.hint for run in unreadable] == [False, False, True], "a new capture does not help"


def test_a_damaged_end_is_not_an_interrupted_run(tmp_path: Path) -> None:
    directory = recorded(tmp_path, 1)
    (directory / "end.json").chmod(0o644)
    (directory / "end.json").write_bytes(
        codec.canonical(msgspec.json.decode((directory / "end.json").read_bytes()) | {"seconds": "no"})
    )
    with pytest.raises(SpecError, match="seconds"):
        records.read(directory)


def test_runs_of_the_same_second_are_sorted_by_age(tmp_path: Path) -> None:
    directories = [recorded(tmp_path, number, word=word) for number, word in ((1, "z.py"), (61, "a.py"), (121, "m.py"))]
    assert [run.directory for run in records.listing(tmp_path)[0]] == directories[::-1]


def test_a_missing_directory_of_runs_is_empty_and_a_file_is_refused(tmp_path: Path) -> None:
    assert records.listing(tmp_path / "none") == ([], [])
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="as a directory"):
        records.listing(tmp_path / "file")
    with pytest.raises(RecordError, match="cannot be created"):
        records.begin(tmp_path / "file", "20260701T101530Z-train-00000001")


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (["train.py", "--lr", "1"], "train"),
        (["/a/b/My Script.py"], "My-Script"),
        (["-m", "pkg.mod"], "pkg.mod"),
        (["-c", "print(1)"], "python-c"),
        (["torchrun", "x.py"], "torchrun"),
        (["-m"], "m"),
        (["../.."], "run"),
        (["."], "run"),
        (["x" * 300], "x" * 40),
        ([], "run"),
    ],
)
def test_a_run_is_named_after_its_script(command: list[str], word: str) -> None:
    assert records.script_of(command) == word


def test_a_listing_has_the_newest_run_first(tmp_path: Path) -> None:
    for number in (1, 61, 2, 3):
        recorded(tmp_path, number, over=number != 2)
    assert [run.short for run in records.listing(tmp_path)[0]] == ["0000003d", "00000003", "00000002", "00000001"]
    assert [run.state for run in records.listing(tmp_path)[0]] == ["done", "done", "interrupted", "done"]


def test_the_state_and_the_end_of_a_run_are_read_each_time(tmp_path: Path) -> None:
    run_id = ids.uuid7(1, bytes(10))
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000000")
    recording.start(start(run_id))
    (run,) = records.listing(tmp_path)[0]
    assert (run.state, run.ending, run.end, run.end_digest, run.intact) == ("running", "running", None, "", None)
    recording.close()
    assert [run.state for run in records.listing(tmp_path)[0]] == ["interrupted"]
    recording.finish(msgspec.structs.replace(end(run_id), start=recording.start_digest))
    (run,) = records.listing(tmp_path)[0]
    assert (run.state, run.ending, run.intact) == ("done", "exit 0", True)
    assert (run.start_digest, run.end_digest) == (recording.start_digest, records.digest(recording.directory / "end.json"))


def test_a_removed_run_is_not_listed_and_a_damaged_run_is_unreadable(tmp_path: Path) -> None:
    removed, damaged, good = (recorded(tmp_path, number) for number in (1, 2, 3))
    records.remove(removed)
    (damaged / "end.json").chmod(0o644)
    (damaged / "end.json").write_bytes(b"{")
    readable, unreadable = records.listing(tmp_path)
    assert [run.directory for run in readable] == [good]
    assert [run.directory for run in unreadable] == [damaged]


def test_a_run_has_its_parents_and_tags(tmp_path: Path) -> None:
    run_id = ids.uuid7(1, bytes(10))
    named, resumed = Parent(id="1", record=None, how="named"), Parent(id="2", record=None, how="resumed")
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000000")
    recording.start(msgspec.structs.replace(start(run_id), parents=(named,)))
    recording.finish(msgspec.structs.replace(end(run_id), resumed=(resumed,), start=DIGEST))
    run = records.read(recording.directory)
    assert run.parents == (named, resumed)
    assert run.intact is False, "end.json has the digest of another start.json"
    annotation.add(run.directory, kind="tag", text="best")
    assert run.tags == ("best",)
    (run.directory / "annotations" / f"{run_id}.json").write_text("{")
    assert run.tags is None
