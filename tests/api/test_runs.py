from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from repro_env.api import runs
from repro_env.runs.records import records
from repro_env.runs.records.records import Run
from repro_env.runs.start import resumption
from repro_env.sandbox import outputs, workspace
from repro_env.schema.errors import RecordError
from repro_env.schema.progress import Silent
from repro_env.store.store import Store
from tests.runs.records.examples import end, recorded, start
from tests.sandbox import launches


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A finished run with a few outputs."""
    directory = tmp_path / "runs" / "20260701T101530Z-train-0000000a"
    recording = records.begin(tmp_path / "runs", directory.name)
    for name, text in (("a.txt", "a"), ("ck/1/w.pt", "w1"), ("ck/2/w.pt", "w2")):
        path = directory / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (directory / "files" / "last").symlink_to("ck/2")
    run_id = "01a1fd02-1a59-73ca-8e91-4a5f0000000a"
    recording.start(start(run_id))
    recording.finish(msgspec.structs.replace(end(run_id), outputs=outputs.collect(directory / "files").outputs))
    return records.read(directory)


def names(made: tuple[Path, ...], target: Path) -> list[str]:
    return [path.relative_to(target).as_posix() for path in made]


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        (None, ["a.txt", "ck/1/w.pt", "ck/2/w.pt", "last"]),
        ("*.pt", ["ck/1/w.pt", "ck/2/w.pt"]),
        ("w.pt", ["ck/1/w.pt", "ck/2/w.pt"]),
        ("ck/1/*", ["ck/1/w.pt"]),
        ("ck", ["ck/1/w.pt", "ck/2/w.pt"]),
        ("ck/2/", ["ck/2/w.pt"]),
        ("last", ["last"]),
    ],
)
def test_outputs_are_copied_to_their_paths(run: Run, tmp_path: Path, glob: str | None, expected: list[str]) -> None:
    target = tmp_path / "to" / "there"
    assert names(runs.copy_outputs(run, glob, target, force=False, tell=Silent()), target) == expected
    if "ck/1/w.pt" in expected:
        assert (target / "ck/1/w.pt").read_text() == "w1"
        assert stat.S_IMODE((target / "ck/1/w.pt").stat().st_mode) & 0o200
    if "last" in expected:
        assert (target / "last").readlink() == Path("ck/2")


@pytest.mark.parametrize(
    "glob",
    ["w.txt", "*/w.txt", "results/w.txt", "../results/w.txt", "../results/*", "../results", "**/w.txt", "{above}/results/*.txt"],
)
def test_an_output_outside_the_project_is_found_by_each_usual_pattern(run: Run, tmp_path: Path, glob: str) -> None:
    above = Path(run.start.source.path).parent
    file = run.directory / "outside" / str(above / "results" / "w.txt").lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text("w")
    copied = runs.copy_outputs(run, glob.format(above=above), tmp_path / "to", force=False, tell=Silent())
    assert [path.read_text() for path in copied] == ["w"]


def test_an_output_is_found_by_its_absolute_path(run: Run, tmp_path: Path) -> None:
    glob = f"{run.start.source.path}/ck/1/*"
    assert names(runs.copy_outputs(run, glob, tmp_path / "to", force=False, tell=Silent()), tmp_path / "to") == ["ck/1/w.pt"]
    with pytest.raises(RecordError, match="no output of this run matches"):
        runs.copy_outputs(run, "/elsewhere/ck/1/*", tmp_path / "to", force=False, tell=Silent())


def test_a_glob_without_a_match_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no output of this run matches '\*\.zip'"):
        runs.copy_outputs(run, "*.zip", tmp_path / "to", force=False, tell=Silent())
    assert not (tmp_path / "to").exists()


def test_nothing_is_overwritten_without_force(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ck" / "2").mkdir(parents=True)
    (tmp_path / "ck" / "2" / "w.pt").write_text("mine")
    with pytest.raises(RecordError, match="already exists"):
        runs.copy_outputs(run, None, tmp_path, force=False, tell=Silent())
    assert not (tmp_path / "a.txt").exists()
    runs.copy_outputs(run, None, tmp_path, force=True, tell=Silent())
    assert (tmp_path / "ck/2/w.pt").read_text() == "w2"
    runs.copy_outputs(run, None, tmp_path, force=True, tell=Silent())


def test_a_dangling_symlink_is_not_overwritten_without_force(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to("/nonexistent/secret")
    with pytest.raises(RecordError, match="already exists"):
        runs.copy_outputs(run, "a.txt", tmp_path, force=False, tell=Silent())
    runs.copy_outputs(run, "a.txt", tmp_path, force=True, tell=Silent())
    assert not (tmp_path / "a.txt").is_symlink()


def test_a_directory_is_never_replaced_by_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(RecordError, match="this is a directory"):
        runs.copy_outputs(run, "a.txt", tmp_path, force=True, tell=Silent())


def test_a_file_at_the_path_of_a_directory_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "ck").write_text("mine")
    with pytest.raises(RecordError):
        runs.copy_outputs(run, "ck", tmp_path, force=False, tell=Silent())


def test_a_changed_output_is_not_copied(run: Run, tmp_path: Path) -> None:
    (run.files / "a.txt").write_text("b")
    with pytest.raises(RecordError, match="changed after the run"):
        runs.copy_outputs(run, None, tmp_path / "to", force=False, tell=Silent())
    assert names(runs.copy_outputs(run, "ck", tmp_path / "to", force=False, tell=Silent()), tmp_path / "to") == [
        "ck/1/w.pt",
        "ck/2/w.pt",
    ]


def test_the_runs_directory_is_next_to_the_nearest_spec_even_if_that_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "repro").mkdir()
    (tmp_path / "repro" / "spec.json").write_text("damaged")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert runs.find_runs_directory(None, below) == tmp_path / "runs"
    assert runs.find_runs_directory(tmp_path / "x", below) == tmp_path / "x"


def test_a_directory_without_spec_and_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="neither this directory nor one above it"):
        runs.find_runs_directory(None, tmp_path)
    recorded(tmp_path / "runs", 1)
    assert runs.find_runs_directory(None, tmp_path) == tmp_path / "runs"


def test_all_runs_are_removed_or_none(tmp_path: Path) -> None:
    first, second = recorded(tmp_path, 1), recorded(tmp_path, 2)
    with pytest.raises(RecordError):
        runs.remove(tmp_path, ["00000001", "ffffffff"], force=False)
    assert first.is_dir()
    assert runs.remove(tmp_path, ["00000001", "00000001", "latest"], force=False) == (first, second)
    assert not first.exists()
    assert not second.exists()


def test_a_running_run_is_removed_only_with_force(tmp_path: Path) -> None:
    recording = records.begin(tmp_path, "20260701T101530Z-train-00000001")
    with pytest.raises(RecordError, match="still running"):
        runs.remove(tmp_path, ["00000001"], force=False)
    assert runs.remove(tmp_path, ["00000001"], force=True) == (recording.directory,)
    recording.close()


def test_an_interrupted_run_keeps_only_its_outputs(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    directory = recorded(tmp_path / "runs", 1, over=False)
    run = records.read(directory)
    run = msgspec.structs.replace(
        run,
        start=msgspec.structs.replace(
            run.start, runner="embedded", source=msgspec.structs.replace(run.start.source, digest=store.layers.add(()))
        ),
    )
    empty = store.layers.path(run.start.source.digest)
    assert empty
    workspace.prepare(launches.make("/project"), directory, empty)
    (run.files / "out").write_text("1")
    os.mkfifo(run.files / "pipe")
    resumption.restore(run, store)
    assert sorted(path.name for path in directory.rglob("*")) == sorted(["files", "lock", "out", "start.json"])
