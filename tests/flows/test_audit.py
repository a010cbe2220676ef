"""Runs of a real spec, with their image and source in a real store, and then something goes or changes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from repro_env.catalog import annotation, outputs, records, verified
from repro_env.flows import audit
from repro_env.flows.audit import Audit
from repro_env.flows.execute import Done
from repro_env.model import codec
from repro_env.model.artifact import TreeBlob
from repro_env.model.run import DataFact, Launch, Parent, RecipeFile
from repro_env.model.talk import Silent
from repro_env.store.store import Store
from tests.capture.conftest import Git, git  # noqa: F401
from tests.fakes import specs
from tests.flows.test_execute import Fake, Place, Work, writes


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def look(place: Place, *words: str, runs: Path | None = None, store: Store | None = None, ask: bool = False) -> Audit:
    folder = runs or place.project / "runs"
    return audit.audit(folder, words, here=place.project, store=store or place.store, ask=ask, tell=Silent())


def told(done: Audit) -> list[tuple[str, str, str]]:
    return [(one.part, one.state, one.what) for one in done.findings]


def run(place: Place, *, parents: tuple[Parent, ...] = (), **options: object) -> Done:
    """A run with two outputs; its record names `parents`."""
    done = place.run(backend=Fake(writes(ck__w_pt="weights", log_txt="1")), **options)
    if parents:
        began = msgspec.structs.replace(done.start, parents=parents)
        rewrite(done.folder / "start.json", codec.pretty(began))
        end = msgspec.structs.replace(done.end, start=outputs.digest(done.folder / "start.json"))
        rewrite(done.folder / "end.json", codec.pretty(end))
    return done


def rewrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def digest(path: Path) -> str:
    found = outputs.digest(path)
    assert found is not None
    return found


def drop_image(place: Place) -> None:
    place.store.images.remove(place.spec.expected.image_id)
    for one in place.spec.expected.layers:
        place.store.layers.remove(one.diff_id)


def test_what_is_all_there_has_no_finding(place: Place, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("x")
    run(place, data=((str(tmp_path / "data"), ""),))
    verified.write(run(place).folder, {"level": "bitwise", "same": True, "ignored": 0}, ["bitwise"])
    done = look(place)
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
        "recipe": 0,
        "data": 1,
    }
    assert look(place, "latest").runs == 1


def test_outputs(place: Place) -> None:
    files = run(place).folder / "files"
    (files / "log.txt").write_text("2")
    (files / "ck" / "w.pt").unlink()
    (files / "more").touch()
    done = look(place)
    assert told(done) == [("output", "gone", "ck/w.pt"), ("output", "changed", "log.txt"), ("output", "unrecorded", "more")]
    assert done.bad == 3


def test_records(place: Place) -> None:
    edited, torn, lost = (run(place).folder for _ in range(3))
    rewrite(edited / "start.json", (edited / "start.json").read_bytes().replace(b'"seed": 0', b'"seed": 1'))
    rewrite(torn / "end.json", b"{")
    (lost / "start.json").unlink()
    assert sorted(told(look(place))) == sorted(
        [("record", "gone", lost.name), ("record", "changed", torn.name), ("record", "changed", "start.json")]
    )
    (found,) = (one for one in look(place).findings if one.state == "gone")
    assert "2 files in it have no record" in found.why


def test_an_annotation_that_is_torn(place: Place) -> None:
    folder = run(place).folder
    one = annotation.add(folder, kind="note", text="good")
    assert look(place).findings == ()
    rewrite(folder / annotation.FOLDER / f"{one.id}.json", b"{")
    assert told(look(place)) == [("record", "changed", f"annotations/{one.id}.json")]


def test_an_interrupted_run_is_unknown_and_not_bad(place: Place) -> None:
    (run(place).folder / "end.json").unlink()
    done = look(place)
    assert told(done) == [("record", "unknown", "end.json")]
    assert done.bad == 0


def test_an_image_that_can_be_rebuilt_is_there(place: Place) -> None:
    run(place)
    drop_image(place)
    assert look(place).findings == ()
    assert look(place, ask=True).findings == ()


def test_an_image_that_lacks_a_part_is_gone(place: Place) -> None:
    run(place)
    drop_image(place)
    lose_blob(place, place.spec.identity.base)
    done = look(place)
    assert told(done) == [("image", "gone", place.spec.expected.image_id)]
    assert "cannot be rebuilt" in done.findings[0].why


def lose_blob(place: Place, blob: TreeBlob) -> None:
    """Beside the spec, and beside the runs."""
    for path in place.project.rglob(specs.blob(place.folder, blob).name):
        path.unlink()


def lose_kept(place: Place) -> None:
    """As where a version ran that kept no specs, or only the records were copied."""
    shutil.rmtree(place.project / "runs" / "specs")


def test_a_spec_that_was_overwritten_is_gone_and_its_image_only_in_the_store(place: Place) -> None:
    run(place)
    run(place)
    lose_kept(place)
    other = specs.make(place.project.parent / "other", {}, prefix="/elsewhere/.venv")
    (place.folder / "spec.json").write_bytes(codec.pretty(other))
    done = look(place)
    assert told(done) == [("spec", "gone", place.spec.digest)]
    assert len(done.findings[0].runs) == 2
    drop_image(place)
    assert told(look(place)) == [("spec", "gone", place.spec.digest), ("image", "gone", place.spec.expected.image_id)]


def test_a_spec_in_gits_history_is_there(place: Place, git: Git) -> None:  # noqa: F811
    run(place)
    lose_kept(place)
    git(place.project, "init")
    git(place.project, "add", "-f", "repro/spec.json")
    git(place.project, "commit", "-m", "1")
    other = specs.make(place.project.parent / "other", {}, prefix="/elsewhere/.venv")
    (place.folder / "spec.json").write_bytes(codec.pretty(other))
    assert look(place).findings == ()


def live_code(place: Place) -> None:
    """Still the folder's own."""


