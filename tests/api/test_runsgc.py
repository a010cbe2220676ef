"""Runs are removed by rule, unless something else keeps them, and no run is removed in part."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from repro_env.api import runsgc
from repro_env.api.runsgc import Collected
from repro_env.runs.records import annotation, checkpointmanifest, ids, records, submissions
from repro_env.runs.records.submissions import Submission
from repro_env.schema import codec
from repro_env.schema.errors import RecordError, UsageError
from repro_env.schema.progress import Silent
from repro_env.schema.run import Parent
from repro_env.schema.rundirectory import ANNOTATIONS
from repro_env.store.specs import archive
from repro_env.store.store import Store
from tests.fakes.messages import Messages
from tests.runs.records.examples import end, recorded, start


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def rewrite(path: Path, value: object) -> None:
    path.chmod(0o644)
    path.write_bytes(codec.pretty(value))


def child_of(runs: Path, number: int, parent: int) -> Path:
    """Record a run that started from another run."""
    run_id = ids.uuid7(number, number.to_bytes(10, "big"))
    when = datetime(2026, 7, 1, 10, 15, number % 60, tzinfo=timezone.utc)
    recording = records.begin(runs, records.name_of(when, ["train.py"], run_id))
    named_parent = Parent(id=ids.uuid7(parent, parent.to_bytes(10, "big")), record=None, how="named")
    recording.start(msgspec.structs.replace(start(run_id), parents=(named_parent,)))
    recording.finish(end(run_id))
    return recording.directory


def collect(runs: Path, store: Store, *words: str, dry_run: bool = False) -> Collected:
    return runsgc.collect(runs, words, store=store, dry_run=dry_run, tell=Silent())


def remaining(runs: Path) -> list[str]:
    return [directory.name[-2:] for directory in records.directories(runs)]


def short_ids(done: Collected) -> list[str]:
    return [removed.run.short for removed in done.gone]


def test_runs_that_match_no_rule_are_removed_and_a_dry_run_changes_nothing(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    directories = [recorded(runs, number, over=number != 2) for number in range(1, 5)]
    (directories[0] / "files" / "w.bin").write_bytes(bytes(1000))
    before = sorted(path.as_posix() for path in runs.rglob("*"))
    dry = collect(runs, store, "last=2", dry_run=True)
    assert sorted(path.as_posix() for path in runs.rglob("*")) == before
    done = collect(runs, store, "last=2")
    assert short_ids(done) == short_ids(dry) == ["00000002", "00000001"]
    assert [removed.size for removed in done.gone] == [removed.size for removed in dry.gone]
    assert done.gone[1].size > 1000
    assert remaining(runs) == ["04", "03"]
    assert (runs / "latest").resolve() == directories[3].resolve()
    assert sorted(path.name for path in runs.iterdir()) == sorted([directories[2].name, directories[3].name, "latest"])


def test_tagged_runs_and_parents_are_kept(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    directories = [recorded(runs, number) for number in range(1, 5)]
    annotation.add(directories[0], kind="tag", text="paper")
    annotation.add(directories[1], kind="tag", text="old")
    annotation.add(directories[1], kind="untag", text="old")
    child_of(runs, 5, parent=3)
    assert short_ids(collect(runs, store, "last=1")) == ["00000004", "00000002"]
    assert remaining(runs) == ["05", "03", "01"]


def test_a_parent_of_a_run_in_another_runs_directory_is_kept(tmp_path: Path, store: Store) -> None:
    runs, others = tmp_path / "runs", tmp_path / "others"
    recorded(runs, 1)
    recorded(runs, 2)
    child_of(others, 9, parent=1)
    store.run_directories.add(others)
    done = collect(runs, store, "last=1")
    assert done.gone == ()
    assert done.keep[1].why == (f"00000009 in {others} started from it",)


def test_a_warning_names_missing_runs_directories_for_a_limited_time(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    recorded(runs, 1)
    for name in ("a", "b", "c"):
        recorded(tmp_path / name, 2)
        store.run_directories.add(tmp_path / name)
        shutil.rmtree(tmp_path / name)
    os.utime(store.run_directories._link(tmp_path / "a"), (1, 1), follow_symlinks=False)
    tell = Messages()
    runsgc.collect(runs, ["last=1"], store=store, dry_run=True, tell=tell)
    expected = f"note: runs in missing directories may have started from one of these runs: {tmp_path / 'b'} and 1 more"
    assert tell.lines == [expected]


def test_a_run_that_an_interrupted_run_resumed_from_is_kept(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    parent = records.read(recorded(runs, 1))
    child = records.read(recorded(runs, 2, over=False))
    recorded(runs, 3)
    text = {
        "schema": "repro-env/checkpoint/1",
        "step": 9,
        "run": child.start.id,
        "files": {},
        "parent": {"run": parent.start.id, "path": "ck", "sha256": "1" * 64, "step": 3},
    }
    path = child.files / "ck" / "9" / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(text))
    done = collect(runs, store, "last=2", dry_run=True)
    assert done.keep[2].why == ("00000002 resumed from it, according to a checkpoint",)


def test_a_warning_names_a_directory_with_too_many_files_to_search(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointmanifest, "_DIRECTORIES", 1)
    run = records.read(recorded(tmp_path / "runs", 1, over=False))
    (run.files / "checkpoints").mkdir(parents=True)
    tell = Messages()
    runsgc.collect(tmp_path / "runs", ["last=1"], store=store, dry_run=True, tell=tell)
    (line,) = tell.lines
    assert line.startswith(f"note: a descendant of these runs may be unknown: {run.files} has too many files")


def test_a_run_with_an_unreadable_record_is_kept_with_the_runs_that_it_names(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    recorded(runs, 1)
    recorded(runs, 2)
    broken = child_of(runs, 3, parent=1)
    (broken / "start.json").chmod(0o644)
    (broken / "start.json").write_bytes((broken / "start.json").read_bytes()[:-20])
    recorded(runs, 4)
    done = collect(runs, store, "last=1")
    assert remaining(runs) == ["04", "03", "01"]
    assert [run.directory for run in done.unreadable] == [broken]


def test_a_run_with_an_unreadable_tag_is_kept(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    directory = recorded(runs, 1)
    recorded(runs, 2)
    tag = annotation.add(directory, kind="tag", text="paper")
    path = directory / ANNOTATIONS / f"{tag.id}.json"
    path.chmod(0o644)
    path.write_text("{")
    done = collect(runs, store, "last=1")
    assert done.gone == ()
    assert done.keep[1].why[0].startswith("its tags cannot be read")


def test_a_running_run_is_kept(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    recording = records.begin(runs, "20260701T101500Z-train-00000001")
    recording.start(start(ids.uuid7(1, (1).to_bytes(10, "big"))))
    recorded(runs, 2)
    assert collect(runs, store, "last=1").gone == ()
    recording.close()
    assert [removed.run.state for removed in collect(runs, store, "last=1").gone] == ["interrupted"]


def test_an_invalid_rule_or_metric_is_refused_before_any_removal(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    recorded(runs, 1)
    recorded(runs, 2)
    for words in (("last=1", "last=x"), ()):
        with pytest.raises(UsageError):
            collect(runs, store, *words)
    with pytest.raises(RecordError, match="no run has"):
        collect(runs, store, "last=1", "best=acc:max")
    assert remaining(runs) == ["02", "01"]


def test_a_missing_runs_directory_has_nothing_to_remove(tmp_path: Path, store: Store) -> None:
    assert collect(tmp_path / "none", store, "last=1") == Collected((), (), (), (), (), dry_run=False)


def test_a_run_that_cannot_be_removed_is_reported_and_the_others_are_removed(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    directories = [recorded(runs, number) for number in (1, 2, 3, 4)]
    (runs / f".gone-{directories[1].name}").write_text("in its way")
    done = collect(runs, store, "last=1")
    assert [(run.short, "cannot be removed" in why) for run, why in done.failed] == [("00000002", True)]
    assert short_ids(done) == ["00000003", "00000001"]
    assert remaining(runs) == ["04", "02"]


def test_a_run_is_kept_if_another_run_starts_from_it_in_the_meantime(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    for number in (1, 2, 3, 4):
        recorded(runs, number)
    real = records.remove

    def slow(directory: Path) -> None:
        if directory.name.endswith("01"):
            child_of(runs, 5, 2)
        real(directory)

    monkeypatch.setattr(runsgc, "_CHECK_EVERY", 1)
    monkeypatch.setattr(records, "remove", slow)
    done = collect(runs, store, "last=1")
    assert [(run.short, why) for run, why in done.failed] == [("00000002", "a run started from it in the meantime")]
    assert remaining(runs) == ["05", "04", "02"]


def test_an_interrupted_removal_reports_its_progress(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    for number in (1, 2, 3, 4):
        recorded(runs, number)
    real = records.remove

    def stopped(directory: Path) -> None:
        if directory.name.endswith("02"):
            raise KeyboardInterrupt
        real(directory)

    monkeypatch.setattr(records, "remove", stopped)
    tell = Messages()
    with pytest.raises(KeyboardInterrupt):
        runsgc.collect(runs, ["last=1"], store=store, dry_run=False, tell=tell)
    assert tell.lines == ["stopped: 1 of 3 runs were removed; the others are unchanged"]
    assert remaining(runs) == ["04", "03", "02"]


def test_a_damaged_record_in_a_copy_does_not_keep_its_own_run(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    recorded(runs, 1)
    recorded(runs, 2)
    shutil.copytree(runs, tmp_path / "copy", symlinks=True)
    store.run_directories.add(tmp_path / "copy")
    broken = records.directories(tmp_path / "copy")[1] / "end.json"
    broken.chmod(0o644)
    broken.write_bytes(broken.read_bytes()[:99])
    assert short_ids(collect(runs, store, "last=1")) == ["00000001"]


def test_leftovers_of_a_killed_removal_are_removed(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    directories = [recorded(runs, number) for number in (1, 2, 3)]
    directories[0].rename(runs / f".gone-{directories[0].name}")
    assert remaining(runs) == ["03", "02"]
    collect(runs, store, "last=1")
    assert sorted(path.name for path in runs.iterdir()) == sorted([directories[2].name, "latest"])


def test_a_killed_removal_leaves_only_complete_runs(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    for number in range(25):
        directory = recorded(runs, number)
        for name in range(20):
            (directory / "files" / f"{name}").touch()
    program = (
        "import sys; from pathlib import Path; from repro_env.api import runsgc; from repro_env.schema.progress import Silent\n"
        "from repro_env.store.store import Store; store = Store.open(Path(sys.argv[2])); print(flush=True)\n"
        "runsgc.collect(Path(sys.argv[1]), ['last=1'], store=store, dry_run=False, tell=Silent())"
    )
    for delay in (0.005, 0.015, 0.03):
        with subprocess.Popen([sys.executable, "-c", program, str(runs), str(store.root)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(delay)
            child.kill()
        readable, broken = records.listing(runs)
        assert broken == []
        assert {len(list(run.files.iterdir())) for run in readable} == {20}
    collect(runs, store, "last=1")
    assert len(remaining(runs)) == 1
    assert not list(runs.glob(".gone-*"))


def test_the_spec_of_a_submitted_run_is_kept(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    digests = [archive.write(runs, text) for text in (b"submitted", b"unused")]
    for digest in digests:
        os.utime(archive.directory_of(runs, digest), (0, 0))
    record = msgspec.structs.replace(start(ids.uuid7(1, bytes(10))), spec_file=digests[0])
    submissions.write(runs, Submission(engine="slurm", start=record))
    collect(runs, store, "last=1")
    assert [archive.directory_of(runs, digest).exists() for digest in digests] == [True, False]
