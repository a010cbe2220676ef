"""Audits of runs of a real spec, with image and source in a real store, after something was removed or changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.api.audit import Audit
from repro_env.api.execute import FinishedRun
from repro_env.runs.records import annotation, records, verdicts
from repro_env.sandbox import outputs
from repro_env.schema import codec
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.run import DataFact, Launch, Parent
from repro_env.schema.rundirectory import ANNOTATIONS, TRACE
from repro_env.store.store import Store
from tests.api.audits import drop_image, rewrite, run_audit
from tests.api.place import Fake, Place, Work, writes
from tests.environment.conftest import Git, git  # noqa: F401
from tests.fakes import specs
from tests.fakes.rights import file_modes_obeyed


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def findings(done: Audit) -> list[tuple[str, str, str]]:
    return [(finding.part, finding.state, finding.what) for finding in done.findings]


def run(place: Place, *, parents: tuple[Parent, ...] = (), **options: Any) -> FinishedRun:
    """Record a run with two outputs and these parents."""
    done = place.run(backend=Fake(writes(ck__w_pt="weights", log_txt="1")), **options)
    if parents:
        began = msgspec.structs.replace(done.start, parents=parents)
        rewrite(done.directory / "start.json", codec.pretty(began))
        end = msgspec.structs.replace(done.end, start=records.digest(done.directory / "start.json"))
        rewrite(done.directory / "end.json", codec.pretty(end))
    return done


def digest(path: Path) -> str:
    sha256 = records.digest(path)
    assert sha256 is not None
    return sha256


def test_complete_runs_have_no_findings(place: Place, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("x")
    run(place, data=((str(tmp_path / "data"), ""),))
    verdicts.write(run(place).directory, {"level": "bitwise", "same": True, "ignored": 0}, ["bitwise"])
    done = run_audit(place)
    assert (done.findings, done.bad, done.runs) == ((), 0, 2)
    assert done.checked == {
        "record": 2,
        "output": 4,
        "trace": 0,
        "checkpoint": 0,
        "parent": 0,
        "spec": 1,
        "image": 1,
        "code": 1,
        "data": 1,
    }
    assert run_audit(place, "latest").runs == 1


def test_removed_changed_and_new_outputs_are_found(place: Place) -> None:
    files = run(place).directory / "files"
    (files / "log.txt").write_text("2")
    (files / "ck" / "w.pt").unlink()
    (files / "more").touch()
    done = run_audit(place)
    assert findings(done) == [("output", "gone", "ck/w.pt"), ("output", "changed", "log.txt"), ("output", "unrecorded", "more")]
    assert done.bad == 3


def test_a_changed_and_a_removed_trace_are_found(place: Place) -> None:
    done = run(place)
    trace = done.directory / TRACE
    trace.mkdir()
    (trace / "0.jsonl").write_text("1")
    end = msgspec.structs.replace(done.end, trace=outputs.collect(trace).outputs)
    rewrite(done.directory / "end.json", codec.pretty(end))
    assert (run_audit(place).findings, run_audit(place).checked["trace"]) == ((), 1)
    (trace / "0.jsonl").write_text("2")
    assert findings(run_audit(place)) == [("trace", "changed", "0.jsonl")]
    shutil.rmtree(trace)
    assert findings(run_audit(place)) == [("trace", "gone", "0.jsonl")]


def test_changed_damaged_and_missing_records_are_found(place: Place) -> None:
    edited, damaged, lost = (run(place).directory for _ in range(3))
    rewrite(edited / "start.json", (edited / "start.json").read_bytes().replace(b'"seed": 0', b'"seed": 1'))
    rewrite(damaged / "end.json", b"{")
    (lost / "start.json").unlink()
    assert sorted(findings(run_audit(place))) == sorted(
        [("record", "gone", lost.name), ("record", "changed", damaged.name), ("record", "changed", "start.json")]
    )
    (finding,) = (finding for finding in run_audit(place).findings if finding.state == "gone")
    assert "2 files in it have no record" in finding.why


def test_a_damaged_annotation_is_found(place: Place) -> None:
    directory = run(place).directory
    note = annotation.add(directory, kind="note", text="good")
    assert run_audit(place).findings == ()
    rewrite(directory / ANNOTATIONS / f"{note.id}.json", b"{")
    assert findings(run_audit(place)) == [("record", "changed", f"annotations/{note.id}.json")]


def test_an_interrupted_run_is_unknown_and_not_bad(place: Place) -> None:
    (run(place).directory / "end.json").unlink()
    done = run_audit(place)
    assert findings(done) == [("record", "unknown", "end.json")]
    assert done.bad == 0


def test_an_image_that_can_be_rebuilt_is_not_gone(place: Place) -> None:
    run(place)
    drop_image(place)
    assert run_audit(place).findings == ()
    assert run_audit(place, ask=True).findings == ()


def test_an_image_that_cannot_be_rebuilt_is_gone(place: Place) -> None:
    run(place)
    drop_image(place)
    lose_blob(place, place.spec.identity.base)
    done = run_audit(place)
    assert findings(done) == [("image", "gone", place.spec.expected.image_id)]
    assert "cannot be rebuilt" in done.findings[0].why


def lose_blob(place: Place, blob: TreeBlob) -> None:
    """Remove a blob next to the spec and next to the runs."""
    for path in place.project.rglob(specs.blob(place.directory, blob).name):
        path.unlink()


def lose_spec_copies(place: Place) -> None:
    """Remove the specs next to the runs, as if only the records had been copied."""
    shutil.rmtree(place.project / "runs" / "specs")


def test_an_overwritten_spec_is_gone_and_its_image_if_it_is_not_in_the_store(place: Place) -> None:
    run(place)
    run(place)
    lose_spec_copies(place)
    other = specs.make(place.project.parent / "other", {}, prefix="/elsewhere/.venv")
    (place.directory / "spec.json").write_bytes(codec.pretty(other))
    done = run_audit(place)
    assert findings(done) == [("spec", "gone", place.spec.digest)]
    assert len(done.findings[0].runs) == 2
    drop_image(place)
    assert findings(run_audit(place)) == [("spec", "gone", place.spec.digest), ("image", "gone", place.spec.expected.image_id)]


def unchanged_code(place: Place) -> None:
    """Leave the code in the source directory."""


def bundled_code(place: Place) -> None:
    """Change the code in the source directory, so that only the spec's blob has the original."""
    (place.project / "train.py").write_text("print('other')")


