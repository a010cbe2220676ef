from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from repro_env.catalog import ids, outputs, records
from repro_env.catalog.records import Run
from repro_env.flows import before
from repro_env.flows.before import Held
from repro_env.flows.lineage import Answer, lineage_of
from repro_env.model.errors import DataError, RecordError, UsageError
from repro_env.model.run import DataFact, Parent
from repro_env.model.talk import Silent
from repro_env.store.store import Store
from tests.catalog.test_manifest import SAID, written
from tests.catalog.test_records import end, start
from tests.parts import need

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def made(
    runs: Path,
    number: int,
    files: dict[str, str],
    *,
    parents: Iterable[Parent] = (),
    data: Iterable[DataFact] = (),
    over: bool = True,
) -> Run:
    """A run of its own millisecond that left these files."""
    run_id = ids.uuid7(number, number.to_bytes(10, "big"))
    recording = records.begin(runs, f"20260701T1015{number % 60:02}Z-train-{ids.short(run_id)}")
    for name, text in files.items():
        path = recording.folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    recording.start(msgspec.structs.replace(start(run_id), parents=tuple(parents), data=tuple(data)))
    if over:
        left = outputs.collect(recording.folder / "files").outputs
        recording.finish(msgspec.structs.replace(end(run_id), outputs=left, start=recording.started))
    recording.close()
    return records.read(recording.folder)


def parent(run: Run, how: str = "resumed") -> Parent:
    data = (run.folder / "end.json").read_bytes()
    return Parent(id=run.start.id, record=f"sha256:{hashlib.sha256(data).hexdigest()}", how=how)  # type: ignore[arg-type]


def hexed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def checkpoint(folder: Path, run: str, files: dict[str, str], came: str = "") -> Path:
    """A checkpoint's folder, as `repro_env.checkpoint` leaves it."""
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    listed = {name: {"sha256": hexed(text), "size": len(text)} for name, text in files.items()}
    before = {"run": came, "path": "/c", "sha256": hexed("manifest"), "step": 1} if came else None
    written(folder, {**SAID, "run": run, "files": listed, "parent": before})
    return folder


def ask(word: object, store: Store, *, here: Path | None = None, runs: Path | None = None) -> Answer:
    return lineage_of(str(word), here or store.root.parent, runs=runs, store=store, tell=Silent())


def whose(found: Answer) -> tuple[str, ...]:
    assert found.known is (found.run is not None)
    return tuple(f"{one.run.short} {one.how}" for one in found.origins)


def test_a_copied_file_leads_to_its_run_from_anywhere(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "project" / "runs", 1, {"ck/w.pt": "weights", "log": "log"})
    store.seen.see(run.folder.parent)
    (tmp_path / "away").mkdir()
    copy = shutil.copy(run.files / "ck/w.pt", tmp_path / "away" / "best.pt")
    (tmp_path / "away" / "last.pt").symlink_to("best.pt")
    for word in (copy, tmp_path / "away" / "last.pt", hexed("weights"), f"sha256:{hexed('weights')}", hexed("weights")[:9]):
        found = ask(word, store, here=tmp_path / "away")
        assert whose(found) == ("00000001 output",)
        assert found.origins[0].paths == ("ck/w.pt",)
        assert found.run == run
        assert found.digest == f"sha256:{hexed('weights')}"


def test_a_file_in_a_run_needs_no_memory(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "runs", 1, {"w.pt": "weights"})
    assert whose(ask(run.files / "w.pt", store)) == ("00000001 output",)
    assert store.seen.folders() == [tmp_path / "runs"], "and is remembered"
    copy = shutil.copy(run.files / "w.pt", tmp_path / "w.pt")
    assert whose(ask(copy, store)) == ("00000001 output",)


