from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from repro_env.api.lineage import Answer, lineage
from repro_env.runs.records import checkpointstate, ids, records
from repro_env.runs.records.checkpointstate import CheckpointFile
from repro_env.schema.errors import DataError, RecordError, UsageError
from repro_env.schema.run import DataFact, Parent
from repro_env.schema.rundirectory import CHECKPOINTS_AFTER, CHECKPOINTS_BEFORE
from repro_env.store.store import Store
from tests.api.families import checkpoint, made, parent, sha256_hex
from tests.parts import need
from tests.runs.records.examples import end, start

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def ask(word: object, store: Store, *, here: Path | None = None, runs: Path | None = None) -> Answer:
    return lineage(str(word), here=here or store.root.parent, runs=runs, store=store)


def producers(found: Answer) -> tuple[str, ...]:
    assert found.known is (found.run is not None)
    return tuple(f"{origin.run.short} {origin.how}" for origin in found.origins)


def test_a_copied_file_leads_to_its_run_from_anywhere(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "project" / "runs", 1, {"ck/w.pt": "weights", "log": "log"})
    store.run_directories.add(run.directory.parent)
    (tmp_path / "away").mkdir()
    copy = shutil.copy(run.files / "ck/w.pt", tmp_path / "away" / "best.pt")
    (tmp_path / "away" / "last.pt").symlink_to("best.pt")
    for word in (
        copy,
        tmp_path / "away" / "last.pt",
        sha256_hex("weights"),
        f"sha256:{sha256_hex('weights')}",
        sha256_hex("weights")[:9],
    ):
        found = ask(word, store, here=tmp_path / "away")
        assert producers(found) == ("00000001 output",)
        assert found.origins[0].paths == ("ck/w.pt",)
        assert found.run == run
        assert found.digest == f"sha256:{sha256_hex('weights')}"


def test_the_run_of_a_file_in_a_run_directory_is_found_and_the_directory_remembered(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "runs", 1, {"w.pt": "weights"})
    assert producers(ask(run.files / "w.pt", store)) == ("00000001 output",)
    assert store.run_directories.paths() == [tmp_path / "runs"], "the directory is remembered"
    copy = shutil.copy(run.files / "w.pt", tmp_path / "w.pt")
    assert producers(ask(copy, store)) == ("00000001 output",)


@pytest.mark.parametrize("word", ["{id}", "{short}", "0000000", "{directory}", "{name}", "latest", "end.json"])
def test_a_run_is_found_by_each_of_its_names(tmp_path: Path, store: Store, word: str) -> None:
    run = made(tmp_path / "runs", 1, {"w.pt": "weights"})
    made(tmp_path / "other", 0x11223344, {})
    store.run_directories.add(tmp_path / "other")
    if word == "end.json":
        word = parent(run).record or ""
    word = word.format(id=run.start.id, short=run.short, directory=run.directory, name=run.directory.name)
    found = ask(word, store, runs=tmp_path / "runs")
    assert (found.known, found.run, found.origins) == (True, run, ())


def test_the_run_that_holds_the_file_comes_before_the_first_run(tmp_path: Path, store: Store) -> None:
    """Three runs wrote identical files, and all of them are named."""
    first, second, third = (made(tmp_path / "runs", number, {"w.pt": "weights"}) for number in (1, 2, 3))
    found = ask(second.files / "w.pt", store)
    assert producers(found) == ("00000002 output", "00000001 output", "00000003 output")
    assert found.run == second
    copy = shutil.copy(third.files / "w.pt", tmp_path / "w.pt")
    assert producers(ask(copy, store)) == ("00000001 output", "00000002 output", "00000003 output")
    assert ask(copy, store).run == first


def test_an_unknown_file_has_no_producer(tmp_path: Path, store: Store) -> None:
    made(tmp_path / "runs", 1, {"w.pt": "weights", "empty": ""})
    (tmp_path / "w.pt").write_text("other weights")
    (tmp_path / "empty").write_text("")
    for word in (tmp_path / "w.pt", tmp_path / "empty", "f" * 64, "sha256:ffffffff"):
        found = ask(word, store, runs=tmp_path / "runs")
        assert (found.known, found.origins, found.uses) == (False, (), ())
        assert found.looked == (tmp_path / "runs",)
    assert any("is empty" in note for note in ask(tmp_path / "empty", store).remarks)