def lost_code(place: Place) -> None:
    """Remove the blob too."""
    bundled_code(place)
    source = place.spec.observed.source
    assert source is not None
    lose_blob(place, source.tree)


def damaged_code(place: Place) -> None:
    """Damage the blob."""
    bundled_code(place)
    source = place.spec.observed.source
    assert source is not None
    path = specs.blob(place.directory, source.tree)
    path.write_bytes(path.read_bytes()[:-9] + bytes(9))


@pytest.mark.parametrize(
    ("change", "is_available"),
    [(unchanged_code, True), (bundled_code, True), (lost_code, False), (damaged_code, False)],
)
def test_code_that_is_not_in_the_store_is_found_elsewhere_or_gone(
    place: Place, change: Callable[[Place], None], is_available: bool
) -> None:
    done = run(place)
    change(place)
    place.store.layers.discard(done.start.source.digest)
    source = f"{place.project} ({done.start.source.digest})"
    assert findings(run_audit(place)) == ([] if is_available else [("code", "gone", source)])


def test_directories_that_runs_write_to_are_not_part_of_the_current_code(place: Place, tmp_path: Path) -> None:
    """Neither checkpoints in the project nor a directory of runs with another name."""
    checkpoints = place.project / "out" / "ck"
    done = run(place, checkpoints=((str(checkpoints), ""),), runs=place.project / "experiments")
    (checkpoints / "w.pt").write_text("weights")
    place.store.layers.discard(done.start.source.digest)
    source = place.spec.observed.source
    assert source is not None
    specs.blob(place.directory, source.tree).unlink()
    shutil.rmtree(done.directory.parent / "specs")
    assert [finding.part for finding in run_audit(place, runs=done.directory.parent).findings if finding.part == "code"] == []
    (place.project / "train.py").write_text("print('other')")
    assert [finding.part for finding in run_audit(place, runs=done.directory.parent).findings if finding.part == "code"] == [
        "code"
    ]