def carried_code(place: Place) -> None:
    (place.project / "train.py").write_text("print('other')")


def lost_code(place: Place) -> None:
    carried_code(place)
    source = place.spec.observed.source
    assert source is not None
    lose_blob(place, source.tree)


def one_byte_of_the_carried_code(place: Place) -> None:
    carried_code(place)
    source = place.spec.observed.source
    assert source is not None
    path = specs.blob(place.folder, source.tree)
    path.write_bytes(path.read_bytes()[:-9] + bytes(9))


@pytest.mark.parametrize(
    ("change", "there"),
    [(live_code, True), (carried_code, True), (lost_code, False), (one_byte_of_the_carried_code, False)],
)
def test_code_that_is_no_longer_in_the_store(place: Place, change: Callable[[Place], None], there: bool) -> None:
    done = run(place)
    change(place)
    place.store.layers.remove(done.start.source.digest)
    source = f"{place.project} ({done.start.source.digest})"
    assert told(look(place)) == ([] if there else [("code", "gone", source)])


def test_folders_that_runs_write_to_are_no_code_of_the_folder_as_it_is_now(place: Place, tmp_path: Path) -> None:
    """Neither its checkpoints within the project nor runs of another name."""
    inside = place.project / "out" / "ck"
    done = run(place, checkpoints=((str(inside), ""),), runs=place.project / "experiments")
    (inside / "w.pt").write_text("weights")
    place.store.layers.remove(done.start.source.digest)
    source = place.spec.observed.source
    assert source is not None
    specs.blob(place.folder, source.tree).unlink()
    shutil.rmtree(done.folder.parent / "specs")
    assert [one.part for one in look(place, runs=done.folder.parent).findings if one.part == "code"] == []
    (place.project / "train.py").write_text("print('other')")
    assert [one.part for one in look(place, runs=done.folder.parent).findings if one.part == "code"] == ["code"]