def test_a_file_that_was_changed_in_its_run_is_not_its_output(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "runs", 1, {"w.pt": "weights"})
    (run.files / "w.pt").write_text("tampered")
    (run.files / "new.pt").write_text("new")
    changed, new = (ask(run.files / name, store) for name in ("w.pt", "new.pt"))
    assert not changed.known
    assert "the file changed after the run" in changed.remarks[0]
    assert sha256_hex("weights") in changed.remarks[0]
    assert not new.known
    assert "it was added after the run" in new.remarks[0]


def test_the_manifest_of_a_checkpoint_outside_the_run_names_the_run(tmp_path: Path, store: Store) -> None:
    """Files in a directory of `--checkpoints` are not outputs, but the manifest names the run."""
    saved = DataFact(source=str(tmp_path / "saved"), target="/saved", kind="checkpoints", digest=None)
    run = made(tmp_path / "runs", 1, {"log": "log"}, data=[saved])
    directory = checkpoint(
        tmp_path / "saved" / "000001-step-700", run.start.id, {"model.safetensors": "weights", "state.pt": "s"}
    )
    for word in (
        directory / "model.safetensors",
        directory,
        shutil.copy(directory / "model.safetensors", tmp_path / "w"),
        sha256_hex("weights"),
    ):
        found = ask(word, store, runs=tmp_path / "runs")
        assert producers(found) == ("00000001 manifest",)
        assert found.origins[0].paths == (str(directory / "manifest.json"),)
        assert found.manifest is not None
        assert found.manifest.manifest.step == 700
    (directory / "model.safetensors").write_text("tampered")
    found = ask(directory, store, runs=tmp_path / "runs")
    assert not found.known
    assert "the file changed later" in found.remarks[0]


@pytest.mark.parametrize(("kept", "known"), [(True, True), (False, False)])
def test_files_that_a_run_wrote_to_its_checkpoints_are_found_in_its_lists(
    tmp_path: Path, store: Store, kept: bool, known: bool
) -> None:
    """Without a manifest, the recorded lists from before and after the run show which files it wrote."""
    run_id = ids.uuid7(1, bytes(10))
    recording = records.begin(tmp_path / "runs", "20260701T101501Z-train-00000000")

    def listed(name: str, files: dict[str, str]) -> str:
        held = [
            CheckpointFile(target="/ck", path=path, sha256=f"sha256:{sha256_hex(text)}", size=len(text))
            for path, text in files.items()
        ]
        checkpointstate.write(recording.directory, name, checkpointstate.Listing(files=tuple(held), links=(), special_files=()))
        return checkpointstate.digest(checkpointstate.Listing(files=tuple(held), links=(), special_files=())) or ""

    first = listed(CHECKPOINTS_BEFORE, {"old.pt": "old", "log": "a"})
    last = listed(CHECKPOINTS_AFTER, {"old.pt": "old", "log": "b", "new.pt": "weights"})
    recording.start(msgspec.structs.replace(start(run_id), checkpoints_before=first))
    recording.finish(msgspec.structs.replace(end(run_id), outputs=(), checkpoints_after=last, start=recording.start_digest))
    if not kept:
        (recording.directory / CHECKPOINTS_BEFORE).unlink()
    found = ask(sha256_hex("weights"), store, runs=tmp_path / "runs")
    assert found.known is known
    if known:
        assert producers(found) == ("00000000 checkpoints",)
        assert found.origins[0].paths == ("/ck/new.pt",)
    assert not ask(sha256_hex("old"), store, runs=tmp_path / "runs").known, "the file existed before the run"


def test_a_real_checkpoint_leads_to_its_run(tmp_path: Path, store: Store) -> None:
    """`repro_env.checkpoint` writes the manifest and the weights to a directory that no record lists."""
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
    (directory,) = (path for path in saved.iterdir() if path.is_dir() and not path.name.startswith("."))
    shutil.copy(directory / "model.safetensors", tmp_path / "w.safetensors")
    for path in (directory, tmp_path / "w.safetensors"):
        found = ask(path, store, runs=tmp_path / "runs")
        assert producers(found) == ("00000001 manifest",)
        assert found.manifest is not None
        assert found.manifest.manifest.step == 0


def test_the_manifest_decides_between_runs_with_identical_outputs(tmp_path: Path, store: Store) -> None:
    _, second = (made(tmp_path / "runs", number, {"w.pt": "weights"}) for number in (1, 2))
    directory = checkpoint(tmp_path / "copied", second.start.id, {"w.pt": "weights"})
    assert producers(ask(directory / "w.pt", store, runs=tmp_path / "runs")) == ("00000002 output", "00000001 output")