@pytest.mark.parametrize("word", ["{id}", "{short}", "0000000", "{folder}", "{name}", "latest", "end.json"])
def test_a_run_by_any_of_its_names(tmp_path: Path, store: Store, word: str) -> None:
    run = made(tmp_path / "runs", 1, {"w.pt": "weights"})
    made(tmp_path / "other", 0x11223344, {})
    store.seen.see(tmp_path / "other")
    if word == "end.json":
        word = parent(run).record or ""
    word = word.format(id=run.start.id, short=run.short, folder=run.folder, name=run.folder.name)
    found = ask(word, store, runs=tmp_path / "runs")
    assert (found.known, found.run, found.origins) == (True, run, ())


def test_where_it_lies_counts_before_who_was_first(tmp_path: Path, store: Store) -> None:
    """Three runs that are equal bit for bit: all of them are named."""
    first, second, third = (made(tmp_path / "runs", number, {"w.pt": "weights"}) for number in (1, 2, 3))
    found = ask(second.files / "w.pt", store)
    assert whose(found) == ("00000002 output", "00000001 output", "00000003 output")
    assert found.run == second
    copy = shutil.copy(third.files / "w.pt", tmp_path / "w.pt")
    assert whose(ask(copy, store)) == ("00000001 output", "00000002 output", "00000003 output")
    assert ask(copy, store).run == first


def test_nobody_knows(tmp_path: Path, store: Store) -> None:
    made(tmp_path / "runs", 1, {"w.pt": "weights", "empty": ""})
    (tmp_path / "w.pt").write_text("other weights")
    (tmp_path / "empty").write_text("")
    for word in (tmp_path / "w.pt", tmp_path / "empty", "f" * 64, "sha256:ffffffff"):
        found = ask(word, store, runs=tmp_path / "runs")
        assert (found.known, found.origins, found.uses) == (False, (), ())
        assert found.looked == (tmp_path / "runs",)
    assert any("is empty" in note for note in ask(tmp_path / "empty", store).notes)


def test_a_file_that_was_changed_in_its_run_is_not_its_output(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "runs", 1, {"w.pt": "weights"})
    (run.files / "w.pt").write_text("tampered")
    (run.files / "new.pt").write_text("new")
    changed, new = (ask(run.files / name, store) for name in ("w.pt", "new.pt"))
    assert not changed.known
    assert "changed since" in changed.notes[0]
    assert hexed("weights") in changed.notes[0]
    assert not new.known
    assert "put there later" in new.notes[0]


def test_an_index_that_lies_is_not_believed(tmp_path: Path, store: Store) -> None:
    """The record says what was written; and "nobody" is never said from the index."""
    import sqlite3

    run = made(tmp_path / "runs", 1, {"w.pt": "weights"})
    for name in ("start.json", "end.json"):
        os.utime(run.folder / name, (1, 1))
    for text, known in (("weights", True), ("lie", False)):
        ask(run.short, store, runs=tmp_path / "runs")
        with sqlite3.connect(store.runs) as db:
            db.execute("update run set outputs = ?", (bytes.fromhex(hexed("lie")),))
        assert ask(hexed(text), store, runs=tmp_path / "runs").known is known


def test_a_checkpoint_that_lies_outside_of_the_run(tmp_path: Path, store: Store) -> None:
    """`--checkpoints DIR`: its files are no outputs; the manifest names the run."""
    saved = DataFact(source=str(tmp_path / "saved"), target="/saved", kind="checkpoints", digest=None)
    run = made(tmp_path / "runs", 1, {"log": "log"}, data=[saved])
    folder = checkpoint(tmp_path / "saved" / "000001-step-700", run.start.id, {"model.safetensors": "weights", "state.pt": "s"})
    for word in (
        folder / "model.safetensors",
        folder,
        shutil.copy(folder / "model.safetensors", tmp_path / "w"),
        hexed("weights"),
    ):
        found = ask(word, store, runs=tmp_path / "runs")
        assert whose(found) == ("00000001 manifest",)
        assert found.origins[0].paths == (str(folder / "manifest.json"),)
        assert found.manifest is not None
        assert found.manifest.manifest.step == 700
    (folder / "model.safetensors").write_text("tampered")
    found = ask(folder, store, runs=tmp_path / "runs")
    assert not found.known
    assert "changed since" in found.notes[0]