def test_code_that_git_has(place: Place, git: Git, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """A run of an edit that was committed, and went on."""
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2098-01-01T00:00:00Z")
    git(place.project, "init")
    (place.project / "train.py").write_text("print('second')")
    done = run(place)
    place.store.layers.remove(done.start.source.digest)
    assert look(place).findings == ()  # the folder itself
    git(place.project, "add", "train.py")
    git(place.project, "commit", "-m", "1")
    (place.project / "train.py").write_text("print('third')")
    assert told(look(place))[0][:2] == ("code", "gone")  # the commit is younger than the run
    rewrite(done.folder / "start.json", codec.pretty(msgspec.structs.replace(done.start, started="2099-01-01T00:00:00.000Z")))
    assert [one.part for one in look(place).findings] == ["record"]


def test_recipes_are_there_or_in_the_source_of_the_run(place: Place, tmp_path: Path) -> None:
    inner, outer = place.project / "conf.yaml", tmp_path / "outer.yaml"
    for path in (inner, outer):
        path.write_text("lr: 1")
    done = run(place, recipe=("conf.yaml", "../outer.yaml"))
    assert (look(place).findings, look(place).checked["recipe"]) == ((), 2)
    for path in (inner, outer):
        path.write_text("lr: 2")
    assert told(look(place)) == [("recipe", "changed", str(outer))]
    outer.unlink()
    place.store.layers.remove(done.start.source.digest)
    inner.unlink()
    assert [one for one in told(look(place)) if one[0] == "recipe"] == [
        ("recipe", "gone", str(outer)),
        ("recipe", "unknown", str(inner)),
    ]


def test_what_a_record_names_is_never_a_pipe_or_device_that_is_read(place: Place, tmp_path: Path) -> None:
    done = run(place)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    names = (str(tmp_path / "pipe"), str(tmp_path / "loop"), "/dev/zero", "../../../../dev/zero")
    recipe = tuple(RecipeFile(path=name, sha256=done.start.spec) for name in names)
    data = tuple(DataFact(source=name, target="/in", kind="data", digest=done.start.spec) for name in names[:3])
    rewrite(done.folder / "start.json", codec.pretty(msgspec.structs.replace(done.start, recipe=recipe, data=data)))
    states = {(one.part, one.state) for one in look(place).findings}
    assert states == {("record", "changed"), ("recipe", "gone"), ("data", "gone"), ("data", "unknown")}


def test_data(place: Place, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "x").write_text("x")
    first, second = run(place, data=((str(data), ""),)), run(place, data=((str(data), ""),))
    (data / "x").write_text("y")
    (found,) = look(place).findings
    assert (found.part, found.state, found.what) == ("data", "changed", str(data))
    assert set(found.runs) == {first.start.id, second.start.id}
    (data / "x").unlink()
    data.rmdir()
    assert told(look(place)) == [("data", "gone", str(data))]


def saves(folder: Path, **files: str) -> Work:
    """A run that writes into a folder of checkpoints; an empty text removes the file."""

    def work(launch: Launch, run: Path) -> int:
        for name, text in files.items():
            (folder / name).write_text(text) if text else (folder / name).unlink()
        return 0

    return work


def test_checkpoints_are_as_the_last_run_left_them(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    folder.mkdir()
    (folder / "mine").write_text("not of any run")
    first = place.run(backend=Fake(saves(folder, a="1", b="1", c="1")), checkpoints=((str(folder), ""),))
    place.run(backend=Fake(saves(folder, a="2", b="")), checkpoints=((str(folder), "/other"),))
    done = look(place)
    assert (done.findings, done.checked["checkpoint"]) == ((), 3)
    assert look(place, first.start.id).findings == ()
    (folder / "new").touch()
    (folder / "c").write_text("edited")
    (folder / "a").unlink()
    found = {one.what: one for one in look(place).findings}
    assert {what: (one.part, one.state) for what, one in found.items()} == {
        str(folder / "a"): ("checkpoint", "gone"),
        str(folder / "c"): ("checkpoint", "changed"),
    }
    assert found[str(folder / "c")].runs == (first.start.id,)
    shutil.rmtree(folder)
    assert told(look(place)) == [("checkpoint", "gone", str(folder))]


def test_checkpoints_after_a_run_without_an_end_are_unknown(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "all" / "ck"
    folder.mkdir(parents=True)
    place.run(backend=Fake(saves(folder, a="1")), checkpoints=((str(folder), ""),))
    last = place.run(backend=Fake(saves(folder, a="2")), checkpoints=((str(folder.parent), "/all"),))
    assert (told(look(place))[0][:2], look(place).bad) == (("checkpoint", "unknown"), 0)
    (last.folder / "end.json").unlink()
    assert {(one.part, one.state) for one in look(place).findings} == {("checkpoint", "unknown"), ("record", "unknown")}


def test_a_list_of_checkpoints_that_was_changed_or_is_gone(place: Place, tmp_path: Path) -> None:
    (tmp_path / "ck").mkdir()
    done = place.run(backend=Fake(saves(tmp_path / "ck", a="1")), checkpoints=((str(tmp_path / "ck"), ""),))
    rewrite(done.folder / "checkpoints-after.json", b"{}")
    (done.folder / "checkpoints-before.json").unlink()
    assert told(look(place)) == [
        ("record", "gone", "checkpoints-before.json"),
        ("record", "changed", "checkpoints-after.json"),
        ("checkpoint", "unknown", str(tmp_path / "ck")),
    ]


def test_parents(place: Place) -> None:
    parent = run(place)
    came = Parent(id=parent.start.id, record=digest(parent.folder / "end.json"), how="named")
    run(place, parents=(came,))
    assert look(place).findings == ()
    rewrite(parent.folder / "end.json", codec.pretty(msgspec.structs.replace(parent.end, seconds=9.0)))
    assert told(look(place)) == [("parent", "changed", f"run {parent.start.id[-8:]}")]
    records.remove(parent.folder)
    assert told(look(place)) == [("parent", "gone", f"run {parent.start.id[-8:]}")]


def test_a_parent_in_another_folder_is_found_by_the_mount_or_because_it_was_seen(place: Place, tmp_path: Path) -> None:
    parent = run(place, runs=tmp_path / "others")
    came = Parent(id=parent.start.id, record=digest(parent.folder / "end.json"), how="named")
    by_mount = run(place, parents=(came,), data=((str(parent.folder / "files" / "ck"), "/in"),))
    assert look(place).findings == ()
    records.remove(by_mount.folder)
    run(place, parents=(came,))
    assert look(place).findings == ()
    new = Store.open(tmp_path / "new")
    assert told(look(place, store=new)) == [("parent", "gone", f"run {parent.start.id[-8:]}")]
    new.seen.see(tmp_path / "others")
    assert look(place, store=new).findings == ()


def test_an_audit_changes_nothing(place: Place) -> None:
    folder = run(place).folder
    before = {path: path.lstat().st_mtime_ns for path in place.project.rglob("*")}
    look(place)
    assert {path: path.lstat().st_mtime_ns for path in place.project.rglob("*")} == before
    assert json.loads((folder / "end.json").read_text())["id"]


def test_no_runs_is_no_good_answer(place: Place) -> None:
    done = look(place)
    assert (done.runs, done.findings) == (0, ())


def test_another_machines_store_has_neither_image_nor_code(place: Place, tmp_path: Path) -> None:
    """Copied to where nothing is in the store: the spec beside the runs gives all again."""
    run(place)
    assert look(place, store=Store.open(tmp_path / "new")).findings == ()