def test_a_manifest_without_its_record_is_only_a_claim(tmp_path: Path, store: Store) -> None:
    for run, text in (("01a1fd02-1a59-73ca-8e91-4a5f0000000a", "that run's record is not on this machine"), ("", "")):
        directory = checkpoint(tmp_path / f"c{len(run)}", run, {"w.pt": "weights"})
        found = ask(directory / "w.pt", store)
        assert not found.known
        assert found.manifest is not None
        assert bool(found.remarks) is bool(text)
        assert all(text in note for note in found.remarks)


def test_a_damaged_manifest_is_a_note(tmp_path: Path, store: Store) -> None:
    directory = checkpoint(tmp_path / "c", "", {"w.pt": "weights"})
    (directory / "manifest.json").write_text((directory / "manifest.json").read_text()[:-9])
    (note,) = ask(directory / "w.pt", store).remarks
    assert "was not used" in note


def test_a_file_of_an_interrupted_run_has_no_producer_and_a_note_names_the_run(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "runs", 1, {"last.pt": "half way"}, over=False)
    copy = shutil.copy(run.files / "last.pt", tmp_path / "w.pt")
    assert producers(ask(copy, store, runs=tmp_path / "runs")) == ()
    found = ask(run.files / "last.pt", store)
    assert producers(found) == ()
    where = f"the file is in the directory of run {run.short}"
    assert found.remarks == (f"{where}, but that run is interrupted and has recorded no outputs",)


def test_interrupted_runs_are_ancestors_by_their_checkpoints(tmp_path: Path, store: Store) -> None:
    """A run without an end does not record what it resumed from, but its checkpoints do."""
    runs = tmp_path / "runs"
    first = made(runs, 1, {}, over=False)
    checkpoint(first.files / "c/000001-step-1", first.start.id, {"w": "1"})
    second = made(runs, 2, {}, over=False)
    checkpoint(second.files / "c/000002-step-2", second.start.id, {"w": "2"}, resumed_from=first.start.id)
    third = made(runs, 3, {"w.pt": "3"}, parents=[Parent(id=second.start.id, record=None, how="resumed")])
    family = ask(third.files / "w.pt", store).family
    assert family is not None
    assert [(relative.id, relative.depth) for relative in family.parents] == [(second.start.id, 1), (first.start.id, 2)]
    family = ask(first.directory, store).family
    assert family is not None
    assert [relative.id for relative in family.children] == [second.start.id, third.start.id]


def test_a_family_may_span_several_projects(tmp_path: Path, store: Store) -> None:
    pre = made(tmp_path / "a" / "runs", 1, {"w.pt": "pretrained"})
    given = DataFact(source="/models/w.pt", target="/w.pt", kind="data", digest=f"sha256:{sha256_hex('pretrained')}")
    tuned = made(tmp_path / "b" / "runs", 2, {"w.pt": "tuned"}, data=[given], parents=[parent(pre, "data")])
    last = made(tmp_path / "b" / "runs", 3, {"w.pt": "last"}, parents=[parent(tuned)])
    for run in (pre, tuned):
        store.run_directories.add(run.directory.parent)
    found = ask(last.files / "w.pt", store)
    assert found.family is not None
    assert [(relative.id, relative.how) for relative in found.family.parents] == [
        (tuned.start.id, ("resumed",)),
        (pre.start.id, ("data",)),
    ]
    found = ask(sha256_hex("pretrained"), store)
    assert found.run == pre
    assert found.family is not None
    assert [relative.id for relative in found.family.children] == [tuned.start.id, last.start.id]
    assert [(use.run.id, use.how) for use in found.uses] == [(tuned.start.id, "data")]
    (tuned.directory / "end.json").chmod(0o644)
    (tuned.directory / "end.json").write_text((tuned.directory / "end.json").read_text().replace("1.0", "2.0"))
    family = ask(last.directory, store).family
    assert family is not None
    assert family.parents[0].changed


def test_data_that_no_run_wrote_has_uses_but_no_producer(tmp_path: Path, store: Store) -> None:
    given = DataFact(source="/d/train.csv", target="/d", kind="data", digest=f"sha256:{sha256_hex('a,b')}")
    run = made(tmp_path / "runs", 1, {}, data=[given])
    (tmp_path / "train.csv").write_text("a,b")
    found = ask(tmp_path / "train.csv", store, runs=tmp_path / "runs")
    assert not found.known, "the question is which run wrote it"
    assert [(use.run.id, use.how, use.paths) for use in found.uses] == [(run.start.id, "data", ("/d/train.csv",))]


