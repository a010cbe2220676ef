"""Differences that the user accepts, and the texts that accept a difference."""

from __future__ import annotations

import pytest

from repro_env.compare.outputs.evidence import Evidence, pattern
from repro_env.compare.outputs.ignore import Ignore, accept, accept_line, parse
from repro_env.schema.errors import UsageError

PARSED = [
    ("*.log", "*.log", None),
    ("metrics.json:train_runtime", "metrics.json", "train_runtime"),
    ("train.log:took {} s", "train.log", "took {} s"),
    ("train.log:at: {}:{}", "train.log", "at: {}:{}"),
    (r"a\:b.log:took {}s", "a:b.log", "took {}s"),
    (r"a\b.log", r"a\b.log", None),
    ("a\\", "a\\", None),
    ("m.json:*", "m.json", "*"),
]
REFUSED = [
    ("", "the name of the file is missing"),
    ("  ", "the name of the file is missing"),
    (":loss", "the name of the file is missing"),
    ("../a.log", "cannot match a path"),
    ("[z-a].log:loss", "not a valid pattern"),
    ("m.json:", "the key, column or text after the colon is missing"),
    ("m.json: ", "the key, column or text after the colon is missing"),
    ("a.log:{}", "would accept every line"),
    ("a.log:| {}", "would accept every line"),
]
FILES = [
    ("metrics.json", "metrics.json", True),
    ("metrics.json", "out/metrics.json", True),
    ("out", "out/a/metrics.json", True),
    ("out/", "out/a.json", True),
    ("out/*.json", "out/a.json", True),
    ("run[1].json", "run[1].json", True),
    ("out", "deep/out/a.json", True),
    ("out/*.json", "out/deep/a.json", False),
    ("out/**/*.json", "out/deep/a.json", True),
    ("deep/*", "out/deep/a.json", False),
    ("/scratch/*.json", "/scratch/a.json", True),
    ("/scratch/*.json", "scratch/a.json", False),
    ("scratch/*.json", "/scratch/a.json", False),
    ("*.json", "/scratch/a.json", True),
    ("metrics.json", "metrics.jsonl", False),
    ("out", "output/a.json", False),
]
PLACES = [
    ("train_runtime", "train_runtime", True),
    ("train_runtime", "log_history.3.train_runtime", True),
    ("runtime", "train_runtime", False),
    ("train_runtime", "train_runtime.x", False),
    ("*_runtime", "log_history.3.train_runtime", True),
    ("log_history.*.train_runtime", "log_history.3.train_runtime", True),
    ("log_history.train_runtime", "log_history.3.train_runtime", True),
    ("history.3", "log_history.3", False),
    ("eval.time", "eval.time", True),
    ("eval.time", "evalxtime", False),
    ("a[0]", "a[0]", True),
    ("a[0]", "a0", False),
    ("?", "x.y", True),
    ("*", "a.b.c", True),
    ("*", "", True),
    ("loss", "", False),
]
LINES = [
    ("took {} s", "epoch 3 took 12.5 s", "epoch 3 took {} s", ("12.5",)),
    ("took {}s", "it took 12.5s, then took 3s", "it took {}s, then took {}s", ("12.5", "3")),
    ("took {}", "took 12.5s (loss 0.5)", "took {} (loss 0.5)", ("12.5s",)),
    ("{} it/s", "loss 0.5 speed 12.5 it/s", "loss 0.5 speed {} it/s", ("12.5",)),
    ("a{}b{}c", "a1b2c a1 b2c", "a{}b{}c a1 b2c", ("1", "2")),
    ("a{}b {}c", "a1bb 2c", "a{}b {}c", ("1b", "2")),
    ("took {}s", "took  s", "took  s", ()),
    ("took {}s", "took 5 s", "took 5 s", ()),
    ("took", "took 5 s", "took 5 s", ()),
    ("x{}", "xx xy", "x{} x{}", ("x", "y")),
    ("*", "loss 0.5", "{}", ("loss 0.5",)),
]
ACCEPTED = [
    ("metrics.json", "train_runtime", "metrics.json:train_runtime"),
    ("a.json", "log_history.3.train_runtime", "a.json:log_history.*.train_runtime"),
    ("a.json", "0.time", "a.json:*.time"),
    ("a.json", "scores.3", "a.json:scores.3"),
    ("a.json", "3", ""),
    ("a.json", "", ""),
    ("a.json", "a*b", ""),
    ("out/a:b[1].json", "time", r"out/a\:b[[]1].json:time"),
    ("a.json", "a\nb", ""),
    ("a.json", "ghp_" + "a1" * 18, ""),
]
ACCEPTED_LINES = [
    ("took 12.5s", "took 9.1s", ("a.log:took {}s",)),
    ("epoch 3 took=12.5s", "epoch 3 took=12.9s", ("a.log:3 took={}s",)),
    ("took 12.5 s, loss 0.5", "took 9 s, loss 0.5", ("a.log:took {}",)),
    ("a 1 b 2", "a 3 b 4", ("a.log:a {}", "a.log:b {}")),
    ("speed | 12.5it/s", "speed | 9.5it/s", ("a.log:speed | {}it/s",)),
    ("id 3fa12b", "id 99a12b", ("a.log:id {}",)),
    ("run-3fa1/x", "run-3fb2/x", ("a.log:run-{}/x",)),
    ("1.5 s", "2.5 s", ("a.log:{} s",)),
    ("took 00:12:31.", "took 00:13:02.", ("a.log:took {}.",)),
    ("took 5min", "took 7h", ("a.log:took {}",)),
    ("\0a time within the run\0 INFO took 1.5s", "\0a time within the run\0 INFO took 2.5s", ("a.log:took {}s",)),
    ("[\0a time\0] 1.5 s", "[\0a time\0] 2.5 s", ("a.log:] {} s",)),
    ("\0a time\0 1.5", "\0a time\0 2.5", ()),
    ("1.5", "2.5", ()),
    ("| 1.5", "| 2.5", ()),
    ("a b", "a", ()),
    ("took {} 1", "took {} 2", ()),
    ("a 1", "a  2", ()),
    ("key ghp_" + "a1" * 18 + " 1", "key ghp_" + "a1" * 18 + " 2", ()),
]


