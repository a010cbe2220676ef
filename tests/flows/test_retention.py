"""Removing runs by rule: what holds a run beside the rules, and that none is half removed."""

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

from repro_env.catalog import annotation, ids, records
from repro_env.flows import retention
from repro_env.flows.retention import Collected
from repro_env.model import codec
from repro_env.model.errors import RecordError, UsageError
from repro_env.model.run import DataFact, Output, Parent
from repro_env.model.talk import Silent
from repro_env.store.store import Store
from tests.catalog.test_records import end, recorded, start


class Said(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str, /) -> None:
        self.lines.append(text)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def rewrite(path: Path, value: object) -> None:
    path.chmod(0o644)
    path.write_bytes(codec.pretty(value))


def child_of(runs: Path, number: int, parent: int) -> Path:
    """A run that names another one."""
    run_id = ids.uuid7(number, number.to_bytes(10, "big"))
    when = datetime(2026, 7, 1, 10, 15, number % 60, tzinfo=timezone.utc)
    recording = records.begin(runs, records.name_of(when, ["train.py"], run_id))
    came = Parent(id=ids.uuid7(parent, parent.to_bytes(10, "big")), record=None, how="named")
    recording.start(msgspec.structs.replace(start(run_id), parents=(came,)))
    recording.finish(end(run_id))
    return recording.folder


def collect(runs: Path, store: Store, *words: str, dry_run: bool = False) -> Collected:
    return retention.collect(runs, words, store=store, dry_run=dry_run, tell=Silent())


def left(runs: Path) -> list[str]:
    return [folder.name[-2:] for folder in records.folders(runs)]