def test_an_image_leads_to_its_runs(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "runs", 1, {})
    found = ask(run.start.image, store, runs=tmp_path / "runs")
    assert found.known
    assert found.run is None
    assert {use.how for use in found.uses} == {"image", "spec", "source"}, "the fake record has one digest for all"


def test_invalid_and_ambiguous_words_are_refused(tmp_path: Path, store: Store) -> None:
    runs = tmp_path / "runs"
    for number in (1, 2):
        made(runs, number, {})
    (tmp_path / "directory").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for word, error, text in (
        ("gone.pt", DataError, "file does not exist"),
        ("dir/gone", DataError, "file does not exist"),
        ("nothing", RecordError, "neither a run nor a file has the name 'nothing'"),
        ("20260701", RecordError, "matches 2 runs: 00000001, 00000002"),
        ("sha256:xyz", UsageError, "not a sha256"),
        ("directory", UsageError, "neither a checkpoint nor a run"),
        ("", RecordError, "neither a run nor a file"),
        ("x" * 5000, RecordError, "neither a run nor a file"),
        ("a\0b", RecordError, "neither a run nor a file"),
        ("loop", RecordError, "neither a run nor a file"),
        ("pipe", DataError, "neither a regular file nor a directory"),
    ):
        with pytest.raises(error, match=text):
            ask(word, store, runs=runs)
    with pytest.raises(RecordError, match="not a directory"):
        ask("latest", store, runs=Path(__file__))


def test_a_prefix_of_two_digests_is_refused(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "runs", 1, {"a": "a"})
    record = json.loads((run.directory / "end.json").read_text())
    record["outputs"] = [
        {"path": name, "sha256": "sha256:" + "ab" * 4 + digit * 56, "size": 1} for name, digit in (("a", "1"), ("b", "2"))
    ]
    (run.directory / "end.json").chmod(0o644)
    (run.directory / "end.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match="2 digests in the records start with"):
        ask("ab" * 4, store, runs=tmp_path / "runs")
    assert ask("ab" * 4 + "1", store, runs=tmp_path / "runs").origins[0].paths == ("a",)


def test_missing_directories_and_unreadable_records_are_reported(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "gone" / "runs", 1, {"w": "weights"})
    store.run_directories.add(run.directory.parent)
    broken = made(tmp_path / "runs", 2, {})
    (broken.directory / "start.json").unlink()
    (tmp_path / "gone").rename(tmp_path / "moved")
    found = ask(sha256_hex("weights"), store, runs=tmp_path / "runs")
    assert not found.known
    assert found.missing == (tmp_path / "gone" / "runs",)
    assert not any("according to the index" in note for note in found.remarks), "it was never listed"
    assert [run.directory for run in found.unreadable] == [broken.directory]
    assert ask(sha256_hex("weights"), store, runs=tmp_path / "moved" / "runs").known


def test_a_directory_that_never_had_runs_is_not_missing(tmp_path: Path, store: Store) -> None:
    (tmp_path / "project" / "repro").mkdir(parents=True)
    (tmp_path / "project" / "repro" / "spec.json").touch()
    assert ask(sha256_hex("weights"), store, here=tmp_path / "project").missing == ()
    file = tmp_path / "project" / "repro" / "spec.json"
    for given, what in ((tmp_path / "typo", "this directory does not exist"), (file, "this is not a directory")):
        with pytest.raises(RecordError, match=what):
            ask(sha256_hex("weights"), store, runs=given)


def test_a_run_in_a_missing_directory_is_not_an_answer(tmp_path: Path, store: Store) -> None:
    run = made(tmp_path / "disk" / "runs", 1, {"w": "weights"})
    assert ask(run.files / "w", store).known
    (tmp_path / "disk").rename(tmp_path / "away")
    found = ask(sha256_hex("weights"), store)
    assert not found.known
    assert found.missing == (tmp_path / "disk" / "runs",)


def test_a_run_directory_may_have_another_name(tmp_path: Path, store: Store) -> None:
    """A run directory that was copied out of its project still has the record of its files."""
    run = made(tmp_path / "runs", 1, {"w.pt": "weights"})
    shutil.copytree(run.directory, tmp_path / "handed over", symlinks=True)
    shutil.rmtree(tmp_path / "runs")
    found = ask(tmp_path / "handed over" / "files" / "w.pt", store)
    assert producers(found) == ("00000001 output",)
    assert ask(tmp_path / "handed over", store).known