@pytest.mark.parametrize(("kept", "known"), [(True, True), (False, False)])
def test_what_a_run_left_in_its_checkpoints_stands_in_a_list(tmp_path: Path, store: Store, kept: bool, known: bool) -> None:
    """No manifest, no output: the lists before and after say what came while it ran, as long as they are the record's."""
    run_id = ids.uuid7(1, bytes(10))
    recording = records.begin(tmp_path / "runs", "20260701T101501Z-train-00000000")

    def listed(name: str, files: dict[str, str]) -> str:
        held = [Held(target="/ck", path=path, sha256=f"sha256:{hexed(text)}", size=len(text)) for path, text in files.items()]
        before.write(recording.folder, name, before.Listing(files=tuple(held), links=(), others=()))
        return before.digest(before.Listing(files=tuple(held), links=(), others=())) or ""

    first = listed(before.BEFORE, {"old.pt": "old", "log": "a"})
    last = listed(before.AFTER, {"old.pt": "old", "log": "b", "new.pt": "weights"})
    recording.start(msgspec.structs.replace(start(run_id), before=first))
    recording.finish(msgspec.structs.replace(end(run_id), outputs=(), after=last, start=recording.started))
    if not kept:
        (recording.folder / before.BEFORE).unlink()
    found = ask(hexed("weights"), store, runs=tmp_path / "runs")
    assert found.known is known
    if known:
        assert whose(found) == ("00000000 checkpoints",)
        assert found.origins[0].paths == ("/ck/new.pt",)
    assert not ask(hexed("old"), store, runs=tmp_path / "runs").known, "it was there before"


def test_a_real_checkpoint_leads_to_its_run(tmp_path: Path, store: Store) -> None:
    """The manifest and the weights as `repro_env.checkpoint` writes them, in a folder that no record lists."""
    python = os.environ.get("REPRO_ENV_TEST_TRAINERS", "")
    need(python, "no environment with torch: `make trainers`, and name it in REPRO_ENV_TEST_TRAINERS")
    saved = tmp_path / "saved"
    run = made(tmp_path / "runs", 1, {}, data=[DataFact(source=str(saved), target="/s", kind="checkpoints", digest=None)])
    code = (
        "import sys, torch; from repro_env.checkpoint import Checkpoint;"
        "training = Checkpoint(sys.argv[1], model=torch.nn.Linear(2, 2)); training.resume(); training.save()"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "REPRO_ENV_RUN": run.start.id}
    subprocess.run([python, "-c", code, str(saved)], env=environ, check=True)
    (folder,) = (path for path in saved.iterdir() if path.is_dir() and not path.name.startswith("."))
    shutil.copy(folder / "model.safetensors", tmp_path / "w.safetensors")
    for path in (folder, tmp_path / "w.safetensors"):
        found = ask(path, store, runs=tmp_path / "runs")
        assert whose(found) == ("00000001 manifest",)
        assert found.metadata["repro_env.step"] == "0"
        assert found.manifest is not None
        assert found.manifest.manifest.step == 0


def test_the_manifest_decides_between_equal_runs(tmp_path: Path, store: Store) -> None:
    _, second = (made(tmp_path / "runs", number, {"w.pt": "weights"}) for number in (1, 2))
    folder = checkpoint(tmp_path / "copied", second.start.id, {"w.pt": "weights"})
    assert whose(ask(folder / "w.pt", store, runs=tmp_path / "runs")) == ("00000002 output", "00000001 output")


def test_a_manifest_alone_is_a_claim(tmp_path: Path, store: Store) -> None:
    for run, said in (("01a1fd02-1a59-73ca-8e91-4a5f0000000a", "not known here"), ("", "")):
        folder = checkpoint(tmp_path / f"c{len(run)}", run, {"w.pt": "weights"})
        found = ask(folder / "w.pt", store)
        assert not found.known
        assert found.manifest is not None
        assert bool(found.notes) is bool(said)
        assert all(said in note for note in found.notes)


