from __future__ import annotations

import stat
from pathlib import Path

import pytest

from repro_env.catalog import annotation, records
from repro_env.model.errors import RecordError, SpecError, SpecVersionError, UsageError
from tests.catalog.test_records import recorded


def test_what_is_said_comes_back_in_its_order_and_the_record_stays(tmp_path: Path) -> None:
    folder = recorded(tmp_path, 1)
    before = (folder / "start.json").read_bytes(), (folder / "end.json").read_bytes()
    assert annotation.of(folder) == ()
    note = annotation.add(folder, kind="note", text="  first line\n\nthird\x1b line  \n", by="ann")
    decision = annotation.add(folder, kind="decision", text="we ship it")
    assert note.text == ("first line", "", "third  line")
    assert annotation.of(folder) == (note, decision)
    assert note.id < decision.id
    assert ((folder / "start.json").read_bytes(), (folder / "end.json").read_bytes()) == before
    path = folder / "annotations" / f"{note.id}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert records.read(folder).state == "done"


def test_the_last_word_on_a_tag_counts_whatever_the_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = recorded(tmp_path, 1)
    for kind, tag in (("tag", "best"), ("tag", "paper/v1"), ("untag", "best"), ("tag", "best"), ("untag", "paper/v1")):
        monkeypatch.setattr("time.time_ns", lambda: 10**18)
        annotation.add(folder, kind="tag" if kind == "tag" else "untag", text=tag)
    assert annotation.tags(annotation.of(folder)) == ("best",)
    monkeypatch.setattr("time.time_ns", lambda: 10**17)
    annotation.add(folder, kind="untag", text="best")
    assert annotation.tags(annotation.of(folder)) == ()


@pytest.mark.parametrize("tag", ["", " a", "a b", "-a", "a-", "é", "a\n", "a" * 65])
def test_what_is_no_tag_is_refused(tmp_path: Path, tag: str) -> None:
    folder = recorded(tmp_path, 1)
    with pytest.raises(UsageError):
        annotation.add(folder, kind="tag", text=tag)
    assert not (folder / "annotations").exists()


def test_an_empty_note_is_refused_and_secrets_are_taken_out(tmp_path: Path) -> None:
    folder = recorded(tmp_path, 1)
    with pytest.raises(UsageError):
        annotation.add(folder, kind="note", text=" \n ")
    said = annotation.add(folder, kind="note", text="ran with\npassword=hunter2hunter2")
    assert said.text == ("ran with", "password=<redacted>")


def test_one_that_cannot_be_read_is_an_error_and_never_no_tag(tmp_path: Path) -> None:
    folder = recorded(tmp_path, 1)
    path = folder / "annotations" / f"{annotation.add(folder, kind='tag', text='keep').id}.json"
    text = path.read_text()
    path.chmod(0o644)
    path.write_text(text[:30])
    with pytest.raises(SpecError):
        annotation.of(folder)
    path.write_text(text.replace('"keep"', ""))
    with pytest.raises(SpecError):
        annotation.of(folder)
    path.write_text(text.replace("annotation/1", "annotation/2"))
    with pytest.raises(SpecVersionError):
        annotation.of(folder)
    (folder / "annotations" / "note.txt").write_text("not ours")
    path.unlink()
    assert annotation.of(folder) == ()
    (folder / "annotations" / "note.txt").unlink()
    (folder / "annotations").rmdir()
    (folder / "annotations").write_text("a file")
    with pytest.raises(RecordError):
        annotation.of(folder)
    with pytest.raises(RecordError):
        annotation.add(folder, kind="note", text="x")