@pytest.mark.parametrize(("text", "file", "place"), PARSED)
def test_a_text_is_a_file_and_an_optional_place(text: str, file: str, place: str | None) -> None:
    assert parse(text) == Ignore(file, place)
    assert parse(text, "repro-env.ignore").reason == "as repro-env.ignore says"


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_an_incomplete_or_too_general_text_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse(text)


@pytest.mark.parametrize(("file", "path", "expected"), FILES)
def test_a_file_is_a_path_a_name_a_directory_or_a_glob(file: str, path: str, expected: bool) -> None:
    assert parse(file).matches_file(path) is expected


@pytest.mark.parametrize(("place", "key", "expected"), PLACES)
def test_a_place_without_dots_matches_the_last_part_at_any_depth(place: str, key: str, expected: bool) -> None:
    assert parse(f"a.json:{place}").matches_place(key) is expected
    assert not parse("a.json").matches_place(key)


@pytest.mark.parametrize(("pattern", "line", "blank", "values"), LINES)
def test_braces_match_as_few_characters_as_possible_and_no_space(
    pattern: str, line: str, blank: str, values: tuple[str, ...]
) -> None:
    assert parse(f"a.log:{pattern}").blank(line) == (blank, values)


def test_a_line_that_matches_in_many_ways_is_matched_quickly() -> None:
    assert parse("a.log:a{}b{}c{}d").blank("a" * 20_000 + "bc" * 10_000)[1] == ()
    assert not parse("a.json:" + "*a" * 50 + "b").matches_place("a" * 5_000)


def test_very_long_lines_and_words_are_not_matched() -> None:
    ignore = parse("a.log:took {}s")
    assert ignore.blank(f"took {'1' * 200}s")[1] == ("1" * 200,)
    assert ignore.blank(f"took {'1' * 300}s")[1] == ()
    assert ignore.blank("took 1s" + " " * 100_000)[1] == ()


@pytest.mark.parametrize(("file", "place", "text"), ACCEPTED)
def test_a_key_is_accepted_by_its_name(file: str, place: str, text: str) -> None:
    assert accept(pattern(file, Evidence()), place) == text
    if text:
        assert parse(text).matches_file(file)
        assert parse(text).matches_place(place)


@pytest.mark.parametrize(("then", "now", "texts"), ACCEPTED_LINES)
def test_a_line_is_accepted_by_the_words_around_the_difference(then: str, now: str, texts: tuple[str, ...]) -> None:
    assert accept_line("a.log", then, now) == texts
    for text in texts:
        then, now = (parse(text).blank(line)[0] for line in (then, now))
    assert bool(texts) == (then == now)


def test_an_accepted_line_does_not_accept_another_word() -> None:
    (text,) = accept_line("a.log", "epoch 3 took 12.5 s, loss 0.5", "epoch 3 took 9.5 s, loss 0.5")
    blank = parse(text).blank
    assert blank("epoch 3 took 12.5 s, loss 0.5")[0] != blank("epoch 3 took 12.5 s, loss 0.6")[0]