def test_a_damaged_manifest_is_told(tmp_path: Path, store: Store) -> None:
    folder = checkpoint(tmp_path / "c", "", {"w.pt": "weights"})
    (folder / "manifest.json").write_text((folder / "manifest.json").read_text()[:-9])
    (note,) = ask(folder / "w.pt", store).notes
    assert "was not used" in note


def test_what_an_interrupted_run_left_is_found_and_not_vouched_for(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "runs", 1, {"last.pt": "half way", "b/same.pt": "half way", "other.pt": "half awy"}, over=False)
    copy = shutil.copy(run.files / "last.pt", tmp_path / "w.pt")
    found = ask(copy, store, runs=tmp_path / "runs")
    assert whose(found) == ("00000001 left",)
    assert found.origins[0].paths == ("b/same.pt", "last.pt")
    assert whose(ask(run.files / "last.pt", store)) == ("00000001 left",)


def test_killed_twice_and_resumed_is_one_line(tmp_path: Path, store: Store) -> None:
    """Runs without an end say nothing of where they started: their checkpoints do."""
    runs = tmp_path / "runs"
    first = made(runs, 1, {}, over=False)
    checkpoint(first.files / "c/000001-step-1", first.start.id, {"w": "1"})
    second = made(runs, 2, {}, over=False)
    checkpoint(second.files / "c/000002-step-2", second.start.id, {"w": "2"}, came=first.start.id)
    third = made(runs, 3, {"w.pt": "3"}, parents=[Parent(id=second.start.id, record=None, how="resumed")])
    family = ask(third.files / "w.pt", store).family
    assert family is not None
    assert [(one.id, one.depth) for one in family.parents] == [(second.start.id, 1), (first.start.id, 2)]
    family = ask(first.folder, store).family
    assert family is not None
    assert [one.id for one in family.children] == [second.start.id, third.start.id]


def test_a_family_over_several_projects(tmp_path: Path, store: Store) -> None:
    pre = made(tmp_path / "a" / "runs", 1, {"w.pt": "pretrained"})
    given = DataFact(source="/models/w.pt", target="/w.pt", kind="data", digest=f"sha256:{hexed('pretrained')}")
    tuned = made(tmp_path / "b" / "runs", 2, {"w.pt": "tuned"}, data=[given])
    last = made(tmp_path / "b" / "runs", 3, {"w.pt": "last"}, parents=[parent(tuned)])
    for one in (pre, tuned):
        store.seen.see(one.folder.parent)
    found = ask(last.files / "w.pt", store)
    assert found.family is not None
    assert [(one.id, one.how) for one in found.family.parents] == [
        (tuned.start.id, ("resumed",)),
        (pre.start.id, ("same bytes",)),
    ]
    found = ask(hexed("pretrained"), store)
    assert found.run == pre
    assert found.family is not None
    assert [one.id for one in found.family.children] == [tuned.start.id, last.start.id]
    assert [(use.run.id, use.role) for use in found.uses] == [(tuned.start.id, "data")]
    (tuned.folder / "end.json").chmod(0o644)
    (tuned.folder / "end.json").write_text((tuned.folder / "end.json").read_text().replace("1.0", "2.0"))
    family = ask(last.folder, store).family
    assert family is not None
    assert family.parents[0].changed


def test_data_that_no_run_made_is_used_and_not_known(tmp_path: Path, store: Store) -> None:
    given = DataFact(source="/d/train.csv", target="/d", kind="data", digest=f"sha256:{hexed('a,b')}")
    run = made(tmp_path / "runs", 1, {}, data=[given])
    (tmp_path / "train.csv").write_text("a,b")
    found = ask(tmp_path / "train.csv", store, runs=tmp_path / "runs")
    assert not found.known, "who made it was the question"
    assert [(use.run.id, use.role, use.path) for use in found.uses] == [(run.start.id, "data", "/d/train.csv")]


def test_an_image_leads_to_its_runs(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "runs", 1, {})
    found = ask(run.start.image, store, runs=tmp_path / "runs")
    assert found.known
    assert found.run is None
    assert {use.role for use in found.uses} == {"image", "spec", "source"}, "the fake has one digest for all"


