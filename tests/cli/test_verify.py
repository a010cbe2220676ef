"""What `verify` prints, keeps and writes, of verdicts that are already there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.catalog import records, verified
from repro_env.cli import verify
from repro_env.cli.page import Page
from repro_env.flows.verify import Verified
from repro_env.model.errors import UsageError
from repro_env.verify.compared import By, File, Ignored
from repro_env.verify.verdict import Promise, Verdict
from tests.catalog.test_records import recorded

BITWISE = Promise(level="bitwise", sentence="expected: bitwise identical")
TIME = "a time within the run"


def ignored(place: str, reason: str = TIME, by: By = "evidence") -> Ignored:
    return Ignored(place=place, then=f"1 of {place}", now=f"2 of {place}", reason=reason, by=by)


def file(path: str, **more: Any) -> File:
    words: dict[str, Any] = {"path": path, "now": path, "kind": "result", "level": "bitwise"}
    return File(**(words | more))


def excepted(path: str, *fields: Ignored, count: int = 0) -> File:
    return file(path, level="equal except for", ignored=fields, ignored_count=count or len(fields))


def differing(path: str, *accept: str, **more: Any) -> File:
    return file(path, level="different", why="1 value differs", shown=("- loss: 0.5", "+ loss: 0.7"), accept=accept, **more)


def done(tmp_path: Path, *files: File, same: bool = True, **more: Any) -> Verified:
    """Of a run that is really there. The sentence is not looked at here."""
    run = records.read(recorded(tmp_path / "runs", 1))
    level = max((one.level or "bitwise" for one in files), key=["bitwise", "equal except for", "numeric", "different"].index)
    verdict = Verdict(level=level, same=same, sentence=f"{level}: what was said", promise=BITWISE, files=files)
    return Verified(run=run, verdict=verdict, project=tmp_path, **more)


def shown(found: Verified, most: int | None = 10) -> list[str]:
    page = Page(most=most)
    verify.show(page, found)
    return page.lines


def test_the_verdict_is_the_first_line(tmp_path: Path) -> None:
    lines = shown(done(tmp_path, file("w.npy"), file("stdout.log", kind="console")))
    assert lines[0] == "bitwise: what was said"
    assert "expected      bitwise identical" in lines
    assert "results  1 of 1 the same" in lines
    assert not any(line.startswith("ignored") for line in lines)


def test_every_ignored_difference_is_shown_with_both_values_and_its_reason(tmp_path: Path) -> None:
    word = ignored("train_runtime", "as --ignore says", "user")
    whole = file("run.wandb", kind="ignored", level=None, why="W&B's transaction log")
    lines = shown(done(tmp_path, excepted("m.json", ignored("start"), word), excepted("a.log", ignored("line 3")), whole))
    at = lines.index("ignored  2 a time within the run, 1 as --ignore says, 1 whole file")
    assert lines[at + 1 : at + 7] == [
        "  m.json",
        "      start: 1 of start -> 2 of start (a time within the run)",
        "      train_runtime: 1 of train_runtime -> 2 of train_runtime (as --ignore says)",
        "  a.log",
        "      line 3: 1 of line 3 -> 2 of line 3 (a time within the run)",
        "  run.wandb  the whole file: W&B's transaction log",
    ]
    assert "results  2 of 2 the same" in lines


def test_past_fifty_lines_the_rest_is_counted_and_every_reason_has_its_number(tmp_path: Path) -> None:
    files = [excepted(f"{n:02}.json", ignored("start")) for n in range(40)]
    files += [excepted("z.json", *[ignored(f"{n}", "as pyproject.toml says", "user") for n in range(5)], count=3000)]
    found = done(tmp_path, *files)
    lines = shown(found)
    assert "ignored  40 a time within the run, 5 as pyproject.toml says, 2,995 not listed" in lines
    assert "and 36 more lines (--all shows them)" in [line.strip() for line in lines]
    assert sum("->" in line for line in lines) == 25
    assert sum("->" in line for line in shown(found, most=None)) == 45


def test_the_texts_that_accept_what_differs_are_printed_as_a_shell_takes_them(tmp_path: Path) -> None:
    files = [differing("m.json", "m.json:loss"), differing("a.log", "a.log:took {}s"), file("c", kind="console", accept=("c:x",))]
    lines = shown(done(tmp_path, *files, same=False))
    at = lines.index("to accept what differs  with these options, or all of them with verify --accept")
    assert lines[at + 1 :] == ["  --ignore 'a.log:took {}s'", "  --ignore m.json:loss"]
    assert "      - loss: 0.5" in lines
    many = [differing(f"{n:02}.json", f"{n:02}.json:x") for n in range(15)]
    lines = shown(done(tmp_path / "many", *many, same=False))
    assert "  and 5 more (--all shows them)" in lines
    assert lines[-1] == "  and 5 more (--accept writes them to pyproject.toml)"


def test_a_numeric_verdict_that_was_expected_asks_for_nothing(tmp_path: Path) -> None:
    assert not any("--ignore" in line for line in shown(done(tmp_path, differing("m.json", "m.json:loss"))))


def test_what_was_printed_is_one_line_unless_all_is_asked_for(tmp_path: Path) -> None:
    found = done(tmp_path, file("w.npy"), differing("stdout.log", kind="console"))
    assert "console, which decides nothing  0 of 1 the same" in shown(found)
    assert "  stdout.log  different: 1 value differs" in shown(found)
    assert not any("loss" in line for line in shown(found))
    assert "      + loss: 0.7" in shown(found, most=None)


def test_names_cannot_move_the_cursor(tmp_path: Path) -> None:
    assert "\x1b" not in "\n".join(shown(done(tmp_path, differing("a\x1b[2J", "a\x1b[2J:x"), same=False)))


def test_json_and_the_kept_verdict_have_what_the_page_has(tmp_path: Path) -> None:
    found = done(tmp_path, excepted("m.json", ignored("start")), differing("a.log", "a.log:took {}s"), same=False)
    facts = json.loads(msgspec.json.encode(verify.facts(found)))
    assert (facts["same"], facts["level"], facts["promised"], facts["ignored"]) == (False, "different", "bitwise", 1)
    assert (facts["reasons"], facts["accept"]) == ({TIME: 1}, ["a.log:took {}s"])
    assert facts["files"][0]["ignored"][0]["reason"] == TIME
    verify._keep(found, whole=False)
    (kept,) = (found.run.folder / "verified").glob("*.json")
    assert {**json.loads(kept.read_bytes()), **facts} == json.loads(kept.read_bytes())
    assert kept.with_suffix(".txt").read_text().splitlines() == shown(found)
    last = verified.last(found.run.folder)
    assert last is not None
    assert (last.level, last.ignored) == ("different", 1)


def test_where_nothing_was_compared_nothing_is_kept(tmp_path: Path) -> None:
    found = done(tmp_path, file("w.npy"))
    verify._keep(msgspec.structs.replace(found, verdict=msgspec.structs.replace(found.verdict, level=None)), whole=False)
    assert not (found.run.folder / "verified").exists()


def test_a_verdict_that_cannot_be_kept_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = done(tmp_path, file("w.npy"))
    (found.run.folder / "verified").write_text("a file")
    verify._keep(found, whole=False)
    assert "note: the verdict was not kept: " in capsys.readouterr().err


def test_accept_writes_what_differs_once(tmp_path: Path) -> None:
    lines = ("- line 3: took 5s", "+ line 3: took 6s")
    log = msgspec.structs.replace(differing("a.log", "a.log:took {}s", "m.json:loss"), shown=lines)
    found = done(tmp_path, differing("m.json", "m.json:loss"), log, same=False)
    accepted = verify._accept(found)
    assert accepted is not None
    assert (tmp_path / "pyproject.toml").read_text() == (
        '[tool.repro-env.verify]\nignore = [\n    "a.log:took {}s",\n    "m.json:loss",\n]\n'
    )
    page = Page(most=10)
    verify._show_accepted(page, accepted, found.verdict)
    assert page.lines == [
        f"accepted  2 lines were written to {tmp_path / 'pyproject.toml'}; run verify again",
        "  a.log:took {}s  line 3: took 5s -> line 3: took 6s",
        "  m.json:loss     0.5 -> 0.7",
    ]


@pytest.mark.parametrize(
    ("files", "problem", "named"),
    [
        ((differing("w.npy"),), "", "w.npy: 1 value differs"),
        ((file("", now="x", level="different", by="nothing", why="it was not there then"),), "", "x: it was not there then"),
        ((), "the command ended with exit code 1 and not 0", "the command ended with exit code 1 and not 0"),
    ],
)
def test_accept_writes_nothing_where_something_is_in_no_field(
    tmp_path: Path, files: tuple[File, ...], problem: str, named: str
) -> None:
    found = done(tmp_path, differing("m.json", "m.json:loss"), *files, same=False, problem=problem)
    accepted = verify._accept(found)
    assert accepted is not None
    assert (accepted.refused, accepted.texts) == ((named,), ())
    assert not (tmp_path / "pyproject.toml").exists()


def test_accept_of_what_is_the_same_writes_nothing(tmp_path: Path) -> None:
    assert verify._accept(done(tmp_path / "same", file("w.npy"))) is None
    with pytest.raises(UsageError, match="nothing was compared"):
        verify._accept(msgspec.structs.replace(done(tmp_path, file("w.npy"), same=False), project=None))


def test_a_kept_run_can_be_compared(tmp_path: Path) -> None:
    found = done(tmp_path, file("w.npy"))
    assert verify.after(found) == f"show {found.run.short}"
    kept = msgspec.structs.replace(found, folder=tmp_path / "20260702T000000Z-train-9f8e7d6c")
    assert verify.after(kept) == f"compare {found.run.short} 9f8e7d6c"