def test_what_no_rule_keeps_goes_and_a_dry_run_changes_nothing(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    folders = [recorded(runs, number, over=number != 2) for number in range(1, 5)]
    (folders[0] / "files" / "w.bin").write_bytes(bytes(1000))
    before = sorted(path.as_posix() for path in runs.rglob("*"))
    dry = collect(runs, store, "last=2", dry_run=True)
    assert sorted(path.as_posix() for path in runs.rglob("*")) == before
    done = collect(runs, store, "last=2")
    assert [one.run.short for one in done.gone] == [one.run.short for one in dry.gone] == ["00000002", "00000001"]
    assert [one.size for one in done.gone] == [one.size for one in dry.gone]
    assert done.gone[1].size > 1000
    assert left(runs) == ["04", "03"]
    assert (runs / "latest").resolve() == folders[3].resolve()
    assert sorted(path.name for path in runs.iterdir()) == sorted([folders[2].name, folders[3].name, "latest"])


def test_tags_and_children_hold(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    folders = [recorded(runs, number) for number in range(1, 5)]
    annotation.add(folders[0], kind="tag", text="paper")
    annotation.add(folders[1], kind="tag", text="old")
    annotation.add(folders[1], kind="untag", text="old")
    child_of(runs, 5, parent=3)
    assert [one.run.short for one in collect(runs, store, "last=1").gone] == ["00000004", "00000002"]
    assert left(runs) == ["05", "03", "01"]


def test_a_child_in_another_folder_of_runs_holds(tmp_path: Path, store: Store) -> None:
    runs, others = tmp_path / "runs", tmp_path / "others"
    recorded(runs, 1)
    recorded(runs, 2)
    child_of(others, 9, parent=1)
    store.seen.see(others)
    done = collect(runs, store, "last=1")
    assert done.gone == ()
    assert done.keep[1].why == (f"00000009 in {others} started from it",)


def test_folders_that_are_away_are_told_once_and_not_for_ever(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    recorded(runs, 1)
    for name in ("a", "b", "c"):
        recorded(tmp_path / name, 2)
        store.seen.see(tmp_path / name)
        shutil.rmtree(tmp_path / name)
    os.utime(store.seen._note(os.fsencode(tmp_path / "a")), (1, 1))
    tell = Said()
    retention.collect(runs, ["last=1"], store=store, dry_run=True, tell=tell)
    assert tell.lines == [f"note: not there now: {tmp_path / 'b'} and 1 more; runs there may have started from one of these"]


def test_an_older_record_elsewhere_that_mounts_its_files_holds(tmp_path: Path, store: Store) -> None:
    runs, others = tmp_path / "runs", tmp_path / "others"
    parent = recorded(runs, 1)
    recorded(runs, 2)
    child = recorded(others, 9, over=False)
    mount = DataFact(source=str(parent / "files"), target="/in", kind="data", digest=None)
    began = records.read(child).start
    rewrite(child / "start.json", msgspec.structs.replace(began, data=(mount,)))
    store.seen.see(others)
    assert collect(runs, store, "last=1").gone == ()


def test_a_file_that_is_an_output_of_it_holds(tmp_path: Path, store: Store) -> None:
    """Copied out of the run and given to another as data: nobody named the run."""
    runs = tmp_path / "runs"
    made = recorded(runs, 1)
    child = recorded(runs, 2)
    recorded(runs, 3)
    digest = f"sha256:{'1' * 64}"
    over = records.read(made).end
    assert over is not None
    outputs = (Output(path="w.pt", sha256=digest, size=9),)
    rewrite(made / "end.json", msgspec.structs.replace(over, outputs=outputs))
    given = DataFact(source="/data/w.pt", target="/data/w.pt", kind="data", digest=digest)
    rewrite(child / "start.json", msgspec.structs.replace(records.read(child).start, data=(given,)))
    done = collect(runs, store, "last=1")
    assert left(runs) == ["03", "01"]
    assert done.keep[1].why == ("00000002 was given a file that is an output of it",)


def test_a_checkpoint_of_an_interrupted_run_holds_what_it_went_on_from(tmp_path: Path, store: Store) -> None:
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
    assert done.keep[2].why == ("a checkpoint says that 00000002 went on from it",)


def test_a_run_whose_record_cannot_be_read_stays_and_holds_what_it_names(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    recorded(runs, 1)
    recorded(runs, 2)
    torn = child_of(runs, 3, parent=1)
    (torn / "start.json").chmod(0o644)
    (torn / "start.json").write_bytes((torn / "start.json").read_bytes()[:-20])
    recorded(runs, 4)
    done = collect(runs, store, "last=1")
    assert left(runs) == ["04", "03", "01"]
    assert [one.folder for one in done.unreadable] == [torn]


def test_a_tag_that_cannot_be_read_does_not_pass_for_none(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    folder = recorded(runs, 1)
    recorded(runs, 2)
    one = annotation.add(folder, kind="tag", text="paper")
    path = folder / annotation.FOLDER / f"{one.id}.json"
    path.chmod(0o644)
    path.write_text("{")
    done = collect(runs, store, "last=1")
    assert done.gone == ()
    assert done.keep[1].why[0].startswith("whether it has a tag cannot be told")


def test_a_running_one_stays(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    recording = records.begin(runs, "20260701T101500Z-train-00000001")
    recording.start(start(ids.uuid7(1, (1).to_bytes(10, "big"))))
    recorded(runs, 2)
    assert collect(runs, store, "last=1").gone == ()
    recording.close()
    assert [one.run.state for one in collect(runs, store, "last=1").gone] == ["interrupted"]


def test_a_bad_rule_or_metric_is_refused_before_the_first_goes(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    recorded(runs, 1)
    recorded(runs, 2)
    for words in (("last=1", "last=x"), ()):
        with pytest.raises(UsageError):
            collect(runs, store, *words)
    with pytest.raises(RecordError, match="no run has"):
        collect(runs, store, "last=1", "best=acc")
    assert left(runs) == ["02", "01"]


def test_no_runs_is_nothing_to_remove(tmp_path: Path, store: Store) -> None:
    assert collect(tmp_path / "none", store, "last=1") == Collected((), (), (), (), (), dry_run=False)


def test_what_cannot_be_removed_is_told_and_the_others_go(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    folders = [recorded(runs, number) for number in (1, 2, 3, 4)]
    (runs / f".gone-{folders[1].name}").write_text("in its way")
    done = collect(runs, store, "last=1")
    assert [(one.short, "cannot be removed" in why) for one, why in done.failed] == [("00000002", True)]
    assert [one.run.short for one in done.gone] == ["00000003", "00000001"]
    assert left(runs) == ["04", "02"]


def test_a_run_that_began_from_one_of_them_meanwhile_holds_it(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    for number in (1, 2, 3, 4):
        recorded(runs, number)
    real = records.remove

    def slow(folder: Path) -> None:
        if folder.name.endswith("01"):
            child_of(runs, 5, 2)
        real(folder)

    monkeypatch.setattr(retention, "_LOOK", 1)
    monkeypatch.setattr(records, "remove", slow)
    done = collect(runs, store, "last=1")
    assert [(one.short, why) for one, why in done.failed] == [("00000002", "a run started from it meanwhile")]
    assert left(runs) == ["05", "04", "02"]


def test_stopped_by_hand_it_says_how_far_it_came(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    for number in (1, 2, 3, 4):
        recorded(runs, number)
    real = records.remove

    def stopped(folder: Path) -> None:
        if folder.name.endswith("02"):
            raise KeyboardInterrupt
        real(folder)

    monkeypatch.setattr(records, "remove", stopped)
    tell = Said()
    with pytest.raises(KeyboardInterrupt):
        retention.collect(runs, ["last=1"], store=store, dry_run=False, tell=tell)
    assert tell.lines == ["stopped: 1 of 3 runs were removed, the others are whole"]
    assert left(runs) == ["04", "03", "02"]


def test_a_damaged_record_in_a_copy_of_the_folder_does_not_hold_its_own_run(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    recorded(runs, 1)
    recorded(runs, 2)
    shutil.copytree(runs, tmp_path / "copy", symlinks=True)
    store.seen.see(tmp_path / "copy")
    torn = records.folders(tmp_path / "copy")[1] / "end.json"
    torn.chmod(0o644)
    torn.write_bytes(torn.read_bytes()[:99])
    assert [one.run.short for one in collect(runs, store, "last=1").gone] == ["00000001"]


def test_what_a_killed_removal_left_goes_with_the_next(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    folders = [recorded(runs, number) for number in (1, 2, 3)]
    folders[0].rename(runs / f".gone-{folders[0].name}")
    assert left(runs) == ["03", "02"]
    collect(runs, store, "last=1")
    assert sorted(path.name for path in runs.iterdir()) == sorted([folders[2].name, "latest"])


def test_killed_at_any_moment_no_half_run_is_left(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    for number in range(25):
        folder = recorded(runs, number)
        for name in range(20):
            (folder / "files" / f"{name}").touch()
    program = (
        "import sys; from pathlib import Path; from repro_env.flows import retention; from repro_env.model.talk import Silent\n"
        "from repro_env.store.store import Store; store = Store.open(Path(sys.argv[2])); print(flush=True)\n"
        "retention.collect(Path(sys.argv[1]), ['last=1'], store=store, dry_run=False, tell=Silent())"
    )
    for delay in (0.005, 0.015, 0.03):
        with subprocess.Popen([sys.executable, "-c", program, str(runs), str(store.root)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(delay)
            child.kill()
        there, broken = records.listing(runs)
        assert broken == []
        assert all(len(list(run.files.iterdir())) == 20 for run in there)
    collect(runs, store, "last=1")
    assert len(left(runs)) == 1
    assert not list(runs.glob(".gone-*"))