def test_pipes_and_devices_that_a_record_names_are_not_read(place: Place, tmp_path: Path) -> None:
    done = run(place)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    names = (str(tmp_path / "pipe"), str(tmp_path / "loop"), "/dev/zero")
    data = tuple(DataFact(source=name, target="/in", kind="data", digest=done.start.spec) for name in names)
    rewrite(done.directory / "start.json", codec.pretty(msgspec.structs.replace(done.start, data=data)))
    states = {(finding.part, finding.state) for finding in run_audit(place).findings}
    assert states == {("record", "changed"), ("data", "gone"), ("data", "unknown")}


def test_changed_and_missing_data_are_found_once_for_all_runs(place: Place, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "x").write_text("x")
    first, second = run(place, data=((str(data), ""),)), run(place, data=((str(data), ""),))
    (data / "x").write_text("y")
    (finding,) = run_audit(place).findings
    assert (finding.part, finding.state, finding.what) == ("data", "changed", str(data))
    assert set(finding.runs) == {first.start.id, second.start.id}
    (data / "x").unlink()
    data.rmdir()
    assert findings(run_audit(place)) == [("data", "gone", str(data))]


def test_data_and_checkpoints_below_a_closed_directory_are_unknown(place: Place, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    for name in ("data", "ck"):
        (closed / name).mkdir(parents=True)
    (closed / "data" / "x").write_text("x")
    parent = Parent(id="0197cccc-0000-7000-8000-000000000000", record=None, how="named")
    run(place, data=((str(closed / "data"), ""),), checkpoints=((str(closed / "ck"), ""),), parents=(parent,))
    closed.chmod(0)
    try:
        with file_modes_obeyed():
            done = run_audit(place)
    finally:
        closed.chmod(0o755)
    by_part = {finding.part: finding for finding in done.findings}
    assert {part: finding.state for part, finding in by_part.items()} == {
        "parent": "gone",
        "checkpoint": "unknown",
        "data": "unknown",
    }
    assert "Permission denied" in by_part["data"].why
    assert "Permission denied" in by_part["checkpoint"].why


def saves(directory: Path, **files: str) -> Work:
    """Return a command that writes files to a checkpoint directory; an empty text removes the file."""

    def work(launch: Launch, run: Path) -> int:
        for name, text in files.items():
            (directory / name).write_text(text) if text else (directory / name).unlink()
        return 0

    return work


def test_checkpoints_are_compared_with_the_state_after_the_last_run(place: Place, tmp_path: Path) -> None:
    directory = tmp_path / "ck"
    directory.mkdir()
    (directory / "mine").write_text("not written by a run")
    first = place.run(backend=Fake(saves(directory, a="1", b="1", c="1")), checkpoints=((str(directory), ""),))
    place.run(backend=Fake(saves(directory, a="2", b="")), checkpoints=((str(directory), "/other"),))
    done = run_audit(place)
    assert (done.findings, done.checked["checkpoint"]) == ((), 3)
    assert run_audit(place, first.start.id).findings == ()
    (directory / "new").touch()
    (directory / "c").write_text("edited")
    (directory / "a").unlink()
    by_path = {finding.what: finding for finding in run_audit(place).findings}
    assert {path: (finding.part, finding.state) for path, finding in by_path.items()} == {
        str(directory / "a"): ("checkpoint", "gone"),
        str(directory / "c"): ("checkpoint", "changed"),
    }
    assert by_path[str(directory / "c")].runs == (first.start.id,)
    shutil.rmtree(directory)
    assert findings(run_audit(place)) == [("checkpoint", "gone", str(directory))]


def test_checkpoints_after_a_run_without_an_end_are_unknown(place: Place, tmp_path: Path) -> None:
    directory = tmp_path / "all" / "ck"
    directory.mkdir(parents=True)
    place.run(backend=Fake(saves(directory, a="1")), checkpoints=((str(directory), ""),))
    last = place.run(backend=Fake(saves(directory, a="2")), checkpoints=((str(directory.parent), "/all"),))
    assert (findings(run_audit(place))[0][:2], run_audit(place).bad) == (("checkpoint", "unknown"), 0)
    (last.directory / "end.json").unlink()
    assert {(finding.part, finding.state) for finding in run_audit(place).findings} == {
        ("checkpoint", "unknown"),
        ("record", "unknown"),
    }


def test_changed_and_missing_lists_of_checkpoints_are_found(place: Place, tmp_path: Path) -> None:
    (tmp_path / "ck").mkdir()
    done = place.run(backend=Fake(saves(tmp_path / "ck", a="1")), checkpoints=((str(tmp_path / "ck"), ""),))
    rewrite(done.directory / "checkpoints-after.json", b"{}")
    (done.directory / "checkpoints-before.json").unlink()
    assert findings(run_audit(place)) == [
        ("record", "gone", "checkpoints-before.json"),
        ("record", "changed", "checkpoints-after.json"),
        ("checkpoint", "unknown", str(tmp_path / "ck")),
    ]


def test_changed_and_missing_parents_are_found(place: Place) -> None:
    parent = run(place)
    reference = Parent(id=parent.start.id, record=digest(parent.directory / "end.json"), how="named")
    run(place, parents=(reference,))
    assert run_audit(place).findings == ()
    rewrite(parent.directory / "end.json", codec.pretty(msgspec.structs.replace(parent.end, seconds=9.0)))
    assert findings(run_audit(place)) == [("parent", "changed", f"run {parent.start.id[-8:]}")]
    records.remove(parent.directory)
    assert findings(run_audit(place)) == [("parent", "gone", f"run {parent.start.id[-8:]}")]


def test_a_parent_is_reported_once_and_a_checkpoint_of_no_run_by_its_path(place: Place) -> None:
    lost = Parent(id="0197cccc-0000-7000-8000-000000000000", record=None, how="data")
    run(place, parents=(lost, lost, Parent(id="", record=None, how="resumed", path="ck/1")))
    assert findings(run_audit(place)) == [("parent", "gone", "run 00000000"), ("parent", "unknown", "ck/1")]


def test_a_parent_in_another_directory_is_found_through_the_mount_or_a_known_directory(place: Place, tmp_path: Path) -> None:
    parent = run(place, runs=tmp_path / "others")
    reference = Parent(id=parent.start.id, record=digest(parent.directory / "end.json"), how="named")
    by_mount = run(place, parents=(reference,), data=((str(parent.directory / "files" / "ck"), "/in"),))
    assert run_audit(place).findings == ()
    records.remove(by_mount.directory)
    run(place, parents=(reference,))
    assert run_audit(place).findings == ()
    new = Store.open(tmp_path / "new")
    assert findings(run_audit(place, store=new)) == [("parent", "gone", f"run {parent.start.id[-8:]}")]
    new.run_directories.add(tmp_path / "others")
    assert run_audit(place, store=new).findings == ()


def test_an_audit_changes_nothing(place: Place) -> None:
    directory = run(place).directory
    before = {path: path.lstat().st_mtime_ns for path in place.project.rglob("*")}
    run_audit(place)
    assert {path: path.lstat().st_mtime_ns for path in place.project.rglob("*")} == before
    assert json.loads((directory / "end.json").read_text())["id"]


def test_an_audit_without_runs_reports_zero_runs(place: Place) -> None:
    done = run_audit(place)
    assert (done.runs, done.findings) == (0, ())


def test_image_and_code_are_found_through_the_spec_if_the_store_is_empty(place: Place, tmp_path: Path) -> None:
    """The project was copied to another machine."""
    run(place)
    assert run_audit(place, store=Store.open(tmp_path / "new")).findings == ()
