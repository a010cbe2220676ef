"""The page, the kept verdict and the accepted differences of `repro-env verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.api.verify import Verified
from repro_env.cli import verify
from repro_env.cli.ui.page import Page
from repro_env.compare.outputs.comparison import Accept, File, Ignored, Origin
from repro_env.compare.outputs.verdict import Promise, Verdict
from repro_env.runs.records import records, verdicts
from repro_env.schema.errors import UsageError
from tests.runs.records.examples import recorded

BITWISE = Promise(level="bitwise", sentence="expected: bitwise identical")
TIME = "a time within the run"


def ignored(place: str, reason: str = TIME, by: Origin = "evidence") -> Ignored:
    return Ignored(place=place, then=f"1 of {place}", now=f"2 of {place}", reason=reason, by=by)


def file(path: str, **more: Any) -> File:
    words: dict[str, Any] = {"path": path, "now": path, "kind": "result", "level": "bitwise"}
    return File(**(words | more))


def excepted_file(path: str, *fields: Ignored, count: int = 0) -> File:
    return file(path, level="equal except for", ignored=fields, ignored_count=count or len(fields))


def different_file(path: str, *texts: str, **more: Any) -> File:
    accept = tuple(Accept(text, f"then of {text}", f"now of {text}") for text in texts)
    return file(path, level="different", why="1 value differs", shown=("- loss: 0.5", "+ loss: 0.7"), accept=accept, **more)


def make_result(tmp_path: Path, *files: File, same: bool = True, **more: Any) -> Verified:
    """A verdict about a recorded run. The tests do not check its sentence."""
    run = records.read(recorded(tmp_path / "runs", 1))
    level = max((file.level or "bitwise" for file in files), key=["bitwise", "equal except for", "numeric", "different"].index)
    verdict = Verdict(level=level, same=same, sentence=f"{level}: the sentence", promise=BITWISE, files=files)
    return Verified(run=run, verdict=verdict, project=tmp_path, **more)


def page_lines(result: Verified, most: int | None = 10) -> list[str]:
    page = Page(most=most)
    verify.show(page, result)
    return page.lines


def test_the_verdict_is_the_first_line(tmp_path: Path) -> None:
    lines = page_lines(make_result(tmp_path, file("w.npy"), file("stdout.log", kind="console")))
    assert lines[0] == "bitwise: the sentence"
    assert "expected      bitwise identical" in lines
    assert "results  1 of 1 the same" in lines
    assert not any(line.startswith("ignored") for line in lines)


def test_every_ignored_difference_is_shown_with_both_values_and_its_reason(tmp_path: Path) -> None:
    word = ignored("train_runtime", "as --ignore says", "user")
    ignored_file = file("run.wandb", kind="ignored", level=None, why="W&B's transaction log")
    lines = page_lines(
        make_result(
            tmp_path, excepted_file("m.json", ignored("start"), word), excepted_file("a.log", ignored("line 3")), ignored_file
        )
    )
    at = lines.index("ignored  2 a time within the run, 1 as --ignore says, 1 complete file")
    assert lines[at + 1 : at + 7] == [
        "  m.json",
        "      start: 1 of start -> 2 of start (a time within the run)",
        "      train_runtime: 1 of train_runtime -> 2 of train_runtime (as --ignore says)",
        "  a.log",
        "      line 3: 1 of line 3 -> 2 of line 3 (a time within the run)",
        "  run.wandb  the complete file: W&B's transaction log",
    ]
    assert "results  2 of 2 the same" in lines


def test_lines_after_the_fiftieth_are_counted_and_every_reason_has_its_number(tmp_path: Path) -> None:
    files = [excepted_file(f"{n:02}.json", ignored("start")) for n in range(40)]
    files += [excepted_file("z.json", *[ignored(f"{n}", "as repro-env.ignore says", "user") for n in range(5)], count=3000)]
    result = make_result(tmp_path, *files)
    lines = page_lines(result)
    assert "ignored  40 a time within the run, 5 as repro-env.ignore says, 2,995 not listed" in lines
    assert "and 36 more (--all shows them)" in [line.strip() for line in lines]
    assert sum("->" in line for line in lines) == 25
    assert sum("->" in line for line in page_lines(result, most=None)) == 45


def test_the_texts_for_ignore_are_quoted_for_a_shell(tmp_path: Path) -> None:
    files = [
        different_file("m.json", "m.json:loss"),
        different_file("a.log", "a.log:took {}s"),
        file("c", kind="console", accept=(Accept("c:x", "1", "2"),)),
    ]
    lines = page_lines(make_result(tmp_path, *files, same=False))
    at = lines.index("to accept the differences  use these options, or verify --accept for all of them")
    assert lines[at + 1 :] == ["  --ignore 'a.log:took {}s'", "  --ignore m.json:loss"]
    assert "      - loss: 0.5" in lines
    many = [different_file(f"{n:02}.json", f"{n:02}.json:x") for n in range(15)]
    lines = page_lines(make_result(tmp_path / "many", *many, same=False))
    assert "  and 5 more (--all shows them)" in lines
    assert lines[-1] == "  and 5 more (--all shows them)"


def test_an_expected_numeric_verdict_shows_no_texts_for_ignore(tmp_path: Path) -> None:
    assert not any("--ignore" in line for line in page_lines(make_result(tmp_path, different_file("m.json", "m.json:loss"))))


def test_the_console_is_one_line_without_all(tmp_path: Path) -> None:
    result = make_result(tmp_path, file("w.npy"), different_file("stdout.log", kind="console"))
    assert "console (does not affect the verdict)  0 of 1 the same" in page_lines(result)
    assert "  stdout.log  different: 1 value differs" in page_lines(result)
    assert not any("loss" in line for line in page_lines(result))
    assert "      + loss: 0.7" in page_lines(result, most=None)


def test_control_characters_in_names_are_escaped(tmp_path: Path) -> None:
    assert "\x1b" not in "\n".join(page_lines(make_result(tmp_path, different_file("a\x1b[2J", "a\x1b[2J:x"), same=False)))


def test_json_and_the_kept_verdict_have_the_content_of_the_page(tmp_path: Path) -> None:
    result = make_result(
        tmp_path, excepted_file("m.json", ignored("start")), different_file("a.log", "a.log:took {}s"), same=False
    )
    facts = json.loads(msgspec.json.encode(verify.facts(result)))
    assert (facts["same"], facts["level"], facts["promised"], facts["ignored"]) == (False, "different", "bitwise", 1)
    assert (facts["reasons"], facts["accept"]) == ({TIME: 1}, ["a.log:took {}s"])
    assert facts["files"][0]["ignored"][0]["reason"] == TIME
    verify._keep(result, complete=False)
    (kept,) = (result.run.directory / "verified").glob("*.json")
    assert {**json.loads(kept.read_bytes()), **facts} == json.loads(kept.read_bytes())
    assert kept.with_suffix(".txt").read_text().splitlines() == page_lines(result)
    last = verdicts.last(result.run.directory)
    assert last is not None
    assert (last.level, last.ignored) == ("different", 1)


def test_a_verdict_without_a_comparison_is_not_kept(tmp_path: Path) -> None:
    result = make_result(tmp_path, file("w.npy"))
    verify._keep(msgspec.structs.replace(result, verdict=msgspec.structs.replace(result.verdict, level=None)), complete=False)
    assert not (result.run.directory / "verified").exists()


def test_a_verdict_that_cannot_be_kept_is_still_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = make_result(tmp_path, file("w.npy"))
    (result.run.directory / "verified").write_text("a file")
    verify._keep(result, complete=False)
    assert "note: the verdict was not kept: " in capsys.readouterr().err


def test_accept_writes_each_text_once_and_shows_both_values(tmp_path: Path) -> None:
    log = different_file("a.log", "a.log:took {}s", "m.json:loss")
    result = make_result(tmp_path, different_file("m.json", "m.json:loss"), log, same=False)
    accepted = verify._accept(result)
    assert accepted is not None
    assert (tmp_path / "repro-env.ignore").read_text() == "a.log:took {}s\nm.json:loss\n"
    page = Page(most=10)
    verify._show_accepted(page, accepted)
    assert page.lines == [
        f"accepted  2 lines were written to {tmp_path / 'repro-env.ignore'}; run verify again",
        "  a.log:took {}s  then of a.log:took {}s -> now of a.log:took {}s",
        "  m.json:loss     then of m.json:loss -> now of m.json:loss",
    ]


@pytest.mark.parametrize(
    ("files", "problem", "named"),
    [
        ((different_file("w.npy"),), "", "w.npy: 1 value differs"),
        ((file("", now="x", level="different", by="nothing", why="it was not there then"),), "", "x: it was not there then"),
        ((), "the command ended with exit code 1 and not 0", "the command ended with exit code 1 and not 0"),
    ],
)
def test_accept_writes_nothing_if_a_difference_is_in_no_field(
    tmp_path: Path, files: tuple[File, ...], problem: str, named: str
) -> None:
    result = make_result(tmp_path, different_file("m.json", "m.json:loss"), *files, same=False, problem=problem)
    accepted = verify._accept(result)
    assert accepted is not None
    assert (accepted.refused, accepted.added) == ((named,), ())
    assert not (tmp_path / "repro-env.ignore").exists()


def test_accept_writes_nothing_for_equal_runs(tmp_path: Path) -> None:
    assert verify._accept(make_result(tmp_path / "same", file("w.npy"))) is None
    with pytest.raises(UsageError, match="nothing was compared"):
        verify._accept(msgspec.structs.replace(make_result(tmp_path, file("w.npy"), same=False), project=None))


def test_the_next_command_compares_a_kept_run(tmp_path: Path) -> None:
    result = make_result(tmp_path, file("w.npy"))
    assert verify.next_command(result) == f"show {result.run.short}"
    kept = msgspec.structs.replace(result, directory=tmp_path / "20260702T000000Z-train-9f8e7d6c")
    assert verify.next_command(kept) == f"compare {result.run.short} 9f8e7d6c"