def test_words_that_mean_nothing_or_too_much(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    for number in (1, 2):
        made(runs, number, {})
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for word, error, text in (
        ("gone.pt", DataError, "no such file"),
        ("dir/gone", DataError, "no such file"),
        ("nothing", RecordError, "no run 'nothing'"),
        ("20260701", RecordError, "means 2 runs: 00000001, 00000002"),
        ("sha256:xyz", UsageError, "no sha256"),
        ("folder", UsageError, "neither a checkpoint nor a run"),
        ("", RecordError, "no run"),
        ("x" * 5000, RecordError, "no run"),
        ("a\0b", RecordError, "no run"),
        ("loop", RecordError, "no run"),
        ("pipe", DataError, "neither a file nor a folder"),
    ):
        with pytest.raises(error, match=text):
            ask(word, store, runs=runs)
    with pytest.raises(RecordError, match="no folder"):
        ask("latest", store, runs=Path(__file__))


def test_a_beginning_of_two_digests_is_refused(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "runs", 1, {"a": "a"})
    ended = json.loads((run.folder / "end.json").read_text())
    ended["outputs"] = [
        {"path": name, "sha256": "sha256:" + "ab" * 4 + each * 56, "size": 1} for name, each in (("a", "1"), ("b", "2"))
    ]
    (run.folder / "end.json").chmod(0o644)
    (run.folder / "end.json").write_text(json.dumps(ended))
    with pytest.raises(UsageError, match="begins 2 digests"):
        ask("ab" * 4, store, runs=tmp_path / "runs")
    assert ask("ab" * 4 + "1", store, runs=tmp_path / "runs").origins[0].paths == ("a",)


def test_folders_that_are_gone_or_closed_are_said(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "gone" / "runs", 1, {"w": "weights"})
    store.seen.see(run.folder.parent)
    torn = made(tmp_path / "runs", 2, {})
    (torn.folder / "start.json").unlink()
    (tmp_path / "gone").rename(tmp_path / "moved")
    found = ask(hexed("weights"), store, runs=tmp_path / "runs")
    assert not found.known
    assert found.missing == (tmp_path / "gone" / "runs",)
    assert not any("remembered" in note for note in found.notes), "it was never listed"
    assert [one.folder for one in found.unreadable] == [torn.folder]
    assert ask(hexed("weights"), store, runs=tmp_path / "moved" / "runs").known


def test_a_folder_that_never_held_runs_is_not_missed(tmp_path: Path, store: Store) -> None:
    (tmp_path / "project" / "repro").mkdir(parents=True)
    (tmp_path / "project" / "repro" / "spec.json").touch()
    assert ask(hexed("weights"), store, here=tmp_path / "project").missing == ()
    for given, what in ((tmp_path / "typo", "is not there"), (tmp_path / "project" / "repro" / "spec.json", "is no folder")):
        with pytest.raises(RecordError, match=what):
            ask(hexed("weights"), store, runs=given)


def test_a_run_on_a_disk_that_is_away_is_told_and_no_answer(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "disk" / "runs", 1, {"w": "weights"})
    assert ask(run.files / "w", store).known
    (tmp_path / "disk").rename(tmp_path / "away")
    found = ask(hexed("weights"), store)
    assert not found.known
    (note,) = found.notes
    assert "is not there now" in note
    assert f"run {run.short} wrote it" in note
    assert run.start.image in note


def test_a_run_folder_of_another_name(tmp_path: Path, store: Store) -> None:
    """Copied out of its project: its files and its record still speak of each other."""
    run = made(tmp_path / "runs", 1, {"w.pt": "weights"})
    shutil.copytree(run.folder, tmp_path / "handed over", symlinks=True)
    shutil.rmtree(tmp_path / "runs")
    found = ask(tmp_path / "handed over" / "files" / "w.pt", store)
    assert whose(found) == ("00000001 output",)
    assert ask(tmp_path / "handed over", store).known
