from __future__ import annotations

import stat
from pathlib import Path

import pytest

from repro_env.runs.records import annotation, records
from repro_env.schema.errors import RecordError, SpecError, SpecVersionError, UsageError
from tests.runs.records.examples import recorded


def test_annotations_are_read_in_order_and_the_record_does_not_change(tmp_path: Path) -> None:
    directory = recorded(tmp_path, 1)
    before = (directory / "start.json").read_bytes(), (directory / "end.json").read_bytes()
    assert annotation.of(directory) == ()
    note = annotation.add(directory, kind="note", text="  first line\n\nthird\x1b line  \n", by="ann")
    decision = annotation.add(directory, kind="decision", text="we ship it")
    assert note.text == ("first line", "", "third  line")
    assert annotation.of(directory) == (note, decision)
    assert note.id < decision.id
    assert ((directory / "start.json").read_bytes(), (directory / "end.json").read_bytes()) == before
    path = directory / "annotations" / f"{note.id}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert records.read(directory).state == "done"


def test_the_last_annotation_of_a_tag_counts_even_if_the_clock_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = recorded(tmp_path, 1)
    for kind, tag in (("tag", "best"), ("tag", "paper/v1"), ("untag", "best"), ("tag", "best"), ("untag", "paper/v1")):
        monkeypatch.setattr("time.time_ns", lambda: 10**18)
        annotation.add(directory, kind="tag" if kind == "tag" else "untag", text=tag)
    assert annotation.tags(annotation.of(directory)) == ("best",)
    monkeypatch.setattr("time.time_ns", lambda: 10**17)
    annotation.add(directory, kind="untag", text="best")
    assert annotation.tags(annotation.of(directory)) == ()


@pytest.mark.parametrize("tag", ["", " a", "a b", "-a", "a-", "é", "a\n", "a" * 65])
def test_an_invalid_tag_is_refused(tmp_path: Path, tag: str) -> None:
    directory = recorded(tmp_path, 1)
    with pytest.raises(UsageError):
        annotation.add(directory, kind="tag", text=tag)
    assert not (directory / "annotations").exists()


def test_an_empty_note_is_refused_and_secrets_are_redacted(tmp_path: Path) -> None:
    directory = recorded(tmp_path, 1)
    with pytest.raises(UsageError):
        annotation.add(directory, kind="note", text=" \n ")
    note = annotation.add(directory, kind="note", text="ran with\npassword=hunter2hunter2")
    assert note.text == ("ran with", "password=<redacted>")


def test_an_unreadable_annotation_is_an_error_and_not_a_missing_tag(tmp_path: Path) -> None:
    directory = recorded(tmp_path, 1)
    path = directory / "annotations" / f"{annotation.add(directory, kind='tag', text='keep').id}.json"
    text = path.read_text()
    path.chmod(0o644)
    path.write_text(text[:30])
    with pytest.raises(SpecError):
        annotation.of(directory)
    path.write_text(text.replace('"keep"', ""))
    with pytest.raises(SpecError):
        annotation.of(directory)
    path.write_text(text.replace("annotation/1", "annotation/2"))
    with pytest.raises(SpecVersionError):
        annotation.of(directory)
    (directory / "annotations" / "note.txt").write_text("a foreign file")
    path.unlink()
    assert annotation.of(directory) == ()
    (directory / "annotations" / "note.txt").unlink()
    (directory / "annotations").rmdir()
    (directory / "annotations").write_text("a file")
    with pytest.raises(RecordError):
        annotation.of(directory)
    with pytest.raises(RecordError):
        annotation.add(directory, kind="note", text="x")
