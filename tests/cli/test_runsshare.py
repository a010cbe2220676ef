"""What `runs push`, `runs pull` and `runs list --from` print, with a directory as the catalog."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro_env.api import runsshare
from repro_env.cli import app
from repro_env.runs.records import records
from repro_env.schema.errors import UsageError
from tests.api.place import Fake, Place, writes

MANY = {f"o{number}_txt": "x" * 20 for number in range(5)}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    monkeypatch.chdir(made.project)
    monkeypatch.setenv("REPRO_ENV_STORE", str(made.store.root))
    (tmp_path / "team").mkdir()
    return made


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = app.run(["runs", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_push_pull_and_list_print_one_line_for_each_run(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = place.run(backend=Fake(writes(log_txt="1")))
    short, catalog = done.start.id[-8:], str(place.project.parent / "team")
    assert call(capsys, "list", "--from", catalog)[2].startswith(f"no runs in {catalog}; next: repro-env runs push")
    code, out, err = call(capsys, "push", catalog)
    assert (code, out) == (0, f"{short}  pushed\n")
    assert f"to {catalog} for 1 run\n" in err
    code, out, err = call(capsys, "push", catalog)
    assert (code, out) == (0, f"{short}  unchanged\n")
    assert f"nothing was sent: {catalog} has all files of 1 run\n" in err
    code, out, err = call(capsys, "list", "--from", catalog)
    assert out.splitlines()[1].split() == [short, *done.start.started[:19].split("T"), "train.py", "exit", "0", *out.split()[-5:]]
    assert f"next: repro-env runs pull {catalog} {short}\n" in err
    monkeypatch.chdir(place.project.parent)  # where a reviewer has no project
    command = f"repro-env runs pull {catalog} {short} --runs runs"
    assert f"next: {command}\n" in call(capsys, "list", "--from", catalog)[2]
    assert call(capsys, *command.split()[2:])[0] == 0
    monkeypatch.chdir(place.project)
    assert call(capsys, "list", "--from", catalog, "--tag", "x")[2].startswith("no runs with these tags in ")
    code, out, _ = call(capsys, "pull", catalog, short[:5])
    assert (code, out) == (0, f"{short}  unchanged  {done.directory}\n")


def test_what_was_left_out_is_named(place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runsshare, "MOST", 45)
    run = place.run(backend=Fake(writes(**MANY)))
    short, catalog, runs = run.start.id[-8:], str(place.project.parent / "team"), str(place.project.parent / "ben")
    named = "3 outputs: o2.txt, o3.txt, o4.txt"
    assert f"run {short}: the catalog does not have {named}; push them with --outputs all" in call(capsys, "push", catalog)[2]
    assert f"run {short}: the catalog does not have {named}; push them" in call(capsys, "pull", catalog, "--runs", runs)[2]
    call(capsys, "push", catalog, "--outputs", "all")
    other = str(place.project.parent / "cem")
    _, _, err = call(capsys, "pull", catalog, "--runs", other, "--outputs", "none")
    assert f"run {short}: did not pull 5 outputs: o0.txt, o1.txt, o2.txt and 2 more; pull them with: " in err
    _, page, _ = call(capsys, "show", short, "--runs", other)
    assert f"pulled    from {catalog}; not here: 5 outputs\n  left out o0.txt\n" in page


def test_the_answers_have_stable_keys(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.run(backend=Fake(writes(log_txt="1")))
    catalog = str(place.project.parent / "team")
    pushed = json.loads(call(capsys, "push", catalog, "--json")[1])
    assert pushed.keys() == {"catalog", "runs", "failed"}
    assert pushed["runs"][0].keys() == {"id", "files", "blobs", "size", "left_out"}
    listed = json.loads(call(capsys, "list", "--from", catalog, "--json")[1])
    assert listed.keys() == {"runs", "unreadable"}
    assert listed["runs"][0].keys() == {"id", "short", "summary", "tags", "ending"}
    pulled = json.loads(call(capsys, "pull", catalog, "--runs", str(place.project.parent / "ben"), "--json")[1])
    assert pulled.keys() == {"catalog", "directory", "runs", "failed"}
    assert pulled["runs"][0].keys() == {"id", "directory", "state", "files", "left_out", "not_pushed"}


def test_the_exit_code_is_that_of_the_first_run_that_failed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = (place.run(backend=Fake(writes(log_txt="1"))) for _ in range(2))
    (bad.directory / "files" / "log.txt").write_text("2")
    code, out, err = call(capsys, "push", str(place.project.parent / "team"))
    assert (code, out) == (19, f"{good.start.id[-8:]}  pushed\n")
    assert "log.txt: this file differs from the record: it was changed after the run" in err
    assert "-> leave it out with --outputs, or restore it" in err


def test_a_first_pull_makes_the_runs_known_to_later_commands(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [place.run(backend=Fake(writes(log_txt="1"))) for _ in range(2)]
    catalog, ben = str(place.project.parent / "team"), place.project.parent / "ben"
    call(capsys, "push", catalog)
    call(capsys, "pull", catalog, "--runs", str(ben))
    assert records.find(ben, "latest").name == runs[-1].directory.name
    later = place.run(backend=Fake(writes(log_txt="1")))
    call(capsys, "push", catalog)
    call(capsys, "pull", catalog, "--runs", str(ben))
    assert later.directory.name in {path.name for path in records.directories(ben)}
    assert records.find(ben, "latest").name == runs[-1].directory.name  # the user's own last run, or the first pull


def test_from_and_runs_are_mutually_exclusive(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--from and --runs are mutually exclusive"):
        app.run(["runs", "list", "--from", str(tmp_path), "--runs", str(tmp_path)])
